// Operations for whose handles nobody waits, and a thread that hears how they ended.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixture.h"

namespace autotune {

// What was told, in order.
class Heard {
 public:
  void add(const Handle& handle) {
    const std::lock_guard lock(mutex_);
    handles_.push_back(handle);
    changed_.notify_all();
  }
  // Sleeps until `count` were told.
  std::vector<Handle> wait(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return handles_.size() >= count; });
    return handles_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Handle> handles_;
};

class Listener final : public Completion {
 public:
  Listener(Heard& heard, bool awaited, std::function<void()> then = nullptr)
      : Completion(awaited), heard_(heard), then_(std::move(then)) {}
  void completed(const Handle& handle) override {
    if (then_) then_();
    heard_.add(handle);
  }

 private:
  Heard& heard_;
  const std::function<void()> then_;
};

inline TensorEntry heard_by(Heard& heard, TensorEntry entry, bool awaited = false,
                            std::function<void()> then = nullptr) {
  entry.completion = std::make_shared<Listener>(heard, awaited, std::move(then));
  return entry;
}

}  // namespace autotune
