#include "comm/shm/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/fork.h"
#include "common/sealed_memory.h"

namespace autotune {

namespace {

[[noreturn]] void fail(const char* call, int64_t bytes, int error) {
  throw EngineError(std::string(call) + " of " + std::to_string(bytes) +
                    " bytes of shared memory failed: " + std::strerror(error) +
                    "; look at the job's limits of memory and of open files");
}

bool is_at(const struct stat& status, const Segment::Place& place) {
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
         status.st_dev == static_cast<dev_t>(place.device) &&
         status.st_ino == static_cast<ino_t>(place.inode);
}

// A number of another rank's may mean any file here: none is opened before it was looked at.
int open_at(const Segment::Place& place, int64_t bytes) {
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.fd);
  const std::string advice = "; ranks of one host have to see each other's processes";
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    throw EngineError("shared memory of another rank: " + path + ": " + std::strerror(errno) +
                      advice);
  }
  const int fd = is_at(status, place) ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  if (fd >= 0 && ::fstat(fd, &status) == 0 && is_at(status, place) && is_sealed_memory(fd, bytes)) {
    return fd;
  }
  if (fd >= 0) ::close(fd);
  throw EngineError("shared memory of another rank: " + path + " is something else" + advice);
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
  const int fd = create_sealed_memory("hvd-autotune", bytes);
  if (fd < 0) fail("memfd_create", bytes, errno);
  return std::unique_ptr<Segment>(new Segment(fd, bytes));
}

std::unique_ptr<Segment> Segment::attach(const Place& place, int64_t bytes) {
  return std::unique_ptr<Segment>(new Segment(open_at(place, bytes), bytes));
}

Segment::Segment(int fd, int64_t bytes) : fd_(fd), bytes_(bytes) {
  void* data =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    fail("mmap", bytes, error);
  }
  data_ = static_cast<char*>(data);
  drop_in_children(fd_);
}

Segment::~Segment() {
  close();
  ::munmap(data_, static_cast<size_t>(bytes_));
}

Segment::Place Segment::place() const {
  struct stat status{};
  ::fstat(fd_, &status);
  return {::getpid(), fd_, status.st_dev, status.st_ino};
}

void Segment::reserve(int64_t begin, int64_t end) {
  int error = 0;
  do {
    error = ::fallocate(fd_, 0, begin, end - begin) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) fail("fallocate", end - begin, error);
}

int64_t Segment::reserved_bytes() const {
  struct stat status{};
  ::fstat(fd_, &status);
  return static_cast<int64_t>(status.st_blocks) * 512;
}

void Segment::close() { close_dropped(std::exchange(fd_, -1)); }

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
