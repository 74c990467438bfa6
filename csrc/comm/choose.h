// Which backends a job gets.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/p2p/point_to_point.h"

namespace autotune {

struct Communicators {
  std::unique_ptr<Communicator> flat;
  // nullptr where two levels cannot matter: one host, or one rank on every host.
  std::unique_ptr<Communicator> hierarchical;
};

// Shared memory among the ranks of a host where it has some, else messages (with one line that says
// why). `host_of_rank` numbers the hosts from 0; one rank needs no transport. Collective.
Communicators choose_communicators(std::shared_ptr<PointToPoint> transport,
                                   const std::vector<int>& host_of_rank, const Progress& progress);

}  // namespace autotune
