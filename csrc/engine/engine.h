// The engine of one rank: takes operations from the training thread, negotiates and performs them.
//
// A *cycle* announces what this rank has ready, reads the control plane, and performs the responses
// that have come. Cycles are run by the engine's own thread, or by a thread that waits for a handle
// (it would only sleep otherwise, and handing over costs two context switches): whoever holds
// `cycle_mutex_`. Only that thread is inside the communicator.
//
// When to announce: `cycle_time_ms` after the first tensor became ready, or earlier when the ready
// bytes fill a fusion buffer or when a thread waits for a handle. With nothing to do all threads
// sleep.
//
// An operation in flight lives in `in_flight_` from enqueue to completion; its address does not
// change, and only the thread that holds cycle_mutex_ completes it.
//
// Lock order: cycle_mutex_, then mutex_. mutex_ is never held while the communicator or a socket is
// used.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/choose.h"
#include "control/control.h"
#include "engine/execute/executor.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/response_cache.h"
#include "engine/negotiation/stall.h"
#include "engine/operation/process_set.h"
#include "engine/operation/tensor.h"
#include "engine/submission/device_steps.h"
#include "engine/submission/steps.h"
#include "engine/timeline/timeline.h"

namespace autotune {

struct EngineOptions {
  Params params;
  int thread_affinity = -1;           // core of the engine thread; -1: all that the job may use
  double stall_warning_seconds = 60;  // 0: no stall check
  double stall_shutdown_seconds = 0;  // 0: never
  std::string timeline_path;          // empty: none from the start
  bool timeline_mark_cycles = false;
  TimelineClock timeline_clock;
  bool disable_group_fusion = false;  // groups fuse only within themselves; the same on all ranks
};

// One result that was checked; see result_check.h.
struct CheckRecord {
  uint64_t epoch;
  std::string name;
  double worst_error;  // in units of the tolerance

  bool ok() const { return worst_error <= 1; }
};

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
  // GPU: copy the result that the engine allocated to `to`, in `stream`, and free it there.
  void take_result(int64_t handle, void* to, DeviceStream stream);
  // `order` and `release` for `count` complete operations from number `first` on. Returns the first
  // error, "" without one.
  std::string settle(int64_t first, int64_t count, DeviceStream stream);
  // The handle's state; the operation must be complete.
  Handle complete_handle(int64_t handle);
  void release(int64_t handle);

  // From now on this rank communicates tensors of GPU `index`, too; `make` is called when it does
  // not yet. Throws InvalidRequest when it already uses another one, and what `make` throws.
  void use_device(int index, const std::function<DeviceBackend(int index)>& make);
  bool has_device() const { return device_ != nullptr; }
  // The stream in which the engine reads and writes tensors; 0 without a device.
  DeviceStream device_stream() const { return has_device() ? device_.load()->stream() : 0; }
  // The input of an operation is there when `stream` has done what it has now. Throws
  // InvalidRequest.
  EventPtr input_ready(DeviceStream stream);

  // Steps; see steps.h. True when `drain_steps` is worth calling.
  bool end_step(bool is_explicit);
  void pause_steps(bool paused);
  void add_samples(int64_t count);
  void drain_steps(std::vector<StepRecord>& records,
                   std::vector<std::pair<int64_t, OperationSizes>>& signatures);

  // Recording what happens here, see timeline.h. `start_timeline` throws InvalidRequest. Stopping
  // waits for a GPU, but not for long.
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

  // Ends the engine of all ranks; returns when this rank's thread has ended.
  void shutdown(std::chrono::nanoseconds timeout);
  bool failed() const { return failed_; }

 private:
  using Clock = std::chrono::steady_clock;

  // How long the engine thread leaves the next cycle to a thread that waited a moment ago.
  static constexpr std::chrono::microseconds lease{500};
  // How often a GPU that has work is asked whether it has failed.
  static constexpr std::chrono::milliseconds device_check_interval{100};
  // How long the end of a timeline waits for what the GPU is doing.
  static constexpr std::chrono::seconds timeline_patience{2};

  // engine.cc: the training thread's side
  int64_t queue(TensorEntry* entries, size_t count);
  void take_names(TensorEntry* entries, size_t count);
  bool wait_for(const std::shared_ptr<Handle>& handle, Clock::time_point deadline,
                std::unique_lock<std::mutex>& lock);
  bool wait_by_running_cycles(const std::shared_ptr<Handle>& handle, Clock::time_point deadline);
  std::shared_ptr<Handle> find_handle(int64_t number);
  void release_locked(int64_t number);
  void start_timeline_at_init();
  void end_step_now(Clock::time_point now);
  Clock::time_point announce_time() const;

