#include "comm/shm/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/errors.h"

namespace autotune {

namespace {

[[noreturn]] void fail(const char* call, const std::string& name, int error) {
  throw EngineError(std::string(call) + " of shared memory " + name +
                    " failed: " + std::strerror(error));
}

char* map(int fd, const std::string& name, int64_t bytes) {
  void* data =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) fail("mmap", name, error);
  return static_cast<char*>(data);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, const timespec& limit) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
}

}  // namespace

std::unique_ptr<Segment> Segment::create(int64_t bytes) {
  static std::atomic<int> counter{0};
  const std::string name =
      "/hvd-autotune-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail("shm_open", name, errno);
  if (const int error = ::posix_fallocate(fd, 0, bytes)) {
    ::close(fd);
    ::shm_unlink(name.c_str());
    fail("posix_fallocate", name, error);
  }
  return std::unique_ptr<Segment>(new Segment(name, map(fd, name, bytes), bytes, true));
}

std::unique_ptr<Segment> Segment::attach(const std::string& name, int64_t bytes) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) fail("shm_open", name, errno);
  return std::unique_ptr<Segment>(new Segment(name, map(fd, name, bytes), bytes, false));
}

Segment::~Segment() {
  unlink();
  ::munmap(data_, static_cast<size_t>(bytes_));
}

void Segment::unlink() {
  if (linked_) ::shm_unlink(name_.c_str());
  linked_ = false;
}

void Barrier::wait(const WaitHook& on_wait) {
  ++round_;
  BarrierSlot& own = slots_[rank_];
  own.arrivals.store(round_);  // sequentially consistent: before the look at `sleepers`
  if (own.sleepers.load() != 0) futex_wake_all(own.arrivals);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) wait_for(slots_[peer], round_, on_wait);
  }
}

void Barrier::wait_for(BarrierSlot& slot, uint32_t round, const WaitHook& on_wait) {
  // Rounds wrap around: compare by distance.
  const auto arrived = [&] {
    return static_cast<int32_t>(slot.arrivals.load(std::memory_order_acquire) - round) >= 0;
  };
  constexpr int spins = 500, yields = 200;
  for (int i = 0; i < spins; ++i) {
    if (arrived()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  for (int i = 0; i < yields; ++i) {
    if (arrived()) return;
    sched_yield();
  }
  const timespec limit{0, 1'000'000};
  while (!arrived()) {
    slot.sleepers.fetch_add(1);
    const uint32_t seen = slot.arrivals.load();
    if (static_cast<int32_t>(seen - round) < 0) futex_wait(slot.arrivals, seen, limit);
    slot.sleepers.fetch_sub(1);
    if (!arrived()) on_wait();
  }
}

}  // namespace autotune
