// Carries out responses: packs tensors into the fusion buffer, calls the communicator, unpacks.
//
// Packing serves communicators whose cost is per message. Tensors of at least in_place_bytes are
// not packed: copying them costs more than the messages that are saved. A communicator that gathers
// spans by itself gets all tensors where they lie. The fusion buffer grows and is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/choose.h"
#include "comm/communicator.h"
#include "common/activity.h"
#include "engine/message.h"
#include "engine/tensor.h"

namespace autotune {

// Monotonic; read by other threads only through Engine::counters.
struct Counters {
  int64_t operations = 0;
  int64_t responses = 0;
  int64_t cycles = 0;
  int64_t messages = 0;
  int64_t cache_hits = 0;
  int64_t cache_misses = 0;
  int64_t payload_bytes = 0;
  int64_t fused_tensors = 0;
  int64_t pack_ns = 0;
  int64_t transfer_ns = 0;
  int64_t unpack_ns = 0;
  int64_t protocol_ns = 0;
  int64_t skew_ns = 0;
  int64_t wait_ns = 0;

  // Time in the data plane.
  int64_t busy_ns() const { return pack_ns + transfer_ns + unpack_ns; }
};

// Kept memory that only grows.
class Buffer {
 public:
  char* reserve(int64_t bytes);

 private:
  std::unique_ptr<char[]> data_;
  int64_t capacity_ = 0;
};

class Executor {
 public:
  Executor(Communicators communicators, ActivityObserver* observer);

  // Perform one response that is no error. `entries` are this rank's tensors in the order of its
  // items; `params` are in force on all ranks. Throws EngineError when a rank died on the way.
  void run(const Response& response, const std::vector<TensorEntry*>& entries,
           const Params& params);

  Counters& counters() { return counters_; }

 private:
  void allreduce(const Response& response, const std::vector<TensorEntry*>& entries,
                 Communicator& communicator);
  void allgather(const Response& response, const std::vector<TensorEntry*>& entries,
                 Communicator& communicator);
  Communicator& select(bool hierarchical) const {
    return hierarchical && communicators_.hierarchical ? *communicators_.hierarchical
                                                       : *communicators_.flat;
  }
  void broadcast(const Response& response, TensorEntry& entry);

  Communicators communicators_;
  ActivityObserver* observer_;  // outlives this
  Buffer fusion_buffer_;
  std::vector<Span> spans_;
  Counters counters_;
};

}  // namespace autotune
