#include "control/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "common/errors.h"
#include "common/sealed_memory.h"

namespace autotune {

namespace {

constexpr int64_t pair_bytes = 2 * sizeof(Ring);

// Of the bytes written and consumed since the start, those still in the ring. The other process
// may have written anything there: what no ring holds is not believed.
size_t bytes_between(uint64_t consumed, uint64_t written) {
  const uint64_t count = written - consumed;
  if (count <= Ring::capacity) return static_cast<size_t>(count);
  throw EngineError("control connection: a ring of " + std::to_string(Ring::capacity) +
                    " bytes is said to hold " + std::to_string(count));
}

}  // namespace

int RingPair::create() { return create_sealed_memory("hvd-autotune-control", pair_bytes); }

std::unique_ptr<RingPair> RingPair::map(int fd, bool is_first) {
  if (!is_sealed_memory(fd, pair_bytes)) return nullptr;
  // A new file is all zeros: two empty rings.
  void* memory =
      ::mmap(nullptr, pair_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<RingPair>(new RingPair(static_cast<Ring*>(memory), is_first));
}

RingPair::~RingPair() { ::munmap(rings_, pair_bytes); }

size_t RingPair::write(const char* bytes, size_t count) {
  const uint64_t at = out_->written.load(std::memory_order_relaxed);
  const auto room = [&] { return Ring::capacity - bytes_between(out_->consumed.load(), at); };
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
  const size_t count = bytes_between(at, in_->written.load());
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
