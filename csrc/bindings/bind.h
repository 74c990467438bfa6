// Bindings convert types, release the GIL and map errors; they hold no logic.
#pragma once

#include <pybind11/pybind11.h>

namespace autotune {

// Each binds what stands behind it.

void bind_values(pybind11::module_& module);      // Params, Options, StepRecord, errors
void bind_operations(pybind11::module_& module);  // Kind, Prepared, ..., TensorReader, Runner
void bind_transport(pybind11::module_& module);   // Transport, TcpListener, MPI facts
void bind_engine(pybind11::module_& module);      // Rendezvous, Engine

}  // namespace autotune
