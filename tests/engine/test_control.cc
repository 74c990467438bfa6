#include "control/control.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "check.h"
#include "common/errors.h"
#include "thread_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// Wait until `count` frames have arrived.
FrameQueue next_frames(ControlPlane& plane, size_t count) {
  FrameQueue frames;
  while (frames.size() < count) {
    plane.pump(frames);
    if (frames.size() < count) plane.sleep(100ms);
  }
  return frames;
}

}  // namespace

TEST(frames_of_any_length_arrive_whole_and_in_order) {
  Rendezvous rendezvous(test_key());
  run_ranks(3, [&](int rank) {
    auto plane = join(rendezvous, rank, 3);
    if (rank == 0) {
      int received = 0;
      FrameQueue frames;
      std::vector<size_t> next(3, 0);
      while (received < 2 * 50) {
        plane->pump(frames);
        for (; !frames.empty(); frames.pop_front(), ++received) {
          const Frame& frame = frames.front();
          CHECK_EQUAL(frame.payload.size(), next[size_t(frame.rank)] * 20'011);
          ++next[size_t(frame.rank)];
        }
        plane->sleep(10ms);
      }
      plane->send_all(FrameType::responses, "done");
    } else {
      for (size_t i = 0; i < 50; ++i)
        plane->send_all(FrameType::requests, std::string(i * 20'011, 'x'));
      FrameQueue frames;
      while (frames.empty()) {
        plane->pump(frames);  // also writes what the socket did not take at once
        plane->sleep(10ms);
      }
      CHECK_EQUAL(frames.front().payload, "done");
    }
  });
}

TEST(a_sleeping_rank_is_woken_by_every_frame) {
  Rendezvous rendezvous(test_key());
  run_ranks(2, [&](int rank) {
    auto plane = join(rendezvous, rank, 2);
    FrameQueue frames;
    for (int turn = 0; turn < 300; ++turn) {
      if (turn % 2 == rank) {
        if (turn % 20 < 2) std::this_thread::sleep_for(2ms);  // the other one is asleep by now
        plane->send_all(FrameType::requests, std::to_string(turn));
        continue;
      }
      for (frames.clear(); frames.empty(); plane->pump(frames)) plane->sleep(-1ns);
      CHECK_EQUAL(frames.front().payload, std::to_string(turn));
    }
  });
}

TEST(ranks_that_sleep_and_ranks_that_do_not_all_hear_every_frame_to_all) {
  Rendezvous rendezvous(test_key());
  run_ranks(4, [&](int rank) {
    auto plane = join(rendezvous, rank, 4);
    FrameQueue frames;
    for (int turn = 0; turn < 200; ++turn) {
      if (rank == 0) {
        if (turn % 10 == 0) std::this_thread::sleep_for(2ms);  // the others are asleep by now
        plane->send_all(FrameType::responses, std::to_string(turn));
        for (frames.clear(); frames.size() < 3; plane->pump(frames)) plane->sleep(-1ns);
        continue;
      }
      for (frames.clear(); frames.empty(); plane->pump(frames)) {
        if ((turn + rank) % 3 != 0) plane->sleep(-1ns);
      }
      CHECK_EQUAL(frames.front().payload, std::to_string(turn));
      plane->send_all(FrameType::requests, "thanks");
    }
  });
}

TEST(frames_leave_a_queue_in_the_order_in_which_they_came) {
  FrameQueue queue;
  Frame frame;
  int added = 0, taken = 0;
  for (int round = 1; round < 20; ++round) {
    for (int i = 0; i < round; ++i) queue.add().payload = std::to_string(added++);
    for (int left = round % 3 == 0 ? 0 : 2; queue.size() > size_t(left); ++taken) {
      CHECK_EQUAL(queue.front().payload, std::to_string(taken));
      queue.take_front(frame);
      CHECK_EQUAL(frame.payload, std::to_string(taken));
    }
  }
  CHECK_EQUAL(queue.size(), size_t(added - taken));
  CHECK_EQUAL(queue.end() - queue.begin(), added - taken);
}

TEST(what_a_dead_rank_has_written_is_read_before_its_end_is_seen) {
  for (int round = 0; round < 20; ++round) {
    Rendezvous rendezvous(test_key());
    run_ranks(2, [&](int rank) {
      auto plane = join(rendezvous, rank, 2);
      if (rank == 1) {
        for (int i = 0; i < 100; ++i) plane->send_all(FrameType::requests, std::string(100, 'x'));
        return;  // closes the connection, as the end of the process does
      }
      FrameQueue frames;
      while (plane->take_closed_ranks().empty()) {
        plane->sleep(100ms);
        plane->pump(frames);
      }
      CHECK_EQUAL(frames.size(), size_t{100});
    });
  }
}

TEST(a_ring_is_a_stream_of_bytes_that_wraps_around) {
  const int memory = RingPair::create();
  auto writer = RingPair::map(memory, true), reader = RingPair::map(memory, false);
  ::close(memory);
  std::string sent, received;
  for (int i = 0; i < 1000; ++i) {
    const std::string part(size_t(i * 7919 % 1500), char('a' + i % 26));
    CHECK_EQUAL(writer->write(part.data(), part.size()), part.size());
    sent += part;
    if (i % 40 == 39) reader->read(received);
  }
  reader->read(received);
  CHECK(sent == received);
  const std::string too_long(Ring::capacity + 1, 'x');
  CHECK_EQUAL(writer->write(too_long.data(), too_long.size()), Ring::capacity);
  CHECK(reader->read(received));  // the writer waits for room: it has to be told
  CHECK(!reader->read(received));
}

TEST(a_rank_that_ends_is_seen_once) {
  Rendezvous rendezvous(test_key());
  run_ranks(2, [&](int rank) {
    auto plane = join(rendezvous, rank, 2);
    if (rank == 1) return;
    std::vector<int> closed;
    FrameQueue frames;
    while (closed.empty()) {
      plane->sleep(100ms);
      plane->pump(frames);
      closed = plane->take_closed_ranks();
    }
    CHECK(closed == std::vector<int>{1});
    CHECK(plane->take_closed_ranks().empty());
  });
}

TEST(what_was_sent_before_a_graceful_end_arrives_though_both_sides_write) {
  for (int round = 0; round < 50; ++round) {
    Rendezvous rendezvous(test_key());
    run_ranks(2, [&](int rank) {
      auto plane = join(rendezvous, rank, 2);
      plane->send_all(FrameType::requests, std::string(1000, 'x'));
      if (rank == 0) {
        plane->close(2s);
      } else {
        plane->send_all(FrameType::requests, "into the closed end");
        CHECK_EQUAL(next_frames(*plane, 1).front().payload.size(), size_t{1000});
      }
    });
  }
}

// Also of those that this rank is not connected with: it may be needed until then.
TEST(a_graceful_end_waits_for_that_of_every_rank) {
  for (const bool is_star : {true, false}) {
    constexpr int size = 4;
    const std::vector<int> one_host(size, 0);
    TreeMeeting meeting(is_star ? Tree::star(size) : Tree::of_hosts(one_host, 1));
    std::atomic<bool> has_last_come{false};
    run_ranks(size, [&](int rank) {
      const auto plane = meeting.join(rank);
      if (rank == size - 1) {
        std::this_thread::sleep_for(100ms);
        has_last_come = true;
      }
      int calls = 0;
      plane->close(5s, [&] { ++calls; });
      CHECK(has_last_come);
      CHECK(rank == size - 1 || calls > 5);
    });
  }
}

TEST(a_graceful_end_has_its_time_limit) {
  TreeMeeting meeting(Tree::star(3));
  Meeting end(3);
  run_ranks(3, [&](int rank) {
    const auto plane = meeting.join(rank);
    const auto start = std::chrono::steady_clock::now();
    end.after([&] {
      if (rank != 2) plane->close(100ms);
    });
    if (rank == 2) return;
    const auto waited = std::chrono::steady_clock::now() - start;
    CHECK(waited >= 90ms && waited < 3s);
  });
}

TEST(wake_ends_the_current_and_the_next_sleep) {
  ControlPlane alone(0, 1, {});
  alone.wake();
  alone.sleep(-1ns);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    alone.wake();
  });
  alone.sleep(-1ns);
  later.join();
}

TEST(a_wake_that_another_thread_hears_is_not_lost) {
  ControlPlane alone(0, 1, {});
  std::atomic<bool> over{false};
  std::thread other([&] {  // hears every wake at once
    for (ControlPlane::Watch watched; !over; alone.sleep(watched, 10ms)) {
      alone.watch_for_wake(watched);
    }
  });
  for (int round = 0; round < 200; ++round) {
    alone.wake();
    std::this_thread::yield();
    alone.sleep(-1ns);  // the abort hook ends a test that hangs
  }
  over = true;
  other.join();
}

TEST(a_frame_that_is_there_already_ends_a_sleep_though_another_thread_hears_wakes) {
  Rendezvous rendezvous(test_key());
  run_ranks(2, [&](int rank) {
    auto plane = join(rendezvous, rank, 2);
    std::atomic<bool> over{false};
    std::thread other([&] {
      for (ControlPlane::Watch watched; !over; plane->sleep(watched, 10ms)) {
        plane->watch_for_wake(watched);
      }
    });
    FrameQueue frames;
    for (int round = 0; round < 500; ++round) {  // one frame to and fro, as short as can be
      if (rank == 0) plane->send_all(FrameType::responses, "ball");
      for (frames.clear(); frames.empty(); plane->pump(frames)) plane->sleep(-1ns);
      if (rank == 1) plane->send_all(FrameType::requests, "ball");
    }
    over = true;
    other.join();
  });
}

TEST(a_missing_rank_is_named) {
  Rendezvous rendezvous(test_key());
  CHECK_THROWS(EngineError, "none from rank 1, 2", rendezvous.accept_all(3, 1s));
}

TEST(the_coordinator_reaches_every_rank) {
  Rendezvous rendezvous(test_key());
  run_ranks(4, [&](int rank) {
    auto plane = join(rendezvous, rank, 4);
    if (rank == 0) {
      plane->send_all(FrameType::responses, "to all");
      next_frames(*plane, 3);
    } else {
      CHECK_EQUAL(next_frames(*plane, 1).front().payload, "to all");
      plane->send_all(FrameType::requests, "thanks");
    }
  });
}

TEST(a_rank_that_answers_is_not_silent_and_one_that_does_not_is_known_to_all) {
  Rendezvous rendezvous(test_key());
  std::atomic<bool> looks{true}, over{false};
  run_ranks(3, [&](int rank) {
    auto plane = join(rendezvous, rank, 3);
    FrameQueue frames;
    if (rank == 2) {
      while (!over) {
        if (looks) plane->pump(frames);
        std::this_thread::sleep_for(1ms);
      }
      return;
    }
    auto now = std::chrono::steady_clock::now();
    const auto ask_for = [&](int seconds) {
      for (int i = 0; i < seconds; ++i) {
        plane->ask(now += 1s);
        for (int turn = 0; turn < 100; ++turn, std::this_thread::sleep_for(1ms)) {
          plane->pump(frames);
        }
      }
    };
    if (rank == 1) {
      while (plane->silent().empty()) ask_for(1);
      CHECK_EQUAL(plane->silent()[0].rank, 2);
      over = true;
      return;
    }
    ask_for(5);
    CHECK(plane->silent().empty());
    looks = false;
    while (!over) ask_for(1);
    CHECK(frames.empty());
  });
}

TEST(a_writer_whose_ring_was_full_is_woken_for_all_that_it_has_left) {
  int fds[2];
  CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Connection writer(fds[0]), reader(fds[1]);
  const int memory = RingPair::create();
  writer.use(RingPair::map(memory, true), std::shared_ptr<Bell>());
  reader.use(RingPair::map(memory, false), std::unique_ptr<BellListener>());
  ::close(memory);
  FrameQueue heard, ignored;
  writer.send(FrameType::requests, std::string(4 * Ring::capacity, 'x'));
  reader.receive(0, heard);  // makes room, and nudges
  writer.flush();            // fills it, before it hears of it
  reader.receive(0, heard);  // makes room: a nudge is under way already
  writer.receive(1, ignored);
  const auto is_woken = [&] {
    pollfd awaited{fds[0], POLLIN, 0};
    return ::poll(&awaited, 1, 0) == 1;
  };
  while (heard.empty()) {
    reader.receive(0, heard);
    if (!heard.empty()) break;
    CHECK(is_woken());  // it sleeps, and has bytes left
    writer.flush();
    writer.receive(1, ignored);
  }
  CHECK_EQUAL(heard.front().payload.size(), 4 * Ring::capacity);
}
