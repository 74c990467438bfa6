// The GPU's part of the timeline: when the GPU did what the engine put into its stream.
//
// As long as the timeline is on, an event is recorded between the parts of an operation. They are
// read when the GPU has reached them, by whoever runs a cycle; nobody waits for the GPU.
//
// An event has no time of its own, only a distance to another one. An operation that found the
// stream idle began when it was put there; one that did not is dated by the end of the one before
// it. What is known besides keeps both from drifting: an event came after the moment at which it
// was recorded or last seen to be open, and before the one at which it was seen to be complete.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "comm/device.h"
#include "engine/timeline/timeline.h"

namespace autotune {

class DeviceTimeline {
 public:
  // Events are looked at so often while some are not complete.
  static constexpr std::chrono::milliseconds interval{2};

  // Both outlive this; without a timeline nothing is recorded.
  DeviceTimeline(Device& device, Timeline* timeline) : device_(device), timeline_(timeline) {}

  bool wanted() const { return timeline_ != nullptr && timeline_->on(); }
  // The next parts are the current operation's. `stream_idle`: the GPU has done all before.
  void begin(bool stream_idle);
  // What was put into the stream since the last call is `activity`, a literal.
  void mark(const char* activity);
  void end();

  bool pending() const { return !operations_.empty(); }
  // Write the operations that the GPU has done.
  void write_complete();

 private:
  // A point in the stream; times in microseconds of the timeline.
  struct Mark {
    EventPtr event;
    const char* activity;   // it ends there
    double after_us;        // the point was reached after this, and
    double before_us = -1;  // before this; -1 means that it was not seen yet
    double at_us = 0;
  };
  struct Operation {
    DeviceTracks tracks;
    bool stream_idle = false;
    double put_us = 0;
    std::vector<Mark> marks;
  };

  void add_mark(const char* activity);
  bool look_at(Operation& operation);
  void date(Operation& operation);

  Device& device_;
  Timeline* const timeline_;
  bool recording_ = false;            // it does between `begin` and `end`
  std::deque<Operation> operations_;  // they are not written yet, in the order of the stream
  EventPtr last_;                     // the one that was written last has ended there
  double last_us_ = 0;
};

}  // namespace autotune
