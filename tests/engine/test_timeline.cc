#include "engine/timeline/timeline.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "check.h"
#include "engine/timeline/timeline_writer.h"
#include "thread_ranks.h"
#include "timeline_file.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

TensorEntry allreduce(const std::string& name, std::vector<int32_t>& data) {
  TensorEntry entry;
  entry.request.edit().name = name;
  entry.request.edit().dtype = DataType::int32;
  entry.request.edit().shape = {static_cast<int64_t>(data.size())};
  entry.input = entry.output = data.data();
  return entry;
}

void wait(Engine& engine, int64_t handle) {
  while (!engine.wait(handle, 100ms)) {
  }
  engine.release(handle);
}

Request named(const std::string& name) {
  Request request;
  request.name = name;
  return request;
}

}  // namespace

TEST(a_timeline_without_collectives_is_an_empty_list) {
  TemporaryFile file;
  {
    Timeline timeline(0, 2, {});
    timeline.start(file.path, false, {}, 0, true);
    CHECK_EQUAL(file.read(), "[]");
  }
  CHECK_EQUAL(file.read(), "[]");
}

TEST(every_tensor_is_negotiated_with_a_tick_per_rank_cached_or_not) {
  TemporaryFile file;
  EngineOptions options;
  options.timeline_path = file.path;
  Job job(2, options);
  run_ranks(2, [&](int rank) {
    auto engine = job.start(rank);
    if (rank == 1) engine->stop_timeline();
    for (int step = 0; step < 3; ++step) {
      std::vector<int32_t> a(10, 1), b(20, 1);
      const int64_t first = engine->enqueue(allreduce("a", a));
      const int64_t second = engine->enqueue(allreduce("b", b));
      wait(*engine, first);
      wait(*engine, second);
      engine->end_step(true);
    }
    engine->shutdown(10s);
  });
  const std::string text = file.read();
  check_structure(text, true);
  CHECK_EQUAL(count(text, "NEGOTIATE_ALLREDUCE"), 6);
  CHECK_EQUAL(count(text, "\"ph\": \"X\", \"name\": \"0\""), 6);
  CHECK_EQUAL(count(text, "\"ph\": \"X\", \"name\": \"1\""), 6);
  CHECK_EQUAL(count(text, "\"name\": \"SHM_ALLREDUCE\""), 6);
  CHECK_EQUAL(count(text, "\"dtype\": \"int32\", \"shape\": \"[20]\""), 3);
  CHECK_EQUAL(count(text, "\"name\": \"INIT\""), 1);
  CHECK_EQUAL(count(text, "\"name\": \"PARAMETERS\""), 1);
  CHECK_EQUAL(count(text, "\"step\": "), 3);
}

TEST(a_parameter_change_is_one_event_with_epoch_and_values) {
  TemporaryFile file;
  Timeline timeline(0, 1, {});
  timeline.start(file.path, false, {}, 0);
  Params params;
  params.fusion_threshold_bytes = 12345;
  timeline.params_changed(7, params);
  timeline.announced(named("x"), 0);
  timeline.stop();
  CHECK_EQUAL(count(file.read(), "\"epoch\": 7, \"fusion_threshold_bytes\": 12345"), 1);
}

TEST(names_are_escaped) {
  CHECK_EQUAL(json_escaped("a\"b\\c\nd\x01"), "a\\\"b\\\\c\\u000ad\\u0001");
  CHECK_EQUAL(json_escaped("grün"), "grün");
}

TEST(a_recording_that_begins_in_the_middle_has_no_end_without_a_begin) {
  TemporaryFile file;
  Timeline timeline(0, 1, {});
  const Response response;
  TensorEntry entry;
  entry.request = named("x");
  timeline.announced(named("x"), 0);
  timeline.start(file.path, false, {}, 0);
  timeline.negotiated("x");
  timeline.operation_begins({&response, {&entry}});
  timeline.activity_begins("MPI_ALLREDUCE");
  timeline.stop();
  check_structure(file.read(), true);
}

