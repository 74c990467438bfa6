#include "engine/timeline/timeline_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

constexpr int64_t max_events = 2'000'000;  // so many may be unwritten: 80 MB at most
constexpr int64_t urgent_events = 200'000;
constexpr size_t text_bytes = 512 << 10;  // so much is formatted before it is written
constexpr size_t page_bytes = TextBuffer::alignment;
// Events are written together that came within this time of the first.
constexpr auto gathering_time = std::chrono::milliseconds(20);

constexpr std::string_view begin_event = ",\n{\"ph\": \"B\", \"name\": \"";
constexpr std::string_view end_event = ",\n{\"ph\": \"E\"";

}  // namespace

std::string json_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      escaped += code;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

TimelineWriter::TimelineWriter(const std::string& path, int rank, int size,
                               const TimelineClock& clock, TimelineQueue& queue)
    : path_(path), rank_(rank), size_(size), clock_(clock), queue_(queue) {
  fd_ = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd_ < 0 || pwrite(fd_, "[]", 2, 0) != 2) {
    const std::string why = strerror(errno);
    if (fd_ >= 0) close(fd_);
    throw InvalidRequest("timeline '" + path + "' cannot be written: " + why);
  }
  set_direct(true);
  job_metadata();
  thread_ = std::thread([this] { run(); });
}

TimelineWriter::~TimelineWriter() {
  {
    std::lock_guard lock(queue_.mutex);
    queue_.stopping = true;
  }
  queue_.changed.notify_one();
  thread_.join();
  close_file();
}

// ---------------------------------------------------------------- the queue

void TimelineQueue::add(Record record, int64_t its_events) {
  if (!record.late) record.ts_us = newest_us = std::max(newest_us, record.ts_us);
  if (drops(record, its_events)) return;
  records.push_back(record);
  events += its_events;
  if (writer_sleeps || (events >= urgent_events && events - its_events < urgent_events)) {
    writer_sleeps = false;
    changed.notify_one();
  }
}

// Whether there is no room for `record`; says so in the file once there is some again.
bool TimelineQueue::drops(const Record& record, int64_t its_events) {
  const bool has_text = record.kind == RecordKind::name || record.kind == RecordKind::describe ||
                        record.kind == RecordKind::params;
  if ((events >= max_events || (dropped > 0 && events > 0)) && !has_text) {
    dropped += its_events;
    return true;
  }
  if (dropped > 0 && events == 0) {
    records.push_back(
        {newest_us, "", std::exchange(dropped, 0), 0, job_track, RecordKind::dropped});
  }
  return false;
}

void TimelineQueue::add(Record record, std::string text) {
  record.value = static_cast<int64_t>(texts.size());
  texts.push_back(std::move(text));
  add(record, 1);
}

void TimelineQueue::add(Record record, TrackGroup& group) {
  if (group.tracks.empty()) return;
  if (group.batch != batch) {
    group.batch = batch;
    group.at = static_cast<int64_t>(members.size());
    members.insert(members.end(), group.tracks.begin(), group.tracks.end());
  }
  record.value = group.at;
  record.more = static_cast<int64_t>(group.tracks.size());
  add(record, record.more);
}

// ---------------------------------------------------------------- the writer thread

void TimelineWriter::run() {
  std::unique_lock lock(queue_.mutex);
  Batch batch;
  bool last = false;
  while (!last) {
    queue_.writer_sleeps = true;
    queue_.changed.wait(lock, [this] { return queue_.stopping || !queue_.records.empty(); });
    queue_.writer_sleeps = false;
    queue_.changed.wait_for(lock, gathering_time,
                            [this] { return queue_.stopping || queue_.events >= urgent_events; });
    batch.records.clear();  // all keep their memory
    batch.texts.clear();
    batch.members.clear();
    std::swap(batch.records, queue_.records);
    std::swap(batch.texts, queue_.texts);
    std::swap(batch.members, queue_.members);
    ++queue_.batch;
    queue_.events = 0;
    last = std::exchange(queue_.stopping, false);
    lock.unlock();
    write(batch);
    lock.lock();
  }
  close_open_spans(last_ts_us_);
  flush();
}

void TimelineWriter::write(const Batch& batch) {
  for (const Record& record : batch.records) {
    format(record, batch);
    if (text_.size() >= text_bytes) flush();
  }
  flush();
}

