// One timeline file and the thread that writes it.
//
// The file is valid JSON whenever the thread is not inside a write call: it always ends with the
// bracket that closes the array, which the next write overwrites. Writes are at most a page long,
// so that even a process that is killed in the middle of one has little chance of leaving half of
// it. Until the first event of a tensor the file holds "[]".
//
// What is written is balanced: an end without a begin (recording began in between, or records were
// dropped) is left out, and spans that are open at the end are closed with {"cut": true}.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engine/timeline_record.h"

namespace autotune {

class TimelineWriter {
 public:
  // Throws InvalidRequest when `path` cannot be written.
  TimelineWriter(const std::string& path, int rank, int size, const TimelineClock& clock,
                 TimelineQueue& queue);
  // Writes what is in the queue, closes what is open.
  ~TimelineWriter();
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;

  const std::string& path() const { return path_; }

 private:
  void run();
  void write(const std::vector<Record>& records, const std::vector<std::string>& texts);
  void format(const Record& record, const std::vector<std::string>& texts);
  void format_begin(const Record& record);
  void format_end(const Record& record);
  void format_name(const Record& record, const std::string& name);
  void job_metadata();
  void event(const char* phase, const Record& record);
  void close_open_spans(int64_t ts_us);
  void flush();
  bool write_at_end(const char* data, size_t bytes);

  const std::string path_;
  const int rank_;
  const int size_;
  const TimelineClock clock_;
  int fd_ = -1;

  // The writer thread's own.
  int64_t size_bytes_ = 0;
  int64_t last_ts_us_ = 0;
  bool failed_ = false;
  bool has_tensors_ = false;            // else `text_` is held back
  std::string text_;                    // formatted, each event after a comma
  std::vector<uint32_t> depth_;         // by track: open spans
  std::vector<std::string> arguments_;  // by track: what `end_tensor` says
  std::vector<std::string> where_;      // by track: its pid and tid, as text
  std::string ts_text_;                 // of the last event
  int64_t ts_text_us_ = 0;

  TimelineQueue& queue_;
  std::thread thread_;
};

// `text` between the quotes of a JSON string.
std::string json_escaped(const std::string& text);

}  // namespace autotune
