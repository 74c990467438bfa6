// What the operations do: hand tensors to the engine, and say that they are done when it says so.
#pragma once

#include <string>

#include "bindings/abi.h"

namespace autotune::tensorflow {

// Tells TensorFlow of the kernels, for CPUs and for GPUs, whose tensors it brings to the host and
// back. Returns what it says against one, "" for nothing.
std::string register_all();

// From now on kernels enqueue through `api`.
void attach(const autotune_api* api);

// Kernels of tensors on GPUs that were made so far.
int gpu_kernels();

}  // namespace autotune::tensorflow
