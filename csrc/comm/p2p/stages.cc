#include "comm/p2p/stages.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "comm/host_map.h"

namespace autotune {

namespace {

// In quarters of a round.
int cost(const std::vector<int>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 0,
                         [](int sum, int ranks) { return sum + 4 + ranks - 2; });
}

// Adds the stages of `members`, one of which is `rank`, between which every way is the same.
void add_stages(std::vector<ExchangeStage>& stages, const std::vector<int>& members, int rank) {
  const auto own =
      static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  int stride = 1;  // between the places of a group
  for (const int size : stage_sizes(static_cast<int>(members.size()))) {
    ExchangeStage stage;
    stage.place = own / stride % size;
    for (int place = 0; place < size; ++place) {
      stage.ranks.push_back(members[static_cast<size_t>(own + (place - stage.place) * stride)]);
    }
    stages.push_back(std::move(stage));
    stride *= size;
  }
}

}  // namespace

std::vector<int> stage_sizes(int ranks) {
  if (ranks < 2) return {};
  std::vector<int> best{ranks};
  for (int first = 2; first * first <= ranks; ++first) {
    if (ranks % first != 0) continue;
    std::vector<int> sizes = stage_sizes(ranks / first);
    sizes.push_back(first);
    std::sort(sizes.begin(), sizes.end());
    const int difference = cost(sizes) - cost(best);
    if (difference < 0 || (difference == 0 && sizes.size() < best.size())) best = sizes;
  }
  return best;
}

std::vector<ExchangeStage> make_stages(int rank, const std::vector<int>& host_of_rank) {
  const HostMap map(host_of_rank);
  std::vector<ExchangeStage> stages;
  if (map.lanes() == map.most_ranks()) {
    add_stages(stages, map.ranks_of(map.host_of(rank)), rank);
    add_stages(stages, map.ranks_of_lane(map.local_rank(rank)), rank);
  } else {
    std::vector<int> all(host_of_rank.size());
    std::iota(all.begin(), all.end(), 0);
    add_stages(stages, all, rank);
  }
  if (stages.empty()) stages.push_back({{rank}, 0});  // one rank, by itself
  return stages;
}

}  // namespace autotune
