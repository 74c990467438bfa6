#include "common/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "check.h"

using namespace autotune;

TEST(float16_survives_a_round_trip_for_every_bit_pattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_float16(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(float_from_float16(float16_from_float(value))));
    } else {
      CHECK_EQUAL(float16_from_float(value), half);
    }
  }
}

TEST(bfloat16_survives_a_round_trip_for_every_bit_pattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_bfloat16(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(float_from_bfloat16(bfloat16_from_float(value))));
    } else {
      CHECK_EQUAL(bfloat16_from_float(value), half);
    }
  }
}

TEST(conversions_of_many_are_those_of_one) {
  std::vector<float> floats;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    // Every float16, what lies half way to the next one, and on both sides of that.
    const float half = float_from_float16(static_cast<uint16_t>(bits));
    const float next = float_from_float16(static_cast<uint16_t>(bits + 1));
    const float middle = half + (next - half) / 2;
    for (float x : {half, middle, std::nextafter(middle, half), std::nextafter(middle, next)}) {
      if (!std::isnan(x)) floats.push_back(x);
    }
  }
  for (DataType type : {DataType::float16, DataType::bfloat16}) {
    for (size_t count : {size_t{1}, size_t{7}, size_t{8}, floats.size() - 3}) {
      std::vector<uint16_t> halves(count);
      std::vector<float> back(count);
      convert(halves.data(), type, floats.data(), DataType::float32, int64_t(count));
      convert(back.data(), DataType::float32, halves.data(), type, int64_t(count));
      for (size_t i = 0; i < count; ++i) {
        const bool is_float16 = type == DataType::float16;
        CHECK_EQUAL(halves[i],
                    is_float16 ? float16_from_float(floats[i]) : bfloat16_from_float(floats[i]));
        CHECK_EQUAL(back[i],
                    is_float16 ? float_from_float16(halves[i]) : float_from_bfloat16(halves[i]));
      }
    }
  }
  const std::vector<float> nans(9, std::numeric_limits<float>::quiet_NaN());
  std::vector<uint16_t> halves(nans.size());
  convert(halves.data(), DataType::float16, nans.data(), DataType::float32, 9);
  for (uint16_t half : halves) CHECK(std::isnan(float_from_float16(half)));
}

