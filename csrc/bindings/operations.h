// Operations as Python describes them, hands them over and waits for them.
//
// What starts an operation keeps the interpreter's lock: the engine takes one in a microsecond, and
// no thread of the engine needs that lock.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/tensors.h"
#include "engine/engine.h"

namespace autotune {

// What operations have in common that differ only in name, memory and shape; made once.
struct Kind {
  Request request;
};

// An operation that comes back in every step with other memory.
struct Prepared {
  SharedRequest request;  // it has its complete name
};

// Several of them.
struct PreparedAll {
  std::vector<SharedRequest> requests;
  std::vector<TensorEntry> entries;  // their memory is used to hand them over
};

// Where as many tensors lie.
struct Places {
  std::vector<Address> addresses;
};

int64_t start(Engine& engine, const Kind& kind, std::string name, Address input, Address output,
              Shape shape, DeviceStream stream, std::vector<int64_t> splits);
int64_t start_prepared(Engine& engine, const Prepared& operation, Address input, Address output,
                       DeviceStream stream);
int64_t start_all(Engine& engine, PreparedAll& operations, const Places& inputs,
                  const Places& outputs, DeviceStream stream);
int64_t start_group(Engine& engine, PreparedAll& operations, const Places& inputs,
                    const Places& outputs, DeviceStream stream);

// Without the interpreter's lock. Throws what a signal handler raises.
void wait(Engine& engine, int64_t handle);

// `wait`, `order`, then `release` for `count` operations from number `first` on, also when they
// have failed: the first error counts. Not when the wait is interrupted.
void finish_all(Engine& engine, int64_t first, int64_t count, DeviceStream stream);

}  // namespace autotune
