#include "common/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace autotune {

namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

int create_sealed_memory(const char* name, int64_t bytes) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (::ftruncate(fd, bytes) == 0 && ::fcntl(fd, F_ADD_SEALS, seals) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

bool is_sealed_memory(int fd, int64_t bytes) {
  struct stat status;
  const int found = ::fcntl(fd, F_GET_SEALS);
  return found >= 0 && (found & seals) == seals && ::fstat(fd, &status) == 0 &&
         status.st_size == bytes;
}

}  // namespace autotune
