// Functions of shared libraries that are found at run time.
#pragma once

#include <string>
#include <vector>

namespace autotune {

class Library {
 public:
  // The first of `names` that can be opened; one that the process has loaded already wins. `what`
  // names it for people. Throws EngineError.
  Library(const std::string& what, const std::vector<std::string>& names);

  // Throws EngineError when the library has no such function.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string what_;
  void* handle_ = nullptr;  // it is never closed: others use it, too
};

}  // namespace autotune
