#include "bindings/operations.h"

#include <pybind11/stl.h>

#include <chrono>
#include <utility>

#include "bindings/bind.h"
#include "common/errors.h"

namespace py = pybind11;
using namespace py::literals;

namespace autotune {

namespace {

constexpr auto signal_check_interval = std::chrono::milliseconds(100);

void set_memory(TensorEntry& entry, Address input, Address output) {
  const Request& request = entry.request;
  if (input == 0 && moves_data(request.operation) && request.count() > 0) {
    throw InvalidRequest(request.name + ": expected a tensor with memory, got one without");
  }
  entry.input = reinterpret_cast<const void*>(input);
  entry.output = reinterpret_cast<void*>(output);
}

Kind make_kind(const std::string& operation, const std::string& dtype, const std::string& reduce_op,
               int root_rank, double prescale, double postscale, bool named, int process_set,
               bool on_device, const std::optional<std::string>& wire_type, bool may_compress) {
  Kind kind;
  Request& request = kind.request;
  request.operation = operation_from(operation);
  request.dtype = data_type_from(dtype);
  if (wire_type) request.wire_type = data_type_from(*wire_type);
  request.may_compress = may_compress;
  request.on_device = on_device;
  request.reduce_op = reduce_op_from(reduce_op);
  request.root_rank = root_rank;
  request.prescale = prescale;
  request.postscale = postscale;
  request.cacheable = named;
  request.process_set = request.operation == Operation::join ? 0 : process_set;
  return kind;
}

Prepared prepare(const Kind& kind, std::string name, Shape shape) {
  complete_name(name, kind.request.process_set);
  Request request = kind.request;
  request.name = std::move(name);
  request.shape = std::move(shape);
  return {std::move(request)};
}

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
                               const py::list& tensors, int device, bool as_they_lie) {
  const size_t count = operations.requests.size();
  if (tensors.size() != count) return std::nullopt;
  Places places;
  places.addresses.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* const tensor = PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i));
    const auto address = reader.find(operations.requests[i], tensor, device, as_they_lie);
    if (!address) return std::nullopt;
    places.addresses.push_back(*address);
  }
  return places;
}

// Hands them over by `take(entries, count)`.
template <typename Take>
int64_t hand_over(Engine& engine, PreparedAll& operations, const Places& inputs,
                  const Places& outputs, DeviceStream stream, Take&& take) {
  const size_t count = operations.requests.size();
  std::vector<TensorEntry>& entries = operations.entries;
  entries.resize(count);
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

}  // namespace

int64_t start(Engine& engine, const Kind& kind, std::string name, Address input, Address output,
              Shape shape, DeviceStream stream, std::vector<int64_t> splits) {
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

int64_t start_prepared(Engine& engine, const Prepared& operation, Address input, Address output,
                       DeviceStream stream) {
  TensorEntry entry;
  entry.request = operation.request;
  set_memory(entry, input, output);
  if (entry.request->on_device) entry.ready = engine.input_ready(stream);
  return engine.enqueue_complete(std::move(entry));
}

int64_t start_all(Engine& engine, PreparedAll& operations, const Places& inputs,
                  const Places& outputs, DeviceStream stream) {
  return hand_over(engine, operations, inputs, outputs, stream,
                   [&](auto* entries, size_t count) { return engine.enqueue_all(entries, count); });
}

int64_t start_group(Engine& engine, PreparedAll& operations, const Places& inputs,
                    const Places& outputs, DeviceStream stream) {
  return hand_over(engine, operations, inputs, outputs, stream, [&](auto* entries, size_t count) {
    return engine.enqueue_group(entries, count);
  });
}

void wait(Engine& engine, int64_t handle) {
  until_true([&](auto timeout) { return engine.wait(handle, timeout); });
}

void finish_all(Engine& engine, int64_t first, int64_t count, DeviceStream stream) {
  until_true([&](auto timeout) { return engine.wait_all(first, count, timeout); });
  const std::string error = engine.settle(first, count, stream);
  if (!error.empty()) throw EngineError(error);
}

namespace {

// Starts one operation of one engine or does it: what a loop over small tensors consists of.
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

// Nothing: one of the tensors is not like those it was prepared for.
std::optional<int64_t> start_like(const Runner& runner, py::handle input, py::handle output,
                                  DeviceStream stream) {
  const auto from = runner.reader->find(runner.request, input.ptr(), runner.device);
  if (!from) return std::nullopt;
  const auto to =
      input.is(output) ? from : runner.reader->find(runner.request, output.ptr(), runner.device);
  if (!to) return std::nullopt;
  return start_prepared(*runner.engine, {runner.request}, *from, *to, stream);
}

bool run(Runner& runner, py::handle input, py::handle output, DeviceStream stream) {
  runner.pending = -1;
  const auto started = start_like(runner, input, output, stream);
  if (!started) return false;
  const int64_t handle = *started;
  Engine& engine = *runner.engine;
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

}  // namespace

void bind_operations(py::module_& module) {
  py::class_<Kind>(module, "Kind")
      .def(py::init(&make_kind), py::kw_only(), "operation"_a, "dtype"_a, "reduce_op"_a = "sum",
           "root_rank"_a = 0, "prescale"_a = 1.0, "postscale"_a = 1.0, "named"_a = true,
           "process_set"_a = 0, "on_device"_a = false, "wire_type"_a = std::nullopt,
           "may_compress"_a = false);

  py::class_<Prepared>(module, "Prepared").def(py::init(&prepare), "kind"_a, "name"_a, "shape"_a);
  py::class_<PreparedAll>(module, "PreparedAll").def(py::init(&prepare_all), "operations"_a);
  py::class_<Places>(module, "Places").def(py::init<std::vector<Address>>(), "addresses"_a);

  py::class_<Runner>(module, "Runner")
      .def(py::init(&make_runner), "engine"_a, "reader"_a, "operation"_a, "device"_a)
      .def("start", &start_like, "input"_a, "output"_a, "stream"_a)
      .def("run", &run, "input"_a, "output"_a, "stream"_a)
      .def_readonly("pending", &Runner::pending);

  py::class_<TensorReader>(module, "TensorReader")
      .def(py::init<const py::capsule&, std::vector<py::type>>(), "api"_a, "types"_a)
      .def("find", &find_one, "operation"_a, "tensor"_a, "device"_a)
      .def("find_all", &find_all, "operations"_a, "tensors"_a, "device"_a, py::kw_only(),
           "as_they_lie"_a = false);
}

}  // namespace autotune
