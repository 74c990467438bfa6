// What the engine is told once.
#pragma once

#include <string>
#include <vector>

#include "common/types.h"
#include "engine/timeline/timeline_record.h"

namespace autotune {

struct EngineOptions {
  Params params;
  int thread_affinity = -1;           // core of the engine thread; -1: those of the process
  double stall_warning_seconds = 60;  // 0: no stall check
  double stall_shutdown_seconds = 0;  // 0: never
  std::string timeline_path;          // empty: none from the start
  bool timeline_mark_cycles = false;
  TimelineClock timeline_clock;
  bool disable_group_fusion = false;    // groups fuse only within themselves; the same on all ranks
  std::vector<std::string> host_names;  // by rank, for people; empty: nobody knows
};

}  // namespace autotune
