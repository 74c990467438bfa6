// Shared memory of the ranks of one host: a mapped segment and a barrier in it.
//
// The segment is a POSIX shared memory object that is reserved (posix_fallocate: a full /dev/shm is
// an error here, not a SIGBUS later) and has no name any more once all ranks have mapped it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace autotune {

class Segment {
 public:
  // Create a zeroed segment / map the one that another rank created. Throw EngineError.
  static std::unique_ptr<Segment> create(int64_t bytes);
  static std::unique_ptr<Segment> attach(const std::string& name, int64_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const std::string& name() const { return name_; }
  char* data() const { return data_; }
  // Remove the name; mapped memory stays.
  void unlink();

 private:
  Segment(std::string name, char* data, int64_t bytes, bool linked)
      : name_(std::move(name)), data_(data), bytes_(bytes), linked_(linked) {}

  std::string name_;
  char* data_;
  int64_t bytes_;
  bool linked_;
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
