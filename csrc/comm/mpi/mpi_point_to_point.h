// Point-to-point transport over an MPI communicator. mpi4py starts and ends MPI; the engine only
// uses the communicator it is given. Errors become EngineError (MPI_ERRORS_RETURN).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/point_to_point.h"

namespace autotune {

// `handle` is an MPI_Comm as mpi4py's `_handleof` returns it. The communicator must be for this use
// alone and live as long as the transport.
std::unique_ptr<PointToPoint> make_mpi_point_to_point(std::uintptr_t handle);

std::string mpi_library_version();

// Path of the shared library that the engine calls.
std::string mpi_library_path();

}  // namespace autotune
