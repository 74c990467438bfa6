#include "common/reduce.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "common/copy.h"
#include "common/fetch_ahead.h"
#include "common/halves.h"

namespace autotune {

namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bool {
  uint8_t value;
};

// How an element of memory becomes a number and back.
template <typename T>
struct Access {
  static T load(T element) { return element; }
  static void store(T& element, T value) { element = value; }
};
template <>
struct Access<Bool> {
  static bool load(Bool element) { return element.value != 0; }
  static void store(Bool& element, bool value) { element.value = value ? 1 : 0; }
};

// Signed overflow is undefined in C++; wrap through the unsigned type instead.
template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else {
    return a + b;
  }
}

template <typename T>
T multiply(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    const auto product = static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
    return static_cast<T>(product);
  } else {
    return a * b;
  }
}

// The lesser or greater of `p` and `q`, as `q_wins` says; a NaN where one of them is one. A
// comparison with a NaN is false, so without a word about it p's would stay and q's be dropped.
// `Element` is what they are in memory: of float32 in place a NaN costs least by bits (two
// instructions a vector), elsewhere as a second reason to choose q.
template <typename Element, typename Number>
Number choose(Number p, Number q, bool q_wins) {
  if constexpr (std::is_same_v<Element, float>) {
    return float_of(bits_of(q_wins ? q : p) | (q != q ? ~0u : 0u));
  } else if constexpr (std::is_floating_point_v<Number>) {
    return q_wins || q != q ? q : p;
  } else {
    return q_wins ? q : p;
  }
}

template <typename T, typename F>
void map2(T* out, const T* a, const T* b, int64_t count, F&& f) {
  const auto map = [&](int64_t first, int64_t length) {
    for (int64_t i = first; i < first + length; ++i) {
      Access<T>::store(out[i], f(Access<T>::load(a[i]), Access<T>::load(b[i])));
    }
  };
  if (!fetches_ahead()) return map(0, count);
  by_fetched_blocks(
      count, sizeof(T),
      [&](int64_t first) {
        fetch_block(a + first);
        fetch_block(b + first);
        fetch_block_to_write(out + first);
      },
      map);
}

// The same, times `factor`.
template <typename T, typename F>
void map2_scaled(T* out, const T* a, const T* b, int64_t count, double factor, F&& f) {
  if constexpr (std::is_floating_point_v<T>) {
    if (factor != 1.0) {
      const auto by = static_cast<T>(factor);
      return map2(out, a, b, count, [&](T p, T q) { return f(p, q) * by; });
    }
  }
  map2(out, a, b, count, f);
}

template <typename T>
void combine_typed(void* out, const void* a, const void* b, int64_t count, ReduceOp op,
                   double factor) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  using Number = decltype(Access<T>::load(*x));
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::adasum:  // has its own algorithm, comm/p2p/adasum.h
    case ReduceOp::sum:
      return map2_scaled(o, x, y, count, factor, [](Number p, Number q) { return add(p, q); });
    case ReduceOp::product:
      return map2_scaled(o, x, y, count, factor, [](Number p, Number q) { return multiply(p, q); });
    case ReduceOp::min:
      return map2_scaled(o, x, y, count, factor,
                         [](Number p, Number q) { return choose<T>(p, q, q < p); });
    case ReduceOp::max:
      return map2_scaled(o, x, y, count, factor,
                         [](Number p, Number q) { return choose<T>(p, q, p < q); });
  }
}

// Out-of-range results saturate: converting them would be undefined.
template <typename T>
T truncate_to(double value) {
  constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double high = static_cast<double>(std::numeric_limits<T>::max());
  if (!(value > low)) return value == value ? std::numeric_limits<T>::min() : T{0};
  if (value >= high) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

void combine_halves(void* out, std::initializer_list<const void*> inputs, int64_t count,
                    DataType type, ReduceOp op, double factor = 1.0) {
  const char* from[2] = {};
  std::transform(inputs.begin(), inputs.end(), from,
                 [](const void* input) { return static_cast<const char*>(input); });
  half_kernels().reduce(type, type, op, static_cast<char*>(out), from,
                        static_cast<int>(inputs.size()), count, static_cast<float>(factor), 1.0f);
}

template <typename T>
void scale_typed(void* data, int64_t count, double factor, int divisor) {
  auto* d = static_cast<T*>(data);
  const double ratio = factor / divisor;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      // Dividing last keeps exact quotients exact: 49 * (1 / 49.0) is below 1.
      d[i] = truncate_to<T>(static_cast<double>(d[i]) * factor / divisor);
    } else {
      d[i] *= static_cast<T>(ratio);
    }
  }
}

}  // namespace

