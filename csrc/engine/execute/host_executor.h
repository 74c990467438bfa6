// Carries out responses for tensors in the memory of the host: packs tensors into the fusion
// buffer, calls the communicator, unpacks.
//
// Packing serves communicators whose cost is per message. Tensors of at least in_place_bytes are
// not packed: copying them costs more than the messages that are saved. A communicator that gathers
// spans by itself gets all tensors where they lie. What travels in a shorter type is packed always.
// The fusion buffer grows and is kept; all process sets share it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "common/message_memory.h"
#include "engine/execute/layout.h"
#include "engine/execute/members.h"
#include "engine/operation/counters.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/timeline.h"

namespace autotune {

class HostExecutor {
 public:
  // Above this a copy in and out costs more than one more message per peer (measured: 2 ranks, one
  // host).
  static constexpr int64_t in_place_bytes = 128 << 10;

  // Both outlive this.
  HostExecutor(Timeline* timeline, Counters& counters) : timeline_(timeline), counters_(counters) {}

  // See Executor::run.
  double run(const Work& work, const Members& set, const Params& params);

 private:
  // Kept memory that only grows.
  class Buffer {
   public:
    char* reserve(int64_t bytes);

   private:
    MessageMemory data_;
    int64_t capacity_ = 0;
  };

  void move(const Work& work, const Members& set, const Params& params);
  void allreduce(const Response& response, const Entries& entries, Communicator& communicator);
  void allreduce_compressed(const Response& response, const Entries& entries,
                            Communicator& communicator);
  void allgather(const Response& response, const Entries& entries, Communicator& communicator);
  void reducescatter(const Response& response, const Entries& entries, Communicator& communicator);
  void alltoall(const Response& response, TensorEntry& entry, Communicator& communicator);
  void broadcast(TensorEntry& entry, int root, Communicator& communicator);

  Timeline* timeline_;
  Counters& counters_;
  Buffer fusion_buffer_;
  std::vector<int64_t> offsets_;  // they are in the buffer, of one response
  std::vector<Span> spans_;       // they are of one response
};

}  // namespace autotune
