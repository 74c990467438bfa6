// Everything the engine is told once; made in Python by horovod.basics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/types.h"
#include "engine/timeline/timeline_record.h"

namespace autotune {

struct Options {
  Params params;
  int rank = 0;
  int size = 1;
  std::vector<int> host_of_rank;        // hosts are numbered from 0
  std::vector<std::string> host_names;  // they stand by rank, for people
  int thread_affinity = -1;
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  int log_level = 3;
  std::string timeline_path;
  bool timeline_mark_cycles = false;
  TimelineClock timeline_clock;
  bool disable_group_fusion = false;
  double connect_seconds = 60;
  int control_fan_out = 0;  // see Tree::of_hosts
};

}  // namespace autotune
