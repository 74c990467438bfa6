#include <memory>

#include "comm/cuda/cuda_device.h"
#include "comm/device.h"
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

DeviceBackend make_cuda_backend(int index, const DeviceOptions& options) {
  auto nccl = std::make_shared<const NcclLibrary>(options.nccl);
  auto device = std::make_unique<CudaDevice>(index, options.nvrtc);
  const Device& known = *device;  // outlives what is connected
  const auto connect = [nccl, &known, host_id = options.host_id](Communicator* plain,
                                                                 const auto& progress) {
    return NcclCommunicator::connect(nccl, known, host_id, plain, progress);
  };
  return {std::move(device), connect};
}

}  // namespace autotune
