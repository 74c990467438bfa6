// A transport that holds what others wait for, and ranks that are idle.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/cycle/idle_progress.h"
#include "engine_fixture.h"
#include "thread_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// As MPI, it moves bytes only while it is called, and a message is complete when its receiver has
// told so. The connections are full when a message is taken: the word leaves with the first call
// `full` later.
class HoldingPointToPoint final : public PointToPoint {
 public:
  HoldingPointToPoint(std::shared_ptr<Mail> mail, std::shared_ptr<Mail> words, int rank,
                      std::chrono::milliseconds full)
      : words_(std::move(words)), full_(full), messages_(std::move(mail), rank) {}

  int rank() const override { return messages_.rank(); }
  int size() const override { return messages_.size(); }
  void send(int peer, const void* data, int64_t bytes) override {
    ++posted_;
    posted_at_ = std::chrono::steady_clock::now();
    messages_.send(peer, data, bytes);
    waits_for_.push_back(peer);
  }
  void receive(int peer, void* data, int64_t bytes) override {
    ++posted_;
    posted_at_ = std::chrono::steady_clock::now();
    messages_.receive(peer, data, bytes);
    receives_from_.push_back(peer);
  }
  bool test_all() override {
    progress();
    if (messages_.test_all()) {
      for (const int peer : receives_from_) {
        held_.push_back({peer, std::chrono::steady_clock::now() + full_});
      }
      receives_from_.clear();
    }
    std::string word;
    std::vector<int> open;
    for (const int peer : waits_for_) {
      if (!words_->take(peer, rank(), word)) open.push_back(peer);
    }
    waits_for_ = std::move(open);
    if (waits_for_.empty()) return receives_from_.empty();
    if (std::chrono::steady_clock::now() - posted_at_ > 10s) {
      throw EngineError("nobody says that a message was taken");
    }
    return false;
  }
  uint64_t posted() const override { return posted_; }
  void progress() override {
    const auto now = std::chrono::steady_clock::now();
    for (; !held_.empty() && held_.front().until <= now; held_.pop_front()) {
      words_->put(rank(), held_.front().peer, "taken");
    }
  }
  void give_up() override { messages_.give_up(); }

 private:
  struct Held {
    int peer;
    std::chrono::steady_clock::time_point until;
  };
  const std::shared_ptr<Mail> words_;
  const std::chrono::milliseconds full_;
  ThreadPointToPoint messages_;
  std::vector<int> receives_from_;
  std::vector<int> waits_for_;
  std::deque<Held> held_;
  uint64_t posted_ = 0;
  std::chrono::steady_clock::time_point posted_at_;
};

// Runs `body` on engines of ranks that are on a host each, and shuts them down.
void with_held_words(int size, std::chrono::milliseconds full, bool meets,
                     const std::function<void(Engine&)>& body) {
  const auto mail = std::make_shared<Mail>(size), words = std::make_shared<Mail>(size);
  TreeMeeting meeting{Tree::star(size)};
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank);
  Meeting end(size);
  run_ranks(size, [&](int rank) {
    std::unique_ptr<Engine> engine;
    const auto job = [&] {
      auto transport = std::make_shared<HoldingPointToPoint>(mail, words, rank, full);
      engine = std::make_unique<Engine>(EngineOptions{}, meeting.join(rank),
                                        communicator_factory(std::move(transport), hosts));
      body(*engine);
    };
    if (meets) {
      end.after(job);
    } else {
      job();
    }
    engine->shutdown(10s);
    CHECK(!engine->failed());
  });
}

TensorEntry broadcast(const std::string& name, std::vector<int32_t>& data, int root) {
  TensorEntry entry = allreduce(name, data);
  entry.request.edit().operation = Operation::broadcast;
  entry.request.edit().root_rank = root;
  return entry;
}

void broadcast_from(Engine& engine, int root) {
  std::vector<int32_t> data(10, engine.rank());
  wait(engine, engine.enqueue(broadcast("from " + std::to_string(root), data, root)));
  CHECK_EQUAL(data[9], root);
}

// It only counts.
class Counting final : public PointToPoint {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void send(int, const void*, int64_t) override { ++messages; }
  void receive(int, void*, int64_t) override { ++messages; }
  bool test_all() override { return true; }
  void give_up() override {}
  uint64_t posted() const override { return messages; }
  void progress() override { ++calls; }

  uint64_t messages = 0;
  int calls = 0;
};

}  // namespace

// The root's operation is over when all have told that they took its message, that of the others
// before: they have nothing more to do, and no thread of theirs waits.
TEST(idle_ranks_send_what_another_one_waits_for) {
  with_held_words(3, 30ms, true, [](Engine& engine) { broadcast_from(engine, 2); });
}

// Nor does it come when threads wait for the next operation, which needs the root.
TEST(ranks_that_wait_for_the_next_operation_send_what_another_one_waits_for) {
  with_held_words(3, 30ms, true, [](Engine& engine) {
    for (int root = 0; root < engine.size(); ++root) broadcast_from(engine, root);
    check_goes_on(engine);
  });
}

TEST(ranks_that_shut_down_send_what_another_one_waits_for) {
  with_held_words(3, 100ms, false, [](Engine& engine) { broadcast_from(engine, 1); });
}

// The engines have ended then, and their threads would, too.
TEST(ranks_whose_engine_was_shut_down_by_another_send_what_is_waited_for) {
  std::atomic<bool> is_done{false};
  with_held_words(3, 100ms, false, [&](Engine& engine) {
    broadcast_from(engine, 1);
    if (engine.rank() == 1) is_done = true;
    for (int i = 0; engine.rank() == 2 && !is_done && i < 15'000; ++i) {
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST(an_idle_transport_is_called_ever_more_rarely) {
  const auto transport = std::make_shared<Counting>();
  IdleProgress idle;
  idle.use(transport);
  auto now = IdleProgress::Clock::now();
  idle.look(now);
  CHECK(idle.due() == IdleProgress::Clock::time_point::max());  // nothing was ever posted
  transport->send(1, nullptr, 0);
  idle.look(now);
  CHECK(idle.due() == now + IdleProgress::first);
  CHECK_EQUAL(transport->calls, 0);
  const auto end = now + 60s;
  for (; now < end; now += 1ms) idle.look(now);
  CHECK(transport->calls >= 60 && transport->calls <= 70);
  CHECK(idle.due() - now <= IdleProgress::longest);
  transport->receive(1, nullptr, 0);
  idle.look(now);
  CHECK(idle.due() == now + IdleProgress::first);
}

// Between operations that follow each other no call is due.
TEST(a_busy_transport_is_not_called) {
  const auto transport = std::make_shared<Counting>();
  IdleProgress idle;
  idle.use(transport);
  auto now = IdleProgress::Clock::now();
  for (int i = 0; i < 100; ++i, now += 4ms) {
    transport->send(1, nullptr, 0);
    idle.look(now);
    idle.look(now + 3ms);
  }
  CHECK_EQUAL(transport->calls, 0);
}

TEST(without_a_transport_nothing_is_due) {
  IdleProgress idle;
  idle.use(nullptr);
  idle.look(IdleProgress::Clock::now());
  CHECK(idle.due() == IdleProgress::Clock::time_point::max());
}
