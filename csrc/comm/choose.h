// Which backends a job gets.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/point_to_point.h"

namespace autotune {

struct Communicators {
  std::unique_ptr<Communicator> flat;
  // It is nullptr where two levels cannot matter: one host, or one rank on every host.
  std::unique_ptr<Communicator> hierarchical;
  // It connects the ranks of `flat` by messages and nothing else; with one rank it is nullptr.
  std::unique_ptr<Communicator> plain = nullptr;
  std::vector<int> host_of_rank = {};  // hosts are numbered from 0; with one rank it is empty
  // All messages of the above go through it; with one rank it is nullptr.
  std::shared_ptr<PointToPoint> transport = nullptr;
};

// Shared memory among the ranks of a host where it has some, else messages (with one line that says
// why). `host_of_rank` numbers the hosts from 0; one rank needs no transport. Collective.
Communicators choose_communicators(std::shared_ptr<PointToPoint> transport,
                                   const std::vector<int>& host_of_rank, const WaitHook& on_wait);

// The same for any subset of a job's ranks (sorted, the caller among them). Collective over the
// subset: the others need not know.
using CommunicatorFactory =
    std::function<Communicators(const std::vector<int>& ranks, const WaitHook&)>;
CommunicatorFactory communicator_factory(std::shared_ptr<PointToPoint> transport,
                                         std::vector<int> host_of_rank);

}  // namespace autotune
