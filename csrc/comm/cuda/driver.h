// The part of NVIDIA's driver interface that the engine uses. Signatures: CUDA Driver API.
#pragma once

#include <cstddef>
#include <string>

namespace autotune {

using CudaPointer = unsigned long long;

struct CudaDriver {
  // Throws EngineError: no driver, or one that is too old.
  CudaDriver();

  // Throws EngineError naming `what` was tried, unless `result` is success.
  void check(int result, const char* what) const;

  static constexpr int success = 0;
  static constexpr int not_ready = 600;

  int (*init)(unsigned flags);
  int (*driver_version)(int* version);
  int (*device_get)(int* device, int index);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*device_bus_id)(char* text, int length, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*context_get)(void** context);
  int (*context_set)(void* context);
  int (*context_push)(void* context);
  int (*context_pop)(void** context);
  int (*priority_range)(int* least, int* greatest);
  int (*stream_create)(void** stream, unsigned flags, int priority);
  int (*stream_id)(void* stream, unsigned long long* id);  // it is nullptr before CUDA 12
  int (*stream_query)(void* stream);
  int (*stream_wait_event)(void* stream, void* event, unsigned flags);
  int (*stream_is_capturing)(void* stream, int* status);
  int (*capture_mode_exchange)(int* mode);
  int (*event_create)(void** event, unsigned flags);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*event_elapsed)(float* milliseconds, void* begin, void* end);
  int (*memory_copy)(CudaPointer to, CudaPointer from, size_t bytes, void* stream);
  int (*host_memory_allocate)(void** memory, size_t bytes, unsigned flags);
  int (*memory_set)(CudaPointer memory, unsigned char value, size_t bytes, void* stream);
  int (*module_load)(void** module, const void* image);
  int (*module_function)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** arguments, void** extra);
  int (*error_text)(int result, const char** text);
};

}  // namespace autotune
