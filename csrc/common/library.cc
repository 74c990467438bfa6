#include "common/library.h"

#include <dlfcn.h>

#include "common/errors.h"

namespace autotune {

Library::Library(const std::string& what, const std::vector<std::string>& names) : what_(what) {
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const std::string& name : names) {
      if (name.empty()) continue;
      handle_ = dlopen(name.c_str(), flags);
      if (handle_ != nullptr) return;
    }
  }
  const char* why = dlerror();
  throw EngineError("GPU tensors need " + what + ", which was not found (" +
                    (why == nullptr ? "no reason given" : why) +
                    "); install a PyTorch with CUDA, which brings it, or communicate CPU tensors");
}

void* Library::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) {
    throw EngineError("GPU tensors need a newer " + what_ + ": the one found has no " + name);
  }
  return found;
}

}  // namespace autotune