void combine(void* out, const void* a, const void* b, int64_t count, DataType type, ReduceOp op,
             double factor) {
  switch (type) {
    case DataType::uint8:
      return combine_typed<uint8_t>(out, a, b, count, op, factor);
    case DataType::int8:
      return combine_typed<int8_t>(out, a, b, count, op, factor);
    case DataType::int16:
      return combine_typed<int16_t>(out, a, b, count, op, factor);
    case DataType::int32:
      return combine_typed<int32_t>(out, a, b, count, op, factor);
    case DataType::int64:
      return combine_typed<int64_t>(out, a, b, count, op, factor);
    case DataType::float16:
    case DataType::bfloat16:
      return combine_halves(out, {a, b}, count, type, op);
    case DataType::float32:
      return combine_typed<float>(out, a, b, count, op, factor);
    case DataType::float64:
      return combine_typed<double>(out, a, b, count, op, factor);
    case DataType::boolean:
      return combine_typed<Bool>(out, a, b, count, op, factor);
  }
}

void convert(void* out, DataType out_type, const void* in, DataType in_type, int64_t count) {
  if (out_type == in_type) {
    copy_bytes(out, in, count * static_cast<int64_t>(size_of(in_type)));
    return;
  }
  if (is_half(in_type)) {
    half_kernels().to_floats(in_type, static_cast<float*>(out), static_cast<const uint16_t*>(in),
                             count);
  } else {
    half_kernels().from_floats(out_type, static_cast<uint16_t*>(out), static_cast<const float*>(in),
                               count);
  }
}

RankReduction::RankReduction(DataType type, ReduceOp op, double prescale, double postscale,
                             int size)
    : type_(type), op_(op), size_(size) {
  const bool is_average = op == ReduceOp::average;
  if (!is_half(type)) {
    input_factor_ = prescale;
    output_factor_ = postscale;
    divisor_ = is_average ? size : 1;
  } else if (is_average || op == ReduceOp::sum) {
    half_factor_ = prescale * postscale / (is_average ? size : 1);
  } else {
    half_factor_ = prescale;
    output_factor_ = postscale;
  }
}

void RankReduction::reduce_halves(char* out, const char* const* from, int ranks, int64_t count,
                                  Step step) const {
  const double before = step.is_first ? half_factor_ : 1.0;
  const double after = step.is_last ? output_factor_ : 1.0;
  half_kernels().reduce(step.is_first ? type_ : DataType::float32,
                        step.is_last ? type_ : DataType::float32, op_, out, from, ranks, count,
                        static_cast<float>(before), static_cast<float>(after));
}

void scale(void* data, int64_t count, DataType type, double factor, int divisor) {
  if (factor == 1.0 && divisor == 1) return;
  switch (type) {
    case DataType::uint8:
      return scale_typed<uint8_t>(data, count, factor, divisor);
    case DataType::int8:
      return scale_typed<int8_t>(data, count, factor, divisor);
    case DataType::int16:
      return scale_typed<int16_t>(data, count, factor, divisor);
    case DataType::int32:
      return scale_typed<int32_t>(data, count, factor, divisor);
    case DataType::int64:
      return scale_typed<int64_t>(data, count, factor, divisor);
    case DataType::float16:
    case DataType::bfloat16:
      return combine_halves(data, {data}, count, type, ReduceOp::sum, factor / divisor);
    case DataType::float32:
      return scale_typed<float>(data, count, factor, divisor);
    case DataType::float64:
      return scale_typed<double>(data, count, factor, divisor);
    case DataType::boolean:
      return;
  }
}

}  // namespace autotune
