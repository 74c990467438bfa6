#include "engine/execute/result_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/reduce.h"

namespace autotune {

namespace {

constexpr double wrong = std::numeric_limits<double>::infinity();

// Relative to the sum of the absolute values: some roundings of each type.
double tolerance_of(DataType type) {
  switch (type) {
    case DataType::float16:
      return 8e-3;
    case DataType::bfloat16:
      return 6e-2;
    case DataType::float64:
      return 1e-13;
    default:
      return 1e-5;
  }
}

bool is_float(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64;
}

}  // namespace

ResultCheck::ResultCheck(const Response& response, const ResponseItem& item,
                         const TensorEntry& entry)
    : response_(response),
      item_(item),
      entry_(entry),
      copy_(static_cast<const char*>(entry.input),
            static_cast<const char*>(entry.input) + entry.request->bytes()) {}

double ResultCheck::worst_error(Communicator& plain) {
  double worst = response_.operation == Operation::allgather ? error_of_rows(plain)
                                                             : error_of_reduction(plain);
  plain.allreduce({{&worst, &worst, 1}}, DataType::float64, ReduceOp::max, 1.0, 1.0);
  return worst;
}

double ResultCheck::error_of_rows(Communicator& plain) const {
  const auto own = static_cast<size_t>(plain.rank());
  const int64_t rows = std::accumulate(item_.rows.begin(), item_.rows.end(), int64_t{0});
  const int64_t row_bytes = rows == 0 ? 0 : entry_.handle->result_bytes / rows;
  std::vector<int64_t> bytes;
  for (int64_t count : item_.rows) bytes.push_back(count * row_bytes);
  MessageVector<char> all(static_cast<size_t>(rows * row_bytes));
  const int64_t before = std::accumulate(bytes.begin(), bytes.begin() + plain.rank(), int64_t{0});
  std::copy_n(copy_.begin(), bytes[own], all.begin() + before);
  plain.allgather(all.data(), bytes);
  return std::equal(all.begin(), all.end(), entry_.handle->result.get()) ? 0.0 : wrong;
}

double ResultCheck::error_of_reduction(Communicator& plain) {
  const DataType type = response_.dtype;
  if (type == DataType::float64) return rounding_error<double>(plain, DataType::float64);
  if (is_float(type)) return rounding_error<float>(plain, DataType::float32);
  const int64_t count = entry_.request->count();
  plain.allreduce({{copy_.data(), copy_.data(), count}}, type, response_.reduce_op,
                  response_.prescale, response_.postscale);
  return std::equal(copy_.begin(), copy_.end(), static_cast<const char*>(entry_.output)) ? 0.0
                                                                                         : wrong;
}

// T is the type of `work_type`, in which values are compared.
template <typename T>
double ResultCheck::rounding_error(Communicator& plain, DataType work_type) {
  const DataType type = response_.dtype;
  const ReduceOp op = response_.reduce_op;
  const int64_t count = entry_.request->count();
  const auto length = static_cast<size_t>(count);
  std::vector<T> expected(length), seen(length);
  MessageVector<T> magnitude(length);
  convert(magnitude.data(), work_type, copy_.data(), type, count);
  for (T& x : magnitude) x = std::abs(x);
  const bool adds_up = op == ReduceOp::sum || op == ReduceOp::average;
  const auto scaled_by = [](double factor) { return std::abs(factor); };
  plain.allreduce({{magnitude.data(), magnitude.data(), count}}, work_type,
                  adds_up ? op : ReduceOp::product, scaled_by(response_.prescale),
                  scaled_by(response_.postscale));
  plain.allreduce({{copy_.data(), copy_.data(), count}}, type, op, response_.prescale,
                  response_.postscale);
  convert(expected.data(), work_type, copy_.data(), type, count);
  convert(seen.data(), work_type, entry_.output, type, count);
  const bool exact = op == ReduceOp::min || op == ReduceOp::max;
  double worst = 0;
  for (size_t i = 0; i < length; ++i) {
    const double a = expected[i], b = seen[i];
    if (a == b || !(std::isfinite(a) || std::isfinite(b))) continue;
    if (exact || !std::isfinite(a) || !std::isfinite(b)) return wrong;
    // The smallest number of the type covers what was rounded to zero.
    const double rounding = tolerance_of(type) * static_cast<double>(magnitude[i]) +
                            (type == DataType::float16 ? 0x1p-24 : 1e-37);
    worst = std::max(worst, std::abs(a - b) / rounding);
  }
  return worst;
}

}  // namespace autotune
