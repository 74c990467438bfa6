#include "nccl_tuner/choice.h"

#include <algorithm>

#include "nccl_tuner/nccl_abi.h"

namespace autotune {

namespace {

// The cheapest entry that the choice allows; nullptr: none.
float* cheapest(const AutotuneNcclChoice& choice, float* costs, int algorithms, int protocols) {
  float* best = nullptr;
  for (int a = 0; a < algorithms; ++a) {
    if (choice.algorithm != 0 && choice.algorithm != a + 1) continue;
    for (int p = 0; p < protocols; ++p) {
      if (choice.protocol != 0 && choice.protocol != p + 1) continue;
      float* const cost = costs + static_cast<ptrdiff_t>(a) * protocols + p;
      if (*cost < 0) continue;  // it cannot be had
      if (best == nullptr || *cost < *best) best = cost;
    }
  }
  return best;
}

}  // namespace

bool apply(const AutotuneNcclChoice& choice, size_t bytes, int together, float* costs,
           int algorithms, int protocols, int* channels) {
  if (static_cast<int64_t>(bytes) < choice.least_bytes) return false;
  bool told = false;
  if (choice.algorithm != 0 || choice.protocol != 0) {
    float* const best = cheapest(choice, costs, algorithms, protocols);
    if (best != nullptr) {
      *best = 0;
      told = true;
    }
  }
  if (choice.channels > 0) {
    // NCCL gives each operation of a group channels of its own, so their limits add up.
    *channels = std::max(1, choice.channels / std::max(1, together));
    told = true;
  }
  return told;
}

}  // namespace autotune
