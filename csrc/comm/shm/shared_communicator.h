// Collectives among the ranks of one host through shared memory.
//
// Every rank has a *slot* of shared memory, twice (parity 0 and 1). Data stream through the slots
// in *chunks* that stay in the second-level cache, so that main memory is read and written once:
//
//   allreduce   chunk by chunk, cut into one *slice* per rank: each rank copies the others' slices
//   of its
//               own data into its slot; combines its own slice out of all slots; copies the
//               finished slices of the others out. The copy in of the next chunk is done before the
//               barrier that ends this one: one barrier per chunk.
//   small       what fits into one slice of the cache is copied whole by everybody, combined by
//   everybody:
//               one barrier
//
// Why the slots may be used again without another barrier: a rank writes the slices of others and
// its own slice in different regions, fixed for the segment; it fills parity p again only after a
// barrier that every rank reaches after it has read parity p. The parity goes on from call to call.
//
// Contributions are combined in rank order, so results are bit for bit those of the p2p backend.
// Tensors are read and written where they lie: fusing them costs no copy of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/shm/segment.h"

namespace autotune {

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size, Progress progress);

  // Bytes of the segment that `size` ranks need.
  static int64_t segment_bytes(int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool gathers() const override { return true; }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;

 private:
  class Stream;  // the elements of all spans, one after the other
  struct Chunk {
    int64_t begin;
    int64_t count;
    int parity;
  };
  struct Arithmetic {
    DataType type;
    ReduceOp op;
    double prescale;
    double postscale;
  };

  char* slot(int rank, int parity) const;
  char* slice(int rank, int parity, int of_rank) const;
  void barrier() { barrier_.wait(progress_); }
  void next_parity() { parity_ = 1 - parity_; }
  void allreduce_small(const Stream& stream, const Arithmetic& arithmetic);
  void copy_in(const Stream& stream, const Chunk& chunk, const Arithmetic& arithmetic);
  void reduce_own_slice(const Stream& stream, const Chunk& chunk, const Arithmetic& arithmetic);
  void copy_out(const Stream& stream, const Chunk& chunk);
  int64_t slice_begin(const Chunk& chunk, int rank) const {
    return chunk.begin + chunk.count * rank / size_;
  }

  std::unique_ptr<Segment> segment_;
  int rank_;
  int size_;
  int64_t slot_bytes_;
  int64_t slice_bytes_;
  Progress progress_;
  Barrier barrier_;
  int parity_ = 0;
  std::vector<char> scratch_;
};

// Share memory among all ranks of `base` (one host); `base` is used to agree and is not kept.
// Returns nullptr, on all ranks, with the reason in `why_not`, where the host has too little shared
// memory.
std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const Progress& progress,
                                                       std::string& why_not);

}  // namespace autotune
