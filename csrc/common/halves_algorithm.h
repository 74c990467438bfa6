// The one algorithm for halves, to be compiled for a set of instructions `Vector`: see halves.h.
//
// Everything is in an unnamed namespace and nothing of the C++ library is used: a function that two
// files share would be linked once, possibly as the copy that this processor cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/halves.h"

namespace autotune {
namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// NaNs keep the upper bits of their payload and become quiet, as by F16C's instructions.
inline float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    return float_of(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  }
  if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal or zero: float32's addition rounds to a multiple of 2^-24.
    const float shifted = float_of(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float from_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// One element at a time: what every processor has, and what is left over behind whole vectors.
struct Plain {
  using Floats = float;
  static constexpr int width = 1;
  static Floats all(float value) { return value; }
  static Floats load(const float* from) { return *from; }
  static void store(float* to, Floats x) { *to = x; }
  static Floats load_float16(const uint16_t* from) { return from_float16(*from); }
  static void store_float16(uint16_t* to, Floats x) { *to = to_float16(x); }
  static Floats load_bfloat16(const uint16_t* from) { return from_bfloat16(*from); }
  static void store_bfloat16(uint16_t* to, Floats x) { *to = to_bfloat16(x); }
  static Floats add(Floats p, Floats q) { return p + q; }
  static Floats multiply(Floats p, Floats q) { return p * q; }
  // q where q < p, else p; all bits set where q is a NaN. A comparison with a NaN is false, so that
  // a NaN in p stays.
  static Floats min(Floats p, Floats q) { return choose(p, q, q < p); }
  static Floats max(Floats p, Floats q) { return choose(p, q, p < q); }
  static Floats choose(Floats p, Floats q, bool q_wins) {
    return float_of(bits_of(q_wins ? q : p) | (q != q ? ~0u : 0u));
  }
};

struct Float32 {
  using Memory = float;
  template <typename Vector>
  static typename Vector::Floats load(const float* from) {
    return Vector::load(from);
  }
  template <typename Vector>
  static void store(float* to, typename Vector::Floats x) {
    Vector::store(to, x);
  }
};

struct Float16 {
  using Memory = uint16_t;
  template <typename Vector>
  static typename Vector::Floats load(const uint16_t* from) {
    return Vector::load_float16(from);
  }
  template <typename Vector>
  static void store(uint16_t* to, typename Vector::Floats x) {
    Vector::store_float16(to, x);
  }
};

struct BFloat16 {
  using Memory = uint16_t;
  template <typename Vector>
  static typename Vector::Floats load(const uint16_t* from) {
    return Vector::load_bfloat16(from);
  }
  template <typename Vector>
  static void store(uint16_t* to, typename Vector::Floats x) {
    Vector::store_bfloat16(to, x);
  }
};

struct Sum {
  template <typename Vector, typename Floats>
  static Floats combine(Floats p, Floats q) {
    return Vector::add(p, q);
  }
};
struct Product {
  template <typename Vector, typename Floats>
  static Floats combine(Floats p, Floats q) {
    return Vector::multiply(p, q);
  }
};
struct Min {
  template <typename Vector, typename Floats>
  static Floats combine(Floats p, Floats q) {
    return Vector::min(p, q);
  }
};
struct Max {
  template <typename Vector, typename Floats>
  static Floats combine(Floats p, Floats q) {
    return Vector::max(p, q);
  }
};

// How a reduction of arrays of `In` to one of `Out` goes.
struct Arrays {
  char* out;
  const char* const* from;
  int ranks;
  int64_t count;
  float input_factor, output_factor;
};

// As many steps of `vectors` vectors as fit behind `begin`; returns where they end. Of a step
// everything is read before anything is written: `out` may be one of the inputs.
template <typename Vector, int vectors, typename In, typename Out, typename Op>
int64_t reduce_steps(const Arrays& arrays, int64_t begin) {
  constexpr int64_t step = vectors * Vector::width;
  const auto before = Vector::all(arrays.input_factor), after = Vector::all(arrays.output_factor);
  auto* const out = reinterpret_cast<typename Out::Memory*>(arrays.out);
  for (; begin + step <= arrays.count; begin += step) {
    const auto read = [&](int rank, int v) {
      const auto* const elements =
          reinterpret_cast<const typename In::Memory*>(arrays.from[rank]) + begin;
      return Vector::multiply(In::template load<Vector>(elements + v * Vector::width), before);
    };
    typename Vector::Floats result[vectors];
    for (int v = 0; v < vectors; ++v) result[v] = read(0, v);
    for (int rank = 1; rank < arrays.ranks; ++rank) {
      for (int v = 0; v < vectors; ++v) {
        result[v] = Op::template combine<Vector>(result[v], read(rank, v));
      }
    }
    for (int v = 0; v < vectors; ++v) {
      Out::template store<Vector>(out + begin + v * Vector::width,
                                  Vector::multiply(result[v], after));
    }
  }
  return begin;
}

template <typename Vector, typename In, typename Out, typename Op>
void reduce_arrays(const Arrays& arrays) {
  constexpr int several = Vector::width == 1 ? 1 : 4;  // they do not wait for each other
  int64_t done = reduce_steps<Vector, several, In, Out, Op>(arrays, 0);
  done = reduce_steps<Vector, 1, In, Out, Op>(arrays, done);
  reduce_steps<Plain, 1, In, Out, Op>(arrays, done);
}

template <typename Vector, typename In, typename Out>
void reduce_by(ReduceOp op, const Arrays& arrays) {
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::adasum:
    case ReduceOp::sum:
      return reduce_arrays<Vector, In, Out, Sum>(arrays);
    case ReduceOp::product:
      return reduce_arrays<Vector, In, Out, Product>(arrays);
    case ReduceOp::min:
      return reduce_arrays<Vector, In, Out, Min>(arrays);
    case ReduceOp::max:
      return reduce_arrays<Vector, In, Out, Max>(arrays);
  }
}

template <typename Vector, typename Half>
void reduce_half(DataType in, DataType out_type, ReduceOp op, const Arrays& arrays) {
  if (in == out_type) return reduce_by<Vector, Half, Half>(op, arrays);
  if (out_type == DataType::float32) return reduce_by<Vector, Half, Float32>(op, arrays);
  reduce_by<Vector, Float32, Half>(op, arrays);
}

template <typename Vector>
void reduce(DataType in, DataType out_type, ReduceOp op, char* out, const char* const* from,
            int ranks, int64_t count, float input_factor, float output_factor) {
  const Arrays arrays{out, from, ranks, count, input_factor, output_factor};
  if (in == DataType::float16 || out_type == DataType::float16) {
    return reduce_half<Vector, Float16>(in, out_type, op, arrays);
  }
  if (in == DataType::bfloat16 || out_type == DataType::bfloat16) {
    return reduce_half<Vector, BFloat16>(in, out_type, op, arrays);
  }
  reduce_by<Vector, Float32, Float32>(op, arrays);
}

template <typename Vector, typename Half>
int64_t widen(float* to, const uint16_t* from, int64_t begin, int64_t count) {
  for (; begin + Vector::width <= count; begin += Vector::width) {
    Vector::store(to + begin, Half::template load<Vector>(from + begin));
  }
  return begin;
}

template <typename Vector>
void to_floats(DataType half, float* to, const uint16_t* from, int64_t count) {
  if (half == DataType::float16) {
    widen<Plain, Float16>(to, from, widen<Vector, Float16>(to, from, 0, count), count);
  } else {
    widen<Plain, BFloat16>(to, from, widen<Vector, BFloat16>(to, from, 0, count), count);
  }
}

template <typename Vector, typename Half>
int64_t narrow(uint16_t* to, const float* from, int64_t begin, int64_t count) {
  for (; begin + Vector::width <= count; begin += Vector::width) {
    Half::template store<Vector>(to + begin, Vector::load(from + begin));
  }
  return begin;
}

template <typename Vector>
void from_floats(DataType half, uint16_t* to, const float* from, int64_t count) {
  if (half == DataType::float16) {
    narrow<Plain, Float16>(to, from, narrow<Vector, Float16>(to, from, 0, count), count);
  } else {
    narrow<Plain, BFloat16>(to, from, narrow<Vector, BFloat16>(to, from, 0, count), count);
  }
}

template <typename Vector>
constexpr HalfKernels kernels(const char* name) {
  return {name, to_floats<Vector>, from_floats<Vector>, reduce<Vector>};
}

}  // namespace
}  // namespace autotune
