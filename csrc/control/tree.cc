#include "control/tree.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace autotune {

namespace {

// Microseconds, of processes (experiments/negotiation/tree.py has the same).
constexpr double near_message = 3.4;
constexpr double far_message = 5.8;
constexpr double near_hop = 15.0;
constexpr double far_hop = 25.0;

// So many levels below the top hold `others`, where `fan_out` report to one.
int levels(int others, int fan_out) {
  int found = 0;
  for (int64_t level = 1, reached = 0; reached < others; ++found) {
    level *= fan_out;
    reached += level;
  }
  return found;
}

// The least fan-out with the least estimate; a level takes `each * fan_out + once`.
int best_fan_out(int others, double each, double once) {
  int best = 1;
  double least = 0;
  for (int fan_out = 1; fan_out <= std::max(others, 1); ++fan_out) {
    const double time = levels(others, fan_out) * (each * fan_out + once);
    if (fan_out > 1 && time >= least) continue;
    best = fan_out;
    least = time;
  }
  return best;
}

// The ranks below the first one, level by level.
void hang(const std::vector<int>& ranks, int fan_out, std::vector<int>& parents) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    parents[static_cast<size_t>(ranks[i])] = ranks[(i - 1) / static_cast<size_t>(fan_out)];
  }
}

}  // namespace

int fan_out_within_host(int others) {
  if (others < Tree::most_of_star_on_host) return std::max(others, 1);
  return best_fan_out(others, near_message, near_hop);
}

int fan_out_between_hosts(int others) {
  return best_fan_out(others, far_message, far_message + 2 * far_hop);
}

Tree Tree::star(int size) {
  std::vector<int> parents(static_cast<size_t>(size), 0);
  parents[0] = -1;
  return Tree(std::move(parents));
}

Tree Tree::of_hosts(const std::vector<int>& hosts, int fan_out) {
  const auto size = static_cast<int>(hosts.size());
  if (fan_out == 0 && size <= most_of_star) return star(size);
  std::map<int, size_t> place_of_host;
  std::vector<std::vector<int>> ranks_of_host;  // in the order of their leaders
  std::vector<int> leaders;
  for (int rank = 0; rank < size; ++rank) {
    const auto [found, is_new] =
        place_of_host.emplace(hosts[static_cast<size_t>(rank)], ranks_of_host.size());
    if (is_new) {
      ranks_of_host.emplace_back();
      leaders.push_back(rank);
    }
    ranks_of_host[found->second].push_back(rank);
  }
  std::vector<int> parents(hosts.size(), -1);
  const auto other_hosts = static_cast<int>(leaders.size()) - 1;
  hang(leaders, fan_out > 0 ? fan_out : fan_out_between_hosts(other_hosts), parents);
  for (const std::vector<int>& ranks : ranks_of_host) {
    const auto others = static_cast<int>(ranks.size()) - 1;
    hang(ranks, fan_out > 0 ? fan_out : fan_out_within_host(others), parents);
  }
  return Tree(std::move(parents));
}

Tree::Tree(std::vector<int> parents) : parents_(std::move(parents)), children_(parents_.size()) {
  for (int rank = 0; rank < size(); ++rank) {
    const int above = parent(rank);
    if (rank == 0 ? above != -1 : above < 0 || above >= rank) {
      throw std::invalid_argument("expected a parent below rank " + std::to_string(rank) +
                                  ", got " + std::to_string(above));
    }
    if (rank > 0) children_[static_cast<size_t>(above)].push_back(rank);
  }
}

bool Tree::is_star() const {
  return children_.empty() || children_[0].size() + 1 == children_.size();
}

int Tree::height(int rank) const {
  int found = 0;
  for (const int child : children(rank)) found = std::max(found, 1 + height(child));
  return found;
}

bool Tree::is_in_branch(int rank, int top) const {
  while (rank > top) rank = parent(rank);
  return rank == top;
}

std::vector<int> Tree::branch(int top) const {
  std::vector<int> ranks{top};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<int>& below = children(ranks[i]);
    ranks.insert(ranks.end(), below.begin(), below.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace autotune
