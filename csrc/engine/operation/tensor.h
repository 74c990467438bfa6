// One tensor on its way through the engine, and the handle by which its owner waits for it.
#pragma once

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
  // Output of an allgather, alltoall or reducescatter.
  std::shared_ptr<char[]> result;
  int64_t result_bytes = 0;
  Shape result_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows from each rank of the set
  EventPtr finished;  // on a GPU: `done` means that the work is in its stream, this that it is done
  DeviceMemory device_result;  // instead of `result`; its reader takes it, `release` lets it go
  int32_t value = 0;           // join: the last rank; add_process_set, remove_process_set: the id
};

// How far negotiation has come.
enum class Stage : uint8_t { queued, announced, answered };

struct TensorEntry {
  SharedRequest request;
  const void* input = nullptr;  // these live until the handle is released by its owner
  void* output = nullptr;
  EventPtr ready;  // on a GPU: the input is there
  int64_t step = 0;
  int64_t announced_slot = -1;  // of the response cache; -1: its whole request was sent
  Stage stage = Stage::queued;
  Handle* handle = nullptr;  // nullptr: zeros of a rank that has joined
};

// An operation of this rank, from enqueue until it is complete and its handle is released.
struct InFlight {
  TensorEntry entry;
  Handle handle;
  int64_t number = 0;  // of the handle
};

// One response as this rank carries it out.
struct Work {
  const Response* response = nullptr;
  // This rank's tensors in the order of the response's items; empty where it has no part in it.
  std::vector<TensorEntry*> entries;
};

}  // namespace autotune
