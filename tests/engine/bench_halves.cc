// Time of reducing halves, by each set of instructions that this processor has: `ninja
// halves_bench` in the folder of the tests' build, then engine_tests/halves_bench [elements]
// [repetitions].
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/halves.h"
#include "common/reduce.h"

using namespace autotune;

namespace {

// The shortest of some repetitions, in ns an element of one rank.
template <typename Act>
double ns_per_element(size_t elements, int repetitions, Act&& act) {
  double best = 1e300;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    act();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / static_cast<double>(elements));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t elements = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1 << 16;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 200;
  const auto count = static_cast<int64_t>(elements);
  const int most = 4;
  std::vector<std::vector<float>> floats(most, std::vector<float>(elements, 1.5f));
  std::vector<std::vector<uint16_t>> halves(most, std::vector<uint16_t>(elements, 0x3c01));
  std::vector<uint16_t> out(elements);
  std::printf("%-10s %-14s %s\n", "type", "instructions", "ns an element: 2 ranks, 4 ranks");
  const auto of_floats = [&](int ranks) {
    return ns_per_element(elements, repetitions, [&] {
      for (int rank = 1; rank < ranks; ++rank) {
        combine(floats[0].data(), floats[0].data(), floats[size_t(rank)].data(), count,
                DataType::float32, ReduceOp::sum);
      }
    });
  };
  std::printf("%-10s %-14s %.3f %.3f\n", "float32", "(as built)", of_floats(2), of_floats(4));
  for (DataType type : {DataType::float16, DataType::bfloat16}) {
    for (const HalfKernels* kernels : known_half_kernels()) {
      const auto of_ranks = [&](int ranks) {
        const char* from[most];
        for (int rank = 0; rank < ranks; ++rank) {
          from[rank] = reinterpret_cast<const char*>(halves[size_t(rank)].data());
        }
        return ns_per_element(elements, repetitions, [&] {
          kernels->reduce(type, type, ReduceOp::sum, reinterpret_cast<char*>(out.data()), from,
                          ranks, count, 0.5f, 1.0f);
        });
      };
      std::printf("%-10s %-14s %.3f %.3f\n", name_of(type), kernels->name, of_ranks(2),
                  of_ranks(4));
    }
  }
  return 0;
}
