// mpi_contract LIBMPI: the contract of a transport over MPI, one rank of an Open MPI job.
//
// As in a job, MPI is not linked: its functions and the addresses of its constants come from the
// library that is named.
#include <dlfcn.h>
#include <sys/types.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "comm/mpi/mpi_point_to_point.h"
#include "point_to_point_contract.h"

using namespace autotune;

namespace {

template <typename Function = void>
Function* find(void* library, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("no Open MPI: it lacks ") + name);
  return reinterpret_cast<Function*>(found);
}

std::uintptr_t address(void* library, const char* name) {
  return reinterpret_cast<std::uintptr_t>(find(library, name));
}

MpiInterface open_mpi(void* library) {
  MpiInterface mpi;
  mpi.handle_bytes = sizeof(void*);
  mpi.status_bytes = 24;
  mpi.error_text_bytes = 256;
  mpi.byte = address(library, "ompi_mpi_byte");
  mpi.no_request = address(library, "ompi_request_null");
  mpi.isend = address(library, "MPI_Isend");
  mpi.irecv = address(library, "MPI_Irecv");
  mpi.testall = address(library, "MPI_Testall");
  mpi.cancel = address(library, "MPI_Cancel");
  mpi.error_string = address(library, "MPI_Error_string");
  return mpi;
}

int run(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  find<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  void* world = find(library, "ompi_mpi_comm_world");
  int rank = 0, size = 1;
  find<int(void*, int*)>(library, "MPI_Comm_rank")(world, &rank);
  find<int(void*, int*)>(library, "MPI_Comm_size")(world, &size);
  const auto transport = make_mpi_point_to_point(
      open_mpi(library), reinterpret_cast<std::uintptr_t>(world), rank, size);
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
