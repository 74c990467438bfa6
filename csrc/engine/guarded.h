// A value and the lock that guards it: there is no way to the one without the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace autotune {

template <typename T>
class Guarded {
 public:
  // The value, for as long as this lives.
  class Access {
   public:
    // False only after a `try_lock` in vain; nothing else may be asked then.
    explicit operator bool() const { return lock_.owns_lock(); }
    T* operator->() const { return &owner_->value_; }
    T& operator*() const { return owner_->value_; }

    // Calls `act` without the lock.
    template <typename Act>
    void released(Act&& act) {
      struct Relock {
        std::unique_lock<std::mutex>& lock;
        ~Relock() { lock.lock(); }
      };
      lock_.unlock();
      const Relock relock{lock_};
      act();
    }
    // Without the lock until somebody has called `notify_all` and `done()` is true with it.
    template <typename Done>
    void wait(Done&& done) {
      owner_->changed_.wait(lock_, std::forward<Done>(done));
    }
    template <typename Done>
    void wait_until(std::chrono::steady_clock::time_point deadline, Done&& done) {
      owner_->changed_.wait_until(lock_, deadline, std::forward<Done>(done));
    }

   private:
    friend class Guarded;
    Access(Guarded* owner, std::unique_lock<std::mutex> lock)
        : owner_(owner), lock_(std::move(lock)) {}

    Guarded* owner_;
    std::unique_lock<std::mutex> lock_;
  };

  template <typename... Arguments>
  explicit Guarded(Arguments&&... arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Access lock() { return {this, std::unique_lock(mutex_)}; }
  Access try_lock() { return {this, std::unique_lock(mutex_, std::try_to_lock)}; }
  void notify_all() { changed_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  T value_;
};

}  // namespace autotune
