#include "engine/timeline/device_timeline.h"

#include <algorithm>
#include <utility>

namespace autotune {

void DeviceTimeline::begin(bool stream_idle) {
  recording_ = false;
  if (!wanted()) return;
  Operation& operation = operations_.emplace_back();
  if (!timeline_->device_begins(operation.tracks)) return operations_.pop_back();
  operation.stream_idle = stream_idle;
  operation.put_us = timeline_->time_us();
  recording_ = true;
  add_mark(nullptr);
}

void DeviceTimeline::mark(const char* activity) {
  if (recording_) add_mark(activity);
}

void DeviceTimeline::end() { recording_ = false; }

void DeviceTimeline::add_mark(const char* activity) {
  EventPtr event = device_.record(device_.stream(), true);
  operations_.back().marks.push_back({std::move(event), activity, timeline_->time_us()});
}

void DeviceTimeline::write_complete() {
  while (!operations_.empty() && !recording_) {
    Operation& operation = operations_.front();
    if (!look_at(operation)) return;
    date(operation);
    std::vector<DeviceActivity> activities;
    for (const Mark& mark : operation.marks) {
      activities.push_back({mark.activity, static_cast<int64_t>(mark.at_us)});
    }
    timeline_->device_operation(operation.tracks, static_cast<int64_t>(operation.put_us),
                                activities);
    operations_.pop_front();
  }
}

// Whether it is complete.
bool DeviceTimeline::look_at(Operation& operation) {
  for (Mark& mark : operation.marks) {
    if (mark.before_us >= 0) continue;
    const double now_us = timeline_->time_us();
    if (!device_.is_complete(*mark.event)) {
      mark.after_us = now_us;
      return false;
    }
    mark.before_us = timeline_->time_us();
  }
  return true;
}

// Sets `at_us` of all marks of a complete operation.
void DeviceTimeline::date(Operation& operation) {
  std::vector<Mark>& marks = operation.marks;
  Mark& first = marks.front();
  if (operation.stream_idle) {
    first.at_us = first.after_us;
  } else if (last_ != nullptr) {
    first.at_us = last_us_ + device_.elapsed_us(*last_, *first.event);
  } else {
    first.at_us = marks.back().before_us;  // too late: moved below
  }
  double too_early = first.after_us - first.at_us, too_late = first.at_us - first.before_us;
  for (size_t i = 1; i < marks.size(); ++i) {
    Mark& mark = marks[i];
    mark.at_us = marks[i - 1].at_us + device_.elapsed_us(*marks[i - 1].event, *mark.event);
    too_early = std::max(too_early, mark.after_us - mark.at_us);
    too_late = std::max(too_late, mark.at_us - mark.before_us);
  }
  const double shift = too_late > 0 ? -too_late : std::max(too_early, 0.0);
  for (Mark& mark : marks) mark.at_us += shift;
  last_ = marks.back().event;
  last_us_ = marks.back().at_us;
}

}  // namespace autotune
