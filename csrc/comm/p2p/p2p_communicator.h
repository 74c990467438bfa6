// Collectives over point-to-point messages.
//
// Vocabulary: a *piece* is a part of the elements of one or several spans and is the unit of the
// exchange; a *slice* is a rank's share of a piece. n ranks, M bytes:
//
//   allreduce     in stages (stages.h, staged_allreduce.h): 2 (n-1)/n M bytes per rank; up to
//                 small_bytes everybody of a stage sends everything to everybody of it
//   reduce_scatter, alltoall, allgather   direct messages to every peer: 1 round
//   broadcast     a binomial tree
//
// Contributions are combined in an order that follows from ranks and hosts alone, whatever their
// order of arrival and wherever an element lies: the result is a function of the inputs, bit for
// bit.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/p2p/staged_allreduce.h"
#include "comm/point_to_point.h"
#include "common/message_memory.h"
#include "common/reduce.h"

namespace autotune {

class P2pCommunicator final : public Communicator {
 public:
  // So much is exchanged at a time.
  static constexpr int64_t piece_bytes = int64_t{4} << 20;
  // The same of an allreduce: with boxes that stay in the second-level cache 102 MB take 33 instead
  // of 38 ms by MPI, 2 ranks of one host; the more pieces, the more of them are at work at once.
  static constexpr int64_t allreduce_piece_bytes = int64_t{1} << 20;
  // Up to here whole copies, in half the rounds, are faster than slices.
  static constexpr int64_t small_bytes = 16 << 10;

  // `on_wait` is called while waiting; see communicator.h. `host_of_rank`: where the ranks are, as
  // HostMap has it; empty: every way between two is the same.
  P2pCommunicator(std::shared_ptr<PointToPoint> transport, WaitHook on_wait,
                  const std::vector<int>& host_of_rank = {});

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Backend backend() const override { return transport_->backend(); }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;
  void reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                      double postscale, int slices) override;
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override;

 private:
  void combine_with_inbox(char* own, int64_t count, const RankReduction& how, int64_t item);
  void wait();

  std::shared_ptr<PointToPoint> transport_;
  WaitHook on_wait_;
  int rank_;
  int size_;
  StagedAllreduce staged_;
  MessageVector<char> inbox_;
  MessageVector<char> outbox_;
};

}  // namespace autotune
