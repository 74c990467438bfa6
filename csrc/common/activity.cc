#include "common/activity.h"

#include <cstddef>

namespace autotune {

namespace {

constexpr const char* names[3][3] = {{"SELF_ALLREDUCE", "SELF_ALLGATHER", "SELF_BCAST"},
                                     {"SHM_ALLREDUCE", "SHM_ALLGATHER", "SHM_BCAST"},
                                     {"MPI_ALLREDUCE", "MPI_ALLGATHER", "MPI_BCAST"}};
constexpr const char* reducescatter_names[3] = {"SELF_REDUCESCATTER", "SHM_REDUCESCATTER",
                                                "MPI_REDUCESCATTER"};

}  // namespace

const char* activity_name(Backend backend, Operation operation) {
  const auto column = static_cast<size_t>(operation);
  if (backend == Backend::several || column > 2) return nullptr;
  return names[static_cast<size_t>(backend)][column];
}

const char* reducescatter_activity(Backend backend) {
  return backend == Backend::several ? nullptr : reducescatter_names[static_cast<size_t>(backend)];
}

}  // namespace autotune
