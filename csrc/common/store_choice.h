// By which stores memory is filled: cached ones, or streaming ones, which go past the caches.
//
// Slots: where the cores of the ranks share a cache, cached stores make a step twice as fast. Where
// they do not, every line that another core had comes over the processor's interconnect, and
// streaming stores take two thirds of the time (2 ranks, 102 MB: 15 and 24 ms, and a minute later,
// when the virtual cores had been moved apart, 33 and 20).
//
// Outputs of long calls (copy.h): 16 ranks take 60.7 ms for 102 MB through shared memory by cached
// stores and 48.9 by streaming ones (Intel Xeon of 16 cores), 2 ranks 16.1 and 18.7.
//
// What is better may change while a job runs, so both kinds are tried all the time: of `period`
// rounds (of shared memory, or of copies out of a box) the last two are of the other kind, and the
// second is measured. A trial of the worse kind costs time (one in each period 5 % of 102 MB), so
// each that is lost doubles the periods until the next one, up to `longest_rest`: some milliseconds
// of rounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace autotune {

class StoreChoice {
 public:
  static constexpr int period = 64;
  static constexpr int longest_rest = 16;

  // Two choices of the same rounds that begin a quarter of a period apart try and measure nothing
  // in each other's trials. What one has measured is to be forgotten when the other one changes.
  explicit StoreChoice(int first_place = 0) : place_(first_place) {}

  // What the next round is to use; one whose time will not be added never tries the other kind.
  bool streaming(bool is_measured = true) const {
    return streaming_ != (is_measured && is_trial(place_));
  }

  // A round is over, which took `time`, all in the same unit. Returns whether the choice has
  // changed.
  bool add(double time) {
    const bool before = streaming_;
    if (place_ == period / 2) {
      times_[streaming_].add(time);
    } else if (place_ == period - 1 && left_ == 0) {
      times_[!streaming_].add(time);
      decide();
      left_ = rest_;
    } else if (place_ == period - 1) {
      --left_;
    }
    place_ = (place_ + 1) % period;
    return streaming_ != before;
  }

  void forget() { times_ = {}; }

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

  // After a trial.
  void decide() {
    const Times &now = times_[streaming_], &other = times_[!streaming_];
    if (std::min(now.count, other.count) < least) return;
    if (other.median() < better * now.median()) {
      streaming_ = !streaming_;
      rest_ = 0;
    } else if (now.median() < better * other.median()) {
      rest_ = std::clamp(2 * rest_, 1, longest_rest - 1);
    } else {
      rest_ = 0;  // it costs little
    }
  }

  bool is_trial(int place) const { return left_ == 0 && place >= period - 2; }

  bool streaming_ = false;
  int place_;
  int rest_ = 0;                // periods without a trial after each with one
  int left_ = 0;                // of those, now
  std::array<Times, 2> times_;  // the first is of cached stores, the second of streaming ones
};

}  // namespace autotune
