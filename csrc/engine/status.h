// What every thread may look at without a lock.
#pragma once

#include <atomic>

#include "comm/device.h"

namespace autotune {

struct EngineStatus {
  std::atomic<Device*> device{nullptr};     // it is the executor's, and set once
  std::atomic<bool> device_is_busy{false};  // it was seen so last, and is set when it gets work
  // Both are set with the lock of the submission, where the reason is: nobody sees one without the
  // other.
  std::atomic<bool> failed{false};     // the engine has ended by an error
  std::atomic<bool> stopped{false};    // it has ended, and all operations with it
  std::atomic<bool> abandon{false};    // shutdown has waited long enough, or it was aborted
  std::atomic<bool> has_ended{false};  // operations have, of which somebody is to be told
};

}  // namespace autotune
