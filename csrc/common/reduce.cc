#include "common/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/copy.h"

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

struct Float16 {
  uint16_t bits;
  float load() const { return float_from_float16(bits); }
  void store(float value) { bits = float16_from_float(value); }
};

struct BFloat16 {
  uint16_t bits;
  float load() const { return float_from_bfloat16(bits); }
  void store(float value) { bits = bfloat16_from_float(value); }
};

struct Bool {
  uint8_t value;
};

// How an element of memory becomes a number and back.
template <typename T>
struct Access {
  static T load(T element) { return element; }
  static void store(T& element, T value) { element = value; }
};
template <typename T>
struct HalfAccess {
  static float load(T element) { return element.load(); }
  static void store(T& element, float value) { element.store(value); }
};
template <>
struct Access<Float16> : HalfAccess<Float16> {};
template <>
struct Access<BFloat16> : HalfAccess<BFloat16> {};
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
  for (int64_t i = 0; i < count; ++i) {
    Access<T>::store(out[i], f(Access<T>::load(a[i]), Access<T>::load(b[i])));
  }
}

template <typename T>
void combine_typed(void* out, const void* a, const void* b, int64_t count, ReduceOp op) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  using Number = decltype(Access<T>::load(*x));
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::adasum:  // has its own algorithm, comm/p2p/adasum.h
    case ReduceOp::sum:
      return map2(o, x, y, count, [](Number p, Number q) { return add(p, q); });
    case ReduceOp::product:
      return map2(o, x, y, count, [](Number p, Number q) { return multiply(p, q); });
    case ReduceOp::min:
      return map2(o, x, y, count, [](Number p, Number q) { return choose<T>(p, q, q < p); });
    case ReduceOp::max:
      return map2(o, x, y, count, [](Number p, Number q) { return choose<T>(p, q, p < q); });
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

template <typename T>
void scale_typed(void* data, int64_t count, double factor, int divisor) {
  auto* d = static_cast<T*>(data);
  const double ratio = factor / divisor;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      // Dividing last keeps exact quotients exact: 49 * (1 / 49.0) is below 1.
      d[i] = truncate_to<T>(static_cast<double>(d[i]) * factor / divisor);
    } else if constexpr (std::is_same_v<T, double>) {
      d[i] *= ratio;
    } else {
      Access<T>::store(d[i], Access<T>::load(d[i]) * static_cast<float>(ratio));
    }
  }
}

// Conversions of float16 by the processor, bit for bit as float_from_float16 and float16_from_float
// but for the bits of a NaN, at a twentieth of their instructions.
#if defined(__x86_64__)

// Compilers do not all know the name of the feature; what has AVX2 has it.
bool has_float16() { return __builtin_cpu_supports("avx2") != 0; }

__attribute__((target("avx2,f16c"))) void floats_from_float16(float* to, const uint16_t* from,
                                                              int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto* const halves = reinterpret_cast<const __m128i*>(from + i);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  }
  for (; i < count; ++i) to[i] = float_from_float16(from[i]);
}

__attribute__((target("avx2,f16c"))) void float16_from_floats(uint16_t* to, const float* from,
                                                              int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 floats = _mm256_loadu_ps(from + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = float16_from_float(from[i]);
}

#else

bool has_float16() { return false; }
void floats_from_float16(float*, const uint16_t*, int64_t) {}
void float16_from_floats(uint16_t*, const float*, int64_t) {}

#endif

}  // namespace

float float_from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

uint16_t float16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude <
      0x38800000u) {  // subnormal or zero: let float32 addition round to a multiple of 2^-24
    const float shifted = float_of(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void combine(void* out, const void* a, const void* b, int64_t count, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::uint8:
      return combine_typed<uint8_t>(out, a, b, count, op);
    case DataType::int8:
      return combine_typed<int8_t>(out, a, b, count, op);
    case DataType::int16:
      return combine_typed<int16_t>(out, a, b, count, op);
    case DataType::int32:
      return combine_typed<int32_t>(out, a, b, count, op);
    case DataType::int64:
      return combine_typed<int64_t>(out, a, b, count, op);
    case DataType::float16:
      return combine_typed<Float16>(out, a, b, count, op);
    case DataType::bfloat16:
      return combine_typed<BFloat16>(out, a, b, count, op);
    case DataType::float32:
      return combine_typed<float>(out, a, b, count, op);
    case DataType::float64:
      return combine_typed<double>(out, a, b, count, op);
    case DataType::boolean:
      return combine_typed<Bool>(out, a, b, count, op);
  }
}

void convert(void* out, DataType out_type, const void* in, DataType in_type, int64_t count) {
  if (out_type == in_type) {
    copy_bytes(out, in, count * static_cast<int64_t>(size_of(in_type)));
    return;
  }
  const auto each = [count](auto* to, const auto* from, auto&& act) {
    for (int64_t i = 0; i < count; ++i) to[i] = act(from[i]);
  };
  static const bool by_processor = has_float16();
  if (by_processor && in_type == DataType::float16) {
    floats_from_float16(static_cast<float*>(out), static_cast<const uint16_t*>(in), count);
  } else if (by_processor && out_type == DataType::float16) {
    float16_from_floats(static_cast<uint16_t*>(out), static_cast<const float*>(in), count);
  } else if (in_type == DataType::float16) {
    each(static_cast<float*>(out), static_cast<const uint16_t*>(in), float_from_float16);
  } else if (in_type == DataType::bfloat16) {
    each(static_cast<float*>(out), static_cast<const uint16_t*>(in), float_from_bfloat16);
  } else if (out_type == DataType::float16) {
    each(static_cast<uint16_t*>(out), static_cast<const float*>(in), float16_from_float);
  } else {
    each(static_cast<uint16_t*>(out), static_cast<const float*>(in), bfloat16_from_float);
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

void RankReduction::add_halves(float* sums, const char* halves, int64_t count,
                               bool is_first) const {
  float values[block];
  float* const to = is_first ? sums : values;
  convert(to, DataType::float32, halves, type_, count);
  scale(to, count, DataType::float32, half_factor_);
  if (!is_first) combine(sums, sums, values, count, DataType::float32, op_);
}

void RankReduction::store_halves(char* halves, float* sums, int64_t count) const {
  scale(sums, count, DataType::float32, output_factor_);
  convert(halves, type_, sums, DataType::float32, count);
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
      return scale_typed<Float16>(data, count, factor, divisor);
    case DataType::bfloat16:
      return scale_typed<BFloat16>(data, count, factor, divisor);
    case DataType::float32:
      return scale_typed<float>(data, count, factor, divisor);
    case DataType::float64:
      return scale_typed<double>(data, count, factor, divisor);
    case DataType::boolean:
      return;
  }
}

}  // namespace autotune
