// Memory that messages are sent from and received into.
//
// A transport whose wait was ended by an error gives its messages up. One that is already on its
// way cannot be taken back: it is delivered whenever the other rank goes on, perhaps after this
// engine has ended. Its memory must then live for ever, and must be the engine's own where it is
// written: a script uses its tensors again. So the engine receives into memory of these types only,
// unless the transport leaves nothing behind; nothing of it is freed once a message was left behind
// in this process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/errors.h"

namespace autotune {

// A transport sets it that could not take back all it had posted; it is never reset.
inline std::atomic<bool> messages_were_left_behind{false};

template <typename T>
struct MessageAllocator {
  using value_type = T;

  MessageAllocator() = default;
  template <typename U>
  MessageAllocator(const MessageAllocator<U>&) {}  // NOLINT: as std::allocator

  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, size_t count) {
    if (!messages_were_left_behind) std::allocator<T>().deallocate(memory, count);
  }
  bool operator==(const MessageAllocator&) const { return true; }
  bool operator!=(const MessageAllocator&) const { return false; }
};

template <typename T>
using MessageVector = std::vector<T, MessageAllocator<T>>;

// The same without a first value, aligned so that any framework takes it over as a tensor.
constexpr std::align_val_t message_alignment{64};

struct MessageDeleter {
  void operator()(char* memory) const {
    if (!messages_were_left_behind) ::operator delete[](memory, message_alignment);
  }
};
using MessageMemory = std::unique_ptr<char[], MessageDeleter>;

inline MessageMemory message_memory(int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  void* const memory = ::operator new[](count, message_alignment, std::nothrow);
  if (memory == nullptr) {
    throw EngineError("memory: expected " + std::to_string(bytes) +
                      " bytes for results or the fusion buffer, got none from the system");
  }
  return MessageMemory(static_cast<char*>(memory));
}

}  // namespace autotune
