#include "comm/cuda/driver.h"

#include "common/errors.h"
#include "common/library.h"

namespace autotune {

CudaDriver::CudaDriver() {
  const Library library("NVIDIA's driver (libcuda.so.1)", {"libcuda.so.1"});
  library.find("cuInit", init);
  library.find("cuDriverGetVersion", driver_version);
  library.find("cuDeviceGet", device_get);
  library.find("cuDeviceGetAttribute", device_attribute);
  library.find("cuDeviceGetPCIBusId", device_bus_id);
  library.find("cuDevicePrimaryCtxRetain", primary_context_retain);
  library.find("cuCtxGetCurrent", context_get);
  library.find("cuCtxSetCurrent", context_set);
  library.find("cuCtxPushCurrent_v2", context_push);
  library.find("cuCtxPopCurrent_v2", context_pop);
  library.find("cuCtxGetStreamPriorityRange", priority_range);
  library.find("cuStreamCreateWithPriority", stream_create);
  library.find("cuStreamQuery", stream_query);
  library.find("cuStreamWaitEvent", stream_wait_event);
  library.find("cuStreamIsCapturing", stream_is_capturing);
  library.find("cuThreadExchangeStreamCaptureMode", capture_mode_exchange);
  library.find("cuEventCreate", event_create);
  library.find("cuEventRecord", event_record);
  library.find("cuEventQuery", event_query);
  library.find("cuEventElapsedTime", event_elapsed);
  library.find("cuMemcpyAsync", memory_copy);
  library.find("cuMemHostAlloc", host_memory_allocate);
  library.find("cuMemsetD8Async", memory_set);
  library.find("cuModuleLoadData", module_load);
  library.find("cuModuleGetFunction", module_function);
  library.find("cuLaunchKernel", launch);
  library.find("cuGetErrorString", error_text);
  try {
    library.find("cuStreamGetId", stream_id);
  } catch (const EngineError&) {
    stream_id = nullptr;
  }
}

void CudaDriver::check(int result, const char* what) const {
  if (result == success) return;
  const char* text = nullptr;
  error_text(result, &text);
  throw EngineError(std::string("GPU: ") + what +
                    " failed: " + (text == nullptr ? "unknown error" : text) + " (CUDA error " +
                    std::to_string(result) + ")");
}

}  // namespace autotune