  // engine_device.cc: the GPU
  void order_locked(const EventPtr& finished, DeviceStream stream);
  void check_gpu_work(std::unique_lock<std::mutex>& lock);
  void wait_for_end(std::unique_lock<std::mutex>& lock);
  void free_result(Handle& handle);
  void take_device_steps();
  void finish_device_timeline();
  void check_device();

  // engine_cycle.cc: negotiating and performing
  void cycle();
  bool exchange();
  void send_and_process();
  void collect();
  RequestList& new_list(int64_t step);
  void announce(TensorEntry& entry);
  void handle_frames();
  void heard_responses();
  void process(ResponseList& list);
  void apply(const ParamsChange& change);
  void find_work(ResponseList& list);
  TensorEntry* find_entry(const Response& response, ResponseItem& item);
  TensorEntry* zeros_for(const Response& response, const ResponseItem& item);
  void perform(const Work& work);
  void remember(const Work& work);
  void agree(const Work& work);
  void add_set(int32_t id, const ProcessSet& set);
  void remove_set(int32_t id);
  void complete(const Work& work);
  void end(TensorEntry& entry, const std::string& error);
  void add_check(const Work& work, double worst_error);

  // engine_thread.cc: the engine's own thread; when things go wrong
  void run();
  void sleep_until_needed();
  void set_affinity() const;
  void on_wait();
  void check_connections();
  void fail_everything(const std::string& reason, bool fatal);

  const EngineOptions options_;
  const int rank_;
  const int size_;
  Timeline timeline_;
  std::unique_ptr<ControlPlane> control_;

  ControlPlane::Watch watched_;  // of the engine thread

  // Guarded by cycle_mutex_.
  std::mutex cycle_mutex_;
  FrameQueue frames_;
  Frame frame_;                   // that is handled
  RequestList heard_;             // what it says
  ResponsePool pool_of_lists_;    // for what it says
  std::vector<RequestList> own_;  // what this rank says: the first `own_count_`
  size_t own_count_ = 0;
  std::vector<ResponseList> lists_;  // what rank 0 has decided
  std::string encoded_;
  ResponseCache cache_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only
  const CommunicatorFactory make_communicators_;
  Executor executor_;
  std::vector<Work> works_;               // of the response list that is being processed
  std::deque<TensorEntry> zero_entries_;  // stand in for tensors while this rank has joined
  std::deque<std::vector<char>> zeros_;   // their memory
  uint64_t processed_ = 0;
  StallInspector stalls_;
  bool shutdown_announced_ = false;
  bool saying_goodbye_ = false;  // shutdown is decided: ranks may leave

  Clock::time_point device_checked_{};
  std::atomic<bool> device_is_busy_{false};  // as last seen; set when it gets work

  std::atomic<Device*> device_{nullptr};  // the executor's; set once

  // Guarded by mutex_.
  std::mutex mutex_;
  std::unordered_map<DeviceStream, uint64_t> ordered_;  // the newest event that it waits for
  std::condition_variable done_changed_;
  std::pmr::unsynchronized_pool_resource pool_;  // of what follows: no step allocates anew
  std::pmr::unordered_map<int64_t, std::shared_ptr<Handle>> handles_{&pool_};
  int64_t next_handle_ = 0;
  std::pmr::unordered_map<NameKey, std::shared_ptr<InFlight>, NameKeyHash> in_flight_{&pool_};
  std::vector<InFlight*> taken_;           // by the call of `queue` that runs
  std::vector<TensorEntry*> unannounced_;  // in in_flight_
  ProcessSetTable sets_;
  int64_t unannounced_bytes_ = 0;
  Clock::time_point first_unannounced_{};
  int waiting_threads_ = 0;
  Params params_;
  uint64_t epoch_ = 0;
  int64_t epoch_first_step_ = 0;
  std::optional<std::pair<uint64_t, Params>> proposal_;
  StepTracker steps_;
  DeviceSteps device_steps_;
  Counters counters_;
  std::vector<CheckRecord> checks_;
  bool shutdown_requested_ = false;
  std::string closed_reason_;  // not empty: no more operations
  Clock::time_point thread_wakes_at_ = Clock::time_point::max();
  Clock::time_point
      lease_until_{};  // until then a waiting thread is expected to run the next cycle

  std::atomic<bool> stopped_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> abandon_{false};  // shutdown has waited long enough
  std::thread thread_;
};

}  // namespace autotune
