// Collectives over point-to-point messages.
//
// Vocabulary: a *piece* is at most piece_bytes of one or several spans' elements and is the unit of
// the exchange; each piece is cut into one *slice* per rank. n ranks, M bytes:
//
//   large piece   reduce-scatter, then allgather, each by direct messages to every peer: 2 rounds,
//                 2 (n-1)/n M bytes per rank: the ring's volume with fewer rounds; the second round
//                 of a piece and the first one of the next are one
//   reduce_scatter, alltoall   direct messages to every peer: 1 round
//   small piece   everybody sends everything to everybody: 1 round, (n-1) M bytes
//
// The owner of a slice combines the n contributions in rank order, whatever their order of arrival:
// the result is a function of the inputs alone, bit for bit. Trade-off: n-1 messages per rank and
// round; good to some 16 ranks per communicator, beyond that the hierarchical backend divides the
// work.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/point_to_point.h"
#include "common/message_memory.h"
#include "common/reduce.h"

namespace autotune {

class P2pCommunicator final : public Communicator {
 public:
  // So much is exchanged at a time. Measured on 2 ranks of one host, 1-16 MiB make no difference
  // and 256 KiB cost a quarter more.
  static constexpr int64_t piece_bytes = int64_t{4} << 20;
  // Up to here one round of whole copies is faster than two rounds of slices.
  static constexpr int64_t small_bytes = 16 << 10;

  // `on_wait` is called while waiting; see communicator.h.
  P2pCommunicator(std::shared_ptr<PointToPoint> transport, WaitHook on_wait);

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
  struct Piece {
    char* data = nullptr;
    int64_t count = 0;  // 0 means that there is no piece
  };

  // Two pieces travel at a time, so that there is one wait a piece.
  struct OnTheWay {
    Piece scattered;  // its slices go to the ranks that reduce them
    Piece gathered;   // its reduced slices go to all
  };

  void advance(OnTheWay& way, const Piece& next, const RankReduction& how, int64_t item);
  void exchange_small(const Piece& piece, const RankReduction& how, int64_t item);
  void post_reduce_scatter(const Piece& piece, int64_t item);
  void reduce_own_slice(const Piece& piece, const RankReduction& how, int64_t item);
  void combine_with_inbox(char* own, int64_t count, const RankReduction& how, int64_t item);
  void post_allgather(const Piece& piece, int64_t item);
  void place_slices(const Piece& piece, int64_t item);
  int64_t slice_begin(int64_t count, int slice) const { return count * slice / size_; }
  void wait();

  std::shared_ptr<PointToPoint> transport_;
  WaitHook on_wait_;
  int rank_;
  int size_;
  MessageVector<char> inbox_;
  MessageVector<char> outbox_;
  MessageVector<char> gather_box_;
  MessageVector<char> whole_box_;  // what has come is there while it is put in place
};

}  // namespace autotune
