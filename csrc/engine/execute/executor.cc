#include "engine/execute/executor.h"

#include <utility>

#include "common/errors.h"

namespace autotune {

void Executor::add_set(int32_t id, const ProcessSet& set, Communicators communicators,
                       WaitHook on_wait) {
  if (communicators.hierarchical) communicators.hierarchical->observe(timeline_);
  sets_[id] = {set.ranks, std::move(communicators), std::move(on_wait)};
}

void Executor::remove_set(int32_t id) {
  const auto known = sets_.find(id);
  if (known == sets_.end()) return;
  if (device_) device_->remove_set(id, known->second.on_wait);
  sets_.erase(known);
}

void Executor::use_device(DeviceBackend backend, const Params& params) {
  if (backend.tune) backend.tune(params);
  device_.emplace(std::move(backend), timeline_, counters_);
}

bool Executor::write_device_timeline() {
  if (!device_) return true;
  device_->timeline().write_complete();
  return !device_timeline_pending();
}

void Executor::close_device(bool failed) {
  if (device_) device_->close(failed);
}

double Executor::run(const Work& work, const Params& params) {
  const Members& set = sets_.at(work.response->process_set);
  count(work);
  if (!work.response->on_device) return host_.run(work, set, params);
  if (!device_) throw EngineError("negotiation: response for a GPU that is not in use");
  device_->run(work, set, params);
  return -1;
}

void Executor::count(const Work& work) {
  const auto tensors = static_cast<int64_t>(work.entries.size());
  ++counters_.responses;
  counters_.operations += tensors;
  if (tensors > 1) counters_.fused_tensors += tensors;
  for (const TensorEntry* entry : work.entries) {
    counters_.payload_bytes += entry->request->wire_bytes();
  }
}

}  // namespace autotune
