// Every set of instructions that this processor has gives the bits of plain C++, and plain C++
// gives what is nearest.
#include "common/halves.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "common/reduce.h"

using namespace autotune;

namespace {

constexpr DataType half_types[] = {DataType::float16, DataType::bfloat16};
constexpr uint32_t patterns = 0x10000;

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

float widened(DataType type, uint16_t bits) {
  return type == DataType::float16 ? float_from_float16(bits) : float_from_bfloat16(bits);
}

uint16_t narrowed(DataType type, float value) {
  return type == DataType::float16 ? float16_from_float(value) : bfloat16_from_float(value);
}

std::vector<uint16_t> every_half() {
  std::vector<uint16_t> halves(patterns);
  for (uint32_t bits = 0; bits < patterns; ++bits) halves[bits] = static_cast<uint16_t>(bits);
  return halves;
}

// Every half, what lies half way to its neighbours, on both sides of that; NaNs of many payloads;
// and random bits.
std::vector<float> telling_floats(DataType type) {
  std::vector<float> floats;
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const float half = widened(type, static_cast<uint16_t>(bits));
    const float next = widened(type, static_cast<uint16_t>(bits + 1));
    const float middle = half + (next - half) / 2;
    for (float x : {half, middle, std::nextafter(middle, half), std::nextafter(middle, next)}) {
      floats.push_back(x);
    }
    const uint32_t payload = (bits << 7) & 0x7fffffu;
    floats.push_back(float_of(0x7f800000u | payload));
    floats.push_back(float_of(0xff800000u | payload | 1u));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) floats.push_back(float_of(static_cast<uint32_t>(random())));
  return floats;
}

struct Reduction {
  ReduceOp op;
  float before, after;
};

const Reduction reductions[] = {
    {ReduceOp::sum, 1.0f, 1.0f},      {ReduceOp::average, 1.0f / 3, 1.0f},
    {ReduceOp::sum, 1.0f, 0.7f},      {ReduceOp::product, 1.0f, 1.0f},
    {ReduceOp::product, -2.5f, 3.0f}, {ReduceOp::min, 1.0f, 1.0f},
    {ReduceOp::max, 1.0f, 1.0f},      {ReduceOp::max, 0.1f, -1.0f},
};

std::vector<uint16_t> reduced(const HalfKernels& kernels, DataType type, const Reduction& how,
                              const std::vector<std::vector<uint16_t>>& inputs) {
  std::vector<const char*> from;
  for (const auto& input : inputs) from.push_back(reinterpret_cast<const char*>(input.data()));
  std::vector<uint16_t> out(inputs[0].size());
  kernels.reduce(type, type, how.op, reinterpret_cast<char*>(out.data()), from.data(),
                 static_cast<int>(inputs.size()), static_cast<int64_t>(out.size()), how.before,
                 how.after);
  return out;
}

// Where two NaNs meet, either's bits may remain.
void check_same(const HalfKernels& kernels, DataType type, const std::vector<uint16_t>& seen,
                const std::vector<uint16_t>& expected) {
  CHECK_EQUAL(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == expected[i]) continue;
    if (std::isnan(widened(type, seen[i])) && std::isnan(widened(type, expected[i]))) continue;
    check::fail(__FILE__, __LINE__,
                std::string(kernels.name) + ", " + name_of(type) + ", element " +
                    std::to_string(i) + ": got " + std::to_string(seen[i]) + ", expected " +
                    std::to_string(expected[i]));
  }
}

}  // namespace

TEST(plain_instructions_are_always_there_and_the_best_ones_are_taken) {
  const auto known = known_half_kernels();
  CHECK_EQUAL(std::string(known.front()->name), "plain C++");
  CHECK(known.back() == &half_kernels());
}

TEST(every_half_becomes_the_same_float_by_all_instructions) {
  const std::vector<uint16_t> halves = every_half();
  for (const HalfKernels* kernels : known_half_kernels()) {
    for (DataType type : half_types) {
      std::vector<float> floats(patterns);
      kernels->to_floats(type, floats.data(), halves.data(), patterns);
      for (uint32_t bits = 0; bits < patterns; ++bits) {
        CHECK_EQUAL(bits_of(floats[bits]), bits_of(widened(type, halves[bits])));
      }
    }
  }
}

