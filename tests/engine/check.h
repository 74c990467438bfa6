// The little that these tests need of a framework: named tests and checks that say what they saw.
#pragma once

#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace check {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::map<std::string, std::function<void()>>& tests() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

struct Register {
  Register(const char* name, std::function<void()> body) { tests()[name] = std::move(body); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream seen;
  seen << text << ": got " << a << " and " << b;
  fail(file, line, seen.str());
}

template <typename Error, typename Body>
void throws(Body&& body, const std::string& part, const char* file, int line) {
  try {
    body();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    fail(file, line, "expected an error with '" + part + "', got: " + error.what());
  }
  fail(file, line, "expected an error with '" + part + "', got none");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace check

using check::contains;

#define TEST(name)                                                  \
  static void test_##name();                                        \
  static const check::Register register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, "not true: " #condition)
#define CHECK_EQUAL(a, b) check::equal(a, b, #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(Error, part, ...) \
  check::throws<Error>([&] { __VA_ARGS__; }, part, __FILE__, __LINE__)
