#include "tensorflow/c_api.h"

#include <dlfcn.h>

namespace autotune::tensorflow {

Functions tf;

namespace {

constexpr const char* library_name = "libtensorflow_framework.so.2";

// A function of TensorFlow's that takes a std::function: by its name it is the C++ library's that
// this library is built with.
constexpr const char* taker_of_function = "_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE";

}  // namespace

std::string find_functions() {
  void* const library = ::dlopen(library_name, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return std::string("this process has not loaded ") + library_name;
  const char* missing = nullptr;
#define AUTOTUNE_FIND(result, name, arguments)                              \
  tf.name = reinterpret_cast<result(*) arguments>(::dlsym(library, #name)); \
  if (tf.name == nullptr) missing = #name;
  AUTOTUNE_TENSORFLOW_FUNCTIONS(AUTOTUNE_FIND)
#undef AUTOTUNE_FIND
  if (::dlsym(library, taker_of_function) == nullptr) missing = taker_of_function;
  return missing == nullptr ? "" : std::string(library_name) + " has no " + missing;
}

}  // namespace autotune::tensorflow
