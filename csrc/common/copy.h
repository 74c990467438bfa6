// Copies of tensors' memory on the CPU.
#pragma once

#include <cstdint>

namespace autotune {

// memcpy, at an even speed. Nothing happens for 0 bytes or in place; other memory may not overlap.
void copy_bytes(void* to, const void* from, int64_t bytes);

// The same by stores that go past the caches, where the processor has them: for memory that another
// core reads next. They are done when it returns.
void stream_bytes(void* to, const void* from, int64_t bytes);

}  // namespace autotune
