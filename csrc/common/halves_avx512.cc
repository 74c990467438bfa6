// Halves by AVX-512, 16 at a time. This file alone is compiled for it.
#include "common/halves_algorithm.h"

#if defined(__AVX512F__)

#include <immintrin.h>

namespace autotune {

namespace {

struct Avx512 {
  using Floats = __m512;
  static constexpr int width = 16;
  static Floats all(float value) { return _mm512_set1_ps(value); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static __m256i load_halves(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_halves(uint16_t* to, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static Floats load_float16(const uint16_t* from) { return _mm512_cvtph_ps(load_halves(from)); }
  static void store_float16(uint16_t* to, Floats x) {
    store_halves(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static Floats load_bfloat16(const uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(from)), 16));
  }
  static void store_bfloat16(uint16_t* to, Floats x) {
    const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_set1_epi32(0x40);
    const __m512i words = _mm512_mask_or_epi32(rounded, is_nan, upper, quiet);
    store_halves(to, _mm512_cvtepi32_epi16(words));
  }
  static Floats add(Floats p, Floats q) { return _mm512_add_ps(p, q); }
  static Floats multiply(Floats p, Floats q) { return _mm512_mul_ps(p, q); }
  static Floats min(Floats p, Floats q) {
    return choose(p, q, _mm512_cmp_ps_mask(q, p, _CMP_LT_OQ));
  }
  static Floats max(Floats p, Floats q) {
    return choose(p, q, _mm512_cmp_ps_mask(p, q, _CMP_LT_OQ));
  }
  static Floats choose(Floats p, Floats q, __mmask16 q_wins) {
    const __m512i chosen = _mm512_castps_si512(_mm512_mask_blend_ps(q_wins, p, q));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(q, q, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(chosen, is_nan, _mm512_set1_epi32(-1)));
  }
};

constexpr HalfKernels avx512 = kernels<Avx512>("AVX-512");

}  // namespace

extern const HalfKernels* const halves_by_avx512;
const HalfKernels* const halves_by_avx512 = &avx512;

}  // namespace autotune

#else

namespace autotune {
extern const HalfKernels* const halves_by_avx512;
const HalfKernels* const halves_by_avx512 = nullptr;
}  // namespace autotune

#endif
