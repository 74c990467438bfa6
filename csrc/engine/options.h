// What the engine is told once.
#pragma once

#include <string>
#include <vector>

#include "common/types.h"
#include "engine/timeline/timeline_record.h"

namespace autotune {

struct EngineOptions {
  Params params;
  // The engine's thread runs on this core; with -1, on those of the process.
  int thread_affinity = -1;
  double stall_warning_seconds = 60;  // 0 means that there is no stall check
  double stall_shutdown_seconds = 0;  // 0 means never
  std::string timeline_path;          // an empty one means that there is none from the start
  bool timeline_mark_cycles = false;
  TimelineClock timeline_clock;
  // Groups fuse only within themselves; it is the same on all ranks.
  bool disable_group_fusion = false;
  // They stand by rank, for people; there are none where nobody knows them.
  std::vector<std::string> host_names;
};

}  // namespace autotune
