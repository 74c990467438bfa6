// engine_tests [name ...]: run the named tests, or all.

#include <iostream>
#include <vector>

#include "check.h"

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) {
    for (const auto& [name, body] : check::tests()) names.push_back(name);
  }
  int failed = 0;
  for (const std::string& name : names) {
    try {
      check::tests().at(name)();
      std::cout << "ok " << name << std::endl;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << "FAILED " << name << ": " << error.what() << std::endl;
    }
  }
  std::cout << names.size() - static_cast<size_t>(failed) << " passed, " << failed << " failed\n";
  return failed == 0 && !names.empty() ? 0 : 1;
}
