// Memory without a name that processes share by a file descriptor, and that none of them can cut:
// memory that is cut ends everybody who touches it by SIGBUS. It is gone with the last who has it.
#pragma once

#include <cstdint>

namespace autotune {

// `bytes` zeros whose pages are taken at the first touch; `name` is only what /proc shows. -1 with
// errno.
int create_sealed_memory(const char* name, int64_t bytes);

// True for memory of exactly `bytes` that stays as long as that.
bool is_sealed_memory(int fd, int64_t bytes);

}  // namespace autotune
