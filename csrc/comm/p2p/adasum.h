// Adasum: a reduction that adds what gradients have in different directions and averages what they
// have in common (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020).
//
//   adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b,   applied along a binary tree
//
// A norm of (nearly) zero leaves its coefficient at 1. Dots and norms are per tensor and in double;
// float16 and bfloat16 are combined in float.
//
// Vector halving, distance doubling: at distance d = 1, 2, 4, ... a rank and its partner (rank xor
// d) each keep half of the vector that both hold a version of, and combine it; the dots of a tensor
// are summed over the 2d ranks that hold parts of the two versions. Then the halves travel back. M
// bytes and n ranks: 2 (n-1)/n M bytes per rank.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "comm/point_to_point.h"

namespace autotune {

// Reduce every span as a tensor of its own over the ranks of `transport`, a power of two of them.
// `type` is a float type. The inputs are multiplied by `prescale`, the result by `postscale`.
void adasum(PointToPoint& transport, const WaitHook& on_wait, const std::vector<Span>& spans,
            DataType type, double prescale, double postscale);

}  // namespace autotune
