// Memory of a GPU from a function of the framework. The engine's threads never take the
// interpreter's lock: a thread of this class asks, and what they let go of is dropped by the
// interpreter's own.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/device.h"

namespace autotune {

class FrameworkAllocator final : public Allocator {
 public:
  // `allocate(bytes, stream)` returns (address, object that keeps it), or None where there is no
  // memory. The interpreter's lock is held.
  explicit FrameworkAllocator(pybind11::object allocate);
  ~FrameworkAllocator() override;
  FrameworkAllocator(const FrameworkAllocator&) = delete;
  FrameworkAllocator& operator=(const FrameworkAllocator&) = delete;

  DeviceMemory allocate(int64_t bytes, DeviceStream stream, const WaitHook& on_wait) override;

  // The object that keeps the memory; None for none. The interpreter's lock is held.
  static pybind11::object object_of(const DeviceMemory& memory);

 private:
  struct Request;
  struct Shared;
  static void serve(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace autotune
