// Engines whose ranks have GPUs of host memory, and what tests do with them.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"
#include "engine_fixture.h"
#include "host_device.h"
#include "host_device_communicator.h"

namespace autotune {

// Calls `act` with a pointer to an element of the type; half floats come as their bits.
template <typename Act>
auto with_type(DataType type, Act&& act) {
  switch (type) {
    case DataType::int8:
      return act(static_cast<int8_t*>(nullptr));
    case DataType::int16:
      return act(static_cast<int16_t*>(nullptr));
    case DataType::int32:
      return act(static_cast<int32_t*>(nullptr));
    case DataType::int64:
      return act(static_cast<int64_t*>(nullptr));
    case DataType::float16:
    case DataType::bfloat16:
      return act(static_cast<uint16_t*>(nullptr));
    case DataType::float32:
      return act(static_cast<float*>(nullptr));
    case DataType::float64:
      return act(static_cast<double*>(nullptr));
    case DataType::uint8:
    case DataType::boolean:
      break;
  }
  return act(static_cast<uint8_t*>(nullptr));
}

inline bool is_float(DataType type) {
  return type >= DataType::float16 && type <= DataType::float64;
}

// Elements of any type, read and written as doubles. Integers wrap.
class Tensor {
 public:
  Tensor(DataType type, Shape shape)
      : type_(type),
        shape_(std::move(shape)),
        bytes_(static_cast<size_t>(element_count(shape_)) * size_of(type)) {}

  DataType type() const { return type_; }
  const Shape& shape() const { return shape_; }
  int64_t count() const { return element_count(shape_); }
  void* data() { return bytes_.data(); }

  [[gnu::noinline]] double get(int64_t i) const {  // compiles in half the time
    return with_type(type_, [&](auto* typed) {
      using T = std::remove_pointer_t<decltype(typed)>;
      const T value = reinterpret_cast<const T*>(bytes_.data())[i];
      if (type_ == DataType::float16) return double{float_from_float16(uint16_t(value))};
      if (type_ == DataType::bfloat16) return double{float_from_bfloat16(uint16_t(value))};
      return static_cast<double>(value);
    });
  }
  [[gnu::noinline]] void set(int64_t i, double value) {
    with_type(type_, [&](auto* typed) {
      using T = std::remove_pointer_t<decltype(typed)>;
      T& element = reinterpret_cast<T*>(bytes_.data())[i];
      if (type_ == DataType::float16) {
        element = static_cast<T>(float16_from_float(static_cast<float>(value)));
      } else if (type_ == DataType::bfloat16) {
        element = static_cast<T>(bfloat16_from_float(static_cast<float>(value)));
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(static_cast<int64_t>(value));
      } else {
        element = static_cast<T>(value);
      }
    });
  }

 private:
  DataType type_;
  Shape shape_;
  std::vector<char> bytes_;
};

// `expected` as it would be in the tensor, but for rounding.
inline void check_value(const Tensor& tensor, int64_t i, double expected) {
  Tensor rounded(tensor.type(), {1});
  rounded.set(0, expected);
  const double relative = tensor.type() == DataType::bfloat16  ? 0x1p-6
                          : tensor.type() == DataType::float16 ? 0x1p-9
                          : tensor.type() == DataType::float32 ? 1e-6
                                                               : 1e-14;
  const double most = is_float(tensor.type()) ? relative * std::abs(expected) : 0;
  if (std::abs(tensor.get(i) - rounded.get(0)) <= most) return;
  check::fail(__FILE__, __LINE__,
              std::string(name_of(tensor.type())) + " " + std::to_string(i) + " of " +
                  to_string(tensor.shape()) + ": got " + std::to_string(tensor.get(i)) +
                  ", expected " + std::to_string(rounded.get(0)));
}

// What a script of one rank has.
struct DeviceRank {
  Engine& engine;
  HostDevice& device;
  HostNetwork& network;
  HostStream script;

