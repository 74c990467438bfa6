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

MessageVector<char> copy_of(const char* elements, int64_t bytes) {
  MessageVector<char> copy(static_cast<size_t>(bytes));
  copy_bytes(copy.data(), elements, bytes);
  return copy;
}

}  // namespace

ResultCheck::ResultCheck(const Response& response, const ResponseItem& item,
                         const TensorEntry& entry, int rank, int size, Read read)
    : how_(response),
      name_(entry.request->name),
      rows_(item.rows),
      row_elements_(row_elements_of(entry.request)),
      rank_(rank),
      size_(size),
      item_bytes_(static_cast<int64_t>(size_of(response.dtype))),
      read_(std::move(read)) {
  if (!read_) {
    host_.reserve(2);
    read_ = [this](const void* tensor, const std::vector<ElementRange>& ranges, int64_t) {
      return read_host(tensor, ranges);
    };
  }
  if (how_.operation == Operation::allgather) {
    ranges_ = ranges_of_block(static_cast<size_t>(rank_));
    int64_t begin = 0;  // of a rank's rows in the result
    for (size_t peer = 0; peer < rows_.size(); ++peer) {
      const std::vector<ElementRange> block = ranges_of_block(peer);
      for (const ElementRange& range : block) {
        result_ranges_.push_back({begin + range.first, range.count});
      }
      block_bytes_.push_back(bytes_of(block));
      begin += rows_[peer] * row_elements_;
    }
  } else {
    ranges_ = result_ranges_ = checked_ranges(entry.request->count());
  }
  input_ = read_(entry.input, ranges_, item_bytes_);
}

void ResultCheck::read_result(const TensorEntry& entry) {
  const void* result = entry.output;
  if (how_.operation == Operation::allgather) {
    const Handle& handle = *entry.handle;
    result = how_.on_device ? handle.device_result.data : handle.result.get();
  }
  result_ = read_(result, result_ranges_, item_bytes_);
}

double ResultCheck::worst_error(Communicator& plain) {
  double worst =
      how_.operation == Operation::allgather ? error_of_rows(plain) : error_of_reduction(plain);
  plain.allreduce({{&worst, &worst, 1}}, DataType::float64, ReduceOp::max, 1.0, 1.0);
  return worst;
}

int64_t ResultCheck::most_bytes(const Response& response, int size) {
  const int64_t ranges = most_checked_ranges + std::max<int64_t>(most_checked_ranges, 2 * size);
  return ranges * checked_range_elements * static_cast<int64_t>(size_of(response.dtype));
}

const char* ResultCheck::read_host(const void* tensor, const std::vector<ElementRange>& ranges) {
  std::vector<char>& elements = host_.emplace_back(static_cast<size_t>(bytes_of(ranges)));
  char* to = elements.data();
  for (const ElementRange& range : ranges) {
    const int64_t bytes = range.count * item_bytes_;
    copy_bytes(to, static_cast<const char*>(tensor) + range.first * item_bytes_, bytes);
    to += bytes;
  }
  return elements.data();
}

int64_t ResultCheck::bytes_of(const std::vector<ElementRange>& ranges) const {
  return total_count(ranges) * item_bytes_;
}

// What is checked of the rows that one rank gives; the ranks share the ranges.
std::vector<ElementRange> ResultCheck::ranges_of_block(size_t rank) const {
  const int64_t most = std::max<int64_t>(most_checked_ranges / size_, 2);
  return checked_ranges(rows_[rank] * row_elements_, most);
}

double ResultCheck::error_of_rows(Communicator& plain) {
  MessageVector<char> expected(static_cast<size_t>(bytes_of(result_ranges_)));
  int64_t own = 0;
  for (int peer = 0; peer < rank_; ++peer) own += block_bytes_[static_cast<size_t>(peer)];
  copy_bytes(expected.data() + own, input_, bytes_of(ranges_));
  plain.allgather(expected.data(), block_bytes_);
  return std::equal(expected.begin(), expected.end(), result_) ? 0.0 : wrong;
}

double ResultCheck::error_of_reduction(Communicator& plain) {
  const DataType type = how_.dtype;
  if (type == DataType::float64) return rounding_error<double>(plain, DataType::float64);
  if (is_float(type)) return rounding_error<float>(plain, DataType::float32);
  MessageVector<char> expected = copy_of(input_, bytes_of(ranges_));
  plain.allreduce({{expected.data(), expected.data(), total_count(ranges_)}}, type, how_.reduce_op,
                  how_.prescale, how_.postscale);
  return std::equal(expected.begin(), expected.end(), result_) ? 0.0 : wrong;
}

// Inputs may be too large for the type as which they travel.
bool ResultCheck::may_overflow(double magnitude) const {
  if (how_.reduce_op == ReduceOp::average) magnitude *= size_;
  const DataType travels = how_.wire_type.value_or(how_.dtype);
  const double most = travels == DataType::float16   ? 65504
                      : travels == DataType::float64 ? std::numeric_limits<double>::max()
                                                     : double{std::numeric_limits<float>::max()};
  return !(magnitude < 0.99 * most * std::min(1.0, std::abs(how_.postscale)));
}

double ResultCheck::smallest_error() const {
  if (how_.wire_type.value_or(how_.dtype) != DataType::float16) return 1e-37;
  const double factor = std::abs(how_.postscale);
  return 0x1p-24 * (size_ + 2) * std::max({1.0, factor, factor * std::abs(how_.prescale)});
}

// T is the type of `work_type`, in which values are compared.
template <typename T>
double ResultCheck::rounding_error(Communicator& plain, DataType work_type) {
  const DataType type = how_.dtype;
  const ReduceOp op = how_.reduce_op;
  const int64_t count = total_count(ranges_);
  const auto length = static_cast<size_t>(count);
  std::vector<T> expected(length), seen(length);
  MessageVector<T> magnitude(length);
  convert(magnitude.data(), work_type, input_, type, count);
  for (T& x : magnitude) x = std::abs(x);
  const bool adds_up = op == ReduceOp::sum || op == ReduceOp::average;
  const auto scaled_by = [](double factor) { return std::abs(factor); };
  plain.allreduce({{magnitude.data(), magnitude.data(), count}}, work_type,
                  adds_up ? op : ReduceOp::product, scaled_by(how_.prescale),
                  scaled_by(how_.postscale));
  MessageVector<char> again = copy_of(input_, bytes_of(ranges_));
  plain.allreduce({{again.data(), again.data(), count}}, type, op, how_.prescale, how_.postscale);
  convert(expected.data(), work_type, again.data(), type, count);
  convert(seen.data(), work_type, result_, type, count);
  const bool exact = op == ReduceOp::min || op == ReduceOp::max;
  const DataType rounded_to = how_.wire_type.value_or(type);  // as it travels
  double worst = 0;
  for (size_t i = 0; i < length; ++i) {
    const double a = expected[i], b = seen[i];
    if (a == b || !(std::isfinite(a) || std::isfinite(b))) continue;
    if (exact && how_.on_device && std::isnan(a)) continue;  // its library may leave a NaN out
    if (exact) return wrong;
    if (!std::isfinite(a) || !std::isfinite(b)) {
      if (may_overflow(static_cast<double>(magnitude[i]))) continue;
      return wrong;
    }
    const double rounding =
        tolerance_of(rounded_to) * static_cast<double>(magnitude[i]) + smallest_error();
    worst = std::max(worst, std::abs(a - b) / rounding);
  }
  return worst;
}

}  // namespace autotune
