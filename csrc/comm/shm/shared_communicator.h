// Collectives among the ranks of one host through shared memory.
//
// Every rank has a *slot* of shared memory, twice (parity 0 and 1), with a *region* per rank. Data
// stream through the slots in *rounds* small enough for the second-level cache, so that main memory
// is read and written once. The elements are cut into one *slice* per rank; in a round of an
// allreduce each rank
//
//   - copies its elements of the others' slices into its slot (for the next round, ahead of time),
//   - combines its own slice out of all slots, writes it to its output and its own region (by which
//     stores: common/store_choice.h),
//   - waits for the others (one barrier), and copies their finished slices to its output (in long
//     calls likewise).
//
// What fits into small_bytes is copied whole by everybody and combined by everybody: one barrier.
//
// Why a slot may be used again without another barrier: regions are fixed for the segment, and a
// rank fills a region of parity p again only after a barrier that every rank reaches after it has
// read parity p. The parity goes on from call to call.
//
// Contributions are combined in rank order, so results are bit for bit those of the p2p backend.
// Tensors are read and written where they lie: fusing them costs no copy of its own.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/element_sequence.h"
#include "comm/shm/segment.h"
#include "common/reduce.h"
#include "common/store_choice.h"

namespace autotune {

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size, WaitHook on_wait);

  // Bytes of the segment that `size` ranks need.
  static int64_t segment_bytes(int size);
  // Those that `rank` writes (rank 0: what all write, too), whole pages.
  static std::pair<int64_t, int64_t> part_of_rank(int rank, int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Backend backend() const override { return Backend::shm; }
  bool gathers() const override { return true; }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override;
  void reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                      double postscale, int slices) override;
  void allgather_slices(const std::vector<Span>& spans, DataType type, int slices) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override;

 private:
  using Clock = std::chrono::steady_clock;

  // One allreduce or half of one: which elements each round works on, and what is done to them.
  struct Rounds {
    const ElementSequence& elements;
    RankReduction how;
    int slices = 1;
    bool is_long = false;  // a call of long_call_bytes (copy.h)
    bool are_measured = false;
    int64_t slice_elements = 0;  // a slice has so many in one round
    int64_t count = 0;

    // Elements of `slice` in `round`; empty for a slice that is done.
    std::pair<int64_t, int64_t> range(int64_t round, int slice) const;
  };

  Rounds rounds_for(const ElementSequence& elements, const RankReduction& how, int slices) const;
  char* slot(int rank, int parity) const;
  char* region(int rank, int parity, int slice) const {
    return slot(rank, parity) + slice_bytes_ * slice;
  }
  void barrier() { barrier_.wait(on_wait_); }
  StoreChoice& slots_of(const Rounds& rounds);
  bool streams_slots(const Rounds& rounds);
  bool streams_outputs(const Rounds& rounds);
  void add_time(const Rounds& rounds, double time);
  int next_parity() { return parity_ = 1 - parity_; }
  void allreduce_small(const Rounds& rounds);
  void copy_in(const Rounds& rounds, int64_t round, int parity);
  void reduce_own_slice(const Rounds& rounds, int64_t round, int parity);
  void reduce_piece(const Rounds& rounds, const char* input, char* sum, int64_t at, int64_t count,
                    int parity);
  void copy_out(const Rounds& rounds, int64_t round, int parity);

  std::unique_ptr<Segment> segment_;
  int rank_;
  int size_;
  int64_t slot_bytes_;
  int64_t slice_bytes_;
  int64_t part_bytes_;
  char* slots_;
  WaitHook on_wait_;
  Barrier barrier_;
  int parity_ = 0;
  StoreChoice slots_of_short_, slots_of_long_;            // calls
  StoreChoice outputs_of_long_{StoreChoice::period / 4};  // those of short calls are cached
  std::vector<char> scratch_;
  std::vector<char> piece_;
};

// Share memory among all ranks of `base` (one host); `base` is used to agree and is not kept.
// Returns nullptr, on all ranks, where one of them cannot have it; `why_not` is then that rank's
// reason.
std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const WaitHook& on_wait,
                                                       std::string& why_not);

}  // namespace autotune
