// Collectives among the ranks of one host without a message: every rank reads what it needs from
// the other ranks' memory.
//
//   small   each rank copies its elements to a slot in shared memory; after one barrier everybody
//   combines
//           all slots
//   large   each rank posts the addresses of its spans; after a barrier it reads its *slice* of
//   every
//           other rank's spans in chunks that stay in the cache (process_vm_readv) and combines
//           them; after another barrier it reads the finished slices; after a last one memory is
//           the callers' again
//
// Three barriers for any number of spans. Contributions are combined in rank order, so results are
// bit for bit those of the p2p backend.
//
// Containers may forbid process_vm_readv or have next to no /dev/shm: `make_shared_communicator`
// tries both, on all ranks together, and tells why it could not.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/shm/segment.h"

namespace autotune {

class SharedCommunicator final : public Communicator {
 public:
  struct Peer {
    pid_t pid;
  };

  SharedCommunicator(std::unique_ptr<Segment> segment, int rank, std::vector<Peer> peers,
                     Progress progress);

  // Bytes of the segment that `size` ranks need.
  static int64_t segment_bytes(int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                 double postscale) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;

  // True when this rank can read every peer's memory (collective).
  bool probe();

 private:
  struct Board;  // addresses that a rank posts

  Board& board(int rank) const;
  char* slot(int rank, int parity) const;
  void barrier() { barrier_.wait(progress_); }
  void allreduce_small(const std::vector<Span>& spans, int64_t count, DataType type, ReduceOp op,
                       double postscale);
  void allreduce_large(const Span* spans, size_t span_count, DataType type, ReduceOp op,
                       double postscale);
  void reduce_slice(const Span* spans, size_t span_count, DataType type, ReduceOp op,
                    double postscale);
  void reduce_chunk(char* own, size_t span, int64_t offset_bytes, int64_t count, DataType type,
                    ReduceOp op, double postscale);
  void read(int peer, void* to, uint64_t from, int64_t bytes);

  std::unique_ptr<Segment> segment_;
  int rank_;
  int size_;
  std::vector<Peer> peers_;
  Progress progress_;
  Barrier barrier_;
  int parity_ = 0;
  std::vector<char> inbox_;
};

// Share memory among all ranks of `base` (one host); `base` is used to agree and is not kept.
// Returns nullptr, on all ranks, with the reason in `why_not`.
std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const Progress& progress,
                                                       std::string& why_not);

}  // namespace autotune
