#include "engine/execute/device_buffer.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

std::string in_mib(int64_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20) + " MiB"; }

}  // namespace

int64_t DeviceBuffer::grant(int32_t process_set, int64_t bytes, int64_t most_bytes,
                            Communicator* plain, const WaitHook& on_wait) {
  Grant& grant = granted_[process_set];
  if (bytes <= grant.bytes || grant.is_all) return std::min(bytes, grant.bytes);
  const int64_t wanted = std::max(bytes, std::min(2 * grant.bytes, most_bytes));
  int64_t had = grow(wanted, bytes, on_wait);
  const bool lacks_memory = had < bytes;  // others may, too
  if (plain != nullptr) plain->allreduce({{&had, &had, 1}}, DataType::int64, ReduceOp::min, 1, 1);
  grant.bytes = std::max(grant.bytes, had);
  if (had < bytes) {
    grant.is_all = true;
    shortage_ = "no GPU memory for a fusion buffer of " + in_mib(bytes) + ", " +
                in_mib(grant.bytes) + " are used";
    if (lacks_memory) {
      log(LogLevel::warning, "GPU: no memory for a fusion buffer of " + in_mib(bytes) +
                                 "; all ranks use " + in_mib(grant.bytes) +
                                 " and fuse in pieces until another threshold comes");
    }
  }
  return std::min(bytes, grant.bytes);
}

// Returns how much there is: `bytes`, else `needed`, else less. What there was stays: it is
// granted.
int64_t DeviceBuffer::grow(int64_t bytes, int64_t needed, const WaitHook& on_wait) {
  for (int64_t tried = bytes; tried > std::max(large_.bytes, least_bytes);
       tried = tried > needed ? needed : tried / 2) {
    DeviceMemory memory = memory_.allocate(tried, device_.stream(), on_wait);
    if (memory.data == nullptr) continue;
    large_ = {std::move(memory), tried};  // in the order of the stream, as its use
    break;
  }
  return std::min(bytes, std::max(large_.bytes, least_bytes));
}

char* DeviceBuffer::data(int64_t bytes, const WaitHook& on_wait) {
  if (large_.memory.data != nullptr) return static_cast<char*>(large_.memory.data);
  if (bytes > 0 && small_.memory.data == nullptr) {
    small_ = {memory_.allocate(least_bytes, device_.stream(), on_wait), least_bytes};
    if (small_.memory.data == nullptr) {
      throw EngineError("GPU: no memory for a fusion buffer of " + in_mib(least_bytes) +
                        "; the model leaves too little");
    }
  }
  return static_cast<char*>(small_.memory.data);
}

void DeviceBuffer::reset() {
  granted_.clear();
  large_ = {};
}

}  // namespace autotune
