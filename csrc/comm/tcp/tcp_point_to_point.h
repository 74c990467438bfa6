// Messages over TCP: a transport of our own, for jobs without MPI.
//
// Every pair of ranks has one or several connections, *streams*. A message is cut into *chunks*,
// which go to whatever stream has room (where the kernel paces streams, to the first one alone); a
// short message is one chunk. On its stream a chunk is a header and its bytes, written from and
// read into the memory that was posted: nothing is copied on the way. A rank reads a chunk only
// when its message was posted; until then it stays in the kernel, which tells the sender to wait.
// Chunks are given to streams in the order of their messages, so that no message is ever behind a
// later one.
//
// No thread and no timer: all that happens, happens in a call. What sockets are ready is asked of
// the kernel once per `test_all`, whatever the number of ranks (epoll, edge by edge); with nothing
// posted not at all.
//
// After an error nothing that was posted is touched again: nobody writes but we. The sockets are
// then at any place of a message: the transport refuses what comes later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/point_to_point.h"

namespace autotune {

// The connections of a rank with a peer, both ends in the same order. The transport closes them.
using StreamSockets = std::vector<int>;

// `streams`: by rank; empty for this one. They never block, and have been proven to be a rank's.
// Throws EngineError.
std::unique_ptr<PointToPoint> make_tcp_point_to_point(int rank, std::vector<StreamSockets> streams);

}  // namespace autotune
