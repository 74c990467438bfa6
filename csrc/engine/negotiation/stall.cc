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

// How much later than rank 0 the others end a job by themselves: it may be the one that is stopped.
constexpr double grace_s = 5;

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

std::chrono::nanoseconds WaitWatch::look(TimePoint now) {
  constexpr std::chrono::nanoseconds most = std::chrono::seconds(1);
  if (looked_ != TimePoint{}) waited_ += std::min<std::chrono::nanoseconds>(now - looked_, most);
  looked_ = now;
  return waited_;
}

std::vector<std::string> StallInspector::check(const Coordinator& coordinator, TimePoint now,
                                               const ControlPlane* control) {
  std::vector<std::string> warnings;
  if (!enabled() || !coordinator.has_pending() || now - last_check_ < interval) return warnings;
  const Seconds since_last = now - last_check_;
  last_check_ = now;
  const double shortest = shutdown_s_ > 0 ? std::min(shutdown_s_, warning_s_) : warning_s_;
  for (Stalled& stalled : coordinator.stalled(now, Seconds(shortest))) {
    if (control != nullptr) stalled.missing_ranks = control->to_blame(stalled.missing_ranks);
    const double age_s = stalled.age.count();
    if (shutdown_s_ > 0 && age_s >= shutdown_s_ + hearsay_s_) throw EngineError(text_of(stalled));
    if (warnings_due(age_s, warning_s_) > warnings_due(age_s - since_last.count(), warning_s_)) {
      warnings.push_back(text_of(stalled));
    }
  }
  return warnings;
}

// One that is younger than the last is another one.
bool StallInspector::is_due(double age_s) {
  const double last_s = age_s < warned_s_ ? 0 : warned_s_;
  warned_s_ = age_s;
  return warnings_due(age_s, warning_s_) > warnings_due(last_s, warning_s_);
}

std::string StallInspector::check_transfer(const std::string& what,
                                           std::chrono::duration<double> age,
                                           const std::vector<Silent>& silent, bool is_first) {
  if (!enabled()) return "";
  const double age_s = age.count();
  const double later_s = (is_first ? 0 : grace_s) + (silent.empty() ? hearsay_s_ : 0);
  const bool ends = shutdown_s_ > 0 && age_s >= shutdown_s_ + later_s;
  if (!ends && !(is_due(age_s) && is_first)) return "";
  std::string text =
      what + " has been under way for " + std::to_string(static_cast<int>(age_s)) + " s";
  if (silent.empty()) {
    text += "; all ranks (of " + std::to_string(size_) +
            ") answer: is the network between them slow, or broken in part?";
  } else {
    std::vector<int> ranks;
    for (const Silent& each : silent) ranks.push_back(each.rank);
    text += ": expected every rank to take part, got no answer from rank " + named(ranks) +
            " (of " + std::to_string(size_) + ") for " + std::to_string(silent[0].seconds) +
            " s; is its process stopped, or its machine out of memory?";
  }
  if (ends) throw EngineError(text);
  return text;
}

std::string StallInspector::check_coordinator(const Silent& silent, bool is_first) {
  const int silent_s = silent.seconds;
  if (!enabled() || silent_s == 0) return "";
  const bool ends = shutdown_s_ > 0 && silent_s >= shutdown_s_;
  if (!ends && !(is_due(silent_s) && is_first)) return "";
  const std::string text = "rank " + named({silent.rank}) + " (of " + std::to_string(size_) +
                           "), which all wait for, has not answered for " +
                           std::to_string(silent_s) +
                           " s; is its process stopped, or its machine out of memory?";
  if (ends) throw EngineError(text);
  return text;
}

std::string StallInspector::named(const std::vector<int>& ranks) const {
  std::vector<std::string> hosts;
  for (int rank : ranks) {
    if (host_names_.empty()) break;
    const std::string& name = host_names_[static_cast<size_t>(rank)];
    if (std::find(hosts.begin(), hosts.end(), name) == hosts.end()) hosts.push_back(name);
  }
  std::string text = join(ranks);
  for (const std::string& name : hosts) text += (&name == &hosts[0] ? " on " : ", ") + name;
  return text;
}

std::string StallInspector::text_of(const Stalled& stalled) const {
  const std::string ranks = named(stalled.missing_ranks);
  const std::string counted =
      stalled.is_counted
          ? " The script gives it no name, so that such calls are counted: ranks that "
            "made different numbers of them wait for each other; name it"
          : "";
  return std::string(name_of(stalled.operation)) + " " + shown_name(stalled.name) + " has waited " +
         std::to_string(static_cast<int>(stalled.age.count())) + " s for rank " + ranks + " (of " +
         std::to_string(size_) +
         "): expected every rank to call it; does a rank skip it, or run far behind?" + counted;
}

}  // namespace autotune
