// The fusion buffer of a GPU. It grows when the ranks of a process set agree that all of them have
// the memory, and goes back when another fusion threshold comes into force.
//
// All ranks have to make the same calls, so none may find alone that it has too little: a buffer
// that is larger than what was granted to the process set is asked for by all of its ranks, and
// granted as large as the one that got the least. The grants of all process sets that this rank is
// in fit into what it has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "comm/device.h"

namespace autotune {

class DeviceBuffer {
 public:
  // Every rank has that much, without asking others: what cannot be had is an EngineError.
  static constexpr int64_t least_bytes = 1 << 20;

  // All outlive this; `memory` may be shared.
  DeviceBuffer(Allocator& memory, const Device& device) : memory_(memory), device_(device) {}

  // How much of `bytes` the buffer may have; collective over the ranks of `plain` (nullptr: there
  // is one), which have made the same calls. `most_bytes`: it is of no use to grow beyond it, but
  // for `bytes`.
  int64_t grant(int32_t process_set, int64_t bytes, int64_t most_bytes, Communicator* plain,
                const WaitHook& on_wait);
  // For what was granted.
  char* data(int64_t bytes, const WaitHook& on_wait);

  // On all ranks alike, between two responses: nothing is granted any more.
  void reset();
  void release() { small_ = large_ = {}; }
  void remove_set(int32_t process_set) { granted_.erase(process_set); }

  // Since the last call: what could not be had, "" for nothing. The same on all ranks of the set.
  std::string take_shortage() { return std::exchange(shortage_, {}); }

 private:
  struct Piece {
    DeviceMemory memory;
    int64_t bytes = 0;
  };
  struct Grant {
    int64_t bytes = least_bytes;
    bool is_all = false;  // there is no more to be had
  };

  int64_t grow(int64_t bytes, int64_t needed, const WaitHook& on_wait);

  Allocator& memory_;
  const Device& device_;
  Piece small_;  // it has least_bytes, where they are needed and there is no other
  Piece large_;
  std::map<int32_t, Grant> granted_;  // each process set has its own
  std::string shortage_;
};

}  // namespace autotune
