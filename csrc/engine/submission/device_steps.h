// Training steps on a GPU: the script's thread gives the GPU work and runs ahead, so a step is as
// long as the GPU took from the end of the last one to its own end, and the time exposed is how
// long the script's stream waited for the engine's. Both are read from events once the GPU is
// there.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "engine/submission/steps.h"

namespace autotune {

class DeviceSteps {
 public:
  // `stream` waits for `event`: what `device->wait` does, with its time. In the step in progress.
  void wait(Device& device, DeviceStream stream, const DeviceEvent& event);

  // The step in progress ends in the stream that waited last. `record` holds all but the times.
  // Returns false, and takes nothing, when no stream has waited yet.
  bool end(Device& device, const StepRecord& record);

  // Records of the steps that the GPU has finished, in order.
  std::vector<StepRecord> take(Device& device);

 private:
  // These are of one step, in any streams.
  struct Waits {
    double known_us = 0;                             // those that the GPU has left took so long
    std::deque<std::pair<EventPtr, EventPtr>> open;  // each has its begin and its end

    // Looks at them; returns whether all are known.
    bool read(Device& device);
  };
  struct Step {
    StepRecord record;
    Waits waits;
    EventPtr end;
  };
  // So many are open at most where the GPU keeps up and no step ends.
  static constexpr size_t most_open = 256;

  bool has_stream_ = false;
  DeviceStream stream_ = 0;
  Waits waits_;
  std::deque<Step> steps_;
  EventPtr last_end_;  // the step that was taken last has ended there
};

}  // namespace autotune
