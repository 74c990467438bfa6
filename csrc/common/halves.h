// float16 and bfloat16 ("halves"): conversions, and reductions over ranks in float32.
//
// There is one algorithm, compiled for several sets of the processor's instructions
// (halves_algorithm.h); the best one that the processor has is chosen once. All give the same bits,
// but for one thing: where two NaNs meet, either's bits may remain.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types.h"

namespace autotune {

// What one set of instructions does. `half` is float16 or bfloat16.
struct HalfKernels {
  const char* name;

  void (*to_floats)(DataType half, float* to, const uint16_t* from, int64_t count);
  // Rounds to nearest even; a NaN stays one.
  void (*from_floats)(DataType half, uint16_t* to, const float* from, int64_t count);

  // Reduces the arrays `from[0]` to `from[ranks - 1]` in their order, in float32, and rounds once:
  //
  //   out[i] = ((from[0][i] * input_factor) op (from[1][i] * input_factor) op ...) * output_factor
  //
  // `in` is what the arrays hold, `out_type` what `out` shall: halves of one type, or, where a
  // reduction has several steps, float32. `out` may be one of the arrays if both are of one type.
  // ReduceOp::average and adasum combine as sum.
  void (*reduce)(DataType in, DataType out_type, ReduceOp op, char* out, const char* const* from,
                 int ranks, int64_t count, float input_factor, float output_factor);
};

// The best one that this processor has.
const HalfKernels& half_kernels();

// to[i] = from[i] * factor, rounded once to `half`, and back without that.
void shorten(DataType half, uint16_t* to, const float* from, int64_t count, float factor);
void lengthen(DataType half, float* to, const uint16_t* from, int64_t count, float factor);

// All that this processor has: the first is plain C++, the last is `half_kernels()`.
std::vector<const HalfKernels*> known_half_kernels();

}  // namespace autotune
