// What tests of messages over MPI take from an Open MPI. As in a job, it is not linked: functions
// and the addresses of constants come from the library that is named.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "comm/mpi/mpi_point_to_point.h"

namespace open_mpi {

inline void* load(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  return library;
}

template <typename Function = void>
Function* find(void* library, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("no Open MPI: it lacks ") + name);
  return reinterpret_cast<Function*>(found);
}

inline std::uintptr_t address(void* library, const char* name) {
  return reinterpret_cast<std::uintptr_t>(find(library, name));
}

inline autotune::MpiInterface interface_of(void* library) {
  autotune::MpiInterface mpi;
  mpi.handle_bytes = sizeof(void*);
  mpi.status_bytes = 24;
  mpi.error_text_bytes = 256;
  mpi.byte = address(library, "ompi_mpi_byte");
  mpi.no_request = address(library, "ompi_request_null");
  mpi.issend = address(library, "MPI_Issend");
  mpi.irecv = address(library, "MPI_Irecv");
  mpi.testall = address(library, "MPI_Testall");
  mpi.iprobe = address(library, "MPI_Iprobe");
  mpi.cancel = address(library, "MPI_Cancel");
  mpi.error_string = address(library, "MPI_Error_string");
  mpi.finalized = address(library, "MPI_Finalized");
  return mpi;
}

}  // namespace open_mpi
