// Element-wise arithmetic on typed memory: the only place that knows what a reduction means.
//
// float16 and bfloat16 ("halves") are combined in float32 and rounded to nearest even: once for all
// ranks by a RankReduction, after each combination by `combine`. Min and max of a NaN and anything
// are NaN, whichever rank has it. bool knows min (all), max (any), sum (any) and product (all).
// Integers wrap like their C++ unsigned counterparts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/copy.h"
#include "common/types.h"

namespace autotune {

// out[i] = a[i] op b[i]. `out` may be the same memory as `a` or `b`. ReduceOp::average combines as
// sum. float32 and float64 are multiplied by `factor` (others: expected to be 1), as `scale` does.
void combine(void* out, const void* a, const void* b, int64_t count, DataType type, ReduceOp op,
             double factor = 1.0);

// data[i] = data[i] * factor / divisor. Integers are scaled in float64 and truncated towards zero;
// float16 and bfloat16 in float32. Does nothing for 1 and 1. bool cannot be scaled (such a request
// is refused).
void scale(void* data, int64_t count, DataType type, double factor, int divisor = 1);

// True for float16 and bfloat16.
inline bool is_half(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16;
}

// The same elements of `size` ranks, reduced with their factors:
//
//   out[i] = op over the ranks r of (in_r[i] * prescale), times postscale (average: divided by
//   size)
//
// Halves are reduced in float32 and rounded once. Their sums and averages take all factors before
// they are added, so that an average overflows only where it is too large itself. Other types are
// computed in their own type: inputs are scaled, combined one after the other, and scaled.
class RankReduction {
 public:
  RankReduction(DataType type, ReduceOp op, double prescale, double postscale, int size);

  // Whether the contributions have to be scaled before they come to `combine_all`.
  bool scales_inputs() const { return input_factor_ != 1.0; }
  void scale_input(void* data, int64_t count) const { scale(data, count, type_, input_factor_); }

  // `contribution(r)` is where those of rank r lie. `out` may be one of them; partial results go to
  // `partial`, which may be `out`, or the contribution of rank 0 or 1. If `partial` is `out`, this
  // is no contribution of a rank above 1.
  template <typename Contribution>
  void combine_all(char* out, char* partial, int64_t count, Contribution&& contribution) const {
    combine_some(out, partial, size_, count, {true, true}, contribution);
  }

  // The same in several steps, each of which combines some ranks' contributions, or, after the
  // first one, the results of earlier steps. Those of halves are float32 until the last step.
  struct Step {
    bool is_first, is_last;
  };
  int64_t item_before(Step step) const { return step.is_first ? item() : partial_item(); }
  int64_t item_after(Step step) const { return step.is_last ? item() : partial_item(); }
  template <typename Contribution>
  void combine_some(char* out, char* partial, int ranks, int64_t count, Step step,
                    Contribution&& contribution) const {
    if (is_half(type_)) return combine_halves(out, ranks, count, step, contribution);
    if (ranks == 1) copy_bytes(out, contribution(0), count * item());
    const int64_t most = ranks > 2 ? block_bytes / item() : count;
    const double factor = step.is_last && scales_as_it_combines() ? output_factor_ / divisor_ : 1.0;
    for (int64_t first = 0; first < count; first += most) {
      const int64_t length = std::min(most, count - first), at = first * item();
      const char* sum = contribution(0) + at;
      for (int peer = 1; peer < ranks; ++peer) {
        const bool is_whole = peer == ranks - 1;
        char* const to = (is_whole ? out : partial) + at;
        combine(to, sum, contribution(peer) + at, length, type_, op_, is_whole ? factor : 1.0);
        sum = to;
      }
    }
    if (step.is_last && (ranks == 1 || !scales_as_it_combines())) {
      scale(out, count, type_, output_factor_, divisor_);
    }
  }

  int64_t item() const { return static_cast<int64_t>(size_of(type_)); }

 private:
  bool scales_as_it_combines() const {
    return type_ == DataType::float32 || type_ == DataType::float64;
  }
  int64_t partial_item() const { return is_half(type_) ? int64_t{sizeof(float)} : item(); }
  template <typename Contribution>
  void combine_halves(char* out, int ranks, int64_t count, Step step,
                      Contribution&& contribution) const {
    constexpr int few = 32;
    const char* from_few[few];
    std::vector<const char*> from_many(static_cast<size_t>(ranks > few ? ranks : 0));
    const char** const from = ranks > few ? from_many.data() : from_few;
    for (int peer = 0; peer < ranks; ++peer) from[peer] = contribution(peer);
    reduce_halves(out, from, ranks, count, step);
  }
  void reduce_halves(char* out, const char* const* from, int ranks, int64_t count, Step step) const;

  // Several ranks are combined by blocks, which stay in the first-level cache from one rank's
  // contribution to the next: 8 ranks take 39.8 instead of 42.8 ms for 102 MB through shared memory
  // (Intel Xeon of 16 cores).
  static constexpr int64_t block_bytes = 4 << 10;

  DataType type_;
  ReduceOp op_;
  int size_;
  double input_factor_ = 1.0;   // scale_input applies this one,
  double half_factor_ = 1.0;    // this one is applied as halves are read,
  double output_factor_ = 1.0;  // and this one to the result, which is divided by
  int divisor_ = 1;
};

// out[i] = in[i] between float16, bfloat16 and float32, or from a type to itself.
void convert(void* out, DataType out_type, const void* in, DataType in_type, int64_t count);

float float_from_float16(uint16_t bits);
uint16_t float16_from_float(float value);
float float_from_bfloat16(uint16_t bits);
uint16_t bfloat16_from_float(float value);

}  // namespace autotune
