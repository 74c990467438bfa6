// What the engine asks of a data plane. One folder per backend: self (one rank), shm (ranks of one
// host), p2p (algorithms over any point-to-point transport), mpi and tcp (such transports),
// hierarchical (two levels made of the others). choose.h decides which ones a job gets.
//
// Every call is collective: all ranks make the same calls, in the same order, with arguments that
// negotiation has checked. No call waits without bound: while it waits it calls its WaitHook, which
// throws when a rank has died.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/activity.h"
#include "common/types.h"

namespace autotune {

// Called again and again while a collective waits; throws EngineError to end the wait.
using WaitHook = std::function<void()>;

// ReduceOp::adasum is defined over the powers of two.
constexpr bool has_adasum(int size) { return size > 0 && (size & (size - 1)) == 0; }

// A contiguous run of elements to reduce; `input` and `output` are the same memory or do not
// overlap.
struct Span {
  const void* input;
  void* output;
  int64_t count;
  bool takes_messages = false;  // the output is message_memory.h's
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // What moves the data; Backend::several: `observe`'s observer is told step by step.
  virtual Backend backend() const { return Backend::mpi; }
  // `observer` outlives this.
  virtual void observe(ActivityObserver* /*observer*/) {}

  // True when packing many small spans into one is of no use.
  virtual bool gathers() const { return false; }

  // Multiply every input by `prescale`, reduce over the ranks, multiply by `postscale` (average:
  // and divide by the number of ranks), write to the outputs. The spans of a call have the same
  // counts on all ranks. The elements of a result are combined in one order, that of ranks or one
  // that follows from ranks and hosts (comm/p2p/stages.h), so a result does not depend on how
  // tensors are grouped into spans, nor spans into calls.
  // Adasum takes every span as a tensor of its own, of a float type, over a number of ranks that
  // `has_adasum` allows; only the communicators `Communicators::plain` and of one rank know it.
  virtual void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                         double prescale, double postscale) = 0;

  // The two halves of an allreduce, for hierarchical ones. The elements of all spans together are
  // cut into `slices` slices (see slice_of in element_sequence.h), at most as many as ranks.
  // reduce_scatter leaves in the outputs of rank r < slices at least its own slice r of what an
  // allreduce gives; allgather_slices copies slice r of rank r's outputs to the outputs of all
  // ranks. These defaults are right for any backend; a backend that can do with less data overrides
  // them.
  virtual void reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op,
                              double prescale, double postscale, int slices);
  virtual void allgather_slices(const std::vector<Span>& spans, DataType type, int slices);

  // `blocks` holds one block per rank, back to back, of bytes_per_rank[r] bytes; this rank's own
  // block is filled in, the others are received.
  virtual void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) = 0;

  virtual void broadcast(void* data, int64_t bytes, int root_rank) = 0;

  // Rank r has bytes[r * size + d] bytes for rank d. `send` holds this rank's blocks by receiver,
  // `receive` those for this rank by sender, back to back. This default is right for any backend.
  virtual void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes);
};

}  // namespace autotune
