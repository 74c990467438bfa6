#include "engine/execute/result_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/copy.h"
#include "common/reduce.h"
#include "engine/execute/layout.h"

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

void read_host(const void* tensor, const std::vector<ElementRange>& ranges, int64_t item_bytes,
               char* to) {
  for (const ElementRange& range : ranges) {
    const int64_t bytes = range.count * item_bytes;
    copy_bytes(to, static_cast<const char*>(tensor) + range.first * item_bytes, bytes);
    to += bytes;
  }
}

}  // namespace

ResultCheck::ResultCheck(const Response& response, const ResponseItem& item,
                         const TensorEntry& entry, Communicator& plain, Read read)
    : response_(response),
      item_(item),
      entry_(entry),
      plain_(plain),
      read_(read ? std::move(read) : Read(read_host)),
      item_bytes_(static_cast<int64_t>(size_of(response.dtype))) {
  ranges_ = response.operation == Operation::allgather
                ? ranges_of_block(static_cast<size_t>(plain.rank()))
                : checked_ranges(entry.request->count());
  copy_ = this->read(entry.input, ranges_);
}

double ResultCheck::worst_error() {
  double worst =
      response_.operation == Operation::allgather ? error_of_rows() : error_of_reduction();
  plain_.allreduce({{&worst, &worst, 1}}, DataType::float64, ReduceOp::max, 1.0, 1.0);
  return worst;
}

MessageVector<char> ResultCheck::read(const void* tensor,
                                      const std::vector<ElementRange>& ranges) const {
  MessageVector<char> elements(static_cast<size_t>(total_count(ranges) * item_bytes_));
  read_(tensor, ranges, item_bytes_, elements.data());
  return elements;
}

// What is checked of the rows that one rank gives; the ranks share the ranges.
std::vector<ElementRange> ResultCheck::ranges_of_block(size_t rank) const {
  const int64_t most = std::max<int64_t>(most_checked_ranges / plain_.size(), 2);
  return checked_ranges(item_.rows[rank] * row_elements_of(entry_.request), most);
}

double ResultCheck::error_of_rows() {
  std::vector<int64_t> bytes;            // of each rank's elements
  std::vector<ElementRange> in_results;  // where they are expected
  int64_t begin = 0, own = 0;
  for (size_t rank = 0; rank < item_.rows.size(); ++rank) {
    const std::vector<ElementRange> block = ranges_of_block(rank);
    if (static_cast<int>(rank) == plain_.rank()) {
      own = total_count(in_results) * item_bytes_;
    }
    for (const ElementRange& range : block) {
      in_results.push_back({begin + range.first, range.count});
    }
    bytes.push_back(total_count(block) * item_bytes_);
    begin += item_.rows[rank] * row_elements_of(entry_.request);
  }
  MessageVector<char> expected(static_cast<size_t>(total_count(in_results) * item_bytes_));
  std::copy(copy_.begin(), copy_.end(), expected.begin() + own);
  plain_.allgather(expected.data(), bytes);
  const Handle& handle = *entry_.handle;
  const void* const result = response_.on_device ? handle.device_result.data : handle.result.get();
  return read(result, in_results) == expected ? 0.0 : wrong;
}

double ResultCheck::error_of_reduction() {
  const DataType type = response_.dtype;
  if (type == DataType::float64) return rounding_error<double>(DataType::float64);
  if (is_float(type)) return rounding_error<float>(DataType::float32);
  plain_.allreduce({{copy_.data(), copy_.data(), total_count(ranges_)}}, type, response_.reduce_op,
                   response_.prescale, response_.postscale);
  return read(entry_.output, ranges_) == copy_ ? 0.0 : wrong;
}

// T is the type of `work_type`, in which values are compared.
template <typename T>
double ResultCheck::rounding_error(DataType work_type) {
  const DataType type = response_.dtype;
  const ReduceOp op = response_.reduce_op;
  const int64_t count = total_count(ranges_);
  const auto length = static_cast<size_t>(count);
  std::vector<T> expected(length), seen(length);
  MessageVector<T> magnitude(length);
  convert(magnitude.data(), work_type, copy_.data(), type, count);
  for (T& x : magnitude) x = std::abs(x);
  const bool adds_up = op == ReduceOp::sum || op == ReduceOp::average;
  const auto scaled_by = [](double factor) { return std::abs(factor); };
  plain_.allreduce({{magnitude.data(), magnitude.data(), count}}, work_type,
                   adds_up ? op : ReduceOp::product, scaled_by(response_.prescale),
                   scaled_by(response_.postscale));
  plain_.allreduce({{copy_.data(), copy_.data(), count}}, type, op, response_.prescale,
                   response_.postscale);
  convert(expected.data(), work_type, copy_.data(), type, count);
  convert(seen.data(), work_type, read(entry_.output, ranges_).data(), type, count);
  const bool exact = op == ReduceOp::min || op == ReduceOp::max;
  const DataType rounded_to = response_.wire_type.value_or(type);  // as it travels
  double worst = 0;
  for (size_t i = 0; i < length; ++i) {
    const double a = expected[i], b = seen[i];
    if (a == b || !(std::isfinite(a) || std::isfinite(b))) continue;
    if (exact || !std::isfinite(a) || !std::isfinite(b)) return wrong;
    // The smallest number of the type covers what was rounded to zero.
    const double rounding = tolerance_of(rounded_to) * static_cast<double>(magnitude[i]) +
                            (rounded_to == DataType::float16 ? 0x1p-24 : 1e-37);
    worst = std::max(worst, std::abs(a - b) / rounding);
  }
  return worst;
}

}  // namespace autotune
