#include "engine/submission/device_streams.h"

#include <utility>

namespace autotune {

void DeviceStreams::order(const EventPtr& finished, DeviceStream stream) {
  if (!finished) return;
  uint64_t& newest = ordered_[stream];  // all are of the engine's stream: one after the other
  if (newest >= finished->number) return;
  steps_.wait(*device_.load(), stream, *finished);
  newest = finished->number;
}

void DeviceStreams::take_result(Handle& handle, void* to, DeviceStream stream) {
  Device& device = *device_.load();
  order(handle.finished, stream);
  device.copy(to, handle.device_result, handle.result_bytes, stream);
  device.free(handle.device_result, stream);
  handle.device_result = nullptr;
}

void DeviceStreams::free_result(Handle& handle) {
  void* const unread = std::exchange(handle.device_result, nullptr);
  if (unread != nullptr) device_.load()->free(unread, device_.load()->stream());
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
