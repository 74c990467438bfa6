// Carries out responses on a GPU. Everything is put into the engine's stream: waiting for the
// tensors (by events), packing in one launch, the collective, unpacking in one launch. Nothing here
// waits for the GPU; a response is complete when it is put there, and its event says when it is
// done.
//
// Tensors of at least in_place_bytes are not packed but become calls of their own within the
// collective's group.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "engine/execute/layout.h"
#include "engine/execute/members.h"
#include "engine/operation/counters.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/device_timeline.h"

namespace autotune {

class DeviceExecutor {
 public:
  // `timeline` and `counters` outlive this.
  DeviceExecutor(DeviceBackend backend, Timeline* timeline, Counters& counters)
      : backend_(std::move(backend)),
        device_(*backend_.device),
        job_timeline_(timeline),
        timeline_(device_, timeline),
        counters_(counters) {}

  // See Executor::run. Sets `finished` of the entries' handles.
  void run(const Work& work, const Members& set, const Params& params);
  void remove_set(int32_t id) { connected_.erase(id); }

  // True until the GPU has done everything so far. Throws EngineError when it or a communicator has
  // failed.
  bool busy();

  DeviceTimeline& timeline() { return timeline_; }

  // After the last response: end the communicators, see Executor::close_device.
  void close(bool failed);

 private:
  // Memory of the GPU that only grows.
  struct Buffer {
    char* data = nullptr;
    int64_t capacity = 0;
  };

  // The communicators of a process set; they are made when they are needed.
  struct Connected {
    std::unique_ptr<DeviceCommunicator> flat;
    std::unique_ptr<DeviceCommunicator> hierarchical;  // goes before `flat`
  };

  // How a reduction travels.
  struct Reduction {
    DataType type;     // on the way
    ReduceOp op;       // that the library knows for it
    double postscale;  // still to be applied, and
    int divisor;       // still to be divided by
  };

  DeviceCommunicator& connect(int32_t id, const Members& set, bool hierarchical);
  bool has_work();
  bool idle_within(std::chrono::seconds time);
  void free_buffer();
  static Reduction reduction_of(const Response& response, int size);
  void wait_for_inputs(const Entries& entries);
  void allreduce(const Response& response, const Entries& entries,
                 DeviceCommunicator& communicator);
  void allgather(const Response& response, const Entries& entries,
                 DeviceCommunicator& communicator);
  void reducescatter(const Response& response, const Entries& entries,
                     DeviceCommunicator& communicator);
  void alltoall(const Response& response, TensorEntry& entry, DeviceCommunicator& communicator);
  void broadcast(TensorEntry& entry, int root, DeviceCommunicator& communicator);
  void pack(const std::vector<DeviceCopy>& copies);
  void unpack(const std::vector<DeviceCopy>& copies);
  char* reserve(int64_t bytes);
  void make_result(TensorEntry& entry, int64_t rows);
  void* zeros(int64_t bytes);

  DeviceBackend backend_;  // goes after what uses it
  Device& device_;         // its own
  Timeline* job_timeline_;
  DeviceTimeline timeline_;
  Counters& counters_;
  Buffer buffer_;
  EventPtr last_;
  std::vector<std::pair<DeviceStream, EventPtr>> latest_;  // by stream, of one response
  std::vector<DeviceCopy> before_, after_;
  std::vector<Span> spans_;
  std::vector<int64_t> offsets_;            // in the buffer, of one response
  std::vector<void*> scratch_;              // of one response
  std::map<int32_t, Connected> connected_;  // by process set
};

}  // namespace autotune
