// Carries out responses: packs tensors into the fusion buffer, calls the communicator, unpacks.
//
// Packing serves communicators whose cost is per message. Tensors of at least in_place_bytes are
// not packed: copying them costs more than the messages that are saved. A communicator that gathers
// spans by itself gets all tensors where they lie. The fusion buffer grows and is kept.
//
// Every process set has communicators of its own; all share the fusion buffer. What lies in the
// memory of a GPU goes to the DeviceExecutor, by communicators that are made when they are needed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/choose.h"
#include "comm/communicator.h"
#include "engine/execute/device_executor.h"
#include "engine/operation/counters.h"
#include "engine/operation/message.h"
#include "engine/operation/process_set.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/timeline.h"

namespace autotune {

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
  explicit Executor(Timeline* timeline) : timeline_(timeline) {}

  // A process set that this rank is in.
  void add_set(int32_t id, const ProcessSet& set, Communicators communicators, WaitHook on_wait);
  void remove_set(int32_t id) { sets_.erase(id); }

  // Move the data of one response that is no error; `params` are in force on all ranks. Returns the
  // worst error (see result_check.h) where the response asks for a check, else -1. Throws
  // EngineError when a rank died on the way.
  double run(const Work& work, const Params& params);

  // From now on tensors of a GPU can be communicated; once.
  void use_device(DeviceBackend backend);
  // True while the GPU has work that is not done. Throws EngineError when it has failed.
  bool device_busy();
  // Put into the timeline what the GPU has done; false when there is more to come.
  bool write_device_timeline();
  bool device_timeline_pending() const {
    return device_executor_ && device_executor_->timeline().pending();
  }
  // End the communicators of the GPU: `failed`: at once, whoever waits; else when all is done.
  void close_device(bool failed);

  Counters& counters() { return counters_; }

 private:
  using Entries = std::vector<TensorEntry*>;

  struct Set {
    std::vector<int> ranks;  // global
    Communicators communicators;
    WaitHook on_wait;
    std::unique_ptr<DeviceCommunicator> device = nullptr;
    std::unique_ptr<DeviceCommunicator> device_hierarchical = nullptr;  // goes before `device`

    Communicator& select(bool hierarchical) const {
      return hierarchical && communicators.hierarchical ? *communicators.hierarchical
                                                        : *communicators.flat;
    }
  };

  void count(const Work& work);
  void move(const Set& set, const Work& work, const Params& params);
  DeviceCommunicator& connect_device(Set& set, bool hierarchical);
  bool device_idle_within(std::chrono::seconds time);
  void allreduce(const Response& response, const Entries& entries, Communicator& communicator,
                 const Set& set);
  void reduce(const Response& response, Communicator& communicator, const Set& set);
  void allgather(const Response& response, const Entries& entries, Communicator& communicator);
  void reducescatter(const Response& response, const Entries& entries, Communicator& communicator);
  void alltoall(const Response& response, TensorEntry& entry, Communicator& communicator);
  void broadcast(const Response& response, TensorEntry& entry, const Set& set);

  Timeline* timeline_;  // outlives this
  Buffer fusion_buffer_;
  DeviceBackend backend_;  // before what uses it
  std::unique_ptr<DeviceExecutor> device_executor_;
  std::map<int32_t, Set> sets_;
  std::vector<Span> spans_;
  Counters counters_;
};

}  // namespace autotune
