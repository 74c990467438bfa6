// mpi_contract LIBMPI: the contract of a transport over MPI, one rank of an Open MPI job.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "comm/mpi/mpi_point_to_point.h"
#include "open_mpi.h"
#include "point_to_point_contract.h"

using namespace autotune;
using open_mpi::find;

namespace {

int run(const char* path) {
  void* library = open_mpi::load(path);
  find<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  void* world = find(library, "ompi_mpi_comm_world");
  int rank = 0, size = 1;
  find<int(void*, int*)>(library, "MPI_Comm_rank")(world, &rank);
  find<int(void*, int*)>(library, "MPI_Comm_size")(world, &size);
  const auto transport = make_mpi_point_to_point(
      open_mpi::interface_of(library), reinterpret_cast<std::uintptr_t>(world), rank, size);
  for (const auto& [name, check] : contract::checks()) {
    try {
      check(*transport);
    } catch (const std::exception& error) {
      std::printf("FAILED on rank %d of %d: %s: %s\n", rank, size, name, error.what());
      std::fflush(stdout);
      find<int(void*, int)>(library, "MPI_Abort")(world, 1);
    }
  }
  find<int()>(library, "MPI_Finalize")();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("mpi_contract LIBMPI");
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
