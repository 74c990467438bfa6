#include "comm/cuda/cuda_device.h"

#include <map>
#include <utility>

#include "common/errors.h"

namespace autotune {

namespace {

constexpr unsigned event_timing_off = 2;
constexpr unsigned stream_non_blocking = 1;
constexpr int relaxed_capture = 2;
constexpr unsigned portable_and_mapped = 1 | 2;
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

struct CudaDevice::Shelf {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<Kept>> kept;  // each GPU may have several
};

CudaDevice::Shelf& CudaDevice::shelf() {
  static auto* const all = new Shelf;  // the driver may be gone before static objects are
  return *all;
}

// One whose stream has nothing to do any more; a new one where there is none.
std::unique_ptr<CudaDevice::Kept> CudaDevice::take_kept(int index) {
  const std::lock_guard lock(shelf().mutex);
  auto& all = shelf().kept;
  const auto [begin, end] = all.equal_range(index);
  for (auto each = begin; each != end; ++each) {
    if (each->second->driver.stream_query(each->second->stream) != CudaDriver::success) continue;
    std::unique_ptr<Kept> found = std::move(each->second);
    all.erase(each);
    return found;
  }
  return std::make_unique<Kept>();
}

CudaDevice::~CudaDevice() {
  const std::lock_guard lock(shelf().mutex);
  if (kept_->kernels) shelf().kept.emplace(index_, std::move(kept_));
}

CudaDevice::CudaDevice(int index, const std::string& nvrtc)
    : kept_(take_kept(index)), driver_(kept_->driver), index_(index), pool_(kept_->pool) {
  driver_.check(driver_.init(0), "starting the driver");
  int device = 0, least = 0, greatest = 0;
  driver_.check(driver_.device_get(&device, index), "finding the GPU");
  char bus_id[64] = "";
  driver_.check(driver_.device_bus_id(bus_id, sizeof bus_id, device), "finding the GPU");
  identity_ = bus_id;
  if (!kept_->kernels) {
    driver_.check(driver_.primary_context_retain(&context_, device), "getting the context");
    kept_->context = context_;
    const Current current(*this);
    driver_.check(driver_.priority_range(&least, &greatest), "asking for priorities");
    driver_.check(driver_.stream_create(&kept_->stream, stream_non_blocking, greatest),
                  "making a stream");
    kept_->kernels = std::make_unique<CopyKernels>(driver_, device, nvrtc);
  }
  context_ = kept_->context;
  stream_ = kept_->stream;
}

uint64_t CudaDevice::id_of(DeviceStream stream) const {
  if (driver_.stream_id == nullptr) return stream;
  const Current current(*this);
  unsigned long long id = 0;
  driver_.check(driver_.stream_id(handle_of(stream), &id), "asking for a stream's id");
  return id;
}

std::function<void()> CudaDevice::binder() const {
  // Nor may its calls spoil what another thread captures into a graph.
  const auto exchange = driver_.capture_mode_exchange;
  return [set = driver_.context_set, context = context_, exchange] {
    set(context);
    int mode = relaxed_capture;
    exchange(&mode);
  };
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
  return EventPtr(new DeviceEvent{event, id_of(stream), number}, give_back);
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

void CudaDevice::copy_all(const std::vector<DeviceCopy>& copies) {
  const Current current(*this);
  kept_->kernels->run(copies, stream_);
}

void CudaDevice::clear(void* memory, int64_t bytes) {
  if (bytes == 0) return;
  const Current current(*this);
  driver_.check(driver_.memory_set(address_of(memory), 0, static_cast<size_t>(bytes), stream_),
                "clearing memory");
}

std::shared_ptr<char> CudaDevice::host_memory(int64_t bytes) {
  if (bytes > kept_->host_memory_bytes) {
    const Current current(*this);
    void* memory = nullptr;
    driver_.check(
        driver_.host_memory_allocate(&memory, static_cast<size_t>(bytes), portable_and_mapped),
        "getting page-locked memory");
    kept_->host_memory = std::shared_ptr<char>(static_cast<char*>(memory), [](char*) {});
    kept_->host_memory_bytes = bytes;
  }
  return kept_->host_memory;
}

void CudaDevice::copy(void* to, const void* from, int64_t bytes, DeviceStream stream) {
  if (bytes == 0 || to == from) return;
  const Current current(*this);
  driver_.check(driver_.memory_copy(address_of(to), address_of(from), static_cast<size_t>(bytes),
                                    handle_of(stream)),
                "copying memory");
}

}  // namespace autotune
