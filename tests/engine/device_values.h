// What the tests of operations on a GPU put into tensors, and what comes out.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device_fixture.h"

namespace autotune {

inline constexpr DataType all_types[] = {
    DataType::uint8,   DataType::int8,     DataType::int16,   DataType::int32,   DataType::int64,
    DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64, DataType::boolean};
inline constexpr ReduceOp all_ops[] = {ReduceOp::average, ReduceOp::sum, ReduceOp::min,
                                       ReduceOp::max, ReduceOp::product};

inline EngineOptions fusing(bool fuse) {
  EngineOptions options;
  options.params.fusion_threshold_bytes = fuse ? 256 << 20 : 0;
  return options;
}

// Element `i` of rank `rank`: small, of both signs where there are some, rarely 0.
inline double element(DataType type, int rank, int64_t i) {
  const auto any = static_cast<double>((rank * 7 + i * 5) % 11);
  if (type == DataType::boolean) return (rank + i) % 3 == 0 ? 0 : 1;
  return type == DataType::uint8 ? any : any - 5;
}

inline double reduced(DataType type, ReduceOp op, int size, int64_t i, double prescale = 1) {
  double result = prescale * element(type, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double other = prescale * element(type, rank, i);
    if (op == ReduceOp::min) {
      result = std::min(result, other);
    } else if (op == ReduceOp::max) {
      result = std::max(result, other);
    } else if (op == ReduceOp::product) {
      result *= other;
    } else {
      result += other;
    }
  }
  if (type == DataType::boolean) return result != 0;
  if (op != ReduceOp::average) return result;
  return is_float(type) ? result / size : std::trunc(result / size);
}

inline bool allowed(DataType type, ReduceOp op) {
  return type != DataType::boolean || op != ReduceOp::average;
}

inline double row_value(int rank, int64_t i) {
  return rank * 1000.0 + static_cast<double>(i % 997);
}

inline void check_reduced(const Tensor& tensor, ReduceOp op, int size) {
  for (int64_t i = 0; i < tensor.count(); ++i) {
    check_value(tensor, i, reduced(tensor.type(), op, size, i));
  }
}

struct ReductionCase {
  Tensor tensor;
  ReduceOp op;
};

// A tensor of every type for every op and each of the lengths.
inline std::deque<ReductionCase> every_reduction(const std::vector<int64_t>& lengths) {
  std::deque<ReductionCase> cases;
  for (DataType type : all_types) {
    for (ReduceOp op : all_ops) {
      if (!allowed(type, op)) continue;
      for (int64_t length : lengths) cases.push_back({Tensor(type, {length}), op});
    }
  }
  return cases;
}

// As one group; checks the results.
inline void run_reductions(DeviceRank& rank, std::deque<ReductionCase>& cases) {
  std::vector<TensorEntry> entries;
  for (ReductionCase& each : cases) {
    const DataType type = each.tensor.type();
    rank.fill(each.tensor, [=, r = rank.rank()](int64_t i) { return element(type, r, i); });
    entries.push_back(rank.allreduce(std::to_string(entries.size()), each.tensor, each.op));
  }
  rank.finish_all(rank.enqueue_group(std::move(entries)));
  for (const ReductionCase& each : cases) check_reduced(each.tensor, each.op, rank.size());
}

}  // namespace autotune