void TimelineWriter::format(const Record& record, const Batch& batch) {
  last_ts_us_ = std::max(last_ts_us_, record.ts_us);
  const auto text = [&]() -> const std::string& {
    return batch.texts[static_cast<size_t>(record.value)];
  };
  switch (record.kind) {
    case RecordKind::begin:
      return format_begin(record);
    case RecordKind::begin_tick:
      format_begin(record);
      return format_tick(record);
    case RecordKind::tick:
      return format_tick(record);
    case RecordKind::end:
    case RecordKind::end_step:
      return format_end(record);
    case RecordKind::begin_all:
    case RecordKind::begin_on_gpu:
    case RecordKind::end_all:
    case RecordKind::end_tensors:
      return format_group(record, batch.members.data() + record.value);
    case RecordKind::cycle:
      return format_job_event("CYCLE_START", record, "");
    case RecordKind::params:
      return format_job_event("PARAMETERS", record, text());
    case RecordKind::dropped:
      close_open_spans(record.ts_us);
      return format_job_event("DROPPED_EVENTS", record,
                              "{\"count\": " + std::to_string(record.value) + "}");
    case RecordKind::name:
      return format_name(record, text());
    case RecordKind::describe:
      track(record.track).arguments = text();
      return;
  }
}

void TimelineWriter::format_group(const Record& record, const uint32_t* members) {
  const bool on_gpu = record.kind == RecordKind::begin_on_gpu;
  const bool begins = record.kind == RecordKind::begin_all || on_gpu;
  prefix_.clear();
  if (begins) {
    prefix_ << begin_event << record.name << "\"";
  } else {
    prefix_ << end_event;
  }
  prefix_ << time_text(record.ts_us);
  for (const uint32_t* id = members; id != members + record.more; ++id) {
    if (on_gpu) track(*id | gpu_track);  // its name comes before its first event
    Track& tensor = track(*id);
    if (!begins && tensor.depth == 0) continue;
    tensor.depth += begins ? 1 : -1;
    text_ << prefix_.view() << tensor.where;
    if (on_gpu) text_ << ", \"args\": {\"device\": \"GPU\"}";
    if (record.kind == RecordKind::end_tensors && !tensor.arguments.empty())
      text_ << ", \"args\": " << tensor.arguments;
    text_ << "}";
  }
}

void TimelineWriter::format_begin(const Record& record) {
  ++track(record.track).depth;
  text_ << begin_event << record.name << "\"";
  place(record) << "}";
}

void TimelineWriter::format_tick(const Record& record) {
  if (track(record.track).depth == 0) return;
  text_ << ",\n{\"ph\": \"X\", \"name\": \"" << record.value << "\"";
  place(record) << ", \"dur\": 0}";
}

void TimelineWriter::format_end(const Record& record) {
  int& depth = track(record.track).depth;
  if (depth == 0) return;
  --depth;
  text_ << end_event;
  place(record);
  if (record.kind == RecordKind::end_step) {
    text_ << ", \"args\": {\"step\": " << record.value << ", \"bytes\": " << record.more << "}";
  }
  text_ << "}";
}

void TimelineWriter::format_job_event(const char* name, const Record& record,
                                      std::string_view arguments) {
  text_ << ",\n{\"ph\": \"i\", \"name\": \"" << name << "\"";
  place(record) << ", \"s\": \"g\"";
  if (!arguments.empty()) text_ << ", \"args\": " << arguments;
  text_ << "}";
}

TextBuffer& TimelineWriter::place(const Record& record) {
  return text_ << time_text(record.ts_us) << track(record.track).where;
}

// Neighbours often share their time: it is formatted once.
std::string_view TimelineWriter::time_text(int64_t ts_us) {
  if (time_.empty() || ts_us != time_us_) {
    time_us_ = ts_us;
    time_.clear();
    time_ << ", \"ts\": " << ts_us;
  }
  return time_.view();
}

TimelineWriter::Track& TimelineWriter::track(uint32_t id) {
  if ((id & gpu_track) != 0) return track_of_gpu(id & ~gpu_track);
  while (tracks_.size() <= id) {
    const auto next = static_cast<uint32_t>(tracks_.size());
    const bool tensor = next >= first_tensor_track;
    tracks_.emplace_back();
    tracks_.back().where =
        ", \"pid\": " + std::to_string(tensor ? next - first_tensor_track + 1 : 0) +
        ", \"tid\": " + std::to_string(tensor ? 0 : next);
  }
  return tracks_[id];
}

