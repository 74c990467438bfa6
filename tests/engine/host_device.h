// A GPU made of host memory: streams are threads that do what they are given in order and later,
// so that work which is not ordered against other work goes wrong (or is a race that
// ThreadSanitizer sees). What a real GPU would do silently wrong is a std::logic_error here.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "common/reduce.h"

namespace autotune {

// Happens once.
class HostEvent {
 public:
  void happen() {
    {
      std::lock_guard lock(mutex_);
      happened_ = true;
      at_ = std::chrono::steady_clock::now();
    }
    changed_.notify_all();
  }
  bool has_happened() {
    std::lock_guard lock(mutex_);
    return happened_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return happened_; });
  }
  std::chrono::steady_clock::time_point at() {
    std::lock_guard lock(mutex_);
    if (!happened_) throw std::logic_error("time of an event that has not happened");
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
  std::chrono::steady_clock::time_point at_;
};

class HostStream {
 public:
  HostStream() : id_(++made()), thread_([this] { run(); }) {}
  // When all is done.
  ~HostStream() {
    put(nullptr);
    thread_.join();
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  uint64_t id() const { return id_; }
  DeviceStream handle() const { return reinterpret_cast<DeviceStream>(this); }
  static HostStream& of(DeviceStream handle) { return *reinterpret_cast<HostStream*>(handle); }

  void put(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
    }
    changed_.notify_one();
  }
  void wait(std::shared_ptr<HostEvent> event) {
    put([event = std::move(event)] { event->wait(); });
  }
  // Returns when all that was put so far is done.
  void synchronize() {
    const auto event = std::make_shared<HostEvent>();
    put([event] { event->happen(); });
    event->wait();
  }

 private:
  static std::atomic<uint64_t>& made() {
    static std::atomic<uint64_t> count{0};
    return count;
  }

  void run() {
    for (int count = 0;; ++count) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !works_.empty(); });
        work = std::move(works_.front());
        works_.pop_front();
      }
      if (!work) return;
      if (count % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));  // be late
      work();
    }
  }

  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  std::thread thread_;
};

// Memory that lasts until its stream has come past the place where it was let go.
class HostMemory final : public Allocator, public std::enable_shared_from_this<HostMemory> {
 public:
  DeviceMemory allocate(int64_t bytes, DeviceStream stream, const WaitHook& on_wait) override {
    on_wait();
    std::lock_guard lock(mutex_);
    if (bytes <= 0) throw std::logic_error("memory of no bytes");
    ++asked;
    if (in_use_ + bytes > most) return {};
    in_use_ += bytes;
    ++blocks_;
    void* const data = std::malloc(static_cast<size_t>(bytes));
    const auto free = [all = shared_from_this(), bytes, stream](void* memory) {
      const auto work = [all, bytes, memory] {
        std::free(memory);
        std::lock_guard lock(all->mutex_);
        all->in_use_ -= bytes;
        --all->blocks_;
      };
      all->has_streams ? HostStream::of(stream).put(work) : work();
    };
    return {data, std::shared_ptr<void>(data, free)};
  }
  size_t blocks() {
    std::lock_guard lock(mutex_);
    return blocks_;
  }
  int64_t in_use() {
    std::lock_guard lock(mutex_);
    return in_use_;
  }

  std::atomic<bool> has_streams{true};   // they are gone with the device
  std::atomic<int64_t> most{INT64_MAX};  // there are so many bytes
  std::atomic<int> asked{0};

 private:
  std::mutex mutex_;
  int64_t in_use_ = 0;
  size_t blocks_ = 0;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(int index) : index_(index) {}
  ~HostDevice() override {
    stream_.reset();
    memory->has_streams = false;
  }

  int index() const override { return index_; }
  std::string identity() const override { return "host " + std::to_string(index_); }
  DeviceStream stream() const override { return stream_->handle(); }
  uint64_t id_of(DeviceStream stream) const override {
    return stream == 0 ? 0 : HostStream::of(stream).id();
  }
  std::unique_ptr<DeviceUse> use() const override { return std::make_unique<Use>(*this); }
  std::function<void()> binder() const override {
    return [] {};
  }

  EventPtr record(DeviceStream stream, bool timed) override {
    if (captured != 0 && stream == captured) throw InvalidRequest("the stream is being captured");
    auto* state = new State{std::make_shared<HostEvent>(), timed};
    const bool counts = timed && stream == stream_->handle();
    stream_of(stream).put([this, counts, event = state->event] {
      event->happen();
      if (counts) ++timed_events;
    });
    ++*events_;
    return EventPtr(new DeviceEvent{state, id_of(stream), ++recorded_},
                    [all = events_](const auto* used) {
                      --*all;
                      delete static_cast<State*>(used->event);
                      delete used;
                    });
  }
  void wait(DeviceStream stream, const DeviceEvent& event) override {
    ++waits;
    stream_of(stream).wait(state_of(event).event);
  }
  bool is_complete(const DeviceEvent& event) override {
    return state_of(event).event->has_happened();
  }
  double elapsed_us(const DeviceEvent& begin, const DeviceEvent& end) override {
    if (!state_of(begin).timed || !state_of(end).timed) {
      throw std::logic_error("time between events that are not timed");
    }
    const auto time = state_of(end).event->at() - state_of(begin).event->at();
    return std::chrono::duration<double, std::micro>(time).count();
  }

