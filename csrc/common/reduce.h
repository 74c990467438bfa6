// Element-wise arithmetic on typed memory: the only place that knows what a reduction means.
//
// float16 and bfloat16 are combined in float32 and rounded to nearest even after each combination.
// Min and max of a NaN and anything are NaN, whichever rank has it.
// bool knows min (all), max (any), sum (any) and product (all). Integers wrap like their C++
// unsigned counterparts.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace autotune {

// out[i] = a[i] op b[i]. `out` may be the same memory as `a` or `b`. ReduceOp::average combines as
// sum.
void combine(void* out, const void* a, const void* b, int64_t count, DataType type, ReduceOp op);

// The contributions of `size` ranks, combined in rank order into `own`, this rank's. The others lie
// back to back in `others` in rank order, and are overwritten.
void combine_in_rank_order(char* own, char* others, int rank, int size, int64_t count,
                           DataType type, ReduceOp op);

// data[i] = data[i] * factor / divisor. Integers are scaled in float64 and truncated towards zero;
// float16 and bfloat16 in float32. Does nothing for 1 and 1. bool cannot be scaled (such a request
// is refused).
void scale(void* data, int64_t count, DataType type, double factor, int divisor = 1);

// out[i] = in[i] between float16, bfloat16 and float32, or from a type to itself.
void convert(void* out, DataType out_type, const void* in, DataType in_type, int64_t count);

float float_from_float16(uint16_t bits);
uint16_t float16_from_float(float value);
float float_from_bfloat16(uint16_t bits);
uint16_t bfloat16_from_float(float value);

}  // namespace autotune
