#include "engine/negotiation/stall.h"

#include <algorithm>
#include <cmath>

#include "common/errors.h"

namespace autotune {

namespace {

using Seconds = std::chrono::duration<double>;

// Warnings follow after 1, 2, 4, 8, ... warning times.
int64_t warnings_due(double age_s, double warning_s) {
  return age_s < warning_s ? 0 : 1 + static_cast<int64_t>(std::log2(age_s / warning_s));
}

}  // namespace

std::vector<std::string> StallInspector::check(const Coordinator& coordinator, TimePoint now) {
  std::vector<std::string> warnings;
  if (!enabled() || !coordinator.has_pending() || now - last_check_ < interval) return warnings;
  const Seconds since_last = now - last_check_;
  last_check_ = now;
  const double shortest = shutdown_s_ > 0 ? std::min(shutdown_s_, warning_s_) : warning_s_;
  for (const Stalled& stalled : coordinator.stalled(now, Seconds(shortest))) {
    const double age_s = stalled.age.count();
    if (shutdown_s_ > 0 && age_s >= shutdown_s_) throw EngineError(text_of(stalled));
    if (warnings_due(age_s, warning_s_) > warnings_due(age_s - since_last.count(), warning_s_)) {
      warnings.push_back(text_of(stalled));
    }
  }
  return warnings;
}

std::string StallInspector::text_of(const Stalled& stalled) const {
  std::string ranks;
  for (int rank : stalled.missing_ranks) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return std::string(name_of(stalled.operation)) + " " + shown_name(stalled.name) + " has waited " +
         std::to_string(static_cast<int>(stalled.age.count())) + " s for rank " + ranks + " (of " +
         std::to_string(size_) +
         "): expected every rank to call it; does a rank skip it, or run far behind?";
}

}  // namespace autotune