TEST(every_float_becomes_the_same_half_by_all_instructions) {
  for (DataType type : half_types) {
    const std::vector<float> floats = telling_floats(type);
    const auto count = static_cast<int64_t>(floats.size());
    for (const HalfKernels* kernels : known_half_kernels()) {
      std::vector<uint16_t> halves(floats.size());
      kernels->from_floats(type, halves.data(), floats.data(), count);
      for (size_t i = 0; i < floats.size(); ++i) {
        CHECK_EQUAL(halves[i], narrowed(type, floats[i]));
      }
    }
  }
}

TEST(a_half_is_the_nearest_one_and_of_two_the_even_one) {
  for (DataType type : half_types) {
    const uint32_t infinity = type == DataType::float16 ? 0x7c00 : 0x7f80;
    for (uint32_t bits = 0; bits < infinity; ++bits) {
      const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
      const double a = widened(type, low);
      // What is next to the largest one were the exponents to go on.
      const double before = bits > 0 ? widened(type, static_cast<uint16_t>(bits - 1)) : 0;
      const double b = bits + 1 < infinity ? widened(type, high) : 2 * a - before;
      const auto middle = static_cast<float>((a + b) / 2);
      CHECK_EQUAL(double{middle}, (a + b) / 2);
      const uint16_t even = bits % 2 == 0 ? low : high;
      for (uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
        const float s = sign ? -1.0f : 1.0f;
        CHECK_EQUAL(narrowed(type, s * middle), sign | even);
        CHECK_EQUAL(narrowed(type, s * std::nextafter(middle, 0.0f)), sign | low);
        CHECK_EQUAL(
            narrowed(type, s * std::nextafter(middle, std::numeric_limits<float>::infinity())),
            sign | high);
      }
    }
  }
}

TEST(a_nan_stays_quiet_and_one_whatever_its_payload) {
  for (DataType type : half_types) {
    for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 2 + payload % 3) {
      for (uint32_t sign : {0u, 0x80000000u}) {
        const uint16_t half = narrowed(type, float_of(sign | 0x7f800000u | payload));
        CHECK(std::isnan(widened(type, half)));
        CHECK_EQUAL(half & 0x8000u, sign >> 16);
      }
    }
  }
}

// Of each two halves one is from all 65,536 and the other one of those at which something changes.
TEST(every_half_with_a_telling_one_is_reduced_alike_by_all_instructions) {
  const std::vector<uint16_t> halves = every_half();
  for (DataType type : half_types) {
    const uint16_t inf = type == DataType::float16 ? 0x7c00 : 0x7f80;
    const auto one = narrowed(type, 1.0f);
    std::vector<uint16_t> telling;
    for (int bits : {0, 1, 2, inf - 1, int{inf}, inf + 1, 0x7fff, one - 1, int{one}, one + 1,
                     type == DataType::float16 ? 0x03ff : 0x007f,
                     type == DataType::float16 ? 0x0400 : 0x0080}) {
      telling.push_back(static_cast<uint16_t>(bits));
      telling.push_back(static_cast<uint16_t>(bits | 0x8000));
    }
    for (uint16_t other : telling) {
      const std::vector<uint16_t> others(patterns, other);
      for (const Reduction& how : reductions) {
        const auto known = known_half_kernels();
        const auto expected = reduced(*known[0], type, how, {halves, others});
        for (const HalfKernels* kernels : known) {
          check_same(*kernels, type, reduced(*kernels, type, how, {halves, others}), expected);
        }
      }
    }
  }
}

TEST(random_halves_of_any_number_of_ranks_are_reduced_alike_by_all_instructions) {
  std::mt19937 random(11);
  for (DataType type : half_types) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (size_t count = 0; count < 150; ++count) {  // whole steps, vectors and what is left
        std::vector<std::vector<uint16_t>> inputs(static_cast<size_t>(ranks));
        for (auto& input : inputs) {
          for (size_t i = 0; i < count; ++i) input.push_back(static_cast<uint16_t>(random()));
        }
        const Reduction& how = reductions[count % std::size(reductions)];
        const auto known = known_half_kernels();
        const auto expected = reduced(*known[0], type, how, inputs);
        for (const HalfKernels* kernels : known) {
          check_same(*kernels, type, reduced(*kernels, type, how, inputs), expected);
        }
      }
    }
  }
}

