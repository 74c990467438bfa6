// The process sets of a job: which ranks belong to which id. Set 0 is all ranks and cannot be
// removed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace autotune {

struct ProcessSet {
  std::vector<int> ranks;  // they are global and sorted

  int size() const { return static_cast<int>(ranks.size()); }
  // Place of a global rank in the set, or -1.
  int position(int rank) const;
  bool contains(int rank) const { return position(rank) >= 0; }
};

std::string to_string(const ProcessSet& set);  // "[0, 2]"

class ProcessSetTable {
 public:
  explicit ProcessSetTable(int size);

  const ProcessSet& global() const { return sets_.begin()->second; }
  // nullptr when there is none.
  const ProcessSet* find(int32_t id) const;
  // Id of the set of exactly these (sorted) ranks, or -1.
  int32_t id_of(const std::vector<int>& ranks) const;
  void add(int32_t id, std::vector<int> ranks) { sets_[id] = {std::move(ranks)}; }
  void remove(int32_t id) { sets_.erase(id); }
  const std::map<int32_t, ProcessSet>& all() const { return sets_; }

 private:
  std::map<int32_t, ProcessSet> sets_;  // 0 is the smallest id and always there
};

}  // namespace autotune
