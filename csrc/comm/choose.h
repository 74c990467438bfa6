// Which backend a job gets.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/p2p/point_to_point.h"

namespace autotune {

// Shared memory where all ranks are on one host and have some, else messages over `transport` (with
// one line that says why). Collective. One rank needs no transport.
std::unique_ptr<Communicator> choose_communicator(std::unique_ptr<PointToPoint> transport,
                                                  bool one_host, const Progress& progress);

}  // namespace autotune
