#include "engine/timeline_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

constexpr size_t max_records = 2'000'000;  // unwritten; 80 MB
constexpr size_t urgent_records = 200'000;
constexpr size_t page_bytes = 4096;
// Events are written together that came within this time of the first.
constexpr auto gathering_time = std::chrono::milliseconds(20);

void append(std::string& text, int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text.append(digits, end);
}

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
  size_bytes_ = 2;
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
  close(fd_);
}

void TimelineQueue::add(Record record) {
  record.ts_us = newest_us = std::max(newest_us, record.ts_us);
  const bool has_text = record.kind == RecordKind::name || record.kind == RecordKind::describe ||
                        record.kind == RecordKind::params;
  const bool full = records.size() >= max_records || (dropped > 0 && !records.empty());
  if (full && !has_text) {
    ++dropped;
    return;
  }
  if (dropped > 0 && records.empty()) {
    records.push_back({newest_us, "", std::exchange(dropped, 0), 0, 0, RecordKind::dropped});
  }
  records.push_back(record);
  if (writer_sleeps || records.size() == urgent_records) {
    writer_sleeps = false;
    changed.notify_one();
  }
}

void TimelineQueue::add(Record record, std::string text) {
  record.value = static_cast<int64_t>(texts.size());
  texts.push_back(std::move(text));
  add(record);
}

// ---------------------------------------------------------------- the writer thread

void TimelineWriter::run() {
  std::unique_lock lock(queue_.mutex);
  std::vector<Record> records;
  std::vector<std::string> texts;
  bool last = false;
  while (!last) {
    queue_.writer_sleeps = true;
    queue_.changed.wait(lock, [this] { return queue_.stopping || !queue_.records.empty(); });
    queue_.writer_sleeps = false;
    queue_.changed.wait_for(lock, gathering_time, [this] {
      return queue_.stopping || queue_.records.size() >= urgent_records;
    });
    records.clear();  // both vectors keep their memory
    texts.clear();
    std::swap(records, queue_.records);
    std::swap(texts, queue_.texts);
    last = std::exchange(queue_.stopping, false);
    lock.unlock();
    write(records, texts);
    lock.lock();
  }
  close_open_spans(last_ts_us_);
  flush();
}

void TimelineWriter::write(const std::vector<Record>& records,
                           const std::vector<std::string>& texts) {
  for (const Record& record : records) {
    format(record, texts);
    if (text_.size() >= (1 << 20)) flush();
  }
  flush();
}

void TimelineWriter::format(const Record& record, const std::vector<std::string>& texts) {
  if (depth_.size() <= record.track) {
    depth_.resize(record.track + 64, 0);
    arguments_.resize(record.track + 64);
  }
  last_ts_us_ = record.ts_us;
  switch (record.kind) {
    case RecordKind::begin:
      return format_begin(record);
    case RecordKind::end:
    case RecordKind::end_step:
    case RecordKind::end_tensor:
      return format_end(record);
    case RecordKind::tick:
      if (depth_[record.track] == 0) return;
      text_ += ",\n{\"ph\": \"X\", \"name\": \"";
      append(text_, record.value);
      text_ += '"';
      event(", \"dur\": 0}", record);
      return;
    case RecordKind::cycle:
      text_ += ",\n{\"ph\": \"i\", \"name\": \"CYCLE_START\"";
      return event(", \"s\": \"g\"}", record);
    case RecordKind::name:
      return format_name(record, texts[static_cast<size_t>(record.value)]);
    case RecordKind::describe:
      arguments_[record.track] = texts[static_cast<size_t>(record.value)];
      return;
    case RecordKind::params:
      text_ += ",\n{\"ph\": \"i\", \"name\": \"PARAMETERS\"";
      event(", \"s\": \"g\", \"args\": ", record);
      text_ += texts[static_cast<size_t>(record.value)] + "}";
      return;
    case RecordKind::dropped:
      close_open_spans(record.ts_us);
      text_ += ",\n{\"ph\": \"i\", \"name\": \"DROPPED_EVENTS\"";
      event(", \"s\": \"g\", \"args\": {\"count\": ", record);
      append(text_, record.value);
      text_ += "}}";
      return;
  }
}

void TimelineWriter::format_begin(const Record& record) {
  ++depth_[record.track];
  text_ += ",\n{\"ph\": \"B\", \"name\": \"";
  text_ += record.name;
  text_ += '"';
  event("}", record);
}

