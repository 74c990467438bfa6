// The GPU as threads of the script meet it: the order between the engine's stream and theirs, the
// results that they take out of it, and the training steps that it measures.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "comm/device.h"
#include "engine/operation/tensor.h"
#include "engine/submission/device_steps.h"

namespace autotune {

class DeviceStreams {
 public:
  // `device`: nullptr as long as no GPU is in use.
  explicit DeviceStreams(const std::atomic<Device*>& device) : device_(device) {}

  // What `stream` does from now on comes after the event, if there is one.
  void order(const EventPtr& finished, DeviceStream stream);
  // Copies the result to `to`, in `stream`, and frees it there.
  void take_result(Handle& handle, void* to, DeviceStream stream);
  // The result, if nobody has taken it.
  void free_result(Handle& handle);

  // See DeviceSteps. False, and no records, as long as no GPU is in use.
  bool end_step(const StepRecord& record);
  std::vector<StepRecord> take_steps();

 private:
  const std::atomic<Device*>& device_;
  std::unordered_map<DeviceStream, uint64_t> ordered_;  // the newest event that it waits for
  DeviceSteps steps_;
};

}  // namespace autotune
