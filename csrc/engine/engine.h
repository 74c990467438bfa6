// The engine of one rank: takes operations from threads of the script, negotiates and performs
// them. Engine is its facade and its own thread; what it knows lies in two parts with a lock each:
// Submission, which all threads use for moments, and Cycle, which one thread at a time has for as
// long as it negotiates and moves data. A thread that needs both takes the Cycle first.
//
// Cycles are run by the engine's own thread, or by a thread that waits for a handle: it would only
// sleep otherwise, and handing over costs two context switches.
//
// When to announce: `cycle_time_ms` after the first tensor became ready, or earlier when the ready
// bytes fill a fusion buffer or when a thread waits for a handle. With nothing to do all threads
// sleep.
//
// An operation that has a Completion ends without anybody who waits for its handle. Who runs the
// cycle in which it ends only notes that: the engine's own thread tells, when it has let go of the
// cycle, so that who is told may do what it likes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/choose.h"
#include "control/control.h"
#include "engine/cycle/cycle.h"
#include "engine/guarded.h"
#include "engine/operation/process_set.h"
#include "engine/operation/tensor.h"
#include "engine/options.h"
#include "engine/status.h"
#include "engine/submission/submission.h"
#include "engine/timeline/timeline.h"

namespace autotune {

class Engine {
 public:
  Engine(const EngineOptions& options, std::unique_ptr<ControlPlane> control,
         CommunicatorFactory make_communicators);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Hand over an operation; `entry.handle` is set here. Returns the number of its handle.
  // Throws InvalidRequest or EngineError.
  int64_t enqueue(TensorEntry entry);
  // The same; its name is complete already (see complete_name).
  int64_t enqueue_complete(TensorEntry entry) { return queue(&entry, 1); }
  // All of them or none, announced together. Their names are complete already (see complete_name);
  // their numbers follow each other; returns the first. The entries are taken, their memory stays
  // the caller's.
  int64_t enqueue_all(TensorEntry* entries, size_t count) { return queue(entries, count); }
  // The same as a group: see EngineOptions::disable_group_fusion.
  int64_t enqueue_group(TensorEntry* entries, size_t count);
  // Operations over all ranks; the handle's `value` is the id. The ranks' order does not matter.
  int64_t add_process_set(const std::vector<int>& ranks);
  int64_t remove_process_set(int32_t id);
  std::map<int32_t, ProcessSet> process_sets();
  bool poll(int64_t handle);
  // True when complete; false after `timeout`. Throws EngineError when the operation failed.
  bool wait(int64_t handle, std::chrono::nanoseconds timeout);
  // The same for `count` operations from number `first` on; `settle` tells which have failed.
  bool wait_all(int64_t first, int64_t count, std::chrono::nanoseconds timeout);
  // GPU: what `stream` does from now on comes after the operation, which is done. Nothing happens
  // for an operation on the CPU.
  void order(int64_t handle, DeviceStream stream);
  // GPU: the result that the engine allocated, in the engine's stream; `stream` comes after it.
  DeviceMemory take_result(int64_t handle, DeviceStream stream);
  // `order` and `release` for `count` complete operations from number `first` on. Returns the first
  // error, "" without one.
  std::string settle(int64_t first, int64_t count, DeviceStream stream);
  // The handle's state; the operation must be complete.
  Handle complete_handle(int64_t handle);
  void release(int64_t handle);

  // From now on this rank communicates tensors of GPU `index`, too; `make` is called when it does
  // not yet. Throws InvalidRequest when it already uses another one, and what `make` throws.
  void use_device(int index, const std::function<DeviceBackend(int index)>& make);
  bool has_device() const { return status_.device != nullptr; }
  // The stream in which the engine reads and writes tensors; 0 without a device.
  DeviceStream device_stream() const { return has_device() ? status_.device.load()->stream() : 0; }
  // The input of an operation is there when `stream` has done what it has now. Throws
  // InvalidRequest.
  EventPtr input_ready(DeviceStream stream);

  // Steps; see submission/steps.h. True when `drain_steps` is worth calling.
  bool end_step(bool is_explicit);
  void pause_steps(bool paused);
  void add_samples(int64_t count);
  void drain_steps(std::vector<StepRecord>& records,
                   std::vector<std::pair<int64_t, OperationSizes>>& signatures);

  // Recording what happens here, see timeline/timeline.h. `start_timeline` throws InvalidRequest.
  // Stopping waits for a GPU, but not for long.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline();
  void backward(bool begins) { timeline_.backward(begins); }

  // Rank 0 only: the results that were checked since the last call, over all ranks.
  std::vector<CheckRecord> drain_checks();

  // Rank 0 only: change the parameters on all ranks between two steps.
  void propose(uint64_t epoch, const Params& params);
  Params params();
  uint64_t epoch();
  Counters counters();

  // From any thread: ends this rank's engine by an error, and with it what is in flight, since
  // somebody knows that a rank is gone. Does not wait for that; nothing happens to an engine that
  // has ended.
  void abort(const std::string& reason);
  // Ends the engine of all ranks; returns when this rank's thread has ended.
  void shutdown(std::chrono::nanoseconds timeout);
  bool failed() const { return status_.failed; }

 private:
  using Clock = std::chrono::steady_clock;
  using Submissions = Guarded<Submission>::Access;

  // The script's side.
  int64_t queue(TensorEntry* entries, size_t count);
  bool wait_for(Submissions& submission, const std::shared_ptr<Handle>& handle,
                Clock::time_point deadline);
  bool wait_by_running_cycles(const Handle& handle, Clock::time_point deadline);
  bool run_cycles(const Handle& handle, Clock::time_point deadline);
  void check_gpu_work(Submissions& submission);
  void wait_for_end(Submissions& submission);
  void finish_device_timeline();

  // The engine's own thread.
  void attend_to_others();
  void tell_ended();
  void start_timeline_at_init();
  void run();
  void sleep_until_needed();
  void set_affinity() const;

  const EngineOptions options_;
  const int rank_;
  const int size_;
  EngineStatus status_;  // any thread uses it
  Timeline timeline_;    // it has a lock of its own
  // It is the cycle's, but for its sleeps and wake-ups.
  std::unique_ptr<ControlPlane> control_;
  Guarded<Submission> submission_;
  Guarded<Cycle> cycle_;
  ControlPlane::Watch watched_;  // only the engine's thread uses it
  std::thread thread_;
};

}  // namespace autotune
