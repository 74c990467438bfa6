#include "common/proof.h"

#include <cstdint>

#include "common/sha256.h"

namespace autotune {

namespace {

constexpr std::string_view mark = "hvd-at-1";  // says nothing but what this is
constexpr size_t random_part = 32;
static_assert(challenge_bytes == mark.size() + random_part);
static_assert(claim_bytes == mark.size() + 4 + random_part + digest_bytes);
static_assert(answer_bytes == mark.size() + digest_bytes);

bool has_mark(std::string_view bytes) { return bytes.substr(0, mark.size()) == mark; }

// All parts but the word have fixed lengths: no two sets of parts give the same bytes.
std::string prove(std::string_view key, std::string_view word, std::string_view challenge,
                  std::string_view claim) {
  std::string parts(word);
  parts += ':';
  return hmac_sha256(key, parts.append(challenge).append(claim));
}

}  // namespace

std::string make_challenge() { return std::string(mark) + random_bytes(random_part); }

std::string make_claim(std::string_view key, std::string_view challenge, int rank) {
  std::string claim(mark);
  for (int shift = 0; shift < 32; shift += 8) {
    claim += static_cast<char>(static_cast<uint32_t>(rank) >> shift);
  }
  claim += random_bytes(random_part);
  return claim + prove(key, "claim", challenge, claim);
}

std::string make_answer(std::string_view key, std::string_view challenge, std::string_view claim) {
  return std::string(mark) + prove(key, "answer", challenge, claim);
}

bool is_challenge(std::string_view bytes) {
  return bytes.size() == challenge_bytes && has_mark(bytes);
}

std::optional<int> rank_that_claims(std::string_view key, std::string_view challenge,
                                    std::string_view bytes, int size) {
  if (bytes.size() != claim_bytes || !has_mark(bytes)) return std::nullopt;
  const std::string_view claim = bytes.substr(0, claim_bytes - digest_bytes);
  const std::string_view proof = bytes.substr(claim.size());
  if (!equal_secrets(proof, prove(key, "claim", challenge, claim))) return std::nullopt;
  uint32_t rank = 0;
  for (size_t i = 0; i < 4; ++i) {
    rank |= uint32_t{static_cast<unsigned char>(claim[mark.size() + i])} << (8 * i);
  }
  if (rank == 0 || size < 1 || rank >= static_cast<uint32_t>(size)) return std::nullopt;
  return static_cast<int>(rank);
}

bool is_answer(std::string_view key, std::string_view challenge, std::string_view claim,
               std::string_view bytes) {
  return bytes.size() == answer_bytes && equal_secrets(bytes, make_answer(key, challenge, claim));
}

}  // namespace autotune
