// Copies between many pieces of GPU memory in one launch, compiled at run time for the GPU at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/cuda/driver.h"
#include "comm/device.h"

namespace autotune {

class CopyKernels {
 public:
  // Compiles; takes some tenths of a second. `device`: the driver's handle, its context is current.
  // `nvrtc`: path of the compiler's library, or empty.
  CopyKernels(const CudaDriver& driver, int device, const std::string& nvrtc);

  // Put the copies into `stream`.
  void run(const std::vector<DeviceCopy>& copies, void* stream);

 private:
  struct Kernel {
    size_t most_chunks;
    void* function;
  };

  void launch(void* stream);

  const CudaDriver& driver_;
  std::vector<Kernel> kernels_;  // they are ordered by the length of the table that they take
  int64_t blocks_;               // so many keep the whole GPU busy
  std::vector<char> table_;      // it holds the chunks of the launch in preparation
  size_t chunks_ = 0;
};

// What to compile for.
struct KernelTarget {
  int architecture = 0;  // it is 90 for compute capability 9.0
  // Where it is false, the driver translates the program for its GPU, which is newer.
  bool is_machine_code = true;
};
// `known`: to the compiler.
KernelTarget kernel_target(int major, int minor, const std::vector<int>& known);

// The compiled program for compute capability `major`.`minor`, e.g. 9.0; `nvrtc` as above. Sets the
// compiler's version, e.g. 13000. Needs no GPU. Throws EngineError.
std::string compile_copy_kernels(int major, int minor, const std::string& nvrtc, int& version);

}  // namespace autotune
