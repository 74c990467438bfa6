#include <pybind11/stl.h>

#include <array>

#include "bindings/bind.h"
#include "bindings/options.h"
#include "comm/choose_device.h"
#include "comm/mpi/mpi_point_to_point.h"
#include "common/errors.h"
#include "common/types.h"
#include "engine/submission/steps.h"

namespace py = pybind11;

namespace autotune {

void bind_values(py::module_& module) {
  py::register_exception<EngineError>(module, "EngineError", PyExc_RuntimeError);
  py::register_exception<InvalidRequest>(module, "InvalidRequest", PyExc_ValueError);

  py::class_<Params>(module, "Params")
      .def(py::init([](int64_t fusion_threshold_bytes, double cycle_time_ms, int64_t cache_capacity,
                       bool hierarchical_allreduce, bool hierarchical_allgather) {
             return Params{fusion_threshold_bytes, cycle_time_ms, cache_capacity,
                           hierarchical_allreduce, hierarchical_allgather};
           }),
           py::arg("fusion_threshold_bytes"), py::arg("cycle_time_ms"), py::arg("cache_capacity"),
           py::arg("hierarchical_allreduce"), py::arg("hierarchical_allgather"))
      .def_readwrite("fusion_threshold_bytes", &Params::fusion_threshold_bytes)
      .def_readwrite("cycle_time_ms", &Params::cycle_time_ms)
      .def_readwrite("cache_capacity", &Params::cache_capacity)
      .def_readwrite("hierarchical_allreduce", &Params::hierarchical_allreduce)
      .def_readwrite("hierarchical_allgather", &Params::hierarchical_allgather);

  py::class_<Options>(module, "Options")
      .def(py::init<>())
      .def_readwrite("params", &Options::params)
      .def_readwrite("rank", &Options::rank)
      .def_readwrite("size", &Options::size)
      .def_readwrite("mpi_comm", &Options::mpi_comm)
      .def_readwrite("host_of_rank", &Options::host_of_rank)
      .def_readwrite("thread_affinity", &Options::thread_affinity)
      .def_readwrite("stall_warning_seconds", &Options::stall_warning_seconds)
      .def_readwrite("stall_shutdown_seconds", &Options::stall_shutdown_seconds)
      .def_readwrite("log_level", &Options::log_level)
      .def_readwrite("timeline_path", &Options::timeline_path)
      .def_readwrite("timeline_mark_cycles", &Options::timeline_mark_cycles)
      .def_readwrite("disable_group_fusion", &Options::disable_group_fusion)
      .def_property(
          "timeline_clock",
          [](const Options& options) {
            const TimelineClock& clock = options.timeline_clock;
            return py::make_tuple(clock.origin_ns, clock.origin_epoch_us, clock.offset_ns,
                                  clock.offset_error_ns);
          },
          [](Options& options, const std::array<int64_t, 4>& clock) {
            options.timeline_clock = {clock[0], clock[1], clock[2], clock[3]};
          });

  py::class_<StepRecord>(module, "StepRecord")
      .def_readonly("step", &StepRecord::step)
      .def_readonly("count", &StepRecord::count)
      .def_readonly("duration_us", &StepRecord::duration_us)
      .def_readonly("payload_bytes", &StepRecord::payload_bytes)
      .def_readonly("exposed_us", &StepRecord::exposed_us)
      .def_readonly("epoch", &StepRecord::epoch)
      .def_readonly("signature", &StepRecord::signature)
      .def_readonly("samples", &StepRecord::samples)
      .def_readonly("is_explicit", &StepRecord::is_explicit);

  module.def("nccl_version", &nccl_version);
  module.def("cuda_version", &cuda_version);
  module.def("mpi_library", &mpi_library_path);
  module.def("mpi_library_version", &mpi_library_version);
}

}  // namespace autotune
