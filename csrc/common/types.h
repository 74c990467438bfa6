// The engine's vocabulary: operations, data types, reductions, shapes, parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace autotune {

enum class Operation : uint8_t {
  allreduce = 0,
  allgather = 1,
  broadcast = 2,
  barrier = 3,
  alltoall = 4,
  reducescatter = 5,
  join = 6,
  add_process_set = 7,
  remove_process_set = 8,
};

// True for operations that move tensors; the others only agree on something.
inline bool moves_data(Operation operation) {
  return operation != Operation::barrier && operation < Operation::join;
}

enum class ReduceOp : uint8_t { average = 0, sum = 1, min = 2, max = 3, product = 4, adasum = 5 };

enum class DataType : uint8_t {
  uint8 = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  float16 = 5,
  bfloat16 = 6,
  float32 = 7,
  float64 = 8,
  boolean = 9,
};

using Shape = std::vector<int64_t>;

// The communication parameters; see autotune/space.py and autotune/tables for units and
// domains.
struct Params {
  int64_t fusion_threshold_bytes = 64 << 20;
  double cycle_time_ms = 1.0;
  int64_t cache_capacity = 1024;
  bool hierarchical_allreduce = false;
  bool hierarchical_allgather = false;
  int64_t nccl_algorithm = 0;
  int64_t nccl_protocol = 0;
  int64_t nccl_channels = 0;
  bool fp16_gradients = false;
  bool bf16_gradients = false;
};

// Calls `visit(name, unit, member)` for every field.
template <typename Visit>
void visit_params(Visit&& visit) {
  visit("fusion_threshold_bytes", "bytes", &Params::fusion_threshold_bytes);
  visit("cycle_time_ms", "ms", &Params::cycle_time_ms);
  visit("cache_capacity", "entries", &Params::cache_capacity);
  visit("hierarchical_allreduce", "0 or 1", &Params::hierarchical_allreduce);
  visit("hierarchical_allgather", "0 or 1", &Params::hierarchical_allgather);
  visit("nccl_algorithm", "NCCL's number + 1", &Params::nccl_algorithm);
  visit("nccl_protocol", "NCCL's number + 1", &Params::nccl_protocol);
  visit("nccl_channels", "channels", &Params::nccl_channels);
  visit("fp16_gradients", "0 or 1", &Params::fp16_gradients);
  visit("bf16_gradients", "0 or 1", &Params::bf16_gradients);
}

// False for numbers that are none of the list.
bool is_known(Operation operation);
bool is_known(ReduceOp reduce_op);
bool is_known(DataType type);

size_t size_of(DataType type);
// Whether a tensor of a longer type may travel as this one.
bool is_wire_type(DataType type);

const char* name_of(Operation operation);
const char* name_of(ReduceOp reduce_op);
const char* name_of(DataType type);  // it is as torch spells it: "float32", "bool", ...

// Inverse of name_of; throw InvalidRequest with the list of known names.
Operation operation_from(const std::string& name);
ReduceOp reduce_op_from(const std::string& name);
DataType data_type_from(const std::string& name);

int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);  // "[2, 3]"

}  // namespace autotune
