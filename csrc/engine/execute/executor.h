// Carries out responses: each goes to the executor of the memory in which its tensors lie, the
// host's or a GPU's. Both use the communicators of the response's process set, and both take their
// offsets from layout.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/execute/device_executor.h"
#include "engine/execute/host_executor.h"
#include "engine/execute/members.h"
#include "engine/operation/counters.h"
#include "engine/operation/process_set.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/timeline.h"

namespace autotune {

class Executor {
 public:
  // `timeline` outlives this.
  explicit Executor(Timeline* timeline) : timeline_(timeline), host_(timeline, counters_) {}

  // A process set that this rank is in.
  void add_set(int32_t id, const ProcessSet& set, Communicators communicators, WaitHook on_wait);
  void remove_set(int32_t id);

  // Move the data of one response that is no error; `params` are in force on all ranks. Returns the
  // worst error (see result_check.h) where the response asks for a check of a CPU's tensor, else
  // -1. A GPU's is open then (`has_open_check`), and none may be before. Throws
  // EngineError when a rank died on the way.
  double run(const Work& work, const Params& params);
  // The end of a check of a GPU's result, which is later than its operation: whether one waits for
  // it, and what it came to on all ranks of its process set, worst error as of `run`. Collective
  // over them.
  bool has_open_check() const { return device_ && device_->checked_set(); }
  DeviceExecutor::Checked finish_check() {
    return device_->finish_check(sets_.at(*device_->checked_set()));
  }
  // Since the last call: why the parameters do not suit this job, "" where they do. The same on all
  // ranks of the process set.
  std::string take_shortage() { return device_ ? device_->take_shortage() : ""; }
  // Other ones are in force from now on, on all ranks.
  void params_changed(const Params& before, const Params& now) {
    if (device_) device_->params_changed(before, now);
  }

  // From now on tensors of a GPU can be communicated; once. `params` are in force.
  void use_device(DeviceBackend backend, const Params& params);
  // True while the GPU has work that is not done. Throws EngineError when it has failed.
  bool device_busy() { return device_ && device_->busy(); }
  // Put into the timeline what the GPU has done; false when there is more to come.
  bool write_device_timeline();
  bool device_timeline_pending() { return device_ && device_->timeline().pending(); }
  // End the communicators of the GPU: `failed`: at once, whoever waits; else when all is done.
  void close_device(bool failed);

  Counters& counters() { return counters_; }

 private:
  void count(const Work& work);

  Timeline* timeline_;
  Counters counters_;
  HostExecutor host_;
  std::map<int32_t, Members> sets_;
  std::optional<DeviceExecutor> device_;  // it goes before the sets
};

}  // namespace autotune