TEST(halves_are_reduced_in_float32_in_the_order_of_ranks_and_rounded_once) {
  std::mt19937 random(13);
  const size_t count = 1000;
  for (DataType type : half_types) {
    std::vector<std::vector<uint16_t>> inputs(3);
    for (auto& input : inputs) {
      for (size_t i = 0; i < count; ++i) {
        input.push_back(narrowed(type, float(random()) * 0x1p-20f - 2048.0f));
      }
    }
    std::vector<uint16_t> expected;
    for (size_t i = 0; i < count; ++i) {
      volatile float sum = widened(type, inputs[0][i]) * 0.3f;
      sum = sum + widened(type, inputs[1][i]) * 0.3f;
      sum = sum + widened(type, inputs[2][i]) * 0.3f;
      expected.push_back(narrowed(type, sum * 1.7f));
    }
    for (const HalfKernels* kernels : known_half_kernels()) {
      const Reduction how{ReduceOp::sum, 0.3f, 1.7f};
      check_same(*kernels, type, reduced(*kernels, type, how, inputs), expected);
      for (size_t place = 0; place < inputs.size(); ++place) {  // over one of the inputs
        auto copies = inputs;
        std::vector<const char*> from;
        for (auto& copy : copies) from.push_back(reinterpret_cast<const char*>(copy.data()));
        kernels->reduce(type, type, how.op, reinterpret_cast<char*>(copies[place].data()),
                        from.data(), 3, count, how.before, how.after);
        check_same(*kernels, type, copies[place], expected);
      }
    }
  }
}

TEST(steps_with_partial_results_in_float32_are_alike_by_all_instructions_and_round_once) {
  std::mt19937 random(17);
  for (DataType type : half_types) {
    for (int64_t count : {1, 7, 16, 100, 1000}) {
      std::vector<std::vector<uint16_t>> inputs(4);
      std::vector<uint16_t> expected;
      for (auto& input : inputs) {
        for (int64_t i = 0; i < count; ++i) {
          input.push_back(narrowed(type, float(random()) * 0x1p-20f - 2048.0f));
        }
      }
      for (size_t i = 0; i < inputs[0].size(); ++i) {
        const auto half = [&](size_t rank) { return widened(type, inputs[rank][i]) * 0.3f; };
        const volatile float low = half(0) + half(1), high = half(2) + half(3);
        expected.push_back(narrowed(type, (low + high) * 1.7f));
      }
      for (const HalfKernels* kernels : known_half_kernels()) {
        std::vector<float> low(inputs[0].size()), high(low), sum(low);
        const auto bytes = [](auto& values) { return reinterpret_cast<char*>(values.data()); };
        const char* first[] = {bytes(inputs[0]), bytes(inputs[1])};
        const char* second[] = {bytes(inputs[2]), bytes(inputs[3])};
        const char* both[] = {bytes(low), bytes(high)};
        const DataType single = DataType::float32;
        kernels->reduce(type, single, ReduceOp::sum, bytes(low), first, 2, count, 0.3f, 1.0f);
        kernels->reduce(type, single, ReduceOp::sum, bytes(high), second, 2, count, 0.3f, 1.0f);
        std::vector<uint16_t> out(low.size());
        kernels->reduce(single, type, ReduceOp::sum, bytes(out), both, 2, count, 1.0f, 1.7f);
        check_same(*kernels, type, out, expected);
        kernels->reduce(single, single, ReduceOp::sum, bytes(sum), both, 2, count, 1.0f, 1.7f);
        kernels->from_floats(type, out.data(), sum.data(), count);
        check_same(*kernels, type, out, expected);
      }
    }
  }
}

TEST(more_ranks_than_fit_a_small_table_are_reduced_in_order) {
  const int ranks = 70;
  const RankReduction how(DataType::bfloat16, ReduceOp::average, 1.0, 1.0, ranks);
  std::vector<uint16_t> inputs(ranks), out(1);
  for (size_t rank = 0; rank < ranks; ++rank) inputs[rank] = bfloat16_from_float(float(rank));
  how.combine_all(reinterpret_cast<char*>(out.data()), nullptr, 1, [&](int peer) {
    return reinterpret_cast<const char*>(&inputs[static_cast<size_t>(peer)]);
  });
  CHECK_EQUAL(float_from_bfloat16(out[0]), 34.5f);
}
