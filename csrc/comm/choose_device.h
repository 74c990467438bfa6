// Which GPU backend a job gets: CUDA's driver for memory and streams, NCCL for the collectives.
// Neither knows the other; here they meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/device.h"

namespace autotune {

struct DeviceOptions {
  // The shared libraries are there; where a path is empty, the loader looks for it.
  std::string nccl;
  std::string nvrtc;
  // By this NCCL_HOSTID NCCL tells hosts apart; where it is empty, by their names. Only ranks of
  // different hosts may share a GPU.
  std::string host_id;
  // The tuner of this package that NCCL was told to load; where it is empty, there is none.
  std::string nccl_tuner;
};

// 0 where there is none. `path`: of NCCL, or empty.
int nccl_version(const std::string& path);
int cuda_version();

// Throws EngineError with what is missing and what to do.
DeviceBackend make_cuda_backend(int index, const DeviceOptions& options,
                                std::shared_ptr<Allocator> memory);

// Collectives in two levels over the ranks of `flat`, which outlives them and has the ranks of
// `plain`. Returns nullptr where the hosts have different numbers of ranks. Collective.
std::unique_ptr<DeviceCommunicator> choose_two_levels(DeviceCommunicator& flat,
                                                      const DeviceConnector& connect,
                                                      Communicator& plain,
                                                      const std::vector<int>& host_of_rank,
                                                      const WaitHook& on_wait);

}  // namespace autotune
