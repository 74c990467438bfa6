// Collectives in two levels: fast among the ranks of a host, few bytes between hosts.
//
//   allreduce   local reduce-scatter: *lane* j (local rank j) gets slice j summed over its host;
//               cross allreduce of the slice among the lanes j of all hosts; local allgather of the
//               slices
//   allgather   local allgather; the lanes 0 exchange what their hosts have; local broadcast
//
// M bytes, H hosts: an allreduce sends 2 (H-1)/H M bytes out of each host, however many ranks it
// has; the flat algorithm sends up to local_size times as much. Hosts may have different numbers of
// ranks: there are as many lanes as the smallest host has ranks, and the other ranks take part
// locally.
//
// Sums are taken over a host first: float results may differ from the flat backends' in the last
// bits. Sums of halves are rounded to halves between the levels. So an average of halves is divided
// by the ranks of the largest host there: none of its partial results exceeds its inputs.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "common/message_memory.h"

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

class HierarchicalCommunicator final : public Communicator {
 public:
  // `local`: the ranks of this host in rank order; `cross`: this rank's lane by host, nullptr for a
  // rank beyond the lanes.
  HierarchicalCommunicator(HostMap map, int rank, std::unique_ptr<Communicator> local,
                           std::unique_ptr<Communicator> cross);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Backend backend() const override { return Backend::several; }
  void observe(ActivityObserver* observer) override { observer_ = observer; }
  bool gathers() const override { return local_->gathers(); }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;

 private:
  // `op` of the slices; then times `postscale`, divided by `divisor`.
  void reduce_between_hosts(const std::vector<Span>& spans, DataType type, ReduceOp op,
                            double postscale, int divisor);

  HostMap map_;
  int rank_;
  int size_;
  std::unique_ptr<Communicator> local_;
  std::unique_ptr<Communicator> cross_;
  ActivityObserver* observer_ = nullptr;
  MessageVector<char> slice_;
  MessageVector<char> by_host_;
};

}  // namespace autotune
