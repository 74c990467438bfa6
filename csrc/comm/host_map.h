// Which ranks share a host.
#pragma once

#include <cstddef>
#include <vector>

namespace autotune {

// Which rank is where. `host_of_rank[r]` is a host number from 0 to hosts - 1, every host has a
// rank.
class HostMap {
 public:
  explicit HostMap(std::vector<int> host_of_rank);

  int hosts() const { return static_cast<int>(ranks_of_host_.size()); }
  int host_of(int rank) const { return host_of_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const {
    return ranks_of_host_[static_cast<size_t>(host)];
  }
  int local_rank(int rank) const;
  // Ranks of the smallest host.
  int lanes() const;
  // Ranks of the largest host.
  int most_ranks() const;
  // The ranks with local rank `lane`, by host.
  std::vector<int> ranks_of_lane(int lane) const;

 private:
  std::vector<int> host_of_rank_;
  std::vector<std::vector<int>> ranks_of_host_;
};

}  // namespace autotune
