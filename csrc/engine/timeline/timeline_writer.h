// One timeline file and the thread that writes it.
//
// The file is valid JSON after every write: it ends with the bracket that closes the array, and
// spaces; the next write overwrites the bracket. Until the first event of a tensor it holds "[]".
//
// It stays valid when the process is killed inside a write, too, where the file system takes direct
// writes: the kernel breaks off a write to the page cache between two pages, a direct one never.
// They also cost less: nothing is copied, and no other thread of the kernel works on it later.
//
// What is written is balanced: an end without a begin (recording began in between, or records were
// dropped) is left out, and spans that are open at the end are closed with {"cut": true}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/timeline/timeline_record.h"
#include "engine/timeline/timeline_text.h"

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
  struct Batch {
    std::vector<Record> records;
    std::vector<std::string> texts;
    std::vector<uint32_t> members;
  };
  struct Track {
    int depth = 0;          // so many spans are open
    std::string where;      // it has its pid and tid, as text
    std::string arguments;  // `end_tensors` says them
  };

  void run();
  void write(const Batch& batch);
  void format(const Record& record, const Batch& batch);
  void format_group(const Record& record, const uint32_t* members);
  void format_begin(const Record& record);
  void format_end(const Record& record);
  void format_tick(const Record& record);
  void format_job_event(const char* name, const Record& record, std::string_view arguments);
  void format_name(const Record& record, const std::string& name);
  void job_metadata();
  Track& track(uint32_t id);
  Track& track_of_gpu(uint32_t tensor);
  // All events have this part in common: ts, pid, tid.
  TextBuffer& place(const Record& record);
  std::string_view time_text(int64_t ts_us);
  void close_open_spans(int64_t ts_us);
  void flush();
  bool write_pages(std::string_view pages);
  void close_file();
  bool set_direct(bool wanted);

  const std::string path_;
  const int rank_;
  const int size_;
  const TimelineClock clock_;
  int fd_ = -1;

  // These are the writer thread's own.
  int64_t last_ts_us_ = 0;
  bool failed_ = false;
  bool has_tensors_ = false;  // without any, `text_` is held back
  // It is formatted, each event after a comma, and goes into the file from `pages_at_` on.
  TextBuffer text_;
  int64_t pages_at_ = 0;   // whole pages before it are written for good
  size_t kept_bytes_ = 0;  // so many bytes at the beginning of `text_` are in the file already
  TextBuffer prefix_;      // the events of a group have it in common
  TextBuffer time_;        // it is the last event's
  int64_t time_us_ = 0;
  std::vector<Track> tracks_;
  // They are found by the tensor's own track; a tensor that has none has an empty `where` there.
  std::vector<Track> gpu_tracks_;

  TimelineQueue& queue_;
  std::thread thread_;
};

// `text` between the quotes of a JSON string.
std::string json_escaped(const std::string& text);

}  // namespace autotune
