#include "common/halves.h"

#include <algorithm>
#include <iterator>

#include "common/halves_algorithm.h"
#include "common/reduce.h"

namespace autotune {

// Null where the compiler does not make them.
extern const HalfKernels* const halves_by_avx2;
extern const HalfKernels* const halves_by_avx512;

namespace {

constexpr HalfKernels plain = kernels<Plain>("plain C++");

#if defined(__x86_64__)
// Compilers do not all know the name of F16C; what has AVX2 has it.
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }

// Processors with AVX-512 but without its later parts (before Ice Lake) lower their clock for it,
// also for the training that shares the core; AMD's have all.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace

std::vector<const HalfKernels*> known_half_kernels() {
  std::vector<const HalfKernels*> known{&plain};
  if (halves_by_avx2 != nullptr && has_avx2()) known.push_back(halves_by_avx2);
  if (halves_by_avx512 != nullptr && has_avx512()) known.push_back(halves_by_avx512);
  return known;
}

const HalfKernels& half_kernels() {
  static const HalfKernels& best = *known_half_kernels().back();
  return best;
}

void shorten(DataType half, uint16_t* to, const float* from, int64_t count, float factor) {
  const HalfKernels& kernels = half_kernels();
  if (factor == 1.0F) return kernels.from_floats(half, to, from, count);
  float scaled[2048];  // it stays in the cache
  for (int64_t begin = 0; begin < count; begin += std::size(scaled)) {
    const int64_t some = std::min<int64_t>(count - begin, std::size(scaled));
    for (int64_t i = 0; i < some; ++i) scaled[i] = from[begin + i] * factor;
    kernels.from_floats(half, to + begin, scaled, some);
  }
}

void lengthen(DataType half, float* to, const uint16_t* from, int64_t count, float factor) {
  half_kernels().to_floats(half, to, from, count);
  if (factor == 1.0F) return;
  for (int64_t i = 0; i < count; ++i) to[i] *= factor;
}

float float_from_float16(uint16_t bits) { return from_float16(bits); }
uint16_t float16_from_float(float value) { return to_float16(value); }
float float_from_bfloat16(uint16_t bits) { return from_bfloat16(bits); }
uint16_t bfloat16_from_float(float value) { return to_bfloat16(value); }

}  // namespace autotune