TEST(float16_rounds_to_nearest_even) {
  CHECK_EQUAL(float16_from_float(1.0f + 0x1p-11f), 0x3c00);      // a tie: to even
  CHECK_EQUAL(float16_from_float(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie: to even
  CHECK_EQUAL(float16_from_float(65519.0f), 0x7bff);             // largest finite
  CHECK_EQUAL(float16_from_float(65520.0f), 0x7c00);             // rounds to infinity
  CHECK_EQUAL(float16_from_float(-65520.0f), 0xfc00);
  CHECK_EQUAL(float16_from_float(0x1p-25f), 0x0000);  // a tie: to zero
  CHECK_EQUAL(float16_from_float(0x1.8p-25f), 0x0001);
  CHECK_EQUAL(float16_from_float(-0.0f), 0x8000);
}

TEST(integers_wrap_like_unsigned_ones) {
  int8_t a = 127, b = 1;
  combine(&a, &a, &b, 1, DataType::int8, ReduceOp::sum);
  CHECK_EQUAL(int(a), -128);
  int64_t c = std::numeric_limits<int64_t>::max(), d = 2;
  combine(&c, &c, &d, 1, DataType::int64, ReduceOp::product);
  CHECK_EQUAL(c, int64_t{-2});
}

TEST(every_reduction_of_int32_is_what_it_says) {
  const std::vector<int32_t> a{3, -4, 7}, b{5, -6, 7};
  std::vector<int32_t> out(3);
  const auto run = [&](ReduceOp op) {
    combine(out.data(), a.data(), b.data(), 3, DataType::int32, op);
    return out;
  };
  CHECK(run(ReduceOp::sum) == (std::vector<int32_t>{8, -10, 14}));
  CHECK(run(ReduceOp::min) == (std::vector<int32_t>{3, -6, 7}));
  CHECK(run(ReduceOp::max) == (std::vector<int32_t>{5, -4, 7}));
  CHECK(run(ReduceOp::product) == (std::vector<int32_t>{15, 24, 49}));
}

TEST(bool_reductions_are_any_and_all) {
  const std::vector<uint8_t> a{0, 0, 1, 1}, b{0, 1, 0, 1};
  std::vector<uint8_t> out(4);
  combine(out.data(), a.data(), b.data(), 4, DataType::boolean, ReduceOp::sum);
  CHECK(out == (std::vector<uint8_t>{0, 1, 1, 1}));
  combine(out.data(), a.data(), b.data(), 4, DataType::boolean, ReduceOp::min);
  CHECK(out == (std::vector<uint8_t>{0, 0, 0, 1}));
}

TEST(integer_averages_are_exact_where_the_quotient_is) {
  for (int divisor = 1; divisor <= 64; ++divisor) {
    int32_t value = 7 * divisor;
    scale(&value, 1, DataType::int32, 1.0, divisor);
    CHECK_EQUAL(value, 7);
  }
  int32_t negative = -7;
  scale(&negative, 1, DataType::int32, 1.0, 2);
  CHECK_EQUAL(negative, -3);  // towards zero
}

TEST(scaling_an_integer_out_of_its_range_saturates) {
  uint8_t small = 200;
  scale(&small, 1, DataType::uint8, 2.0);
  CHECK_EQUAL(int(small), 255);
  int64_t large = std::numeric_limits<int64_t>::max();
  scale(&large, 1, DataType::int64, 4.0);
  CHECK_EQUAL(large, std::numeric_limits<int64_t>::max());
}

TEST(bfloat16_sums_round_once) {
  uint16_t a = bfloat16_from_float(1.0f), b = bfloat16_from_float(0x1p-8f);
  combine(&a, &a, &b, 1, DataType::bfloat16, ReduceOp::sum);
  CHECK_EQUAL(float_from_bfloat16(a), 1.0f);  // 1 + 2^-8 is a tie: to even
}

namespace {

// Reduces the elements of `inputs` in two steps: every `group` ranks in a row, then their results.
std::vector<float> reduced_in_two_steps(const RankReduction& how, DataType type,
                                        const std::vector<std::vector<float>>& inputs, int group) {
  const auto count = static_cast<int64_t>(inputs[0].size());
  const RankReduction::Step first{true, false}, last{false, true};
  std::vector<std::vector<char>> results;
  for (size_t begin = 0; begin < inputs.size(); begin += static_cast<size_t>(group)) {
    std::vector<std::vector<char>> from(static_cast<size_t>(group));
    for (size_t i = 0; i < from.size(); ++i) {
      from[i].resize(static_cast<size_t>(count * how.item_before(first)));
      convert(from[i].data(), type, inputs[begin + i].data(), DataType::float32, count);
      how.scale_input(from[i].data(), count);
    }
    std::vector<char> out(static_cast<size_t>(count * how.item_after(first)));
    how.combine_some(out.data(), from[0].data(), group, count, first,
                     [&](int peer) { return from[static_cast<size_t>(peer)].data(); });
    results.push_back(out);
  }
  std::vector<char> out(static_cast<size_t>(count * how.item_after(last)));
  how.combine_some(out.data(), results[0].data(), static_cast<int>(results.size()), count, last,
                   [&](int peer) { return results[static_cast<size_t>(peer)].data(); });
  std::vector<float> seen(inputs[0].size());
  convert(seen.data(), DataType::float32, out.data(), type, count);
  return seen;
}

}  // namespace

TEST(factors_are_applied_once_however_many_steps_a_reduction_has) {
  const std::vector<std::vector<float>> inputs{{1, 8, 2}, {2, 4, 2},  {4, 2, 2},
                                               {8, 1, 2}, {1, -4, 2}, {2, -8, 2}};
  struct Case {
    ReduceOp op;
    std::vector<float> expected;  // of inputs times 2, and of the result by 4
  };
  for (const auto& [op, expected] :
       std::vector<Case>{{ReduceOp::sum, {9, 1.5f, 6}},
                         {ReduceOp::average, {1.5f, 0.25f, 1}},
                         {ReduceOp::product, {16 * 128, 16 * 2048, 16 * 64}},
                         {ReduceOp::min, {0.5f, -4, 1}},
                         {ReduceOp::max, {4, 4, 1}}}) {
    for (DataType type : {DataType::float16, DataType::bfloat16, DataType::float32}) {
      const RankReduction how(type, op, 2.0, 0.25, 6);
      for (int group : {2, 3, 6}) {
        const std::vector<float> seen = reduced_in_two_steps(how, type, inputs, group);
        for (size_t i = 0; i < seen.size(); ++i) CHECK_EQUAL(seen[i], expected[i]);
      }
    }
  }
}

// 1 + 3/512 lies nearest to 1 + 1/128; rounded after the first step it would be 1.
TEST(halves_are_rounded_in_the_last_step_only) {
  const float small = 0x1p-9f;
  const RankReduction sum(DataType::bfloat16, ReduceOp::sum, 1.0, 1.0, 4);
  const std::vector<std::vector<float>> inputs{{1}, {small}, {small}, {small}};
  CHECK_EQUAL(reduced_in_two_steps(sum, DataType::bfloat16, inputs, 2)[0], 1 + 0x1p-7f);
  // Nor does a partial sum overflow.
  const RankReduction average(DataType::float16, ReduceOp::average, 1.0, 1.0, 4);
  const std::vector<std::vector<float>> large(4, {65504});
  CHECK_EQUAL(reduced_in_two_steps(average, DataType::float16, large, 2)[0], 65504);
}

// Blocks, vectors and what is left behind them; in float64, too, where factors lie in between.
TEST(many_ranks_are_combined_as_one_after_the_other_and_then_scaled) {
  for (const DataType type : {DataType::float32, DataType::float64, DataType::int32}) {
    const auto item = static_cast<int64_t>(size_of(type));
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      for (const int ranks : {1, 2, 3, 7}) {
        for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1024}, int64_t{3085}}) {
          const auto bytes = static_cast<size_t>(count * item);
          std::vector<std::vector<char>> from(static_cast<size_t>(ranks), std::vector<char>(bytes));
          for (int rank = 0; rank < ranks; ++rank) {
            for (int64_t i = 0; i < count; ++i) {
              const auto value = static_cast<double>((i * 31 + rank * 17) % 101 - 50) / 7;
              char* const at = from[size_t(rank)].data() + i * item;
              if (type == DataType::float32) *reinterpret_cast<float*>(at) = float(value);
              if (type == DataType::float64) *reinterpret_cast<double*>(at) = value;
              if (type == DataType::int32) *reinterpret_cast<int32_t*>(at) = int32_t(value * 7);
            }
          }
          std::vector<char> expected = from[0];
          for (int rank = 1; rank < ranks; ++rank) {
            combine(expected.data(), expected.data(), from[size_t(rank)].data(), count, type, op);
          }
          scale(expected.data(), count, type, 0.3, op == ReduceOp::average ? ranks : 1);
          const RankReduction how(type, op, 1.0, 0.3, ranks);
          std::vector<char> elsewhere(bytes, 'x'), partial(bytes, 'x');
          how.combine_all(elsewhere.data(), partial.data(), count,
                          [&](int peer) { return from[size_t(peer)].data(); });
          CHECK(elsewhere == expected);
          // In place of any contribution, by way of the first, or of the second, or of `out`.
          for (int own = 0; own < ranks; ++own) {
            for (const int by : {0, std::min(1, ranks - 1), own}) {
              if (by == own && own > 1) continue;
              std::vector<std::vector<char>> there = from;
              how.combine_all(there[size_t(own)].data(), there[size_t(by)].data(), count,
                              [&](int peer) { return there[size_t(peer)].data(); });
              CHECK(there[size_t(own)] == expected);
            }
          }
        }
      }
    }
  }
}

