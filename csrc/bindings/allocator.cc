#include "bindings/allocator.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/errors.h"

namespace py = pybind11;

namespace autotune {

namespace {

constexpr auto look_interval = std::chrono::milliseconds(1);

bool is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Objects that wait for a thread that has the interpreter's lock.
struct Dropped {
  std::mutex mutex;
  std::vector<PyObject*> objects;
  bool is_called = false;  // the interpreter will call
};

Dropped& dropped() {
  static auto* const all = new Dropped;  // outlives all threads
  return *all;
}

int drop_all(void*) {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(dropped().mutex);
    objects.swap(dropped().objects);
    dropped().is_called = false;
  }
  for (PyObject* each : objects) Py_DECREF(each);
  return 0;
}

// By any thread, with or without the lock.
void drop_later(PyObject* object) {
  const std::lock_guard lock(dropped().mutex);
  dropped().objects.push_back(object);
  if (dropped().is_called || is_ending()) return;
  dropped().is_called = Py_AddPendingCall(drop_all, nullptr) == 0;  // else with the next one
}

}  // namespace

struct FrameworkAllocator::Request {
  int64_t bytes;
  DeviceStream stream;
  bool done = false;
  DeviceMemory memory;
  std::string error;
};

struct FrameworkAllocator::Shared {
  explicit Shared(py::object function) : allocate(function.release().ptr()) {}
  ~Shared() { drop_later(allocate); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  PyObject* const allocate;
  std::mutex mutex;
  std::condition_variable asked, answered;
  std::deque<std::shared_ptr<Request>> requests;
  bool has_thread = false;
  bool closed = false;
};

FrameworkAllocator::FrameworkAllocator(py::object allocate)
    : shared_(std::make_shared<Shared>(std::move(allocate))) {}

FrameworkAllocator::~FrameworkAllocator() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closed = true;
  shared_->asked.notify_all();
}

DeviceMemory FrameworkAllocator::allocate(int64_t bytes, DeviceStream stream,
                                          const WaitHook& on_wait) {
  const auto request = std::make_shared<Request>();
  request->bytes = bytes;
  request->stream = stream;
  std::unique_lock lock(shared_->mutex);
  if (!std::exchange(shared_->has_thread, true)) {
    std::thread([shared = shared_] { serve(shared); }).detach();
  }
  shared_->requests.push_back(request);
  shared_->asked.notify_all();
  while (!shared_->answered.wait_for(lock, look_interval, [&] { return request->done; })) {
    lock.unlock();
    on_wait();
    lock.lock();
  }
  if (!request->error.empty()) throw EngineError("GPU: allocating memory: " + request->error);
  return std::move(request->memory);
}

void FrameworkAllocator::serve(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    std::shared_ptr<Request> request;
    {
      std::unique_lock lock(shared->mutex);
      shared->asked.wait(lock, [&] { return shared->closed || !shared->requests.empty(); });
      if (shared->closed) return;
      request = std::move(shared->requests.front());
      shared->requests.pop_front();
    }
    DeviceMemory memory;
    std::string error;
    if (is_ending()) {
      error = "the interpreter is ending";
    } else {
      const py::gil_scoped_acquire locked;
      drop_all(nullptr);
      try {
        const py::object found =
            py::reinterpret_borrow<py::object>(shared->allocate)(request->bytes, request->stream);
        if (!found.is_none()) {
          const auto [address, keeper] = found.cast<std::pair<std::uintptr_t, py::object>>();
          memory.data = reinterpret_cast<void*>(address);
          memory.owner = std::shared_ptr<void>(
              py::object(keeper).release().ptr(),
              [](void* object) { drop_later(static_cast<PyObject*>(object)); });
        }
      } catch (const std::exception& problem) {
        error = problem.what();
      }
    }
    const std::lock_guard lock(shared->mutex);
    request->memory = std::move(memory);
    request->error = std::move(error);
    request->done = true;
    shared->answered.notify_all();
  }
}

py::object FrameworkAllocator::object_of(const DeviceMemory& memory) {
  if (memory.owner == nullptr) return py::none();
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(memory.owner.get()));
}

}  // namespace autotune
