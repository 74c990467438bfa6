#include "engine/execute/checked_elements.h"

namespace autotune {

std::vector<ElementRange> checked_ranges(int64_t count, int64_t most) {
  if (count <= 0) return {};
  if (count <= most * checked_range_elements) return {{0, count}};
  const int64_t last = count - checked_range_elements;  // where the last range begins
  std::vector<ElementRange> ranges;
  ranges.reserve(static_cast<size_t>(most));
  for (int64_t i = 0; i < most; ++i) {
    // last * i would overflow for tensors beyond 2^57 elements only.
    ranges.push_back({last * i / (most - 1), checked_range_elements});
  }
  return ranges;
}

int64_t total_count(const std::vector<ElementRange>& ranges) {
  int64_t total = 0;
  for (const ElementRange& range : ranges) total += range.count;
  return total;
}

}  // namespace autotune