TEST(min_and_max_of_a_nan_and_anything_are_nan_and_of_the_rest_what_they_say) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // Enough of each for whole vectors and what is left behind them.
  std::vector<float> a, b;
  for (int i = 0; i < 11; ++i) {
    for (const auto& [x, y] : std::vector<std::pair<float, float>>{{nan, 1.0f},
                                                                   {1.0f, nan},
                                                                   {nan, nan},
                                                                   {nan, infinity},
                                                                   {-infinity, nan},
                                                                   {2.0f, -1.0f},
                                                                   {-infinity, infinity},
                                                                   {-0.0f, -0.0f},
                                                                   {infinity, infinity}}) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  const auto count = static_cast<int64_t>(a.size());
  const auto reduced = [&](DataType type, ReduceOp op) {
    std::vector<double> x(a.begin(), a.end()), y(b.begin(), b.end()), out(a.size());
    if (type == DataType::float64) {
      combine(out.data(), x.data(), y.data(), count, type, op);
      return out;
    }
    std::vector<float> p(a.size()), q(a.size()), r(a.size());
    convert(p.data(), type, a.data(), DataType::float32, count);
    convert(q.data(), type, b.data(), DataType::float32, count);
    combine(q.data(), p.data(), q.data(), count, type, op);
    convert(r.data(), DataType::float32, q.data(), type, count);
    return std::vector<double>(r.begin(), r.end());
  };
  for (DataType type :
       {DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64}) {
    for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      const std::vector<double> seen = reduced(type, op);
      for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(a[i]) || std::isnan(b[i])) {
          CHECK(std::isnan(seen[i]));
        } else {
          CHECK_EQUAL(seen[i], op == ReduceOp::min ? std::min(a[i], b[i]) : std::max(a[i], b[i]));
          CHECK_EQUAL(std::signbit(seen[i]), std::signbit(a[i] == b[i] ? a[i] : float(seen[i])));
        }
      }
    }
  }
}
