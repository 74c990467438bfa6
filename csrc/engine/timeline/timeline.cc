#include "engine/timeline/timeline.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "engine/timeline/timeline_writer.h"

namespace autotune {

namespace {

// Names as Horovod writes them; literals, because records keep them.
const char* negotiate_name(Operation operation, ReduceOp reduce_op) {
  switch (operation) {
    case Operation::allreduce:
      return reduce_op == ReduceOp::adasum ? "NEGOTIATE_ADASUM" : "NEGOTIATE_ALLREDUCE";
    case Operation::allgather:
      return "NEGOTIATE_ALLGATHER";
    case Operation::broadcast:
      return "NEGOTIATE_BROADCAST";
    case Operation::barrier:
      return "NEGOTIATE_BARRIER";
    case Operation::alltoall:
      return "NEGOTIATE_ALLTOALL";
    case Operation::reducescatter:
      return "NEGOTIATE_REDUCESCATTER";
    case Operation::join:
      return "NEGOTIATE_JOIN";
    case Operation::add_process_set:
      return "NEGOTIATE_ADD_PROCESS_SET";
    case Operation::remove_process_set:
      return "NEGOTIATE_REMOVE_PROCESS_SET";
  }
  return "NEGOTIATE_ERROR";
}

const char* operation_name(const Response& response) {
  if (!response.error.empty()) return "ERROR";
  return negotiate_name(response.operation, response.reduce_op) + sizeof "NEGOTIATE";
}

std::string json_number(bool value) { return value ? "true" : "false"; }
std::string json_number(int64_t value) { return std::to_string(value); }
std::string json_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// An agreement alone: it ends with its negotiation.
bool is_agreement(const Response& response) {
  return !moves_data(response.operation) && response.error.empty();
}

}  // namespace

Timeline::Timeline(int rank, int size, const TimelineClock& clock)
    : rank_(rank), size_(size), clock_(clock) {}

Timeline::~Timeline() { stop(); }

void Timeline::start(const std::string& path, bool mark_cycles, const Params& params,
                     uint64_t epoch, bool with_init) {
  std::lock_guard control(control_mutex_);
  mark_cycles_ = mark_cycles;
  if (writer_ && writer_->path() == path) return;
  stop_now();
  writer_ = std::make_unique<TimelineWriter>(path, rank_, size_, clock_, queue_);
  const auto lock = enter();
  track_of_.clear();
  tracks_.assign(first_tensor_track, {});
  last_track_ = 0;
  is_full_ = false;
  forget_operations();
  step_open_ = backward_open_ = false;
  ++recording_;
  if (with_init) {
    queue_.add({0, "INIT", 0, 0, job_track, RecordKind::begin});
    push(RecordKind::end, job_track);
  }
  push_params(epoch, params);
  on_ = true;
}

void Timeline::stop() {
  std::lock_guard control(control_mutex_);
  stop_now();
}

void Timeline::stop_now() {
  {
    const auto lock = enter();
    on_ = false;
  }
  writer_.reset();  // writes what is left
}

// Lock the queue; all records of one hook have one time.
std::unique_lock<std::mutex> Timeline::enter() {
  std::unique_lock lock(queue_.mutex);
  now_us_ = static_cast<int64_t>(time_us());
  return lock;
}

double Timeline::time_us() const {
  const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  return static_cast<double>(now - clock_.origin_ns) / 1000;
}

void Timeline::cycle() {
  if (!on() || !mark_cycles_) return;
  const auto lock = enter();
  if (!on()) return;
  push(RecordKind::cycle, job_track);
}

void Timeline::step_begins() {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  if (std::exchange(step_open_, true)) return;
  push(RecordKind::begin, step_track, "STEP");
}

void Timeline::step_ends(int64_t step, int64_t payload_bytes) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  if (!step_open_) return;
  push(RecordKind::end_step, step_track, "", step, payload_bytes);
  push(RecordKind::begin, step_track, "STEP");
}

