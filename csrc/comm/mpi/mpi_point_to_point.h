// Point-to-point transport over an MPI communicator. mpi4py starts and ends MPI; the engine only
// uses the communicator it is given. Errors become EngineError.
//
// The engine is built and linked without any MPI. It calls the library that mpi4py has loaded, by
// the few addresses and values of `MpiInterface`: those, too, come from mpi4py, so that one build
// fits Open MPI, MPICH and all that share one of their binary interfaces, and a process never holds
// two MPIs.
//
// A message is sent until its receiver has taken it (MPI_Issend). An MPI_Isend may be complete
// while the library still holds the bytes, for a connection that is full. What it may still hold
// when an operation is over is the word that a message was taken, for which the sender waits: it
// leaves when the library is called, by `progress`.
//
// Between hosts Open MPI sends what is longer than 64 KiB only when the receiver has answered, and
// the answer waits behind what the receiver sends itself: two ranks that exchange messages of
// 2 MiB do so one after the other (51 MB take 810 ms at 1 Gbit/s, in messages of 60 KiB 430). So a
// message to a rank that is *far* may be cut.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/point_to_point.h"

namespace autotune {

struct MpiInterface {
  // An MPI_Comm, an MPI_Datatype and an MPI_Request have so many: 4 (an int: MPICH) or 8 (a
  // pointer: Open MPI and the standard interface of MPI 5).
  int handle_bytes = 0;
  int status_bytes = 0;           // an MPI_Status has so many
  int error_text_bytes = 0;       // it is MPI_MAX_ERROR_STRING
  std::uintptr_t byte = 0;        // it is MPI_BYTE
  std::uintptr_t no_request = 0;  // it is MPI_REQUEST_NULL
  // These are the addresses of MPI_Issend, MPI_Irecv, MPI_Testall, MPI_Iprobe, MPI_Cancel,
  // MPI_Error_string, MPI_Finalized.
  std::uintptr_t issend = 0;
  std::uintptr_t irecv = 0;
  std::uintptr_t testall = 0;
  std::uintptr_t iprobe = 0;
  std::uintptr_t cancel = 0;
  std::uintptr_t error_string = 0;
  std::uintptr_t finalized = 0;
};

// `comm` is an MPI_Comm as mpi4py's `_handleof` returns it, in which the caller is `rank` of
// `size`. It must be for this use alone, live as long as the transport and return its errors
// (MPI_ERRORS_RETURN). `far`: whether messages to and from a rank are cut, by rank; each two ranks
// say the same of each other; empty: none. Throws EngineError where `mpi` has another size of
// handles than those above.
std::unique_ptr<PointToPoint> make_mpi_point_to_point(const MpiInterface& mpi, std::uintptr_t comm,
                                                      int rank, int size,
                                                      std::vector<bool> far = {});

}  // namespace autotune
