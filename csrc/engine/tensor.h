// One tensor on its way through the engine, and the handle by which its owner waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/message.h"

namespace autotune {

struct Handle {
  bool done = false;
  bool waited = false;  // a thread sleeps until this one is done
  std::string error;
  // Output of an allgather, whose size is only known after negotiation.
  std::shared_ptr<char[]> result;
  int64_t result_bytes = 0;
  Shape result_shape;
};

struct TensorEntry {
  Request request;
  const void* input = nullptr;  // these live until the handle is released by its owner
  void* output = nullptr;
  int64_t step = 0;
  std::shared_ptr<Handle> handle;
};

}  // namespace autotune