void Timeline::backward(bool begins) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  if (std::exchange(backward_open_, begins) == begins) return;
  push(begins ? RecordKind::begin : RecordKind::end, backward_track, "BACKWARD");
}

void Timeline::params_changed(uint64_t epoch, const Params& params) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  push_params(epoch, params);
}

void Timeline::push_params(uint64_t epoch, const Params& params) {
  std::string text = "{\"epoch\": " + std::to_string(epoch);
  visit_params([&](const char* name, const char*, auto member) {
    text += std::string(", \"") + name + "\": " + json_number(params.*member);
  });
  push_text(RecordKind::params, job_track, text + "}");
}

void Timeline::announced(const Request& request, int rank) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  const uint32_t id = track(request.name);
  if (id == no_track) return;
  const bool first = !std::exchange(tracks_[id].negotiating, true);
  push(first ? RecordKind::begin_tick : RecordKind::tick, id,
       first ? negotiate_name(request.operation, request.reduce_op) : "", rank);
}

void Timeline::negotiated(const std::string& name) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  const uint32_t id = track(name);
  if (id == no_track) return;
  if (std::exchange(tracks_[id].negotiating, false)) push(RecordKind::end, id);
}

void Timeline::agreed(const std::vector<Work>& works) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  forget_operations();
  bool first = true;
  for (const Work& work : works) {
    const bool silent = is_agreement(*work.response);
    TrackGroup& group = next_group();
    group.of = &work;
    for (const TensorEntry* entry : work.entries) {
      const uint32_t id = track(entry->request->name);
      if (id == no_track) continue;
      if (std::exchange(tracks_[id].negotiating, false)) push(RecordKind::end, id);
      if (!silent) group.tracks.push_back(id);
    }
    group.queued = !first;
    group.name = operation_name(*work.response);
    const bool on_gpu = work.response->on_device && work.response->error.empty();
    push_all(on_gpu ? RecordKind::begin_on_gpu : RecordKind::begin_all, group, group.name);
    if (group.queued) push_all(RecordKind::begin_all, group, "QUEUE");
    first = first && work.entries.empty();
  }
}

void Timeline::forget_operations() {
  agreed_ = next_ = 0;
  current_ = nullptr;
}

// An empty group behind those in use.
TrackGroup& Timeline::next_group() {
  if (agreed_ == groups_.size()) groups_.emplace_back();
  TrackGroup& group = groups_[agreed_++];
  group.tracks.clear();
  group.batch = 0;
  return group;
}

void Timeline::operation_begins(const Work& work) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  current_ = nullptr;
  while (next_ < agreed_ && groups_[next_].of != &work) ++next_;
  if (next_ == agreed_) return;  // recording began on the way
  current_ = &groups_[next_++];
  if (current_->queued) push_all(RecordKind::end_all, *current_);
}

void Timeline::activity_begins(const char* name) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  if (current_ != nullptr) push_all(RecordKind::begin_all, *current_, name);
}

void Timeline::activity_ends() {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  if (current_ != nullptr) push_all(RecordKind::end_all, *current_);
}

void Timeline::operation_ends(const Work& work) {
  if (!on()) return;
  const auto lock = enter();
  if (!on()) return;
  TrackGroup* const group = std::exchange(current_, nullptr);
  if (group == nullptr || group->tracks.empty()) return;
  const bool all_have_tracks = group->tracks.size() == work.entries.size();
  auto next = group->tracks.begin();
  for (const TensorEntry* entry : work.entries) {
    if (!all_have_tracks && track(entry->request->name) == no_track) continue;
    describe(*next++, entry->request);
  }
  push_all(RecordKind::end_tensors, *group);
}

