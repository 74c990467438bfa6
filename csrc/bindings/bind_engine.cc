#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/bind.h"
#include "bindings/options.h"
#include "bindings/tensors.h"
#include "comm/choose.h"
#include "comm/control/control.h"
#include "comm/mpi/mpi_point_to_point.h"
#include "common/errors.h"
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
                               options.timeline_clock,
                               options.disable_group_fusion};
  auto control = connect(options, rendezvous, address);
  std::shared_ptr<PointToPoint> transport;
  if (options.size > 1) transport = make_mpi_point_to_point(options.mpi_comm);
  return std::make_unique<Engine>(engine_options, std::move(control),
                                  communicator_factory(std::move(transport), options.host_of_rank));
}

void set_memory(TensorEntry& entry, std::uintptr_t input, std::uintptr_t output) {
  entry.input = reinterpret_cast<const void*>(input);
  entry.output = reinterpret_cast<void*>(output);
}

// What operations have in common that differ only in name, memory and shape; made once.
struct Kind {
  Request request;
};

Kind make_kind(const std::string& operation, const std::string& dtype, const std::string& reduce_op,
               int root_rank, double prescale, double postscale, bool named, int process_set,
               bool on_device, const std::optional<std::string>& wire_type) {
  Kind kind;
  Request& request = kind.request;
  request.operation = operation_from(operation);
  request.dtype = data_type_from(dtype);
  if (wire_type) request.wire_type = data_type_from(*wire_type);
  request.on_device = on_device;
  request.reduce_op = reduce_op_from(reduce_op);
  request.root_rank = root_rank;
  request.prescale = prescale;
  request.postscale = postscale;
  request.cacheable = named;
  request.process_set = request.operation == Operation::join ? 0 : process_set;
  return kind;
}

// Keeps the interpreter's lock: the engine takes an operation in a microsecond, and no thread of
// the engine needs that lock.
int64_t start(Engine& engine, const Kind& kind, std::string name, std::uintptr_t input,
              std::uintptr_t output, Shape shape, DeviceStream stream,
              std::vector<int64_t> splits) {
  Request request = kind.request;
  request.name = std::move(name);
  request.shape = std::move(shape);
  request.splits = std::move(splits);
  TensorEntry entry;
  entry.request = std::move(request);
  set_memory(entry, input, output);
  if (kind.request.on_device) entry.ready = engine.input_ready(stream);
  return engine.enqueue(std::move(entry));
}

// An operation that comes back in every step with other memory.
struct Prepared {
  SharedRequest request;  // with its complete name
};

Prepared prepare(const Kind& kind, std::string name, Shape shape) {
  complete_name(name, kind.request.process_set);
  Request request = kind.request;
  request.name = std::move(name);
  request.shape = std::move(shape);
  return {std::move(request)};
}

// Several of them, and where as many tensors lie.
struct PreparedAll {
  std::vector<SharedRequest> requests;
};

struct Places {
  std::vector<Address> addresses;
};

PreparedAll prepare_all(const std::vector<const Prepared*>& operations) {
  PreparedAll all;
  for (const Prepared* each : operations) all.requests.push_back(each->request);
  return all;
}

std::optional<Address> find_one(const TensorReader& reader, const Prepared& operation,
                                py::handle tensor, int device) {
  return reader.find(operation.request, tensor.ptr(), device);
}

std::optional<Places> find_all(const TensorReader& reader, const PreparedAll& operations,
                               const py::list& tensors, int device) {
  const size_t count = operations.requests.size();
  if (tensors.size() != count) return std::nullopt;
  Places places;
  places.addresses.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* const tensor = PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i));
    const auto address = reader.find(operations.requests[i], tensor, device);
    if (!address) return std::nullopt;
    places.addresses.push_back(*address);
  }
  return places;
}

// Hands them over by `take(entries, count)`. The entries' memory is used again: the interpreter's
// lock is held.
template <typename Take>
int64_t hand_over(Engine& engine, const PreparedAll& operations, const Places& inputs,
                  const Places& outputs, DeviceStream stream, Take&& take) {
  static std::vector<TensorEntry> entries;
  const size_t count = operations.requests.size();
  if (entries.size() < count) entries.resize(count);
  EventPtr ready;  // one event for all: they are in one stream
  for (size_t i = 0; i < count; ++i) {
    TensorEntry& entry = entries[i];
    entry = TensorEntry{};
    entry.request = operations.requests[i];
    set_memory(entry, inputs.addresses.at(i), outputs.addresses.at(i));
    if (!entry.request->on_device) continue;
    if (!ready) ready = engine.input_ready(stream);
    entry.ready = ready;
  }
  return take(entries.data(), count);
}

// These keep the interpreter's lock, see `start`.
int64_t start_prepared(Engine& engine, const Prepared& operation, Address input, Address output,
                       DeviceStream stream) {
  TensorEntry entry;
  entry.request = operation.request;
  set_memory(entry, input, output);
  if (entry.request->on_device) entry.ready = engine.input_ready(stream);
  return engine.enqueue_complete(std::move(entry));
}

int64_t start_all(Engine& engine, const PreparedAll& operations, const Places& inputs,
                  const Places& outputs, DeviceStream stream) {
  return hand_over(engine, operations, inputs, outputs, stream,
                   [&](auto* entries, size_t count) { return engine.enqueue_all(entries, count); });
}

int64_t start_group(Engine& engine, const PreparedAll& operations, const Places& inputs,
                    const Places& outputs, DeviceStream stream) {
  return hand_over(engine, operations, inputs, outputs, stream, [&](auto* entries, size_t count) {
    return engine.enqueue_group(entries, count);
  });
}

