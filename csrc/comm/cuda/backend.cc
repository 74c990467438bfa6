#include <memory>

#include "comm/cuda/cuda_device.h"
#include "comm/device.h"
#include "comm/nccl/nccl_communicator.h"

namespace autotune {

DeviceBackend make_cuda_backend(int index, const DeviceLibraries& libraries) {
  auto nccl = std::make_shared<const NcclLibrary>(libraries.nccl);
  auto device = std::make_unique<CudaDevice>(index, libraries.nvrtc);
  const Device& known = *device;  // outlives what is connected
  return {std::move(device), [nccl, &known](Communicator* plain, const auto& progress) {
            return NcclCommunicator::connect(nccl, known, plain, progress);
          }};
}

}  // namespace autotune
