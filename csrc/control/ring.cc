#include "control/ring.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace autotune {

namespace {

constexpr size_t pair_bytes = 2 * sizeof(Ring);

}  // namespace

int RingPair::create() {
  const int fd = ::memfd_create("hvd-autotune-control", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (::ftruncate(fd, static_cast<off_t>(pair_bytes)) == 0) return fd;
  ::close(fd);
  return -1;
}

std::unique_ptr<RingPair> RingPair::map(int fd, bool is_first) {
  struct stat status;
  if (::fstat(fd, &status) != 0 || status.st_size != static_cast<off_t>(pair_bytes)) return nullptr;
  // A new file is all zeros: two empty rings.
  void* memory =
      ::mmap(nullptr, pair_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<RingPair>(new RingPair(static_cast<Ring*>(memory), is_first));
}

RingPair::~RingPair() { ::munmap(rings_, pair_bytes); }

size_t RingPair::write(const char* bytes, size_t count) {
  const uint64_t at = out_->written.load(std::memory_order_relaxed);
  const auto room = [&] {
    return Ring::capacity - static_cast<size_t>(at - out_->consumed.load());
  };
  if (room() < count) out_->blocked.store(1);  // before the last look at the room
  count = std::min(count, room());
  const size_t begin = at % Ring::capacity;
  const size_t until_end = std::min(count, Ring::capacity - begin);
  std::memcpy(out_->bytes + begin, bytes, until_end);
  std::memcpy(out_->bytes, bytes + until_end, count - until_end);
  out_->written.store(at + count);
  return count;
}

bool RingPair::read(std::string& to) {
  const uint64_t at = in_->consumed.load(std::memory_order_relaxed);
  const auto count = static_cast<size_t>(in_->written.load() - at);
  if (count == 0) return false;
  const size_t begin = at % Ring::capacity;
  const size_t until_end = std::min(count, Ring::capacity - begin);
  to.append(in_->bytes + begin, until_end);
  to.append(in_->bytes, count - until_end);
  in_->consumed.store(at + count);
  return in_->blocked.load() != 0 && in_->blocked.exchange(0) != 0;
}

bool RingPair::has_unread() const {
  return in_->written.load() != in_->consumed.load(std::memory_order_relaxed);
}

// `written` was stored, and is now followed by a look at `sleepers`; the reader does the two the
// other way round. All are sequentially consistent, so one of both sees the other.
bool RingPair::peer_sleeps() { return out_->sleepers.load() != 0; }

}  // namespace autotune
