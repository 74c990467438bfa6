// The GPU as threads of the script meet it: the order between the engine's stream and theirs, and
// the training steps that it measures.
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
  // See DeviceSteps. False, and no records, as long as no GPU is in use.
  bool end_step(const StepRecord& record);
  std::vector<StepRecord> take_steps();

 private:
  const std::atomic<Device*>& device_;
  // By a stream's id it tells the newest event that the stream waits for.
  std::unordered_map<uint64_t, uint64_t> ordered_;
  DeviceSteps steps_;
};

}  // namespace autotune