void TimelineWriter::format_end(const Record& record) {
  if (depth_[record.track] == 0) return;
  --depth_[record.track];
  text_ += ",\n{\"ph\": \"E\"";
  if (record.kind == RecordKind::end_tensor) {
    event(", \"args\": ", record);
    text_ += arguments_[record.track] + "}";
  } else if (record.kind == RecordKind::end_step) {
    event(", \"args\": {\"step\": ", record);
    append(text_, record.value);
    text_ += ", \"bytes\": ";
    append(text_, record.more);
    text_ += "}}";
  } else {
    event("}", record);
  }
}

// The part that all events have in common, then `rest`.
void TimelineWriter::event(const char* rest, const Record& record) {
  // Neighbours often share their time, and a track's numbers never change: format them once.
  if (ts_text_.empty() || record.ts_us != ts_text_us_) {
    ts_text_us_ = record.ts_us;
    ts_text_ = ", \"ts\": ";
    append(ts_text_, record.ts_us);
  }
  if (where_.size() <= record.track) where_.resize(record.track + 64);
  std::string& where = where_[record.track];
  if (where.empty()) {
    const bool tensor = record.track >= first_tensor_track;
    where = ", \"pid\": " + std::to_string(tensor ? record.track - first_tensor_track + 1 : 0) +
            ", \"tid\": " + std::to_string(tensor ? 0 : record.track);
  }
  text_ += ts_text_;
  text_ += where;
  text_ += rest;
}

void TimelineWriter::format_name(const Record& record, const std::string& name) {
  has_tensors_ = true;
  const std::string pid = std::to_string(record.track - first_tensor_track + 1);
  text_ += ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " + pid +
           ", \"tid\": 0, \"args\": {\"name\": \"" + json_escaped(name) + "\"}}";
  text_ += ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": " + pid +
           ", \"tid\": 0, \"args\": {\"sort_index\": " + pid + "}}";
}

void TimelineWriter::job_metadata() {
  const auto number = [](int64_t value) { return std::to_string(value); };
  text_ +=
      ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": 0, \"args\": {\"name\": "
      "\"job, rank " +
      number(rank_) + "\", \"rank\": " + number(rank_) + ", \"size\": " + number(size_) +
      ", \"start_time_since_epoch_in_micros\": " + number(clock_.origin_epoch_us) +
      ", \"clock_offset_ns\": " + number(clock_.offset_ns) +
      ", \"clock_offset_error_ns\": " + number(clock_.offset_error_ns) + "}}";
  text_ +=
      ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"tid\": 0, \"args\": "
      "{\"sort_index\": 0}}";
  const char* const names[] = {"job", "steps", "backward"};
  for (uint32_t tid = 0; tid < first_tensor_track; ++tid) {
    text_ += ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": " + number(tid) +
             ", \"args\": {\"name\": \"" + names[tid] + "\"}}";
  }
}

void TimelineWriter::close_open_spans(int64_t ts_us) {
  for (uint32_t track = 0; track < depth_.size(); ++track) {
    for (; depth_[track] > 0; --depth_[track]) {
      text_ += ",\n{\"ph\": \"E\"";
      event(", \"args\": {\"cut\": true}}",
            {std::max(ts_us, last_ts_us_), "", 0, 0, track, RecordKind::end});
    }
  }
}

// ---------------------------------------------------------------- the file

void TimelineWriter::flush() {
  if (!has_tensors_ || text_.empty()) return;
  if (size_bytes_ == 2) text_[0] = ' ';  // no comma before the first event
  size_t at = 0;
  while (at < text_.size() && !failed_) {
    // Whole events, as many as a page takes, at least one.
    size_t end = text_.size();
    if (end - at > page_bytes) {
      end = text_.rfind(",\n{", at + page_bytes);
      if (end == std::string::npos || end <= at) end = text_.find(",\n{", at + 1);
      if (end == std::string::npos) end = text_.size();
    }
    failed_ = !write_at_end(text_.data() + at, end - at);
    at = end;
  }
  text_.clear();
}

// Put `data` where the closing bracket is, and the bracket after it, in one call.
bool TimelineWriter::write_at_end(const char* data, size_t bytes) {
  std::string page(data, bytes);
  page += ']';
  const ssize_t written = pwrite(fd_, page.data(), page.size(), size_bytes_ - 1);
  if (written == static_cast<ssize_t>(page.size())) {
    size_bytes_ += static_cast<int64_t>(bytes);
    return true;
  }
  log(LogLevel::error, "timeline '" + path_ + "': cannot be written any more (" +
                           (written < 0 ? strerror(errno) : "disk full") +
                           "); it ends here, training goes on");
  if (ftruncate(fd_, size_bytes_) == 0) (void)!pwrite(fd_, "]", 1, size_bytes_ - 1);
  return false;
}

}  // namespace autotune
