// Where a framework's tensors lie, read through DLPack's C exchange API (DLPack 1.3): without a
// call into Python for each.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/operation/message.h"

namespace autotune {

using Address = std::uintptr_t;
struct ExchangeApi;

class TensorReader {
 public:
  // `api`: the capsule by which `types` offer it. Only tensors of exactly these types are read.
  // Throws ValueError for a capsule of another kind or version.
  TensorReader(const pybind11::capsule& api, std::vector<pybind11::type> types);

  // The address of a tensor that is as `request` says: type, shape, dense, in the memory of GPU
  // `device` or, where that is -1, of the host. None: another one, or it cannot be read.
  // `as_they_lie`: a tensor (n, c, ...) whose channels are innermost in memory is as the shape
  // (n, product of ..., c) says (core/horovod/torch/collectives/layout.py).
  std::optional<Address> find(const Request& request, PyObject* tensor, int device,
                              bool as_they_lie = false) const;

 private:
  const ExchangeApi* api_;
  std::vector<pybind11::type> types_;
};

}  // namespace autotune
