#include "common/proof.h"

#include <random>

#include "check.h"

using namespace autotune;

namespace {

const std::string key(key_bytes, 'k');
const std::string other_key(key_bytes, 'K');

}  // namespace

TEST(who_has_the_key_is_the_rank_that_it_says) {
  const std::string challenge = make_challenge();
  CHECK(is_challenge(challenge));
  for (const int rank : {1, 2, 255, 256, 70'000}) {
    const std::string claim = make_claim(key, challenge, rank);
    CHECK_EQUAL(claim.size(), claim_bytes);
    CHECK_EQUAL(rank_that_claims(key, challenge, claim, 70'001).value_or(-1), rank);
    CHECK(is_answer(key, challenge, claim, make_answer(key, challenge, claim)));
  }
}

TEST(a_claim_is_worth_nothing_with_another_key_for_another_challenge_or_of_no_rank_of_the_job) {
  const std::string challenge = make_challenge();
  const std::string claim = make_claim(key, challenge, 1);
  CHECK(!rank_that_claims(other_key, challenge, claim, 2));
  CHECK(!rank_that_claims(key, make_challenge(), claim, 2));  // an old one, played again
  for (const int rank : {-1, 0, 2, 1 << 30}) {
    CHECK(!rank_that_claims(key, challenge, make_claim(key, challenge, rank), 2));
  }
  CHECK(make_claim(key, challenge, 1) != claim);
}

TEST(no_message_of_one_end_passes_for_one_of_the_other) {
  const std::string challenge = make_challenge();
  const std::string claim = make_claim(key, challenge, 1);
  const std::string answer = make_answer(key, challenge, claim);
  CHECK(!is_answer(other_key, challenge, claim, answer));
  CHECK(!is_answer(key, challenge, make_claim(key, challenge, 1), answer));
  // The claim's own proof, sent back.
  CHECK(!is_answer(key, challenge, claim, claim.substr(0, 8) + claim.substr(claim.size() - 32)));
  CHECK(!is_challenge(answer.substr(0, 39)));
}

TEST(a_changed_bit_or_a_missing_byte_makes_a_proof_void) {
  const std::string challenge = make_challenge();
  const std::string claim = make_claim(key, challenge, 1);
  for (size_t bit = 0; bit < 8 * claim.size(); ++bit) {
    std::string changed = claim;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK(!rank_that_claims(key, challenge, changed, 1 << 30));
  }
  for (size_t length = 0; length < claim.size(); ++length) {
    CHECK(!rank_that_claims(key, challenge, claim.substr(0, length), 2));
  }
  CHECK(!rank_that_claims(key, challenge, claim + "x", 2));
}

TEST(bytes_of_any_kind_are_read_as_nothing) {
  std::mt19937 random(17);
  const std::string challenge = make_challenge();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    CHECK(!rank_that_claims(key, challenge, bytes, 1 << 30));
    CHECK(!is_answer(key, challenge, bytes, bytes));
    CHECK(!is_challenge(bytes));
  }
}
