// What a timeline says of a GPU. See host_device.h; times are those of the steady clock here.
#include <map>

#include "check.h"
#include "device_fixture.h"
#include "timeline_file.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

int64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

EngineOptions recording(const TemporaryFile& file) {
  EngineOptions options;
  options.timeline_path = file.path;
  return options;
}

// Rank 0 writes; rank 1 would write to the same file.
void only_rank_0(DeviceRank& rank) {
  if (rank.rank() != 0) rank.engine.stop_timeline();
}

struct TimeSpan {
  std::string name;
  int64_t begin, end;
  int depth;
};

// Of one track, in the order of their begins.
std::vector<TimeSpan> spans_of(const std::string& text, std::pair<int64_t, int64_t> track) {
  std::vector<TimeSpan> spans;
  std::vector<size_t> open;
  for (const TimelineEvent& event : events_of(text)) {
    if (event.track != track) continue;
    if (event.phase == 'B') {
      open.push_back(spans.size());
      spans.push_back({event.name, event.ts, -1, static_cast<int>(open.size()) - 1});
    } else if (event.phase == 'E') {
      spans[open.back()].end = event.ts;
      open.pop_back();
    }
  }
  return spans;
}

int count_named(const std::vector<TimeSpan>& spans, const std::string& name) {
  int found = 0;
  for (const TimeSpan& span : spans) found += span.name == name ? 1 : 0;
  return found;
}

const TimeSpan& only(const std::vector<TimeSpan>& spans, const std::string& name) {
  CHECK_EQUAL(count_named(spans, name), 1);
  return *std::find_if(spans.begin(), spans.end(),
                       [&](const TimeSpan& span) { return span.name == name; });
}

}  // namespace

TEST(device_timeline_has_the_parts_of_an_operation_on_tracks_of_their_own) {
  TemporaryFile file;
  const int64_t begin = now_us();
  with_devices(2, recording(file), {}, [](DeviceRank& rank) {
    only_rank_0(rank);
    for (int step = 0; step < 3; ++step) {
      std::vector<Tensor> tensors(3, Tensor(DataType::float32, {10}));
      std::vector<TensorEntry> entries;
      for (Tensor& tensor : tensors) {
        rank.fill(tensor, [](int64_t) { return 1; });
        entries.push_back(rank.allreduce("t" + std::to_string(entries.size()), tensor));
      }
      rank.finish_all(rank.enqueue_group(std::move(entries)));
      rank.engine.end_step(true);
    }
  });
  const int64_t end = now_us();
  const std::string text = file.read();
  check_structure(text, true);
  for (int64_t pid = 1; pid <= 3; ++pid) {
    const std::vector<TimeSpan> on_gpu = spans_of(text, {pid, 1}),
                                on_host = spans_of(text, {pid, 0});
    const std::vector<std::string> names{"ALLREDUCE",      "QUEUE",
                                         "WAIT_FOR_DATA",  "MEMCPY_IN_FUSION_BUFFER",
                                         "NCCL_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"};
    CHECK_EQUAL(on_gpu.size(), 3 * names.size());
    for (size_t i = 0; i < on_gpu.size(); ++i) {
      const TimeSpan& span = on_gpu[i];
      CHECK_EQUAL(span.name, names[i % names.size()]);
      CHECK_EQUAL(span.depth, i % names.size() == 0 ? 0 : 1);
      CHECK(begin <= span.begin && span.begin <= span.end && span.end <= end);
    }
    for (const std::string& name : names) {
      CHECK_EQUAL(count_named(on_host, name), name == "ALLREDUCE" ? 3 : 0);
    }
    CHECK_EQUAL(count_named(on_host, "NEGOTIATE_ALLREDUCE"), 3);
  }
  CHECK_EQUAL(count(text,
                    "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 2, \"tid\": 1, "
                    "\"args\": {\"name\": \"GPU\"}}"),
              1);
  CHECK_EQUAL(count(text, "\"args\": {\"device\": \"GPU\"}"), 9);
  CHECK_EQUAL(count(text, "\"dtype\": \"float32\", \"shape\": \"[10]\""), 18);
}

TEST(device_timeline_says_how_long_the_gpu_waited_for_data) {
  TemporaryFile file;
  int64_t opened_us = 0;
  with_devices(1, recording(file), {}, [&](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {1000});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    rank.wait(handle);
    while (rank.device.timed_events < 1) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);  // from the event before the wait on
    opened_us = now_us();
    gate->happen();
    rank.finish(handle);
  });
  const std::vector<TimeSpan> on_gpu = spans_of(file.read(), {1, 1});
  const TimeSpan &waiting = only(on_gpu, "WAIT_FOR_DATA"), &moving = only(on_gpu, "NCCL_ALLREDUCE");
  CHECK(waiting.end - waiting.begin >= 19'999);
  CHECK_EQUAL(moving.begin, waiting.end);
  CHECK(only(spans_of(file.read(), {1, 0}), "ALLREDUCE").end <= opened_us);
}

