// By which stores the slots of shared memory are filled: cached ones, or streaming ones, which go
// past the caches.
//
// Where the cores of the ranks share a cache, cached stores make a step twice as fast. Where they
// do not, every line that another core had comes over the processor's interconnect, and streaming
// stores take two thirds of the time (2 ranks, 102 MB: 15 and 24 ms, and a minute later, when the
// virtual cores had been moved apart, 33 and 20). That changes while a job runs, so both kinds are
// tried all the time: of `period` rounds the last two are of the other kind, and the second is
// measured.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace autotune {

class StoreChoice {
 public:
  static constexpr int period = 64;

  // What the next round is to use.
  bool streaming() const { return streaming_ != is_trial(place_); }

  // A round of full length is over; it took `time`.
  void add(double time) {
    if (place_ == period - 1) {
      times_[!streaming_].add(time);
      const Times &now = times_[streaming_], &other = times_[!streaming_];
      if (other.count >= least && other.median() < better * now.median()) streaming_ = !streaming_;
    } else if (place_ == period / 2) {
      times_[streaming_].add(time);
    }
    place_ = (place_ + 1) % period;
  }

 private:
  // A kind has to be better by so much, and was tried so often, before it is taken.
  static constexpr double better = 0.9;
  static constexpr size_t least = 3;

  // The newest few.
  struct Times {
    static constexpr size_t most = 5;
    std::array<double, most> values{};
    size_t count = 0;

    void add(double time) { values[count++ % most] = time; }
    double median() const {
      std::array<double, most> sorted = values;
      const size_t known = std::min(count, most);
      const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(known / 2);
      std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(known));
      return *middle;
    }
  };

  static bool is_trial(int place) { return place >= period - 2; }

  bool streaming_ = false;
  int place_ = 0;
  std::array<Times, 2> times_;  // the first is of cached stores, the second of streaming ones
};

}  // namespace autotune
