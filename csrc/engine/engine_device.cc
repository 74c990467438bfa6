// The GPU of a rank: how the engine gets it, the order between its stream and the script's, what is
// read back of it. Nothing here waits for it but the end of a timeline.
#include <thread>
#include <utility>

#include "common/errors.h"
#include "engine/engine.h"

namespace autotune {

// The one in the memory of a GPU, which nobody has taken (mutex_ held).
void Engine::free_result(Handle& handle) {
  void* const unread = std::exchange(handle.device_result, nullptr);
  if (unread != nullptr) device_.load()->free(unread, device_.load()->stream());
}

void Engine::use_device(int index, const std::function<DeviceBackend(int)>& make) {
  std::lock_guard running(cycle_mutex_);
  if (Device* known = device_.load()) {
    if (known->index() == index) return;
    throw InvalidRequest("expected tensors of one GPU per rank, got one of GPU " +
                         std::to_string(index) + " after one of GPU " +
                         std::to_string(known->index()) + " (rank " + std::to_string(rank_) +
                         " of " + std::to_string(size_) +
                         "); start a rank for each GPU and call torch.cuda.set_device first");
  }
  DeviceBackend backend = make(index);
  Device* device = backend.device.get();
  executor_.use_device(std::move(backend));
  device_ = device;
}

EventPtr Engine::input_ready(DeviceStream stream) { return device_.load()->record(stream); }

void Engine::order(int64_t number, DeviceStream stream) {
  std::unique_lock lock(mutex_);
  const EventPtr finished = find_handle(number)->finished;
  if (finished) check_gpu_work(lock);
  order_locked(finished, stream);
}

// `lock` is that of mutex_, held before and after. Throws when the engine has failed: what it gave
// the GPU may never have been done.
void Engine::check_gpu_work(std::unique_lock<std::mutex>& lock) {
  if (!failed_) return;
  wait_for_end(lock);
  throw EngineError(closed_reason_);
}

// The same lock. Not before then does the GPU leave the tensors of an engine that has failed.
void Engine::wait_for_end(std::unique_lock<std::mutex>& lock) {
  done_changed_.wait(lock, [this] { return stopped_.load(); });
}

// mutex_ held.
void Engine::order_locked(const EventPtr& finished, DeviceStream stream) {
  if (!finished) return;
  uint64_t& newest = ordered_[stream];  // all are of the engine's stream: one after the other
  if (newest >= finished->number) return;
  device_steps_.wait(*device_.load(), stream, *finished);
  newest = finished->number;
}

void Engine::take_result(int64_t number, void* to, DeviceStream stream) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Handle> handle = find_handle(number);
  check_gpu_work(lock);
  order_locked(handle->finished, stream);
  device_.load()->copy(to, handle->device_result, handle->result_bytes, stream);
  device_.load()->free(handle->device_result, stream);
  handle->device_result = nullptr;
}

// mutex_ held.
void Engine::take_device_steps() {
  Device* const device = device_;
  if (device == nullptr) return;
  for (const StepRecord& record : device_steps_.take(*device)) steps_.append(record);
}

// Write what the GPU was given so far and does within `timeline_patience`.
void Engine::finish_device_timeline() {
  const auto deadline = Clock::now() + (failed_ ? std::chrono::seconds(0) : timeline_patience);
  while (device_ != nullptr && timeline_.on() && Clock::now() < deadline) {
    {
      std::unique_lock running(cycle_mutex_, std::try_to_lock);
      try {
        if (running.owns_lock() && executor_.write_device_timeline()) return;
      } catch (const EngineError&) {  // who runs the next cycle sees it, too
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// What NCCL hears of other ranks by itself.
void Engine::check_device() {
  if (device_ == nullptr || stopped_) return;
  const auto now = Clock::now();
  if (now - device_checked_ < device_check_interval) return;
  device_checked_ = now;
  device_is_busy_ = executor_.device_busy();
}

}  // namespace autotune
