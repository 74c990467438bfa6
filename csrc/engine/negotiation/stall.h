// What waits too long for some ranks: a warning, repeated ever more rarely, and after the shutdown
// time the end of the job. Tensors that some ranks do not announce are looked at by rank 0; a
// transfer that does not end, and a coordinator that does not answer, by those who wait.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "control/control.h"
#include "engine/negotiation/coordinator.h"

namespace autotune {

// How long this rank has waited in one go. Time counts only while it looks: not that in which it
// was stopped itself.
class WaitWatch {
 public:
  void restart() { waited_ = std::chrono::nanoseconds(0), looked_ = {}; }
  // Called again and again while it waits; returns how long that has been.
  std::chrono::nanoseconds look(TimePoint now);
  std::chrono::nanoseconds waited() const { return waited_; }

 private:
  std::chrono::nanoseconds waited_{0};
  TimePoint looked_{};
};

class StallInspector {
 public:
  // Seconds; 0: no check, and never. `size`: ranks of the job; `host_names`: by rank, or empty.
  // `levels`: of the control tree; silence is known a moment later for each.
  StallInspector(double warning_seconds, double shutdown_seconds, int size, TimePoint now,
                 std::vector<std::string> host_names = {}, int levels = 1)
      : warning_s_(warning_seconds),
        shutdown_s_(shutdown_seconds),
        size_(size),
        host_names_(std::move(host_names)),
        hearsay_s_(levels > 1 ? 1.5 * (levels - 1) : 0),
        last_check_(now) {}

  bool enabled() const { return warning_s_ > 0; }
  // `check` wants to be called so often while something is pending.
  static constexpr std::chrono::milliseconds interval{250};
  // Returns the warnings that are due; throws EngineError for a tensor that has waited for the
  // shutdown time.
  // `control`: where it is given, it knows who of the missing is to blame.
  std::vector<std::string> check(const Coordinator& coordinator, TimePoint now,
                                 const ControlPlane* control = nullptr);
  // A transfer, of which `what` tells people, that has lasted for `age`. `is_first`: this rank is
  // the one that speaks for all; another ends the job only where that one has not done so. Returns
  // the warning that is due, or "".
  std::string check_transfer(const std::string& what, std::chrono::duration<double> age,
                             const std::vector<Silent>& silent, bool is_first);
  // The coordinator, or a rank by way of which it is heard, by another rank that waits for the
  // answer; as `check_transfer`.
  std::string check_coordinator(const Silent& silent, bool is_first);

  // "1, 2", and their hosts where they are known: "1, 2 on host-b".
  std::string named(const std::vector<int>& ranks) const;

 private:
  bool is_due(double age_s);
  std::string text_of(const Stalled& stalled) const;

  double warning_s_;
  double shutdown_s_;
  int size_;
  std::vector<std::string> host_names_;
  double hearsay_s_;  // who is silent may be known so much later than to the neighbours
  TimePoint last_check_;
  double warned_s_ = 0;  // what was looked at last was so old then
};

}  // namespace autotune