TimelineWriter::Track& TimelineWriter::track_of_gpu(uint32_t tensor) {
  if (gpu_tracks_.size() <= tensor) gpu_tracks_.resize(tensor + 1);
  Track& track = gpu_tracks_[tensor];
  if (!track.where.empty()) return track;
  const std::string pid = std::to_string(tensor - first_tensor_track + 1);
  track.where = ", \"pid\": " + pid + ", \"tid\": 1";
  const char* const names[] = {"host", "GPU"};
  for (int64_t tid = 0; tid < 2; ++tid) {
    text_ << ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": " << pid
          << ", \"tid\": " << tid << ", \"args\": {\"name\": \"" << names[tid] << "\"}}";
  }
  return track;
}

void TimelineWriter::format_name(const Record& record, const std::string& name) {
  has_tensors_ = true;
  const std::string pid = std::to_string(record.track - first_tensor_track + 1);
  text_ << ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " << pid
        << ", \"tid\": 0, \"args\": {\"name\": \"" << json_escaped(name) << "\"}}"
        << ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": " << pid
        << ", \"tid\": 0, \"args\": {\"sort_index\": " << pid << "}}";
}

void TimelineWriter::job_metadata() {
  text_ << ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": 0, \"args\": "
        << "{\"name\": \"job, rank " << rank_ << "\", \"rank\": " << rank_
        << ", \"size\": " << size_
        << ", \"start_time_since_epoch_in_micros\": " << clock_.origin_epoch_us
        << ", \"clock_offset_ns\": " << clock_.offset_ns
        << ", \"clock_offset_error_ns\": " << clock_.offset_error_ns << "}}"
        << ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"tid\": 0, "
        << "\"args\": {\"sort_index\": 0}}";
  const char* const names[] = {"job", "steps", "backward"};
  for (int64_t tid = 0; tid < first_tensor_track; ++tid) {
    text_ << ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": " << tid
          << ", \"args\": {\"name\": \"" << names[tid] << "\"}}";
  }
}

void TimelineWriter::close_open_spans(int64_t ts_us) {
  const int64_t now_us = std::max(ts_us, last_ts_us_);
  for (uint32_t id = 0; id < tracks_.size(); ++id) {
    for (; tracks_[id].depth > 0; --tracks_[id].depth) {
      text_ << end_event;
      place({now_us, "", 0, 0, id, RecordKind::end}) << ", \"args\": {\"cut\": true}}";
    }
  }
  for (Track& track : gpu_tracks_) {
    for (; track.depth > 0; --track.depth) {
      text_ << end_event << time_text(now_us) << track.where << ", \"args\": {\"cut\": true}}";
    }
  }
}

// ---------------------------------------------------------------- the file

// Write what is formatted and the closing bracket, in whole pages. The events of the last page stay
// in `text_`: the next write begins with that page.
void TimelineWriter::flush() {
  if (!has_tensors_ || failed_ || text_.size() == kept_bytes_) return;
  if (pages_at_ == 0 && kept_bytes_ == 0) text_.data()[0] = '[';  // in place of the comma
  const size_t bytes = text_.size();
  text_ << "]";
  text_.append((page_bytes - text_.size() % page_bytes) % page_bytes, ' ');
  failed_ = !write_pages(text_.view());
  text_.cut(failed_ ? kept_bytes_ : bytes);
  if (failed_) return;
  const size_t whole_pages = text_.size() / page_bytes * page_bytes;
  text_.drop_front(whole_pages);
  pages_at_ += static_cast<int64_t>(whole_pages);
  kept_bytes_ = text_.size();
}

bool TimelineWriter::write_pages(std::string_view pages) {
  const auto attempt = [&] { return pwrite(fd_, pages.data(), pages.size(), pages_at_); };
  ssize_t written = attempt();
  if (written < 0 && errno == EINVAL && set_direct(false)) written = attempt();
  if (written == static_cast<ssize_t>(pages.size())) return true;
  log(LogLevel::error, "timeline '" + path_ + "': cannot be written any more (" +
                           (written < 0 ? strerror(errno) : "disk full") +
                           "); it ends here, training goes on");
  return false;
}

// End the file with the bracket, without the spaces that fill its last page.
void TimelineWriter::close_file() {
  set_direct(false);
  if (pages_at_ > 0 || kept_bytes_ > 0) {
    text_ << "]";
    (void)!pwrite(fd_, text_.data(), text_.size(), pages_at_);
    (void)!ftruncate(fd_, pages_at_ + static_cast<int64_t>(text_.size()));
  }
  close(fd_);
}

// Have writes go around the page cache, or not; false when the file cannot be set to that.
bool TimelineWriter::set_direct(bool wanted) {
  const int flags = fcntl(fd_, F_GETFL);
  return flags >= 0 && fcntl(fd_, F_SETFL, wanted ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace autotune
