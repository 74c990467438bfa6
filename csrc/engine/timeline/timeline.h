// The timeline: what the engine does when, as a Chrome-trace event array that people and
// `autotune timeline` read.
//
// A track holds the events of one tensor (a pid of its own), or of the job (pid 0): INIT, STEP,
// BACKWARD. A span is a begin and an end on one track, properly nested. Recording means that engine
// and training threads append fixed-size records in memory, under a lock that nobody holds for
// long; one writer thread (timeline_writer.h) turns them into text.
//
// The engine never waits for the writer: when two million are unwritten, further ones are dropped
// until the writer has caught up, and a DROPPED_EVENTS event says how many. A timeline that is off
// costs one load per hook.
//
// A tensor of a GPU has a second track of what the GPU did for it, with times of its own that are
// written when they are known (device_timeline.h): these events come late in the file. The first
// track has its operation as the engine put it into the GPU's stream, marked {"device": "GPU"}.
//
// A name has a track as long as there are fewer than 65,536: a script whose names never come back
// would fill memory and file. Operations by further names are left out, which is said once.
//
// Rank 0 sees all announcements and so the ticks of all ranks; another rank's file (on request)
// shows its own only. Times are microseconds since `origin`, which is one moment on all ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/activity.h"
#include "engine/operation/message.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/timeline_record.h"

namespace autotune {

class TimelineWriter;

// The GPU's tracks of one operation's tensors.
struct DeviceTracks {
  uint64_t recording = 0;  // they belong to this file
  const char* name = "";   // it is the operation's
  TrackGroup group;
};

// One of the parts of an operation on the GPU, which follow each other.
struct DeviceActivity {
  const char* name;  // nullptr stands for the time in the stream before the first one
  int64_t end_us;
};

class Timeline final : public ActivityObserver {
 public:
  Timeline(int rank, int size, const TimelineClock& clock);
  ~Timeline() override;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Record to `path` from now on; a file there is replaced. Nothing happens when `path` is the
  // current file. Throws InvalidRequest when it cannot be written. `with_init`: the runtime was
  // started just now; the INIT span says how long that took since the origin.
  void start(const std::string& path, bool mark_cycles, const Params& params, uint64_t epoch,
             bool with_init = false);
  // Everything recorded is in the file when this returns.
  void stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void cycle();
  void step_begins();
  void step_ends(int64_t step, int64_t payload_bytes);
  void backward(bool begins);
  void params_changed(uint64_t epoch, const Params& params);

  void announced(const Request& request, int rank);
  void negotiated(const std::string& name);
  // What this rank has to do for one list of responses, in order: the first begins at once, the
  // others queue.
  void agreed(const std::vector<Work>& works);
  // `work`: one of those agreed last, each at most once and in order.
  void operation_begins(const Work& work);
  void activity_begins(const char* name) override;
  void activity_ends() override;
  void operation_ends(const Work& work);

  // The operation that has begun goes on on the GPU. False when it is not recorded.
  bool device_begins(DeviceTracks& tracks);
  // What the GPU did, told when it is known: in the order in which they began. `put_us`: when the
  // operation was put into the GPU's stream.
  void device_operation(DeviceTracks& tracks, int64_t put_us,
                        const std::vector<DeviceActivity>& activities);
  // Microseconds since the origin.
  double time_us() const;

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t most_tracks = 1 << 16;
  static constexpr uint32_t no_track = ~uint32_t{0};

  struct Track {
    const std::string* name = nullptr;  // it lives in `track_of_`
    uint32_t next = 0;                  // it was asked for after this one
    bool negotiating = false;
    DataType dtype = DataType::float32;
    Shape shape{-1};  // it was written so last
    bool on_device = false;
    int64_t gpu_us = 0;  // until then the GPU's track is written
  };

  std::unique_lock<std::mutex> enter();
  void stop_now();
  uint32_t track(const std::string& name);
  void forget_operations();
  TrackGroup& next_group();
  void describe(uint32_t track, const Request& request);
  void push_late(RecordKind kind, int64_t ts_us, TrackGroup& group, const char* name = "");
  void push(RecordKind kind, uint32_t track, const char* name = "", int64_t value = 0,
            int64_t more = 0);
  void push_all(RecordKind kind, TrackGroup& group, const char* name = "");
  void push_text(RecordKind kind, uint32_t track, std::string text);
  void push_params(uint64_t epoch, const Params& params);

  const int rank_;
  const int size_;
  const TimelineClock clock_;
  std::atomic<bool> on_{false};
  std::atomic<bool> mark_cycles_{false};
  // It lets one start or stop go on at a time, and is taken before queue_.mutex.
  std::mutex control_mutex_;
  std::unique_ptr<TimelineWriter> writer_;  // control_mutex_ guards it

  // queue_.mutex guards the rest.
  TimelineQueue queue_;
  int64_t now_us_ = 0;  // the hook that holds the lock was called then
  std::unordered_map<std::string, uint32_t> track_of_;  // it is found by a tensor's name
  std::vector<Track> tracks_;
  uint32_t last_track_ = 0;
  bool is_full_ = false;  // there were more names than tracks
  // These were agreed last: each response has a group, in order, and `next_` begins next.
  std::vector<TrackGroup> groups_;  // the first `agreed_` are in use, all keep their memory
  size_t agreed_ = 0;
  size_t next_ = 0;
  uint64_t recording_ = 0;  // it counts files
  TrackGroup* current_ = nullptr;
  bool step_open_ = false;
  bool backward_open_ = false;
};

}  // namespace autotune
