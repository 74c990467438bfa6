#include <pybind11/stl.h>

#include <chrono>
#include <memory>

#include "bindings/bind.h"
#include "bindings/options.h"
#include "comm/choose.h"
#include "comm/control/control.h"
#include "comm/mpi/mpi_point_to_point.h"
#include "common/log.h"
#include "engine/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace autotune {

namespace {

constexpr auto connect_timeout = std::chrono::seconds(60);
constexpr auto signal_check_interval = std::chrono::milliseconds(100);

std::unique_ptr<ControlPlane> connect(const Options& options, Rendezvous* rendezvous,
                                      const std::string& address) {
  std::vector<std::unique_ptr<Connection>> connections;
  if (options.rank != 0) {
    connections.push_back(connect_to(address, options.rank, connect_timeout));
  } else if (options.size > 1) {
    connections = rendezvous->accept_all(options.size, connect_timeout);
  }
  return std::make_unique<ControlPlane>(options.rank, options.size, std::move(connections));
}

std::unique_ptr<Engine> make_engine(const Options& options, Rendezvous* rendezvous,
                                    const std::string& address) {
  configure_log(static_cast<LogLevel>(options.log_level), options.rank);
  EngineOptions engine_options{options.params,
                               options.thread_affinity,
                               options.stall_warning_seconds,
                               options.stall_shutdown_seconds,
                               options.timeline_path,
                               options.timeline_mark_cycles,
                               options.timeline_clock};
  return std::make_unique<Engine>(
      engine_options, connect(options, rendezvous, address), [&](const Progress& progress) {
        auto transport = options.size > 1 ? make_mpi_point_to_point(options.mpi_comm) : nullptr;
        return choose_communicators(std::move(transport), options.host_of_rank, progress);
      });
}

int64_t enqueue(Engine& engine, const std::string& operation, const std::string& name,
                std::uintptr_t input, std::uintptr_t output, const Shape& shape,
                const std::string& dtype, const std::string& reduce_op, int root_rank,
                double prescale, double postscale, bool named) {
  TensorEntry entry;
  entry.request = {name,
                   operation_from(operation),
                   data_type_from(dtype),
                   reduce_op_from(reduce_op),
                   root_rank,
                   prescale,
                   postscale,
                   shape,
                   named};
  entry.input = reinterpret_cast<const void*>(input);
  entry.output = reinterpret_cast<void*>(output);
  py::gil_scoped_release unlocked;
  return engine.enqueue(std::move(entry));
}

void wait(Engine& engine, int64_t handle) {
  bool done = false;
  while (!done) {
    {
      py::gil_scoped_release unlocked;
      done = engine.wait(handle, signal_check_interval);
    }
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// Memory of a result as Python's buffer protocol wants it: a memoryview keeps this object alive.
struct ResultBuffer {
  std::shared_ptr<char[]> data;
  int64_t bytes;
};

py::tuple result(Engine& engine, int64_t handle) {
  const std::shared_ptr<const Handle> state = engine.complete_handle(handle);
  const py::object buffer = py::cast(ResultBuffer{state->result, state->result_bytes});
  return py::make_tuple(py::memoryview(buffer), state->result_shape);
}

py::tuple drain_steps(Engine& engine) {
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  engine.drain_steps(records, signatures);
  return py::make_tuple(py::cast(std::move(records)), py::cast(std::move(signatures)));
}

py::dict counters(Engine& engine) {
  const Counters c = engine.counters();
  return py::dict(
      "operations"_a = c.operations, "responses"_a = c.responses, "cycles"_a = c.cycles,
      "messages"_a = c.messages, "cache_hits"_a = c.cache_hits, "cache_misses"_a = c.cache_misses,
      "payload_bytes"_a = c.payload_bytes, "fused_tensors"_a = c.fused_tensors,
      "pack_ns"_a = c.pack_ns, "transfer_ns"_a = c.transfer_ns, "unpack_ns"_a = c.unpack_ns,
      "protocol_ns"_a = c.protocol_ns, "skew_ns"_a = c.skew_ns, "wait_ns"_a = c.wait_ns);
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<Rendezvous>(module, "Rendezvous")
      .def(py::init<>())
      .def_property_readonly("address", &Rendezvous::address);

  py::class_<ResultBuffer>(module, "_ResultBuffer", py::buffer_protocol())
      .def_buffer([](ResultBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<unsigned char*>(buffer.data.get()), buffer.bytes);
      });

  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(module, "Engine")
      .def(py::init(&make_engine), "options"_a, "rendezvous"_a.none(true), "address"_a, Unlocked())
      .def("enqueue", &enqueue, py::kw_only(), "operation"_a, "name"_a, "input"_a, "output"_a,
           "shape"_a, "dtype"_a, "reduce_op"_a = "sum", "root_rank"_a = 0, "prescale"_a = 1.0,
           "postscale"_a = 1.0, "named"_a = true)
      .def("poll", &Engine::poll, "handle"_a, Unlocked())
      .def("wait", &wait, "handle"_a)
      .def("result", &result, "handle"_a)
      .def("release", &Engine::release, "handle"_a, Unlocked())
      .def("end_step", &Engine::end_step, "explicit"_a = true, Unlocked())
      .def("drain_steps", &drain_steps)
      .def("pause_steps", &Engine::pause_steps, "paused"_a, Unlocked())
      .def("propose", &Engine::propose, "epoch"_a, "params"_a, Unlocked())
      .def("start_timeline", &Engine::start_timeline, "path"_a, "mark_cycles"_a = false, Unlocked())
      .def("stop_timeline", &Engine::stop_timeline, Unlocked())
      .def("backward", &Engine::backward, "begins"_a)
      .def("params", &Engine::params, Unlocked())
      .def("epoch", &Engine::epoch, Unlocked())
      .def("counters", &counters)
      .def(
          "shutdown",
          [](Engine& engine, double seconds) {
            engine.shutdown(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
          },
          "timeout_seconds"_a = 30.0, Unlocked())
      .def_property_readonly("failed", &Engine::failed);
}

}  // namespace autotune
