#include "comm/host_map.h"

#include <algorithm>
#include <utility>

namespace autotune {

HostMap::HostMap(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of_rank_[rank]);
    if (ranks_of_host_.size() <= host) ranks_of_host_.resize(host + 1);
    ranks_of_host_[host].push_back(static_cast<int>(rank));
  }
}

int HostMap::local_rank(int rank) const {
  const std::vector<int>& ranks = ranks_of(host_of(rank));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

int HostMap::lanes() const {
  size_t fewest = host_of_rank_.size();
  for (const auto& ranks : ranks_of_host_) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

int HostMap::most_ranks() const {
  size_t most = 0;
  for (const auto& ranks : ranks_of_host_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

std::vector<int> HostMap::ranks_of_lane(int lane) const {
  std::vector<int> ranks;
  for (const auto& local : ranks_of_host_) ranks.push_back(local[static_cast<size_t>(lane)]);
  return ranks;
}

}  // namespace autotune
