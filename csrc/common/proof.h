// How the two ends of a new control connection prove that they are of one job.
//
// Both have the job's *key*, which never travels on the connection. Three messages of fixed
// lengths:
//
//   coordinator: challenge   mark, 32 random bytes
//   rank:        claim       mark, rank, 32 random bytes, HMAC(key, "claim", challenge, claim)
//   coordinator: answer      mark, HMAC(key, "answer", challenge, claim)
//
// The rank proves first, so that nothing that was made with the key is given to a stranger who
// connects; fresh random bytes of both ends make a proof worthless for any other connection, and
// the words in it one end's proof worthless as the other's.
//
// These are functions over bytes that may be anything; none of them throws, none looks at more than
// it was given.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace autotune {

constexpr size_t key_bytes = 32;

constexpr size_t challenge_bytes = 8 + 32;
constexpr size_t claim_bytes = 8 + 4 + 32 + 32;
constexpr size_t answer_bytes = 8 + 32;

// These three draw random bytes where they say so above; EngineError when there are none.
std::string make_challenge();
std::string make_claim(std::string_view key, std::string_view challenge, int rank);
std::string make_answer(std::string_view key, std::string_view challenge, std::string_view claim);

bool is_challenge(std::string_view bytes);
// Who claims rightly to be one of ranks 1..size-1 in reply to our `challenge`; else nothing.
std::optional<int> rank_that_claims(std::string_view key, std::string_view challenge,
                                    std::string_view bytes, int size);
// True for the coordinator's answer to our `claim`.
bool is_answer(std::string_view key, std::string_view challenge, std::string_view claim,
               std::string_view bytes);

}  // namespace autotune
