// Copies, and by which stores shared memory and results are written.
#include "common/copy.h"
#include "common/store_choice.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"

using namespace autotune;

TEST(copies_of_any_length_and_place_are_exact) {
  std::vector<unsigned char> from(20'000);
  std::iota(from.begin(), from.end(), static_cast<unsigned char>(0));
  for (const auto copy : {copy_bytes, stream_bytes}) {
    for (size_t length :
         {0, 1, 15, 16, 63, 64, 65, 127, 200, 1279, 1280, 1281, 2047, 2048, 2049, 4096, 9000}) {
      for (size_t at : {0, 1, 8, 16, 33, 63, 64}) {
        for (size_t source : {0, 1, 7, 64}) {
          std::vector<unsigned char> to(10'000, 255), expected = to;
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), length,
                      expected.begin() + static_cast<std::ptrdiff_t>(at));
          copy(to.data() + at, from.data() + source, static_cast<int64_t>(length));
          CHECK(to == expected);
        }
      }
    }
  }
  copy_bytes(nullptr, nullptr, 0);
  stream_bytes(nullptr, nullptr, 0);
}

namespace {

// The share of streaming rounds among `rounds`, of which each kind takes its time, more or less.
double streaming_share(StoreChoice& choice, int rounds, double cached, double streaming,
                       double noise = 0) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(1, noise);
  int found = 0;
  for (int i = 0; i < rounds; ++i) {
    const double time = choice.streaming() ? streaming : cached;
    found += choice.streaming();
    choice.add(noise > 0 ? time * normal(random) : time);
  }
  return static_cast<double>(found) / rounds;
}

}  // namespace

TEST(the_faster_kind_of_stores_is_found_and_found_again) {
  StoreChoice choice;
  constexpr int some = 4 * StoreChoice::longest_rest * StoreChoice::period;
  constexpr int many = 100 * StoreChoice::period;
  for (int turn = 0; turn < 3; ++turn) {
    streaming_share(choice, some, 33, 20);
    CHECK(streaming_share(choice, many, 33, 20, 0.1) > 0.95);
    streaming_share(choice, some, 15, 24);
    CHECK(streaming_share(choice, many, 15, 24, 0.1) < 0.05);
  }
}

TEST(stores_that_are_far_worse_are_tried_ever_more_rarely_and_found_when_they_are_better) {
  StoreChoice choice;
  constexpr int period = StoreChoice::period, rare = period * StoreChoice::longest_rest;
  streaming_share(choice, 100 * period, 20, 33);
  CHECK(streaming_share(choice, 10 * rare, 20, 33, 0.02) <= 2.5 / rare);
  streaming_share(choice, 4 * rare, 20, 12, 0.02);
  CHECK(streaming_share(choice, 100 * period, 20, 12, 0.02) > 0.95);
}

// As of slots, which are a little better cached, and of outputs, which are far better streamed.
TEST(two_choices_of_the_same_rounds_do_not_mislead_each_other) {
  StoreChoice one, other(StoreChoice::period / 4);
  constexpr int rounds = 100 * StoreChoice::period;
  int found = 0, wrong = 0;
  for (int i = 0; i < 2 * rounds; ++i) {
    const double time = (one.streaming() ? 21 : 20) * (other.streaming() ? 0.8 : 1);
    found += i > rounds && other.streaming();
    wrong += i > rounds && one.streaming();
    if (one.add(time)) other.forget();
    if (other.add(time)) one.forget();
  }
  CHECK(found > 0.95 * rounds);
  CHECK(wrong < 0.05 * rounds);
}

TEST(only_rounds_that_are_measured_try_the_other_kind) {
  StoreChoice choice;
  int tried = 0;
  for (int i = 0; i < StoreChoice::period; ++i) {
    CHECK(!choice.streaming(false));
    tried += choice.streaming();
    choice.add(1);
  }
  CHECK_EQUAL(tried, 2);
}

TEST(stores_are_cached_where_both_kinds_are_alike) {
  StoreChoice choice;
  CHECK(streaming_share(choice, 100 * StoreChoice::period, 20, 19.5, 0.01) < 0.05);
}