TEST(device_timeline_of_a_host_that_runs_ahead) {
  TemporaryFile file;
  with_devices(2, recording(file), {}, [](DeviceRank& rank) {
    only_rank_0(rank);
    std::deque<Tensor> tensors;
    std::vector<int64_t> handles;
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    for (int step = 0; step < 5; ++step) {
      tensors.emplace_back(DataType::float32, Shape{1000});
      handles.push_back(rank.engine.enqueue(rank.allreduce("x", tensors.back())));
      rank.wait(handles.back());
    }
    gate->happen();
    rank.finish_all(handles);
  });
  const std::string text = file.read();
  check_structure(text, true);
  const std::vector<TimeSpan> on_gpu = spans_of(text, {1, 1}), on_host = spans_of(text, {1, 0});
  CHECK_EQUAL(count_named(on_gpu, "NCCL_ALLREDUCE"), 5);
  CHECK_EQUAL(count_named(on_host, "ALLREDUCE"), 5);
  const auto first = std::find_if(on_gpu.begin(), on_gpu.end(), [](const TimeSpan& span) {
    return span.name == "NCCL_ALLREDUCE";
  });
  CHECK(on_host.back().end < first->end);  // all was enqueued before
  int64_t last_end = 0;
  for (const TimeSpan& span : on_gpu) {
    if (span.depth > 0) continue;
    CHECK(span.begin >= last_end);
    last_end = span.end;
  }
}

TEST(device_timeline_that_is_off_costs_no_events) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    rank.device.engine_stream().synchronize();
    CHECK_EQUAL(rank.device.timed_events, 0);
  });
}

TEST(device_timeline_names_the_parts_of_every_operation) {
  TemporaryFile file;
  with_devices(2, recording(file), {}, [](DeviceRank& rank) {
    only_rank_0(rank);
    Tensor tensor(DataType::float32, {4, 2});
    for (Operation operation : {Operation::allgather, Operation::reducescatter, Operation::alltoall,
                                Operation::broadcast}) {
      TensorEntry entry = rank.entry(name_of(operation), operation, tensor, tensor);
      const int64_t handle = rank.engine.enqueue(std::move(entry));
      rank.finish(handle);
    }
  });
  const std::string text = file.read();
  check_structure(text, true);
  const char* const names[][2] = {{"ALLGATHER", "NCCL_ALLGATHER"},
                                  {"REDUCESCATTER", "NCCL_REDUCESCATTER"},
                                  {"ALLTOALL", "NCCL_ALLTOALL"},
                                  {"BROADCAST", "NCCL_BCAST"}};
  for (int64_t pid = 1; pid <= 4; ++pid) {
    const std::vector<TimeSpan> on_gpu = spans_of(text, {pid, 1});
    for (const char* name : names[pid - 1]) only(on_gpu, name);
  }
}

TEST(device_timeline_begins_and_ends_while_the_gpu_is_busy) {
  TemporaryFile file, next;
  with_devices(1, {}, {}, [&](DeviceRank& rank) {
    std::deque<Tensor> tensors(3, Tensor(DataType::float32, {1000}));
    const auto gate = std::make_shared<HostEvent>();
    std::vector<int64_t> handles;
    const auto start = [&](const std::string& name) {
      handles.push_back(rank.engine.enqueue(rank.allreduce(name, tensors[handles.size()])));
      rank.wait(handles.back());
    };
    rank.script.wait(gate);
    start("before");
    rank.engine.start_timeline(file.path, false);
    start("recorded");
    std::thread opening([&] {
      std::this_thread::sleep_for(20ms);
      gate->happen();
    });
    rank.engine.start_timeline(next.path, false);  // waits for what the first one is to have
    opening.join();
    start("next");
    rank.engine.stop_timeline();
    rank.finish_all(handles);
  });
  for (const TemporaryFile* each : {&file, &next}) {
    const std::string text = each->read();
    check_structure(text, true);
    CHECK_EQUAL(count(text, "\"NCCL_ALLREDUCE\""), 1);
    only(spans_of(text, {1, 1}), "ALLREDUCE");
  }
  CHECK_EQUAL(count(file.read(), "\"recorded\""), 1);
  CHECK_EQUAL(count(next.read(), "\"next\""), 1);
}

TEST(device_timeline_of_a_failed_job_is_whole) {
  TemporaryFile file;
  with_devices(1, recording(file), {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    rank.wait(rank.engine.enqueue(rank.allreduce("x", tensor)));
    rank.network.fail("NCCL: remote error");
    while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
    rank.engine.stop_timeline();
    gate->happen();
    rank.device.engine_stream().synchronize();
  });
  check_structure(file.read(), true);
  CHECK_EQUAL(count(file.read(), "\"NCCL_ALLREDUCE\""), 0);
}
