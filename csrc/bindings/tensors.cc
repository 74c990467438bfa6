#include "bindings/tensors.h"

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace autotune {

namespace {

// As DLPack lays them out.
struct Version {
  uint32_t major;
  uint32_t minor;
};

struct TensorView {
  void* data;
  int32_t device_type;
  int32_t device_index;
  int32_t dimensions;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;  // they count elements; nullptr means that it is dense
  uint64_t byte_offset;
};

constexpr uint32_t known_major_version = 1;
constexpr int32_t cpu_device = 1, cuda_device = 2;

uint8_t type_code_of(DataType type) {
  switch (type) {
    case DataType::int8:
    case DataType::int16:
    case DataType::int32:
    case DataType::int64:
      return 0;
    case DataType::uint8:
      return 1;
    case DataType::float16:
    case DataType::float32:
    case DataType::float64:
      return 2;
    case DataType::bfloat16:
      return 4;
    case DataType::boolean:
      return 6;
  }
  return 255;
}

// Whether the tensor has `shape` and lies in its order without gaps.
bool is_dense(const TensorView& view, const Shape& shape) {
  if (!std::equal(shape.begin(), shape.end(), view.shape, view.shape + view.dimensions)) {
    return false;
  }
  if (view.strides == nullptr) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && view.strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Whether the tensor, (n, c, height, width) or with depth, lies as one of `shape` = (n, depth *
// height * width, c) does.
bool is_channels_last(const TensorView& view, const Shape& shape) {
  const int32_t last = view.dimensions - 1;
  if (shape.size() != 3 || last < 3 || last > 4 || view.strides == nullptr) return false;
  if (view.shape[0] != shape[0] || view.shape[1] != shape[2]) return false;
  int64_t expected = 1;
  for (int32_t i = last; i >= 0; --i) {  // from the innermost on
    const int32_t dimension = i == 0 ? 0 : i == last ? 1 : i + 1;
    if (i == 0 && expected != shape[1] * shape[2]) return false;
    if (view.shape[dimension] != 1 && view.strides[dimension] != expected) return false;
    expected *= view.shape[dimension];
  }
  return true;
}

}  // namespace

struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  void* allocate;
  void* own;
  void* give;
  int (*view)(void* tensor, TensorView* view);  // it may be nullptr
  void* current_stream;
};

TensorReader::TensorReader(const py::capsule& api, std::vector<py::type> types)
    : types_(std::move(types)) {
  api_ = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
  if (api_ == nullptr) throw py::error_already_set();
  if (api_->version.major != known_major_version || api_->view == nullptr) {
    throw py::value_error("expected DLPack's exchange API 1.x with views of tensors, got version " +
                          std::to_string(api_->version.major) + "." +
                          std::to_string(api_->version.minor));
  }
}

std::optional<Address> TensorReader::find(const Request& request, PyObject* tensor, int device,
                                          bool as_they_lie) const {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  const auto same = [type](const py::type& each) { return each.ptr() == type; };
  if (std::none_of(types_.begin(), types_.end(), same)) return std::nullopt;
  TensorView view{};
  if (api_->view(tensor, &view) != 0) {  // without memory of its own, such as a sparse one
    PyErr_Clear();
    return std::nullopt;
  }
  const bool fits =
      view.type_code == type_code_of(request.dtype) &&
      view.type_bits == 8 * size_of(request.dtype) && view.type_lanes == 1 &&
      (device < 0 ? view.device_type == cpu_device
                  : view.device_type == cuda_device && view.device_index == device) &&
      (is_dense(view, request.shape) || (as_they_lie && is_channels_last(view, request.shape)));
  if (!fits) return std::nullopt;
  return reinterpret_cast<Address>(view.data) + view.byte_offset;
}

}  // namespace autotune
