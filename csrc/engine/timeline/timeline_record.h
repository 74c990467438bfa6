// What travels from the engine to the timeline's writer.
//
// A record is one event, or one event on each track of a group: the tensors of a fused operation
// go through the same activities at the same times.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace autotune {

// One clock for all ranks: `origin_ns` is the same moment everywhere, on this rank's steady clock.
struct TimelineClock {
  int64_t origin_ns = 0;
  int64_t origin_epoch_us = 0;  // it is the same moment, in microseconds since 1970
  int64_t offset_ns = 0;        // this rank's steady clock is so far ahead of rank 0's, as measured
  int64_t offset_error_ns = 0;  // that may be wrong by so much: half of the shortest round trip
};

// These are tracks of the job; they share pid 0 and differ in tid. Tensors follow, with a pid each.
constexpr uint32_t job_track = 0;
constexpr uint32_t step_track = 1;
constexpr uint32_t backward_track = 2;
constexpr uint32_t first_tensor_track = 3;
// With this bit it is a tensor's second track, of what the GPU does for it.
constexpr uint32_t gpu_track = uint32_t{1} << 31;

// Behind each kind stands which fields it uses, and for what.
enum class RecordKind : uint8_t {
  begin,  // name
  end,
  begin_tick,  // name, value: rank; a begin with a tick at once
  tick,        // value: rank
  end_step,    // value: step, more: bytes
  cycle,
  name,      // value: index of the tensor's name in `texts`
  describe,  // value: index of a tensor's arguments in `texts`
  params,    // value: index of the arguments in `texts`
  dropped,   // value: how many
  // On a group; value: index of its first track in `members`, more: number of tracks.
  begin_all,     // name
  begin_on_gpu,  // the same, and the GPU's tracks will have more of it later
  end_all,
  end_tensors,  // with what the last `describe` of each said
};

struct Record {
  int64_t ts_us;
  const char* name;
  int64_t value;
  int64_t more;
  uint32_t track;
  RecordKind kind;
  bool late = false;  // it is told later than it happened
};

// The tracks of the tensors that one operation fuses.
struct TrackGroup {
  const void* of = nullptr;  // it tells groups apart, nothing else
  const char* name = "";     // it is the operation's
  std::vector<uint32_t> tracks;
  bool queued = false;
  // `tracks` lies there in the queue's `members`, as long as its batch is `batch`.
  int64_t at = 0;
  uint64_t batch = 0;
};

// What is recorded and not written yet. Everything is used with `mutex` held.
struct TimelineQueue {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Record> records;
  std::vector<std::string> texts;
  std::vector<uint32_t> members;
  uint64_t batch = 1;  // it counts how often the writer has taken all of it
  int64_t events = 0;  // the records will be so many
  int64_t newest_us = 0;
  int64_t dropped = 0;
  bool writer_sleeps = false;
  bool stopping = false;

  // Times never go backwards: an earlier one is moved up to its predecessor's, but for late ones.
  void add(Record record) { add(record, 1); }
  void add(Record record, std::string text);
  // A record on all tracks of `group`, which may be empty.
  void add(Record record, TrackGroup& group);

 private:
  void add(Record record, int64_t its_events);
  bool drops(const Record& record, int64_t its_events);
};

}  // namespace autotune
