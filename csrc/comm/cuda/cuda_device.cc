#include "comm/cuda/cuda_device.h"

#include "common/errors.h"

namespace autotune {

namespace {

constexpr unsigned event_timing_off = 2;
constexpr unsigned stream_non_blocking = 1;
constexpr int relaxed_capture = 2;
// What a call says that a capture does not allow.
constexpr int first_capture_error = 900, last_capture_error = 908;

void* handle_of(DeviceStream stream) { return reinterpret_cast<void*>(stream); }

CudaPointer address_of(const void* memory) { return reinterpret_cast<CudaPointer>(memory); }

}  // namespace

CudaDevice::Current::Current(const CudaDevice& device) : device_(device) {
  void* current = nullptr;
  device.driver_.check(device.driver_.context_get(&current), "asking for the context");
  if (current != device.context_) {
    device.driver_.check(device.driver_.context_push(device.context_), "setting the context");
    pushed_ = true;
  }
  capture_mode_ = relaxed_capture;
  device.driver_.capture_mode_exchange(&capture_mode_);
}

CudaDevice::Current::~Current() {
  device_.driver_.capture_mode_exchange(&capture_mode_);
  void* popped = nullptr;
  if (pushed_) device_.driver_.context_pop(&popped);
}

CudaDevice::CudaDevice(int index, const std::string& nvrtc) : index_(index) {
  driver_.check(driver_.init(0), "starting the driver");
  int device = 0, least = 0, greatest = 0;
  driver_.check(driver_.device_get(&device, index), "finding the GPU");
  char bus_id[64] = "";
  driver_.check(driver_.device_bus_id(bus_id, sizeof bus_id, device), "finding the GPU");
  identity_ = bus_id;
  driver_.check(driver_.primary_context_retain(&context_, device), "getting the context");
  const Current current(*this);
  driver_.check(driver_.priority_range(&least, &greatest), "asking for priorities");
  driver_.check(driver_.stream_create(&stream_, stream_non_blocking, greatest), "making a stream");
  kernels_ = std::make_unique<CopyKernels>(driver_, device, nvrtc);
}

std::function<void()> CudaDevice::binder() const {
  return [set = driver_.context_set, context = context_] { set(context); };
}

void* CudaDevice::take_event(bool timed) {
  {
    std::lock_guard lock(pool_->mutex);
    std::vector<void*>& free = pool_->free[timed];
    if (!free.empty()) {
      void* event = free.back();
      free.pop_back();
      return event;
    }
  }
  void* event = nullptr;
  driver_.check(driver_.event_create(&event, timed ? 0 : event_timing_off), "making an event");
  return event;
}

EventPtr CudaDevice::record(DeviceStream stream, bool timed) {
  const Current current(*this);
  int capturing = 0;
  const int result = driver_.stream_is_capturing(handle_of(stream), &capturing);
  if (capturing != 0 || (result >= first_capture_error && result <= last_capture_error)) {
    throw InvalidRequest(
        "expected a stream that is not being captured into a CUDA graph, got one that is; capture "
        "the model's forward and backward pass alone and communicate after replay()");
  }
  driver_.check(result, "looking at a stream");
  void* event = take_event(timed);
  driver_.check(driver_.event_record(event, handle_of(stream)), "recording an event");
  uint64_t number = 0;
  {
    std::lock_guard lock(pool_->mutex);
    number = ++pool_->recorded;
  }
  const auto give_back = [pool = pool_, timed](const DeviceEvent* used) {
    {
      std::lock_guard lock(pool->mutex);
      pool->free[timed].push_back(used->event);
    }
    delete used;
  };
  return EventPtr(new DeviceEvent{event, stream, number}, give_back);
}

void CudaDevice::wait(DeviceStream stream, const DeviceEvent& event) {
  const Current current(*this);
  driver_.check(driver_.stream_wait_event(handle_of(stream), event.event, 0),
                "waiting for an event");
}

bool CudaDevice::is_complete(const DeviceEvent& event) {
  const Current current(*this);
  const int result = driver_.event_query(event.event);
  if (result == CudaDriver::not_ready) return false;
  driver_.check(result, "looking at an event");
  return true;
}

double CudaDevice::elapsed_us(const DeviceEvent& begin, const DeviceEvent& end) {
  const Current current(*this);
  float milliseconds = 0;
  driver_.check(driver_.event_elapsed(&milliseconds, begin.event, end.event), "reading a time");
  return 1000.0 * static_cast<double>(milliseconds);
}

void* CudaDevice::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const Current current(*this);
  CudaPointer memory = 0;
  driver_.check(driver_.memory_allocate(&memory, static_cast<size_t>(bytes), stream_),
                "allocating memory");
  return reinterpret_cast<void*>(memory);
}

void CudaDevice::free(void* memory, DeviceStream stream) {
  if (memory == nullptr) return;
  const Current current(*this);
  driver_.memory_free(address_of(memory), handle_of(stream));  // at exit the driver may be gone
}

void CudaDevice::copy_all(const std::vector<DeviceCopy>& copies) {
  const Current current(*this);
  kernels_->run(copies, stream_);
}

void CudaDevice::clear(void* memory, int64_t bytes) {
  if (bytes == 0) return;
  const Current current(*this);
  driver_.check(driver_.memory_set(address_of(memory), 0, static_cast<size_t>(bytes), stream_),
                "clearing memory");
}

void CudaDevice::copy(void* to, const void* from, int64_t bytes, DeviceStream stream) {
  if (bytes == 0 || to == from) return;
  const Current current(*this);
  driver_.check(driver_.memory_copy(address_of(to), address_of(from), static_cast<size_t>(bytes),
                                    handle_of(stream)),
                "copying memory");
}

}  // namespace autotune
