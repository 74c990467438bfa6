// A process set that this rank is in, as the executors see it.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/choose.h"
#include "comm/communicator.h"

namespace autotune {

struct Members {
  std::vector<int> ranks;  // they are global
  Communicators communicators;
  WaitHook on_wait;

  Communicator& select(bool hierarchical) const {
    return hierarchical && communicators.hierarchical ? *communicators.hierarchical
                                                      : *communicators.flat;
  }
  int place_of(int rank) const {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
};

}  // namespace autotune