// `step(timeout)` until it is true, without the interpreter's lock. Throws what a signal handler
// raises.
template <typename Step>
void until_true(Step&& step) {
  py::gil_scoped_release unlocked;
  while (!step(signal_check_interval)) {
    py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void wait(Engine& engine, int64_t handle) {
  until_true([&](auto timeout) { return engine.wait(handle, timeout); });
}

// `wait`, `order`, then `release` for `count` operations from number `first` on, also when they
// have failed: the first error counts. Not when the wait is interrupted.
void finish_all(Engine& engine, int64_t first, int64_t count, DeviceStream stream) {
  until_true([&](auto timeout) { return engine.wait_all(first, count, timeout); });
  const std::string error = engine.settle(first, count, stream);
  if (!error.empty()) throw EngineError(error);
}

// Starts and finishes one operation of one engine: what a loop over small tensors consists of.
struct Runner {
  py::object engine_object, reader_object;  // keep alive:
  Engine* engine;
  const TensorReader* reader;
  SharedRequest request;
  int device;
  int64_t pending = -1;
};

Runner make_runner(const py::object& engine, const py::object& reader, const Prepared& operation,
                   int device) {
  return {
      engine, reader, engine.cast<Engine*>(), reader.cast<const TensorReader*>(), operation.request,
      device};
}

bool run(Runner& runner, py::handle input, py::handle output, DeviceStream stream) {
  const auto from = runner.reader->find(runner.request, input.ptr(), runner.device);
  if (!from) return false;
  const auto to =
      input.is(output) ? from : runner.reader->find(runner.request, output.ptr(), runner.device);
  if (!to) return false;
  Engine& engine = *runner.engine;
  runner.pending = -1;
  const int64_t handle = start_prepared(engine, {runner.request}, *from, *to, stream);
  std::string error;
  try {
    until_true([&](auto timeout) { return engine.wait_all(handle, 1, timeout); });
    error = engine.settle(handle, 1, stream);
  } catch (...) {
    runner.pending = handle;
    throw;
  }
  if (!error.empty()) throw EngineError(error);
  return true;
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
    checks.append(py::make_tuple(check.epoch, check.name, check.ok(), check.worst_error));
  }
  return checks;
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

  py::class_<Kind>(module, "Kind")
      .def(py::init(&make_kind), py::kw_only(), "operation"_a, "dtype"_a, "reduce_op"_a = "sum",
           "root_rank"_a = 0, "prescale"_a = 1.0, "postscale"_a = 1.0, "named"_a = true,
           "process_set"_a = 0, "on_device"_a = false, "wire_type"_a = std::nullopt);

  py::class_<Prepared>(module, "Prepared").def(py::init(&prepare), "kind"_a, "name"_a, "shape"_a);
  py::class_<PreparedAll>(module, "PreparedAll").def(py::init(&prepare_all), "operations"_a);
  py::class_<Places>(module, "Places").def(py::init<std::vector<Address>>(), "addresses"_a);

  py::class_<Runner>(module, "Runner")
      .def(py::init(&make_runner), "engine"_a, "reader"_a, "operation"_a, "device"_a)
      .def("run", &run, "input"_a, "output"_a, "stream"_a)
      .def_readonly("pending", &Runner::pending);

  py::class_<TensorReader>(module, "TensorReader")
      .def(py::init<const py::capsule&, std::vector<py::type>>(), "api"_a, "types"_a)
      .def("find", &find_one, "operation"_a, "tensor"_a, "device"_a)
      .def("find_all", &find_all, "operations"_a, "tensors"_a, "device"_a);

  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(module, "Engine")
      .def(py::init(&make_engine), "options"_a, "rendezvous"_a.none(true), "address"_a, Unlocked())
      .def("start", &start, "kind"_a, "name"_a, "input"_a, "output"_a, "shape"_a, "stream"_a = 0,
           "splits"_a = std::vector<int64_t>{})
      .def("start_prepared", &start_prepared, "operation"_a, "input"_a, "output"_a, "stream"_a = 0)
      .def("start_all", &start_all, "operations"_a, "inputs"_a, "outputs"_a, "stream"_a = 0)
      .def("start_group", &start_group, "operations"_a, "inputs"_a, "outputs"_a, "stream"_a = 0)
      .def("finish_all", &finish_all, "first"_a, "count"_a, "stream"_a = 0)
      .def(
          "use_device",
          [](Engine& engine, int index, const std::string& nccl, const std::string& nvrtc,
             const std::string& host_id) {
            const DeviceOptions options{nccl, nvrtc, host_id};
            engine.use_device(index, [&](int which) { return make_cuda_backend(which, options); });
          },
          "index"_a, "nccl"_a, "nvrtc"_a, "host_id"_a = "", Unlocked())
      .def_property_readonly("has_device", &Engine::has_device)
      .def_property_readonly("device_stream", &Engine::device_stream)
      .def("order", &Engine::order, "handle"_a, "stream"_a)
      .def(
          "take_result",
          [](Engine& engine, int64_t handle, std::uintptr_t output, DeviceStream stream) {
            engine.take_result(handle, reinterpret_cast<void*>(output), stream);
          },
          "handle"_a, "output"_a, "stream"_a)
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
      .def(
          "shutdown",
          [](Engine& engine, double seconds) {
            engine.shutdown(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
          },
          "timeout_seconds"_a = 30.0, Unlocked())
      .def_property_readonly("failed", &Engine::failed);
}

}  // namespace autotune
