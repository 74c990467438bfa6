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
#include "comm/host_map.h"
#include "common/message_memory.h"

namespace autotune {

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
