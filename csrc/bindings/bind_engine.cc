#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/abi.h"
#include "bindings/allocator.h"
#include "bindings/bind.h"
#include "bindings/operations.h"
#include "bindings/options.h"
#include "comm/choose.h"
#include "comm/choose_device.h"
#include "common/errors.h"
#include "common/log.h"
#include "control/control.h"
#include "engine/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace autotune {

namespace {

std::unique_ptr<ControlPlane> connect(const Options& options, Rendezvous* rendezvous,
                                      const std::string& address, const std::string& key) {
  const std::chrono::seconds timeout(static_cast<int64_t>(options.connect_seconds));
  const bool has_hosts = options.host_of_rank.size() == static_cast<size_t>(options.size);
  Tree tree = has_hosts ? Tree::of_hosts(options.host_of_rank, options.control_fan_out)
                        : Tree::star(options.size);
  if (!tree.is_leaf(options.rank) && rendezvous == nullptr) {
    throw InvalidRequest("expected a rendezvous, as others report to rank " +
                         std::to_string(options.rank) + ", got none");
  }
  auto connections = connect_in_tree(tree, options.rank, rendezvous, address, key, timeout);
  return std::make_unique<ControlPlane>(options.rank, std::move(tree), std::move(connections));
}

std::shared_ptr<Engine> make_engine(const Options& options, Rendezvous* rendezvous,
                                    const std::string& address, const std::string& key,
                                    std::shared_ptr<PointToPoint> transport) {
  configure_log(static_cast<LogLevel>(options.log_level), options.rank);
  EngineOptions engine_options{options.params,
                               options.thread_affinity,
                               options.stall_warning_seconds,
                               options.stall_shutdown_seconds,
                               options.timeline_path,
                               options.timeline_mark_cycles,
                               options.timeline_clock,
                               options.disable_group_fusion,
                               options.host_names};
  const int rank = transport ? transport->rank() : options.rank;
  const int size = transport ? transport->size() : 1;
  if (rank != options.rank || size != options.size) {
    const auto place = [](int of, int all) {
      return " rank " + std::to_string(of) + " of " + std::to_string(all);
    };
    throw InvalidRequest("expected a transport of" + place(options.rank, options.size) +
                         (transport ? ", got one of" + place(rank, size) : ", got none"));
  }
  auto control = connect(options, rendezvous, address, key);
  const auto engine =
      std::make_shared<Engine>(engine_options, std::move(control),
                               communicator_factory(std::move(transport), options.host_of_rank));
  offer(engine, options.host_of_rank);
  return engine;
}

// Memory of a result as Python's buffer protocol wants it: a memoryview keeps this object alive.
struct ResultBuffer {
  std::shared_ptr<char[]> data;
  int64_t bytes;
};

py::tuple result(Engine& engine, int64_t handle) {
  const Handle state = engine.complete_handle(handle);
  const py::object buffer = py::cast(ResultBuffer{state.result, state.result_bytes});
  return py::make_tuple(py::memoryview(buffer), state.result_shape);
}

int32_t value(Engine& engine, int64_t handle) { return engine.complete_handle(handle).value; }

py::dict process_sets(Engine& engine) {
  py::dict sets;
  for (const auto& [id, set] : engine.process_sets()) sets[py::int_(id)] = set.ranks;
  return sets;
}

py::tuple drain_steps(Engine& engine) {
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  engine.drain_steps(records, signatures);
  return py::make_tuple(py::cast(std::move(records)), py::cast(std::move(signatures)));
}

py::list drain_checks(Engine& engine) {
  py::list checks;
  for (const CheckRecord& check : engine.drain_checks()) {
    checks.append(
        py::make_tuple(check.epoch, check.name, check.ok(), check.worst_error, check.reason));
  }
  return checks;
}

py::dict counters(Engine& engine) {
  const Counters c = engine.counters();
  return py::dict("operations"_a = c.operations, "responses"_a = c.responses, "cycles"_a = c.cycles,
                  "messages"_a = c.messages, "heard"_a = c.heard, "cache_hits"_a = c.cache_hits,
                  "cache_misses"_a = c.cache_misses, "payload_bytes"_a = c.payload_bytes,
                  "fused_tensors"_a = c.fused_tensors, "pack_ns"_a = c.pack_ns,
                  "transfer_ns"_a = c.transfer_ns, "unpack_ns"_a = c.unpack_ns,
                  "protocol_ns"_a = c.protocol_ns, "skew_ns"_a = c.skew_ns,
                  "wait_ns"_a = c.wait_ns);
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<Rendezvous>(module, "Rendezvous")
      .def(py::init<std::string, std::string, int>(), "key"_a, "interfaces"_a = "", "rank"_a = 0)
      .def_property_readonly("address", &Rendezvous::address);
  module.def(
      "control_parents",
      [](const std::vector<int>& hosts, int fan_out) {
        return Tree::of_hosts(hosts, fan_out).parents();
      },
      "hosts"_a, "fan_out"_a = 0);

  py::class_<ResultBuffer>(module, "_ResultBuffer", py::buffer_protocol())
      .def_buffer([](ResultBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<unsigned char*>(buffer.data.get()), buffer.bytes);
      });

  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("abi", [] { return reinterpret_cast<std::uintptr_t>(&api()); });
  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine")
      .def(py::init(&make_engine), "options"_a, "rendezvous"_a.none(true), "address"_a, "key"_a,
           "transport"_a.none(true) = nullptr, Unlocked())
      .def("start", &start, "kind"_a, "name"_a, "input"_a, "output"_a, "shape"_a, "stream"_a = 0,
           "splits"_a = std::vector<int64_t>{})
      .def("start_prepared", &start_prepared, "operation"_a, "input"_a, "output"_a, "stream"_a = 0)
      .def("start_all", &start_all, "operations"_a, "inputs"_a, "outputs"_a, "stream"_a = 0)
      .def("start_group", &start_group, "operations"_a, "inputs"_a, "outputs"_a, "stream"_a = 0)
      .def("finish_all", &finish_all, "first"_a, "count"_a, "stream"_a = 0)
      .def(
          "use_device",
          [](Engine& engine, int index, const std::string& nccl, const std::string& nvrtc,
             py::object allocate, const std::string& host_id, const std::string& nccl_tuner) {
            const DeviceOptions options{nccl, nvrtc, host_id, nccl_tuner};
            auto memory = std::make_shared<FrameworkAllocator>(std::move(allocate));
            const py::gil_scoped_release unlocked;
            engine.use_device(index,
                              [&](int which) { return make_cuda_backend(which, options, memory); });
          },
          "index"_a, "nccl"_a, "nvrtc"_a, "allocate"_a, "host_id"_a = "", "nccl_tuner"_a = "")
      .def_property_readonly("has_device", &Engine::has_device)
      .def_property_readonly("device_stream", &Engine::device_stream)
      .def("order", &Engine::order, "handle"_a, "stream"_a)
      .def(
          "take_result",
          [](Engine& engine, int64_t handle, DeviceStream stream) {
            return FrameworkAllocator::object_of(engine.take_result(handle, stream));
          },
          "handle"_a, "stream"_a)
      .def(
          "result_shape",
          [](Engine& engine, int64_t handle) {
            return engine.complete_handle(handle).result_shape;
          },
          "handle"_a)
      .def("add_process_set", &Engine::add_process_set, "ranks"_a, Unlocked())
      .def("remove_process_set", &Engine::remove_process_set, "process_set"_a, Unlocked())
      .def("process_sets", &process_sets)
      .def("poll", &Engine::poll, "handle"_a, Unlocked())
      .def("wait", &wait, "handle"_a)
      .def("result", &result, "handle"_a)
      .def(
          "received_splits",
          [](Engine& engine, int64_t handle) {
            return engine.complete_handle(handle).received_splits;
          },
          "handle"_a)
      .def("joined_rank", &value, "handle"_a)
      .def("process_set_id", &value, "handle"_a)
      .def("release", &Engine::release, "handle"_a, Unlocked())
      .def("end_step", &Engine::end_step, "explicit"_a = true, Unlocked())
      .def("drain_steps", &drain_steps)
      .def("drain_checks", &drain_checks)
      .def("pause_steps", &Engine::pause_steps, "paused"_a, Unlocked())
      .def("add_samples", &Engine::add_samples, "count"_a, Unlocked())
      .def("propose", &Engine::propose, "epoch"_a, "params"_a, Unlocked())
      .def("start_timeline", &Engine::start_timeline, "path"_a, "mark_cycles"_a = false, Unlocked())
      .def("stop_timeline", &Engine::stop_timeline, Unlocked())
      .def("backward", &Engine::backward, "begins"_a)
      .def("params", &Engine::params, Unlocked())
      .def("epoch", &Engine::epoch, Unlocked())
      .def("counters", &counters)
      .def("abort", &Engine::abort, "reason"_a, Unlocked())
      .def(
          "shutdown",
          [](Engine& engine, double seconds) {
            engine.shutdown(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
          },
          "timeout_seconds"_a = 30.0, Unlocked())
      .def_property_readonly("failed", &Engine::failed);
}

}  // namespace autotune
