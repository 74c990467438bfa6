// Tensors that wait too long for some ranks: a warning, repeated ever more rarely, and after the
// shutdown time the end of the job. Rank 0 only.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/negotiation/coordinator.h"

namespace autotune {

class StallInspector {
 public:
  // Seconds; 0: no check, and never. `size`: ranks of the job.
  StallInspector(double warning_seconds, double shutdown_seconds, int size, TimePoint now)
      : warning_s_(warning_seconds), shutdown_s_(shutdown_seconds), size_(size), last_check_(now) {}

  bool enabled() const { return warning_s_ > 0; }
  // How often `check` wants to be called while something is pending.
  static constexpr std::chrono::milliseconds interval{250};
  // Returns the warnings that are due; throws EngineError for a tensor that has waited for the
  // shutdown time.
  std::vector<std::string> check(const Coordinator& coordinator, TimePoint now);

 private:
  std::string text_of(const Stalled& stalled) const;

  double warning_s_;
  double shutdown_s_;
  int size_;
  TimePoint last_check_;
};

}  // namespace autotune
