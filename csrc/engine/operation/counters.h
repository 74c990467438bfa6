// What the engine counts at all times.
#pragma once

#include <chrono>
#include <cstdint>

namespace autotune {

// Monotonic; read by other threads only through Engine::counters. On a GPU the times are those of
// the thread that gives it the work.
struct Counters {
  int64_t operations = 0;
  int64_t responses = 0;
  int64_t cycles = 0;
  int64_t messages = 0;
  int64_t heard = 0;  // messages of requests, by ranks that others report to
  int64_t cache_hits = 0;
  int64_t cache_misses = 0;
  int64_t payload_bytes = 0;
  int64_t fused_tensors = 0;
  int64_t pack_ns = 0;
  int64_t transfer_ns = 0;
  int64_t unpack_ns = 0;
  int64_t protocol_ns = 0;
  int64_t skew_ns = 0;
  int64_t wait_ns = 0;

  // Time in the data plane.
  int64_t busy_ns() const { return pack_ns + transfer_ns + unpack_ns; }
};

// Adds its life to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total_ns) : total_ns_(total_ns) {}
  ~Stopwatch() { total_ns_ += (Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  int64_t& total_ns_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace autotune
