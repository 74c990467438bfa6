#include "engine/operation/process_set.h"

#include <algorithm>
#include <numeric>

#include "common/types.h"

namespace autotune {

int ProcessSet::position(int rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
}

std::string to_string(const ProcessSet& set) {
  return to_string(Shape(set.ranks.begin(), set.ranks.end()));
}

ProcessSetTable::ProcessSetTable(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  add(0, std::move(ranks));
}

const ProcessSet* ProcessSetTable::find(int32_t id) const {
  if (id == 0) return &global();
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : &found->second;
}

int32_t ProcessSetTable::id_of(const std::vector<int>& ranks) const {
  for (const auto& [id, set] : sets_) {
    if (set.ranks == ranks) return id;
  }
  return -1;
}

}  // namespace autotune
