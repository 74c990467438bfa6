// What a choice does to what NCCL offers for one operation.
#pragma once

#include <cstddef>

#include "nccl_tuner/tuner.h"

namespace autotune {

constexpr AutotuneNcclChoice own_choice{0, 0, 0, 0, 0};

// `costs` as in nccl_abi.h. Makes the cheapest entry that the choice allows the cheapest of all;
// where it allows none, all stay as they are. `together`: operations of the group. Returns whether
// NCCL was told something.
bool apply(const AutotuneNcclChoice& choice, size_t bytes, int together, float* costs,
           int algorithms, int protocols, int* channels);

}  // namespace autotune
