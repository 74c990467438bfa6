// Table of contents of the native module: what it binds, nothing else.

#include "bindings/bind.h"

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The fused communication engine; see core/horovod/_engine.pyi.";
  autotune::bind_values(module);
  autotune::bind_operations(module);
  autotune::bind_transport(module);
  autotune::bind_engine(module);
}
