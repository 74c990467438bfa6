// The function by which an asynchronous kernel says that it is done.
//
// TensorFlow hands over the address of a std::function<void()> that lives until the kernel's
// compute function returns. Its C API has no way to keep it, so it is moved out: that takes for
// granted that both sides have the same C++ library's std::function, which is looked at when this
// library is loaded and when it gets the first one.
#pragma once

#include <functional>
#include <string>

#include "tensorflow/c_api.h"

namespace autotune::tensorflow {

using Done = std::function<void()>;

// What speaks against it, in one sentence; "": nothing.
std::string test_done();

// Takes it over. Empty: it does not look like one, and is left where it is.
Done take_done(TF_AsyncOpKernelDoneCallback* done);

}  // namespace autotune::tensorflow
