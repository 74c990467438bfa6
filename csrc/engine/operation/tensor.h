// One tensor on its way through the engine, and the handle by which its owner waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/device.h"
#include "engine/operation/message.h"

namespace autotune {

struct Handle {
  bool done = false;
  bool waited = false;    // a thread sleeps until this one is done
  bool released = false;  // nobody will ask for the result
  std::string error;
  // The output of an allgather, alltoall or reducescatter is here.
  std::shared_ptr<char[]> result;
  int64_t result_bytes = 0;
  Shape result_shape;
  std::vector<int64_t> received_splits;  // an alltoall gets so many rows from each rank of the set
  // On a GPU, `done` means that the work is in its stream, and this that it is done.
  EventPtr finished;
  // On a GPU it takes the place of `result`; its reader takes it, or `release` lets it go.
  DeviceMemory device_result;
  // A join tells the last rank here, add_process_set and remove_process_set the id.
  int32_t value = 0;
};

// Is told how an operation ended, in place of a thread that waits for its handle.
class Completion {
 public:
  // `is_awaited`: a thread of the script sleeps until it has been told.
  explicit Completion(bool awaited) : is_awaited(awaited) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // By the engine's own thread, without a lock: it may hand over operations. `handle` is done, and
  // nobody else has it.
  virtual void completed(const Handle& handle) = 0;

  const bool is_awaited;
  std::chrono::steady_clock::time_point handed_over{};
};

// How far negotiation has come.
enum class Stage : uint8_t { queued, announced, answered };

struct TensorEntry {
  SharedRequest request;
  // Both live until the handle is released by its owner.
  const void* input = nullptr;
  void* output = nullptr;
  EventPtr ready;  // on a GPU it says when the input is there
  int64_t step = 0;
  // It is a slot of the response cache; -1 means that the whole request was sent.
  int64_t announced_slot = -1;
  Stage stage = Stage::queued;
  Handle* handle = nullptr;  // it is nullptr for the zeros of a rank that has joined
  // Not nullptr: nobody waits for the handle, which is released when it has been told.
  std::shared_ptr<Completion> completion;
};

// An operation that has ended, and who is to be told.
struct Ended {
  std::shared_ptr<Completion> completion;
  Handle handle;
};

// An operation of this rank, from enqueue until it is complete and its handle is released.
struct InFlight {
  TensorEntry entry;
  Handle handle;
  int64_t number = 0;  // its handle has this number
};

// One response as this rank carries it out.
struct Work {
  const Response* response = nullptr;
  // These are this rank's tensors, in the order of the response's items; there are none where it
  // has no part in it.
  std::vector<TensorEntry*> entries;
};

}  // namespace autotune
