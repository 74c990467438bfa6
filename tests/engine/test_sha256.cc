#include "common/sha256.h"

#include "check.h"

using namespace autotune;

// NIST's examples for FIPS 180-4, and the lengths at which the padding takes another block.
TEST(sha256_gives_the_published_digests) {
  CHECK_EQUAL(to_hex(sha256("")),
              "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQUAL(to_hex(sha256("abc")),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQUAL(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQUAL(to_hex(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                            "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")),
              "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK_EQUAL(to_hex(sha256(std::string(1'000'000, 'a'))),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// From Python's hashlib: lengths around those at which the padding takes another block.
TEST(sha256_pads_every_length) {
  std::string all;
  for (size_t length = 0; length <= 130; ++length) all += sha256(std::string(length, 'x'));
  CHECK_EQUAL(to_hex(sha256(all)),
              "f5a018ad6f7a21c451c8d98b57699f4aeeb1976b88771c339c7ea60cd09c64ef");
}

// RFC 4231, test cases 1, 2, 3, 4, 6 and 7.
TEST(hmac_sha256_gives_the_published_values) {
  CHECK_EQUAL(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQUAL(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQUAL(to_hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string key;
  for (char byte = 1; byte <= 25; ++byte) key += byte;
  CHECK_EQUAL(to_hex(hmac_sha256(key, std::string(50, '\xcd'))),
              "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  const std::string long_key(131, '\xaa');
  CHECK_EQUAL(
      to_hex(hmac_sha256(long_key, "Test Using Larger Than Block-Size Key - Hash Key First")),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK_EQUAL(
      to_hex(hmac_sha256(long_key,
                         "This is a test using a larger than block-size key and a larger than "
                         "block-size data. The key needs to be hashed before being used by the "
                         "HMAC algorithm.")),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(secrets_are_equal_when_all_bytes_are) {
  CHECK(equal_secrets("", ""));
  CHECK(equal_secrets(std::string("a\0b", 3), std::string("a\0b", 3)));
  CHECK(!equal_secrets(std::string("a\0b", 3), std::string("a\0c", 3)));
  CHECK(!equal_secrets("ab", "abc"));
  CHECK(random_bytes(32) != random_bytes(32));
}
