// Which elements of a tensor are looked at when a result is checked: so few that the check needs
// next to no memory, and so spread that what usually goes wrong meets some of them. An offset or a
// length that is off by one moves the first or the last element; a wrong factor or type spoils all;
// a shard, a rank's or a host's, that is left out or taken twice is longer than the gaps between
// ranges, as long as there are fewer shards than ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace autotune {

// The elements [first, first + count) of a tensor.
struct ElementRange {
  int64_t first;
  int64_t count;
};

// Of one tensor, 16,384 elements are looked at, at most.
constexpr int64_t most_checked_ranges = 64;
constexpr int64_t checked_range_elements = 256;

// Ranges of a tensor of `count` elements, in order, without overlap, at most `most` (two or more):
// all of it where that is enough; else of equal length, evenly spread, the first one at its
// beginning and the last one at its end.
std::vector<ElementRange> checked_ranges(int64_t count, int64_t most = most_checked_ranges);

// Elements of all ranges together.
int64_t total_count(const std::vector<ElementRange>& ranges);

}  // namespace autotune
