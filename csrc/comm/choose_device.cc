#include "comm/choose_device.h"

#include "comm/cuda/cuda_device.h"
#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/hierarchical/hierarchical_device.h"
#include "comm/nccl/nccl_communicator.h"
#include "common/errors.h"

namespace autotune {

int nccl_version(const std::string& path) {
  int version = 0;
  try {
    NcclLibrary(path).version(&version);
  } catch (const EngineError&) {  // none, or too old
  }
  return version;
}

int cuda_version() {
  int version = 0;
  try {
    CudaDriver().driver_version(&version);
  } catch (const EngineError&) {
  }
  return version;
}

DeviceBackend make_cuda_backend(int index, const DeviceOptions& options,
                                std::shared_ptr<Allocator> memory) {
  auto nccl = std::make_shared<const NcclLibrary>(options.nccl);
  auto tuner = std::make_shared<NcclTuner>(options.nccl_tuner);
  auto device = std::make_unique<CudaDevice>(index, options.nvrtc);
  const Device& known = *device;  // outlives what is connected
  const auto connect = [nccl, tuner, &known, host_id = options.host_id](
                           Communicator* plain, int color, const auto& on_wait) {
    return NcclCommunicator::connect(nccl, tuner, known, host_id, plain, color, on_wait);
  };
  const auto tune = [tuner](const Params& params) { tuner->choose(params); };
  return {std::move(device), connect, std::move(memory), tune};
}

std::unique_ptr<DeviceCommunicator> choose_two_levels(DeviceCommunicator& flat,
                                                      const DeviceConnector& connect,
                                                      Communicator& plain,
                                                      const std::vector<int>& host_of_rank,
                                                      const WaitHook& on_wait) {
  const HostMap map(host_of_rank);
  if (map.lanes() * map.hosts() != flat.size()) return nullptr;
  auto local = connect(&plain, map.host_of(flat.rank()), on_wait);
  auto cross = connect(&plain, map.local_rank(flat.rank()), on_wait);
  return std::make_unique<HierarchicalDevice>(flat, std::move(local), std::move(cross));
}

}  // namespace autotune
