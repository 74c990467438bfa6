#include <pybind11/stl.h>

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "bindings/bind.h"
#include "bindings/options.h"
#include "comm/choose_device.h"
#include "comm/p2p/p2p_communicator.h"
#include "common/errors.h"
#include "common/message_format.h"
#include "common/types.h"
#include "engine/execute/host_executor.h"
#include "engine/submission/steps.h"

namespace py = pybind11;

namespace autotune {

namespace {

// Every field has to be named, but for what only other tables than the runtime's own have.
bool may_be_left_out(std::string_view name) {
  return name.substr(0, 5) == "nccl_" || name == "fp16_gradients" || name == "bf16_gradients";
}

Params make_params(const py::kwargs& values) {
  Params params;
  size_t known = 0;
  visit_params([&](const char* name, const char*, auto member) {
    if (!values.contains(name) && may_be_left_out(name)) return;
    if (!values.contains(name)) throw py::type_error(std::string("Params: expected ") + name);
    using Value = std::remove_reference_t<decltype(params.*member)>;
    params.*member = values[name].cast<Value>();
    ++known;
  });
  if (values.size() != known) throw py::type_error("Params: got a field that it does not have");
  return params;
}

// (name, unit, default) of every field.
py::list params_fields() {
  py::list fields;
  const Params defaults;
  visit_params([&](const char* name, const char* unit, auto member) {
    fields.append(py::make_tuple(name, unit, defaults.*member));
  });
  return fields;
}

}  // namespace

void bind_values(py::module_& module) {
  py::register_exception<EngineError>(module, "EngineError", PyExc_RuntimeError);
  py::register_exception<InvalidRequest>(module, "InvalidRequest", PyExc_ValueError);

  py::class_<Params> params(module, "Params");
  params.def(py::init(&make_params));
  visit_params(
      [&](const char* name, const char*, auto member) { params.def_readwrite(name, member); });
  params.def_static("fields", &params_fields);

  py::class_<Options>(module, "Options")
      .def(py::init<>())
      .def_readwrite("params", &Options::params)
      .def_readwrite("rank", &Options::rank)
      .def_readwrite("size", &Options::size)
      .def_readwrite("host_of_rank", &Options::host_of_rank)
      .def_readwrite("host_names", &Options::host_names)
      .def_readwrite("thread_affinity", &Options::thread_affinity)
      .def_readwrite("stall_warning_seconds", &Options::stall_warning_seconds)
      .def_readwrite("stall_shutdown_seconds", &Options::stall_shutdown_seconds)
      .def_readwrite("log_level", &Options::log_level)
      .def_readwrite("timeline_path", &Options::timeline_path)
      .def_readwrite("timeline_mark_cycles", &Options::timeline_mark_cycles)
      .def_readwrite("disable_group_fusion", &Options::disable_group_fusion)
      .def_readwrite("connect_seconds", &Options::connect_seconds)
      .def_readwrite("control_fan_out", &Options::control_fan_out)
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

  // What the tuner's cost model has to know of the engine.
  module.attr("IN_PLACE_BYTES") = HostExecutor::in_place_bytes;
  module.attr("PIECE_BYTES") = P2pCommunicator::allreduce_piece_bytes;
  module.attr("SMALL_BYTES") = P2pCommunicator::small_bytes;
  module.attr("MESSAGE_FORMAT") = message_format;
  module.def("nccl_version", &nccl_version);
  module.def("cuda_version", &cuda_version);
}

}  // namespace autotune
