// The library as TensorFlow loads it (tf.load_op_library): its operations are those that appear
// while it is loaded, so they are defined by a function that the loader calls. What goes wrong
// there is asked for later.

#include <string>

#include "bindings/abi.h"
#include "tensorflow/c_api.h"
#include "tensorflow/definitions.h"
#include "tensorflow/done.h"
#include "tensorflow/kernels.h"

namespace autotune::tensorflow {

namespace {

std::string load() {
  for (std::string (*step)() : {find_functions, test_done, define_all, register_all}) {
    const std::string problem = step();
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string& problem() {
  static auto* const text = new std::string;
  return *text;
}

__attribute__((constructor)) void on_load() { problem() = load(); }

}  // namespace

}  // namespace autotune::tensorflow

extern "C" {

// Why this library and the TensorFlow that loaded it do not fit; "": they do.
const char* horovod_tensorflow_problem() { return autotune::tensorflow::problem().c_str(); }

// Returns 0 for a table of another version.
int horovod_tensorflow_attach(const autotune_api* api) {
  if (api->version != AUTOTUNE_ABI_VERSION) return 0;
  autotune::tensorflow::attach(api);
  return 1;
}

int horovod_tensorflow_gpu_kernels() { return autotune::tensorflow::gpu_kernels(); }
}
