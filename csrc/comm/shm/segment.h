// Shared memory of the ranks of one host: a mapped segment and a barrier in it.
//
// The segment is anonymous, sealed memory (common/sealed_memory.h): it has no name that another
// user could take or that a killed job could leave behind, and counts as memory of the processes,
// not of /dev/shm. The other ranks find it through /proc, where only the same user may look. Each
// rank reserves the part that it writes: its pages are then on its own NUMA node, and memory that
// cannot be had is an error there, not a SIGBUS later.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace autotune {

class Segment {
 public:
  // Where the other processes of a host find the memory, and how they know that it is the right
  // one: process ids mean others in a container of its own.
  struct Place {
    int64_t process;
    int64_t fd;
    uint64_t device;
    uint64_t inode;
  };

  // Create a zeroed segment / map the one that another rank created. Throw EngineError.
  static std::unique_ptr<Segment> create(int64_t bytes);
  static std::unique_ptr<Segment> attach(const Place& place, int64_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Until `close`.
  Place place() const;
  char* data() const { return data_; }
  // Take the pages of [begin, end), where this process runs. Throws EngineError.
  void reserve(int64_t begin, int64_t end);
  // Bytes whose pages are taken, by any process. Until `close`.
  int64_t reserved_bytes() const;
  // Nobody finds it from now on; mapped memory stays.
  void close();

 private:
  Segment(int fd, int64_t bytes);

  int fd_;
  int64_t bytes_;
  char* data_;
};

// One rank's place in a barrier; alone on its cache lines.
struct alignas(128) BarrierSlot {
  std::atomic<uint32_t> arrivals;
  std::atomic<uint32_t> sleepers;
};

// A barrier over slots in shared memory. Waiting threads look for some microseconds, offer their
// core to others, then sleep in the kernel until the late rank wakes them.
class Barrier {
 public:
  Barrier(BarrierSlot* slots, int rank, int size) : slots_(slots), rank_(rank), size_(size) {}

  // `on_wait` is called about every millisecond of waiting and may throw.
  void wait(const WaitHook& on_wait);

 private:
  void wait_for(BarrierSlot& slot, uint32_t round, const WaitHook& on_wait);

  BarrierSlot* slots_;
  int rank_;
  int size_;
  uint32_t round_ = 0;
};

}  // namespace autotune