  DeviceRank(Engine& its_engine, HostDevice& its_device, HostNetwork& its_network)
      : engine(its_engine), device(its_device), network(its_network) {}
  int rank() const { return engine.rank(); }
  int size() const { return engine.size(); }

  // In the script's stream: not before all that was put there.
  void fill(Tensor& tensor, const std::function<double(int64_t)>& value) {
    script.put([&tensor, value] {
      for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, value(i));
    });
  }
  // An entry that is ready when the script's stream is.
  TensorEntry entry(const std::string& name, Operation operation, Tensor& input, Tensor& output) {
    TensorEntry made;
    made.request.edit().name = name;
    made.request.edit().operation = operation;
    made.request.edit().dtype = input.type();
    made.request.edit().shape = input.shape();
    made.request.edit().on_device = true;
    made.input = input.data();
    made.output = output.data();
    made.ready = engine.input_ready(script.handle());
    return made;
  }
  TensorEntry allreduce(const std::string& name, Tensor& tensor, ReduceOp op = ReduceOp::sum) {
    TensorEntry made = entry(name, Operation::allreduce, tensor, tensor);
    made.request.edit().reduce_op = op;
    return made;
  }
  std::vector<int64_t> enqueue_group(std::vector<TensorEntry> entries) {
    std::vector<int64_t> handles(entries.size());
    std::iota(handles.begin(), handles.end(), autotune::enqueue_group(engine, std::move(entries)));
    return handles;
  }
  void wait(int64_t handle) {
    while (!engine.wait(handle, std::chrono::milliseconds(100))) {
    }
  }
  // The operation is done on the device, too, when this returns.
  void finish(int64_t handle) {
    wait(handle);
    engine.order(handle, script.handle());
    engine.release(handle);
    script.synchronize();
  }
  void finish_all(const std::vector<int64_t>& handles) {
    for (int64_t handle : handles) finish(handle);
  }
  Tensor take(int64_t handle, DataType type) {
    wait(handle);
    Tensor result(type, engine.complete_handle(handle).result_shape);
    const DeviceMemory memory = engine.take_result(handle, script.handle());
    engine.release(handle);
    script.put([&] {
      if (result.count() > 0) {
        std::memcpy(result.data(), memory.data,
                    static_cast<size_t>(result.count()) * size_of(type));
      }
    });
    script.synchronize();
    return result;
  }
};

// Start an engine with a device per rank, run `body`, shut down together unless it did.
inline void with_devices(int size, const EngineOptions& options, const std::vector<int>& hosts,
                         const std::function<void(DeviceRank&)>& body) {
  HostNetwork network;
  Job job(size, options, hosts);
  Meeting end(size);
  run_ranks(size, [&](int rank) {
    std::unique_ptr<Engine> engine;
    HostDevice* device = nullptr;
    end.after([&] {
      engine = job.start(rank);
      engine->use_device(rank, [&](int index) {
        auto made = std::make_unique<HostDevice>(index);
        device = made.get();
        const auto connect = [&network, device](Communicator* plain, int color, const auto&) {
          return HostDeviceCommunicator::connect(network, *device, plain, color);
        };
        return DeviceBackend{std::move(made), connect, device->memory};
      });
      DeviceRank its(*engine, *device, network);
      body(its);
    });
    const bool failed = engine->failed();
    engine->shutdown(std::chrono::seconds(10));
    CHECK(failed || !engine->failed());
    if (failed) return;
    device->engine_stream().synchronize();
    CHECK_EQUAL(device->blocks_in_use(), size_t{0});
  });
}

// For 1, 2, 3 and 4 ranks of one host.
inline void with_device_sizes(const EngineOptions& options,
                              const std::function<void(DeviceRank&)>& body) {
  for (int size = 1; size <= 4; ++size) with_devices(size, options, {}, body);
}

}  // namespace autotune
