#include "engine/submission/device_steps.h"

namespace autotune {

bool DeviceSteps::Waits::read(Device& device) {
  while (!open.empty() && device.is_complete(*open.front().second)) {
    known_us += device.elapsed_us(*open.front().first, *open.front().second);
    open.pop_front();
  }
  return open.empty();
}

void DeviceSteps::wait(Device& device, DeviceStream stream, const DeviceEvent& event) {
  has_stream_ = true;
  stream_ = stream;
  EventPtr before = device.record(stream, true);
  device.wait(stream, event);
  waits_.open.emplace_back(std::move(before), device.record(stream, true));
  if (waits_.open.size() > most_open) waits_.read(device);
}

bool DeviceSteps::end(Device& device, const StepRecord& record) {
  if (!has_stream_) return false;
  steps_.push_back({record, std::exchange(waits_, {}), device.record(stream_, true)});
  return true;
}

std::vector<StepRecord> DeviceSteps::take(Device& device) {
  std::vector<StepRecord> records;
  while (!steps_.empty() && device.is_complete(*steps_.front().end)) {
    Step& step = steps_.front();
    if (!step.waits.read(device)) break;  // in a stream that is behind
    step.record.exposed_us = step.waits.known_us;
    // The first one began before there were events: the host's time is all that is known. So it is
    // where a step ended in another stream than the one before, and earlier.
    const double duration_us = last_end_ ? device.elapsed_us(*last_end_, *step.end) : 0;
    if (duration_us > 0) step.record.duration_us = duration_us;
    last_end_ = std::move(step.end);
    records.push_back(step.record);
    steps_.pop_front();
  }
  return records;
}

}  // namespace autotune