void Timeline::describe(uint32_t track, const Request& request) {
  Track& tensor = tracks_[track];
  if (tensor.dtype == request.dtype && tensor.shape == request.shape &&
      tensor.on_device == request.on_device) {
    return;
  }
  tensor.on_device = request.on_device;
  tensor.dtype = request.dtype;
  tensor.shape = request.shape;
  const std::string text = std::string("{\"dtype\": \"") + name_of(request.dtype) +
                           "\", \"shape\": \"" + to_string(request.shape) + "\"}";
  push_text(RecordKind::describe, track, text);
  if (request.on_device) push_text(RecordKind::describe, track | gpu_track, text);
}

bool Timeline::device_begins(DeviceTracks& tracks) {
  const auto lock = enter();
  if (!on() || current_ == nullptr) return false;
  tracks.recording = recording_;
  tracks.name = current_->name;
  for (const uint32_t track : current_->tracks) tracks.group.tracks.push_back(track | gpu_track);
  return true;
}

void Timeline::device_operation(DeviceTracks& tracks, int64_t put_us,
                                const std::vector<DeviceActivity>& activities) {
  const auto lock = enter();
  if (!on() || tracks.recording != recording_) return;
  TrackGroup& group = tracks.group;
  const auto of_tensor = [&](uint32_t track) -> Track& { return tracks_[track & ~gpu_track]; };
  int64_t at_us = put_us;
  for (const uint32_t track : group.tracks) at_us = std::max(at_us, of_tensor(track).gpu_us);
  push_late(RecordKind::begin_all, at_us, group, tracks.name);
  for (const DeviceActivity& activity : activities) {
    push_late(RecordKind::begin_all, at_us, group, activity.name ? activity.name : "QUEUE");
    at_us = std::max(at_us, activity.end_us);
    push_late(RecordKind::end_all, at_us, group);
  }
  push_late(RecordKind::end_tensors, at_us, group);
  for (const uint32_t track : group.tracks) of_tensor(track).gpu_us = at_us;
}

void Timeline::push_late(RecordKind kind, int64_t ts_us, TrackGroup& group, const char* name) {
  queue_.add({ts_us, name, 0, 0, job_track, kind, true}, group);
}

// The track of a tensor; its name is written when it is new. Tensors come in the same order in
// every step, and often twice in a row: a comparison is cheaper than a look-up. `no_track`: there
// are too many names already.
uint32_t Timeline::track(const std::string& name) {
  const uint32_t before = last_track_;
  for (const uint32_t guess : {before, tracks_[before].next}) {
    const std::string* const known = tracks_[guess].name;
    if (known != nullptr && *known == name) return last_track_ = guess;
  }
  const auto known = track_of_.find(name);
  if (known == track_of_.end() && tracks_.size() >= most_tracks) {
    if (!std::exchange(is_full_, true)) {
      log(LogLevel::warning, "timeline: expected at most " + std::to_string(most_tracks) +
                                 " names, got another one: " + shown_name(name) +
                                 "; operations by further names are not in it");
    }
    return no_track;
  }
  const auto [found, is_new] = known != track_of_.end()
                                   ? std::pair{known, false}
                                   : track_of_.emplace(name, static_cast<uint32_t>(tracks_.size()));
  last_track_ = found->second;
  if (is_new) {
    tracks_.emplace_back();
    tracks_.back().name = &found->first;
    push_text(RecordKind::name, last_track_, track_name(name));
  }
  tracks_[before].next = last_track_;
  return last_track_;
}

void Timeline::push(RecordKind kind, uint32_t track, const char* name, int64_t value,
                    int64_t more) {
  queue_.add({now_us_, name, value, more, track, kind});
}

void Timeline::push_all(RecordKind kind, TrackGroup& group, const char* name) {
  queue_.add({now_us_, name, 0, 0, job_track, kind}, group);
}

void Timeline::push_text(RecordKind kind, uint32_t track, std::string text) {
  queue_.add({now_us_, "", 0, 0, track, kind}, std::move(text));
}

}  // namespace autotune
