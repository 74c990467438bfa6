// Carries out responses on a GPU. Everything is put into the engine's stream: waiting for the
// tensors (by events), packing in one launch, the collective, unpacking in one launch. Nothing here
// waits for the GPU; a response is complete when it is put there, and its event says when it is
// done.
//
// Tensors of at least in_place_bytes are not packed but become calls of their own within the
// collective's group.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/device_timeline.h"

namespace autotune {

struct Counters;

class DeviceExecutor {
 public:
  // All outlive this.
  DeviceExecutor(Device& device, Timeline* timeline, Counters& counters)
      : device_(device), timeline_(device, timeline), counters_(counters) {}

  // `ranks`: of the response's process set. Sets `finished` of the entries' handles.
  void run(const Work& work, const std::vector<int>& ranks, DeviceCommunicator& communicator);

  // True until the GPU has done everything so far. Throws EngineError when it has failed.
  bool busy();

  DeviceTimeline& timeline() { return timeline_; }

  // After the last response: in the order of the stream.
  void free_buffer();

 private:
  using Entries = std::vector<TensorEntry*>;

  // Memory of the GPU that only grows.
  struct Buffer {
    char* data = nullptr;
    int64_t capacity = 0;
  };

  // How a reduction travels.
  struct Reduction {
    DataType type;     // on the way
    ReduceOp op;       // that the library knows for it
    double postscale;  // still to be applied, and
    int divisor;       // still to be divided by
  };

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

  Device& device_;
  DeviceTimeline timeline_;
  Counters& counters_;
  Buffer buffer_;
  EventPtr last_;
  std::vector<std::pair<DeviceStream, EventPtr>> latest_;  // by stream, of one response
  std::vector<DeviceCopy> before_, after_;
  std::vector<Span> spans_;
  std::vector<void*> scratch_;  // of one response
};

}  // namespace autotune
