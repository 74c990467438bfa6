// SHA-256 and what is made of it here: proofs that the other end of a connection has the same key.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace autotune {

constexpr size_t digest_bytes = 32;

// FIPS 180-4, section 6.2; `digest_bytes` bytes.
std::string sha256(std::string_view message);

// HMAC of `message` under `key`, which may have any length: RFC 2104 with SHA-256.
std::string hmac_sha256(std::string_view key, std::string_view message);

// In a time that says nothing about where they differ.
bool equal_secrets(std::string_view a, std::string_view b);

// From the system's source of randomness. Throws EngineError.
std::string random_bytes(size_t count);

std::string to_hex(std::string_view bytes);

}  // namespace autotune