TEST(starting_and_stopping_at_any_time_keeps_every_file_whole) {
  TemporaryFile files[5];
  Job job(2);
  run_ranks(2, [&](int rank) {
    auto engine = job.start(rank);
    std::atomic<bool> done{false};
    std::thread switching([&] {
      for (int round = 0; rank == 0 && round < 5; ++round) {
        engine->start_timeline(files[round].path, round % 2 == 0);
        std::this_thread::sleep_for(5ms);
      }
      engine->stop_timeline();
      engine->stop_timeline();
      done = true;
    });
    for (int i = 0; i < 300; ++i) {
      std::vector<int32_t> data(10, 1);
      wait(*engine, engine->enqueue(allreduce("x", data)));
    }
    switching.join();
    engine->shutdown(10s);
  });
  for (const TemporaryFile& file : files) check_structure(file.read(), true);
}

TEST(a_bad_path_is_an_error_and_at_init_training_goes_on) {
  Timeline timeline(0, 1, {});
  CHECK_THROWS(InvalidRequest, "/no/such/folder/t.json",
               timeline.start("/no/such/folder/t.json", false, {}, 0));
  CHECK(!timeline.on());
  EngineOptions options;
  options.timeline_path = "/no/such/folder/t.json";
  Job job(1, options);
  auto engine = job.start(0);
  std::vector<int32_t> data(1, 1);
  wait(*engine, engine->enqueue(allreduce("x", data)));
  engine->shutdown(5s);
}

TEST(a_writer_that_cannot_keep_up_drops_and_says_how_many) {
  TemporaryFile file;
  TimelineQueue queue;
  TrackGroup group;
  for (uint32_t track = first_tensor_track; group.tracks.size() < 100; ++track) {
    queue.add({1, "", 0, 0, track, RecordKind::name}, "x");
    group.tracks.push_back(track);
  }
  for (int i = 0; i < 20'001; ++i) {
    queue.add({i, "A", 0, 0, 0, i % 2 ? RecordKind::end_all : RecordKind::begin_all}, group);
  }
  CHECK_EQUAL(queue.dropped, 200);  // of 100 + 2'000'100 events
  {
    TimelineWriter writer(file.path, 0, 1, {}, queue);
  }
  check_structure(file.read(), true);
  CHECK_EQUAL(queue.events, 0);
  TemporaryFile next;
  {
    TimelineWriter writer(next.path, 0, 1, {}, queue);
    std::lock_guard lock(queue.mutex);
    queue.add({3'000'000, "", 0, 0, first_tensor_track, RecordKind::name}, "x");
  }
  CHECK_EQUAL(count(next.read(), "\"DROPPED_EVENTS\""), 1);
  CHECK_EQUAL(count(next.read(), "{\"count\": 200}"), 1);
}

// Steps of a network with 161 parameters on two ranks, as the engine tells them.
void record_steps(Timeline& timeline, int steps) {
  const Response response;
  std::vector<TensorEntry> entries(161);
  std::vector<Work> works(2, {&response, {}});  // the second one queues
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].request.edit().name = "allreduce.layer" + std::to_string(i) + ".weight";
    entries[i].request.edit().shape = {64, static_cast<int64_t>(i)};
    works[i < 100 ? 0 : 1].entries.push_back(&entries[i]);
  }
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const TensorEntry& entry : entries) timeline.announced(entry.request, rank);
    }
    timeline.agreed(works);
    for (const Work& work : works) {
      timeline.operation_begins(work);
      for (const char* name : {"MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE"}) {
        timeline.activity_begins(name);
        timeline.activity_ends();
      }
      timeline.operation_ends(work);
    }
  }
}

int64_t write_calls() {
  std::ifstream file("/proc/self/io");
  std::stringstream content;
  content << file.rdbuf();
  return number_after(content.str(), "syscw: ");
}