  void copy_all(const std::vector<DeviceCopy>& copies) override {
    check_independent(copies);
    ++launches;
    // From the last to the first: nothing may depend on their order.
    stream_->put([copies] {
      for (auto each = copies.rbegin(); each != copies.rend(); ++each) copy(*each);
    });
  }
  void clear(void* memory, int64_t bytes) override {
    if (bytes == 0) return;
    stream_->put([=] { std::memset(memory, 0, static_cast<size_t>(bytes)); });
  }
  std::shared_ptr<char> host_memory(int64_t bytes) override {
    return std::shared_ptr<char>(new char[static_cast<size_t>(bytes)],
                                 std::default_delete<char[]>());
  }
  void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) override {
    if (bytes == 0 || to == from) return;
    stream_of(stream).put([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }

  // For the tests.
  size_t blocks_in_use() { return memory->blocks(); }
  HostStream& engine_stream() { return *stream_; }
  int events() const { return *events_; }  // somebody still has so many
  bool is_used_by_this_thread() const { return used_ == this; }
  const std::shared_ptr<HostMemory> memory = std::make_shared<HostMemory>();
  std::atomic<int> launches{0};           // copy_all has made so many
  std::atomic<DeviceStream> captured{0};  // nothing is recorded there: it is captured into a graph
  std::atomic<int> waits{0};              // so many times a stream was told to wait for an event
  std::atomic<int> timed_events{0};       // so many of the engine's stream have happened
  std::atomic<int> collectives{0};        // so many are under way, and
  std::atomic<int> most_collectives{0};   // so many have been at once
  std::atomic<int> stuck{0};              // the work of so many aborted communicators did not end

 private:
  struct State {
    std::shared_ptr<HostEvent> event;
    bool timed;
  };
  // May be nested.
  class Use final : public DeviceUse {
   public:
    explicit Use(const HostDevice& device) : before_(std::exchange(used_, &device)) {}
    ~Use() override { used_ = before_; }

   private:
    const HostDevice* const before_;
  };
  static State& state_of(const DeviceEvent& event) { return *static_cast<State*>(event.event); }
  HostStream& stream_of(DeviceStream handle) {
    return handle == 0 ? default_ : HostStream::of(handle);
  }

  static void check_independent(const std::vector<DeviceCopy>& copies) {
    const auto overlap = [](const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
      const auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
      return x < y + b_bytes && y < x + a_bytes;
    };
    for (const DeviceCopy& a : copies) {
      for (const DeviceCopy& b : copies) {
        const auto a_bytes = a.count * static_cast<int64_t>(size_of(a.to_type));
        const auto b_to = b.count * static_cast<int64_t>(size_of(b.to_type));
        const auto b_from = b.count * static_cast<int64_t>(size_of(b.from_type));
        const bool in_place = &a == &b && a.from == a.to && a.from_type == a.to_type;
        if ((&a != &b && overlap(a.to, a_bytes, b.to, b_to)) ||
            (!in_place && overlap(a.to, a_bytes, b.from, b_from))) {
          throw std::logic_error("copies of one launch that overlap");
        }
      }
    }
  }

  static bool is_short_float(DataType type) {
    return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32;
  }

  static void copy(const DeviceCopy& each) {
    const auto count = static_cast<size_t>(each.count);
    if (each.from_type == each.to_type) {
      if (count > 0) std::memmove(each.to, each.from, count * size_of(each.to_type));
      return scale(each.to, each.count, each.to_type, each.factor, each.divisor);
    }
    // Scaled in the wider type, as the real one does.
    if (is_short_float(each.from_type) && is_short_float(each.to_type)) {
      std::vector<float> wide(count);
      convert(wide.data(), DataType::float32, each.from, each.from_type, each.count);
      scale(wide.data(), each.count, DataType::float32, each.factor, each.divisor);
      return convert(each.to, each.to_type, wide.data(), DataType::float32, each.count);
    }
    std::vector<int32_t> wide(count);
    if (each.from_type == DataType::int16 && each.to_type == DataType::int32) {
      const auto* from = static_cast<const int16_t*>(each.from);
      wide.assign(from, from + count);
      scale(wide.data(), each.count, DataType::int32, each.factor, each.divisor);
      if (count > 0) std::memcpy(each.to, wide.data(), count * sizeof wide[0]);
    } else if (each.from_type == DataType::int32 && each.to_type == DataType::int16) {
      const auto* from = static_cast<const int32_t*>(each.from);
      wide.assign(from, from + count);
      scale(wide.data(), each.count, DataType::int32, each.factor, each.divisor);
      auto* to = static_cast<int16_t*>(each.to);
      for (size_t i = 0; i < count; ++i) to[i] = static_cast<int16_t>(wide[i]);
    } else {
      std::abort();  // between types that device.h does not name
    }
  }

  inline static thread_local const HostDevice* used_ = nullptr;
  const int index_;
  std::atomic<uint64_t> recorded_{0};
  std::shared_ptr<std::atomic<int>> events_ = std::make_shared<std::atomic<int>>(0);
  HostStream default_;
  std::unique_ptr<HostStream> stream_ = std::make_unique<HostStream>();
};

}  // namespace autotune
