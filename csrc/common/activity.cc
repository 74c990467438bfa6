#include "common/activity.h"

#include <cstddef>

namespace autotune {

namespace {

// By backend and operation.
constexpr const char* names[5][6] = {
    {"SELF_ALLREDUCE", "SELF_ALLGATHER", "SELF_BCAST", nullptr, "SELF_ALLTOALL",
     "SELF_REDUCESCATTER"},
    {"SHM_ALLREDUCE", "SHM_ALLGATHER", "SHM_BCAST", nullptr, "SHM_ALLTOALL", "SHM_REDUCESCATTER"},
    {"MPI_ALLREDUCE", "MPI_ALLGATHER", "MPI_BCAST", nullptr, "MPI_ALLTOALL", "MPI_REDUCESCATTER"},
    {"TCP_ALLREDUCE", "TCP_ALLGATHER", "TCP_BCAST", nullptr, "TCP_ALLTOALL", "TCP_REDUCESCATTER"},
    {"NCCL_ALLREDUCE", "NCCL_ALLGATHER", "NCCL_BCAST", nullptr, "NCCL_ALLTOALL",
     "NCCL_REDUCESCATTER"}};

}  // namespace

const char* activity_name(Backend backend, Operation operation) {
  if (backend == Backend::several || !moves_data(operation)) return nullptr;
  return names[static_cast<size_t>(backend)][static_cast<size_t>(operation)];
}

}  // namespace autotune
