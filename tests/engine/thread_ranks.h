// Ranks as threads of one process: the real engine over an in-process transport and real sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/choose.h"
#include "comm/point_to_point.h"
#include "common/errors.h"
#include "common/proof.h"
#include "control/control.h"
#include "engine/engine.h"

namespace autotune {

// Of every job of these tests.
inline std::string test_key() { return std::string(key_bytes, 'k'); }

// Collective: connect the ranks of a job.
inline std::unique_ptr<ControlPlane> join(Rendezvous& rendezvous, int rank, int size) {
  constexpr auto patience = std::chrono::seconds(20);
  std::vector<std::unique_ptr<Connection>> connections;
  if (rank == 0 && size > 1) {
    connections = rendezvous.accept_all(size, patience);
  } else if (rank > 0) {
    connections.push_back(connect_to(rendezvous.address(), test_key(), rank, patience));
  }
  return std::make_unique<ControlPlane>(rank, size, std::move(connections));
}

// Where the ranks of a job in a tree meet.
class TreeMeeting {
 public:
  explicit TreeMeeting(Tree tree) : tree_(std::move(tree)) {
    for (int rank = 0; rank < tree_.size(); ++rank) {
      rendezvous_.push_back(
          tree_.is_leaf(rank) ? nullptr : std::make_unique<Rendezvous>(test_key(), "", rank));
    }
  }

  const Tree& tree() const { return tree_; }
  // Collective: connect them.
  std::unique_ptr<ControlPlane> join(int rank) {
    const int parent = tree_.parent(rank);
    const std::string address = parent < 0 ? "" : of(parent)->address();
    return std::make_unique<ControlPlane>(
        rank, tree_,
        connect_in_tree(tree_, rank, of(rank), address, test_key(), std::chrono::seconds(20)));
  }

 private:
  Rendezvous* of(int rank) { return rendezvous_[static_cast<size_t>(rank)].get(); }

  Tree tree_;
  std::vector<std::unique_ptr<Rendezvous>> rendezvous_;
};

// Of the ranks that run now.
inline std::atomic<bool> a_rank_has_failed{false};

// Run `body(rank)` on `size` threads; rethrow the first failure after all have ended.
inline void run_ranks(int size, const std::function<void(int)>& body) {
  a_rank_has_failed = false;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
        a_rank_has_failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Where ranks wait for each other before they end: the first to shut down ends the engine of all,
// which may still be at work in process sets that the first is not in.
class Meeting {
 public:
  explicit Meeting(int size) : missing_(size) {}

  // Runs `body`; returns when all ranks have run theirs, or one has failed, here or elsewhere.
  void after(const std::function<void()>& body) {
    try {
      body();
    } catch (...) {
      arrive(false);
      throw;
    }
    arrive(true);
  }

 private:
  void arrive(bool wait) {
    std::unique_lock lock(mutex_);
    --missing_;
    arrived_.notify_all();
    while (wait && missing_ > 0 && !a_rank_has_failed) {
      arrived_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  int missing_;
};

// Mail between every pair of ranks: messages are copied at send, so a send is complete at once.
class Mail {
 public:
  explicit Mail(int size) : size_(size), boxes_(static_cast<size_t>(size * size)) {}
  int size() const { return size_; }
  void put(int from, int to, std::string message) {
    std::lock_guard lock(mutex_);
    box(from, to).push_back(std::move(message));
  }
  bool take(int from, int to, std::string& message) {
    std::lock_guard lock(mutex_);
    if (box(from, to).empty()) return false;
    message = std::move(box(from, to).front());
    box(from, to).pop_front();
    return true;
  }

 private:
  std::deque<std::string>& box(int from, int to) {
    return boxes_[static_cast<size_t>(from * size_ + to)];
  }
  int size_;
  std::mutex mutex_;
  std::vector<std::deque<std::string>> boxes_;
};

class ThreadPointToPoint final : public PointToPoint {
 public:
  ThreadPointToPoint(std::shared_ptr<Mail> mail, int rank) : mail_(std::move(mail)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return mail_->size(); }
  void send(int peer, const void* data, int64_t bytes) override {
    mail_->put(rank_, peer,
               std::string(static_cast<const char*>(data), static_cast<size_t>(bytes)));
  }
  void receive(int peer, void* data, int64_t bytes) override {
    receives_.push_back({peer, data, bytes});
  }
  bool test_all() override {
    // In order of posting per peer; another peer's message may come first.
    std::vector<Receive> open;
    std::vector<bool> blocked(static_cast<size_t>(size()), false);
    for (const Receive& receive : receives_) {
      std::string message;
      const auto peer = static_cast<size_t>(receive.peer);
      if (blocked[peer] || !mail_->take(receive.peer, rank_, message)) {
        blocked[peer] = true;
        open.push_back(receive);
        continue;
      }
      if (static_cast<int64_t>(message.size()) != receive.bytes) {
        throw std::logic_error("message of " + std::to_string(message.size()) +
                               " bytes for a receive of " + std::to_string(receive.bytes));
      }
      if (receive.bytes > 0) std::memcpy(receive.data, message.data(), message.size());
    }
    receives_ = std::move(open);
    return receives_.empty();
  }
  void give_up() override { receives_.clear(); }

 private:
  struct Receive {
    int peer;
    void* data;
    int64_t bytes;
  };
  std::shared_ptr<Mail> mail_;
  int rank_;
  std::vector<Receive> receives_;
};

// Engines for all ranks of one job, each used by its own thread.
class Job {
 public:
  // `hosts`: of every rank; empty: all on one.
  explicit Job(int size, EngineOptions options = {}, std::vector<int> hosts = {})
      : Job(Tree::star(size), options, hosts) {}
  explicit Job(Tree tree, EngineOptions options = {}, std::vector<int> hosts = {})
      : options_(options),
        hosts_(hosts.empty() ? std::vector<int>(static_cast<size_t>(tree.size()), 0) : hosts),
        mail_(std::make_shared<Mail>(tree.size())),
        meeting_(std::move(tree)) {}

  // Collective: call from all rank threads at once.
  std::unique_ptr<Engine> start(int rank) {
    return std::make_unique<Engine>(
        options_, meeting_.join(rank),
        communicator_factory(std::make_shared<ThreadPointToPoint>(mail_, rank), hosts_));
  }

 private:
  EngineOptions options_;
  std::vector<int> hosts_;
  std::shared_ptr<Mail> mail_;
  TreeMeeting meeting_;
};

}  // namespace autotune
