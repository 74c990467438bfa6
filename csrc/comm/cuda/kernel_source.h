// The program that the GPU runs, as text; see kernels.h.
#pragma once

namespace autotune {

extern const char* const copy_kernel_source;

}  // namespace autotune
