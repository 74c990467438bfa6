// The choices that NCCL's tuner library (csrc/nccl_tuner) is told by the engine: which algorithm,
// protocol and number of channels the operations of the engine's communicators use.
//
// They change where the parameters do: between the same two operations on all ranks. A communicator
// is of those only if the library serves it on every one of its ranks.
#pragma once

#include <cstdint>
#include <string>

#include "common/types.h"
#include "nccl_tuner/tuner.h"

namespace autotune {

class NcclTuner {
 public:
  // Operations of fewer bytes are NCCL's own choice: they wait for latency, not for bandwidth.
  static constexpr int64_t least_bytes = 1 << 20;

  // `path`: of the library that NCCL was told to load; where it is empty or cannot be loaded,
  // nothing here does anything.
  explicit NcclTuner(const std::string& path);

  // Around the making of a communicator; the second returns its number, 0: the library does not
  // serve it.
  uint64_t begin() const { return begin_ == nullptr ? 0 : begin_(); }
  uint64_t end(uint64_t begun) const { return end_ == nullptr ? 0 : end_(begun); }
  // From now on its operations follow the parameters. The same on all of its ranks.
  void follow(uint64_t number) const;
  // So many operations come next, as one group.
  void announce(uint64_t number, int operations) const;
  // The parameters that are in force from now on. Called by the thread that performs operations.
  void choose(const Params& params);
  // Another number for each choice: under another one, NCCL may have to connect ranks anew.
  uint64_t current(uint64_t number) const { return number == 0 ? 0 : current_; }

 private:
  decltype(&autotune_nccl_begin) begin_ = nullptr;
  decltype(&autotune_nccl_end) end_ = nullptr;
  decltype(&autotune_nccl_follow) follow_ = nullptr;
  decltype(&autotune_nccl_group) group_ = nullptr;
  decltype(&autotune_nccl_choose) choose_ = nullptr;
  uint64_t current_ = 0;
};

}  // namespace autotune
