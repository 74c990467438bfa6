// Who exchanges with whom in an allreduce by messages, stage by stage.
//
// In a stage every rank is in one group and exchanges with all others of it, directly. After the
// stages each has met, through others, the contributions of all. One stage of all ranks has the
// fewest rounds; several have fewer messages, and, where the first ones are among the ranks of a
// host, fewer bytes between hosts.
//
// Hosts of equally many ranks: first the ranks of a host, then those of equal place on all hosts.
// Each of the two, or all ranks together where hosts differ, is one stage or several, so that
//
//   sum over the stages of 1 + (ranks - 2) / 4
//
// is least: a round and, at a quarter of it each, its further messages, as the cost model has it
// (autotune/costmodel/collectives.py). Of equals fewer stages are taken:
//
//   ranks    2..8     9      10     12     15     16     32     64         128
//   stages   all     3x3    2x5    3x4    3x5    4x4    4x8    4x4x4      4x4x8
//
// The order in which elements are combined follows from the stages and from nothing else: in each,
// by the place in the group. So the stages may depend on ranks and hosts, but not on what is
// reduced.
#pragma once

#include <vector>

namespace autotune {

struct ExchangeStage {
  std::vector<int> ranks;  // of the group of this rank, in order of their places
  int place = 0;           // of this rank among them
};

// The sizes of the stages of `ranks` ranks between which every way is the same; none for one.
std::vector<int> stage_sizes(int ranks);

// Those of rank `rank`, at least one. `host_of_rank`: as HostMap has it, one entry per rank.
std::vector<ExchangeStage> make_stages(int rank, const std::vector<int>& host_of_rank);

}  // namespace autotune
