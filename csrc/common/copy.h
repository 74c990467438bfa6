// Copies of tensors' memory on the CPU.
#pragma once

#include <cstdint>

namespace autotune {

// memcpy, at an even speed. Nothing happens for 0 bytes or in place; other memory may not overlap.
void copy_bytes(void* to, const void* from, int64_t bytes);

// The same by stores that go past the caches, where the processor has them: for memory that another
// core reads next, or nobody soon. They are done when it returns.
void stream_bytes(void* to, const void* from, int64_t bytes);

// What is reduced in one call of at least so many bytes has left the caches before anybody reads
// its results.
constexpr int64_t long_call_bytes = int64_t{32} << 20;

}  // namespace autotune
