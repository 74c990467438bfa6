#include "common/types.h"

#include <array>
#include <utility>

#include "common/errors.h"

namespace autotune {

namespace {

constexpr std::array<const char*, 9> operation_names{
    "allreduce",     "allgather", "broadcast",       "barrier",           "alltoall",
    "reducescatter", "join",      "add_process_set", "remove_process_set"};
constexpr std::array<const char*, 6> reduce_op_names{"average", "sum",     "min",
                                                     "max",     "product", "adasum"};
constexpr std::array<const char*, 10> data_type_names{"uint8",   "int8",    "int16",    "int32",
                                                      "int64",   "float16", "bfloat16", "float32",
                                                      "float64", "bool"};
constexpr std::array<size_t, 10> data_type_sizes{1, 1, 2, 4, 8, 2, 2, 4, 8, 1};

template <typename Enum, size_t N>
Enum parse(const std::array<const char*, N>& names, const std::string& name, const char* what) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    known += (i ? ", " : "") + std::string(names[i]);
  }
  throw InvalidRequest(std::string("unknown ") + what + " '" + name + "': expected one of " +
                       known);
}

}  // namespace

bool is_known(Operation operation) {
  return static_cast<size_t>(operation) < operation_names.size();
}
bool is_known(ReduceOp reduce_op) {
  return static_cast<size_t>(reduce_op) < reduce_op_names.size();
}
bool is_known(DataType type) { return static_cast<size_t>(type) < data_type_names.size(); }

bool is_wire_type(DataType type) { return type == DataType::float16 || type == DataType::bfloat16; }

size_t size_of(DataType type) { return data_type_sizes[static_cast<size_t>(type)]; }

const char* name_of(Operation operation) { return operation_names[static_cast<size_t>(operation)]; }
const char* name_of(ReduceOp reduce_op) { return reduce_op_names[static_cast<size_t>(reduce_op)]; }
const char* name_of(DataType type) { return data_type_names[static_cast<size_t>(type)]; }

Operation operation_from(const std::string& name) {
  return parse<Operation>(operation_names, name, "operation");
}
ReduceOp reduce_op_from(const std::string& name) {
  return parse<ReduceOp>(reduce_op_names, name, "reduce op");
}
DataType data_type_from(const std::string& name) {
  return parse<DataType>(data_type_names, name, "data type");
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace autotune
