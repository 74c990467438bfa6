// Halves by AVX2 and F16C, 8 at a time. This file alone is compiled for them.
#include "common/halves_algorithm.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

namespace autotune {

namespace {

struct Avx2 {
  using Floats = __m256;
  static constexpr int width = 8;
  static Floats all(float value) { return _mm256_set1_ps(value); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static __m128i load_halves(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store_halves(uint16_t* to, __m128i halves) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static Floats load_float16(const uint16_t* from) { return _mm256_cvtph_ps(load_halves(from)); }
  static void store_float16(uint16_t* to, Floats x) {
    store_halves(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static Floats load_bfloat16(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16));
  }
  static void store_bfloat16(uint16_t* to, Floats x) {
    const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    store_halves(
        to, _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static Floats add(Floats p, Floats q) { return _mm256_add_ps(p, q); }
  static Floats multiply(Floats p, Floats q) { return _mm256_mul_ps(p, q); }
  static Floats min(Floats p, Floats q) { return choose(p, q, _mm256_cmp_ps(q, p, _CMP_LT_OQ)); }
  static Floats max(Floats p, Floats q) { return choose(p, q, _mm256_cmp_ps(p, q, _CMP_LT_OQ)); }
  static Floats choose(Floats p, Floats q, Floats q_wins) {
    return _mm256_or_ps(_mm256_blendv_ps(p, q, q_wins), _mm256_cmp_ps(q, q, _CMP_UNORD_Q));
  }
};

constexpr HalfKernels avx2 = kernels<Avx2>("AVX2 and F16C");

}  // namespace

extern const HalfKernels* const halves_by_avx2;
const HalfKernels* const halves_by_avx2 = &avx2;

}  // namespace autotune

#else

namespace autotune {
extern const HalfKernels* const halves_by_avx2;
const HalfKernels* const halves_by_avx2 = nullptr;
}  // namespace autotune

#endif
