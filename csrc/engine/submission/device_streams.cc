#include "engine/submission/device_streams.h"

namespace autotune {

void DeviceStreams::order(const EventPtr& finished, DeviceStream stream) {
  if (!finished) return;
  constexpr size_t most = 1024;  // scripts may go on making streams
  Device& device = *device_.load();
  if (ordered_.size() >= most) ordered_.clear();
  uint64_t& newest = ordered_[device.id_of(stream)];  // all are of the engine's stream: in order
  if (newest >= finished->number) return;
  steps_.wait(device, stream, *finished);
  newest = finished->number;
}

bool DeviceStreams::end_step(const StepRecord& record) {
  Device* const device = device_;
  return device != nullptr && steps_.end(*device, record);
}

std::vector<StepRecord> DeviceStreams::take_steps() {
  Device* const device = device_;
  if (device == nullptr) return {};
  return steps_.take(*device);
}

}  // namespace autotune
