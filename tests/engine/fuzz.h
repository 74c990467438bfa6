// A small driver for tests with random inputs: how many, from which seed, and how bytes are
// damaged. Every input has random numbers of its own, so that one alone can be run again.
//
//   FUZZ_INPUTS   inputs of each test; default: what takes some seconds
//   FUZZ_SECONDS  ends each test after so long; without FUZZ_INPUTS there is no other end
//   FUZZ_SEED     default 1
//   FUZZ_FIRST    number of the first input; FUZZ_FIRST=n FUZZ_INPUTS=1 runs one again
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"

// There where a sanitizer is.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace autotune {

class Random {
 public:
  Random(uint64_t seed, uint64_t input) : state_(seed << 40 ^ input << 8) {}

  // SplitMix64 (Steele, Lea and Flood 2014): its state costs nothing to make.
  uint64_t bits() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  // From `least` to `most`.
  int64_t pick(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(bits() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t count) { return pick(1, count) == 1; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<size_t>(pick(0, static_cast<int64_t>(values.size()) - 1))];
  }
  // Numbers at which something may break, and some of no interest.
  int64_t odd_number() {
    static const std::vector<int64_t> numbers{0,
                                              1,
                                              -1,
                                              2,
                                              7,
                                              63,
                                              64,
                                              127,
                                              128,
                                              255,
                                              256,
                                              65535,
                                              1 << 20,
                                              int64_t{1} << 31,
                                              (int64_t{1} << 31) - 1,
                                              int64_t{1} << 32,
                                              (int64_t{1} << 48) + 1,
                                              int64_t{1} << 53,
                                              int64_t{1} << 62,
                                              std::numeric_limits<int64_t>::max(),
                                              std::numeric_limits<int64_t>::min()};
    return one_in(4) ? static_cast<int64_t>(bits()) : of(numbers);
  }
  std::string bytes(int64_t most) {
    std::string text(static_cast<size_t>(pick(0, most)), '\0');
    for (char& byte : text) byte = static_cast<char>(bits());
    return text;
  }

 private:
  uint64_t state_;
};

// The same bytes with some damage: bits, numbers, lengths, pieces of `other`.
inline std::string damage(Random& random, std::string bytes, const std::string& other) {
  const auto place = [&](size_t width) {
    return static_cast<size_t>(random.pick(0, static_cast<int64_t>(bytes.size() - width)));
  };
  const auto put = [&](auto value) {
    if (bytes.size() >= sizeof value)
      std::memcpy(&bytes[place(sizeof value)], &value, sizeof value);
  };
  for (int64_t times = random.one_in(3) ? random.pick(2, 5) : 1; times > 0; --times) {
    const int64_t how = bytes.empty() ? 8 : random.pick(0, 9);
    if (how <= 1) bytes[place(1)] ^= static_cast<char>(1 << random.pick(0, 7));
    if (how == 2) bytes[place(1)] = static_cast<char>(random.odd_number());
    if (how == 3) put(static_cast<int32_t>(random.odd_number()));
    if (how == 4) put(random.odd_number());
    if (how == 5) bytes[place(1)] += static_cast<char>(random.pick(-3, 3));
    if (how == 6) bytes.resize(place(0));
    if (how == 7) bytes.erase(place(1), static_cast<size_t>(random.pick(1, 16)));
    if (how == 8) bytes.insert(place(0), random.bytes(16));
    if (how == 9) {
      const auto from = static_cast<size_t>(random.pick(0, static_cast<int64_t>(other.size())));
      bytes.resize(place(0));
      bytes += other.substr(from);
    }
  }
  return bytes;
}

// Calls `input(random)` for one input after the other; it throws for a finding. `usual`: how many.
template <typename Input>
void fuzz(uint64_t usual, Input&& input) {
  using Clock = std::chrono::steady_clock;
  const auto variable = [](const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  constexpr uint64_t none = std::numeric_limits<uint64_t>::max();
  const uint64_t seconds = variable("FUZZ_SECONDS", 0);
  const uint64_t inputs = variable("FUZZ_INPUTS", seconds > 0 ? none : usual);
  static uint64_t seed, number;
  seed = variable("FUZZ_SEED", 1);
  const uint64_t first = variable("FUZZ_FIRST", 0);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback([] {
      std::fprintf(stderr, "FUZZ_SEED=%llu FUZZ_FIRST=%llu FUZZ_INPUTS=1 runs it again\n",
                   static_cast<unsigned long long>(seed), static_cast<unsigned long long>(number));
    });
  }
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  uint64_t done = 0;
  for (; done < inputs && (seconds == 0 || done % 64 != 0 || Clock::now() < end); ++done) {
    number = first + done;
    Random random(seed, number);
    try {
      input(random);
    } catch (const std::exception& error) {
      throw check::Failure("FUZZ_SEED=" + std::to_string(seed) + " FUZZ_FIRST=" +
                           std::to_string(number) + " FUZZ_INPUTS=1: " + error.what());
    }
  }
  std::printf("%llu inputs from seed %llu\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(seed));
}

}  // namespace autotune
