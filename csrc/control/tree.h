// Who reports to whom: a tree over all ranks with rank 0, the coordinator, at the top.
//
// In a *star* every rank reports to rank 0. That costs rank 0 a message of every rank in every
// cycle, and is the fastest for few. With more, some ranks speak for others: an *inner* rank has
// *children*; what its *branch* (it and all below it) has to say goes up in one message
// (engine/negotiation/relay.h), and what comes from above is passed on to its children
// (control.h). A parent's number is lower than its children's.
//
// Hosts: the first rank of a host is its *leader*; the others of the host are below it, so that one
// connection leaves a host for each that it speaks to. Leaders are a tree, and so are the ranks of
// a host; in either, up to `fan-out` report to one, level by level.
//
// The fan-out is what makes the estimate below the least (experiments/negotiation measures its
// constants and plays every message): n others reach the top over d levels,
//
//   within a host      d (k b + h)           d: the least with k + k^2 + ... + k^d >= n
//   between hosts      d ((k + 1) b' + 2 L)
//
// k: fan-out; b, b': handle a message of a rank of this host, of another one; h: one more rank on
// the way within a host, assumed; L: a hop between hosts, assumed.
//
// Few ranks stay a star, which is measured: all of up to 16, those of a host of up to 32.
#pragma once

#include <cstddef>
#include <vector>

namespace autotune {

class Tree {
 public:
  // Up to so many ranks are a star; up to so many of one host are one below their leader.
  static constexpr int most_of_star = 16;
  static constexpr int most_of_star_on_host = 32;

  static Tree star(int size);
  // `hosts`: number of each rank's host. `fan_out`: of every inner rank; 0: by the estimate.
  static Tree of_hosts(const std::vector<int>& hosts, int fan_out = 0);
  // Of each rank its parent; that of rank 0 is -1, that of another one a lower rank.
  explicit Tree(std::vector<int> parents);

  int size() const { return static_cast<int>(parents_.size()); }
  const std::vector<int>& parents() const { return parents_; }
  int parent(int rank) const { return parents_[static_cast<size_t>(rank)]; }
  const std::vector<int>& children(int rank) const { return children_[static_cast<size_t>(rank)]; }
  bool is_leaf(int rank) const { return children(rank).empty(); }
  // No other rank than the top has children.
  bool is_star() const;
  // Levels below `rank`.
  int height(int rank) const;
  // Whether `rank` is `top` or below it.
  bool is_in_branch(int rank, int top) const;
  // `top` and all below it, ascending.
  std::vector<int> branch(int top) const;

 private:
  std::vector<int> parents_;
  std::vector<std::vector<int>> children_;
};

// How many of `others` report to one within a host, and of leaders of `others` hosts, by the
// estimate; at least 1.
int fan_out_within_host(int others);
int fan_out_between_hosts(int others);

}  // namespace autotune
