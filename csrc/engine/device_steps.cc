#include "engine/device_steps.h"

namespace autotune {

void DeviceSteps::wait(Device& device, DeviceStream stream, const DeviceEvent& event) {
  has_stream_ = true;
  stream_ = stream;
  EventPtr before = device.record(stream, true);
  device.wait(stream, event);
  waits_.emplace_back(std::move(before), device.record(stream, true));
}

bool DeviceSteps::end(Device& device, const StepRecord& record) {
  if (!has_stream_) return false;
  steps_.push_back({record, std::move(waits_), device.record(stream_, true)});
  waits_.clear();
  return true;
}

std::vector<StepRecord> DeviceSteps::take(Device& device) {
  std::vector<StepRecord> records;
  while (!steps_.empty() && device.is_complete(*steps_.front().end)) {
    Step& step = steps_.front();
    step.record.exposed_us = 0;
    for (const auto& [before, after] : step.waits) {
      step.record.exposed_us += device.elapsed_us(*before, *after);
    }
    // The first one began before there were events: the host's time is all that is known.
    if (last_end_) step.record.duration_us = device.elapsed_us(*last_end_, *step.end);
    last_end_ = std::move(step.end);
    records.push_back(step.record);
    steps_.pop_front();
  }
  return records;
}

}  // namespace autotune