TEST(all_tensors_of_a_step_have_their_events) {
  TemporaryFile file;
  Timeline timeline(0, 2, {});
  timeline.start(file.path, false, {}, 0);
  record_steps(timeline, 3);
  timeline.stop();
  const std::string text = file.read();
  check_structure(text, true);
  CHECK_EQUAL(count(text, "\"NEGOTIATE_ALLREDUCE\""), 3 * 161);
  CHECK_EQUAL(count(text, "\"ph\": \"X\""), 3 * 161 * 2);
  CHECK_EQUAL(count(text, "\"ALLREDUCE\""), 3 * 161);
  CHECK_EQUAL(count(text, "\"QUEUE\""), 3 * 61);
  CHECK_EQUAL(count(text, "\"MPI_ALLREDUCE\""), 3 * 161);
  CHECK_EQUAL(count(text, "\"shape\": \"[64, 160]\""), 3);
  CHECK_EQUAL(count(text, "\"ph\": \"B\""), count(text, "\"ph\": \"E\""));
}

// V4: a write per event once cost 99.5 % of the steps.
TEST(events_are_written_by_the_thousand) {
  TemporaryFile file;
  const int64_t before = write_calls();
  {
    Timeline timeline(0, 2, {});
    timeline.start(file.path, false, {}, 0);
    record_steps(timeline, 100);
  }
  const int events = count(file.read(), "\"ph\"");
  CHECK(events > 100 * 161 * 10);
  CHECK(events / (write_calls() - before) > 300);
}

TEST(a_file_is_valid_json_whenever_the_process_is_killed) {
  TemporaryFile file("./timeline-test-XXXXXX");  // /tmp may be in memory: no direct writes there
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Timeline timeline(0, 2, {});
      timeline.start(file.path, false, {}, 0);
      for (int i = 0; i < 2000; ++i) {
        record_steps(timeline, 1);
        std::this_thread::sleep_for(1ms);
      }
      _exit(1);
    }
    for (int i = 0; i < 5000 && file.size() < 1'000'000; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string text = file.read();
    CHECK(text.size() >= 1'000'000);
    check_structure(text, false);
    CHECK_EQUAL(text.substr(text.find_last_of('}')).find_first_not_of(" ]", 1), std::string::npos);
    CHECK(truncate(file.path, 0) == 0);
  }
}

TEST(an_event_may_be_longer_than_a_page) {
  TemporaryFile file;
  {
    Timeline timeline(0, 2, {});
    timeline.start(file.path, false, {}, 0);
    timeline.announced(named(std::string(200'000, 'x')), 0);
    record_steps(timeline, 1);
  }
  check_structure(file.read(), true);
  CHECK_EQUAL(count(file.read(), std::string(200'000, 'x')), 1);
}

TEST(a_file_is_valid_while_it_is_written) {
  TemporaryFile file;
  Timeline timeline(0, 1, {});
  timeline.start(file.path, false, {}, 0);
  timeline.announced(named("x"), 0);
  for (int i = 0; i < 50 && count(file.read(), "NEGOTIATE") == 0; ++i) {
    std::this_thread::sleep_for(2ms);
  }
  check_structure(file.read(), false);
  CHECK_EQUAL(count(file.read(), "NEGOTIATE"), 1);  // on disk within 100 ms
}

TEST(names_that_never_come_back_end_as_tracks_that_are_not_there) {
  TemporaryFile file;
  constexpr int tracks = (1 << 16) - 3;  // without those of the job
  {
    Timeline timeline(0, 1, {});
    timeline.start(file.path, false, {}, 0);
    std::vector<int32_t> data(1);
    for (int i = 0; i < tracks + 500; ++i) {
      // Two at once: the last one that has a track goes with one that has none.
      TensorEntry first = allreduce("first " + std::to_string(i), data),
                  known = allreduce("x", data);
      timeline.announced(first.request, 0);
      timeline.announced(known.request, 0);
      timeline.negotiated(first.request->name);
      timeline.negotiated(known.request->name);
      Response response;
      const std::vector<Work> works{{&response, {&first, &known}}};
      timeline.agreed(works);
      timeline.operation_begins(works[0]);
      timeline.operation_ends(works[0]);
    }
  }
  const std::string text = file.read();
  CHECK_EQUAL(count(text, "\"process_name\""), tracks + 1);  // and the job's
  CHECK_EQUAL(count(text, "\"ph\": \"B\""), count(text, "\"ph\": \"E\""));
}
