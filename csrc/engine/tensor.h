// One tensor on its way through the engine, and the handle by which its owner waits for it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "engine/message.h"

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
  void* device_result = nullptr;  // instead of `result`; its reader or `release` frees it
  int32_t value = 0;  // join: the last rank; add_process_set, remove_process_set: the id
};

struct TensorEntry {
  SharedRequest request;
  const void* input = nullptr;  // these live until the handle is released by its owner
  void* output = nullptr;
  EventPtr ready;  // on a GPU: the input is there
  int64_t step = 0;
  int64_t announced_slot = -1;  // of the response cache; -1: its whole request was sent
  Handle* handle = nullptr;     // nullptr: zeros of a rank that has joined
};

// An operation of this rank, from enqueue until it is complete and its handle is released.
struct InFlight {
  TensorEntry entry;
  Handle handle;
  int64_t number = 0;  // of the handle
};

// Handles by number. They are released about in the order in which they were made.
class HandleTable {
 public:
  // `memory` outlives this.
  explicit HandleTable(std::pmr::memory_resource* memory) : handles_(memory) {}

  // The number that `add` gives next.
  int64_t next() const { return first_ + static_cast<int64_t>(handles_.size()); }
  void add(std::shared_ptr<Handle> handle) { handles_.push_back(std::move(handle)); }
  // nullptr: there is none, or it is released.
  std::shared_ptr<Handle> find(int64_t number) const {
    return known(number) ? handles_[static_cast<size_t>(number - first_)] : nullptr;
  }
  Handle* get(int64_t number) const {
    return known(number) ? handles_[static_cast<size_t>(number - first_)].get() : nullptr;
  }
  void release(int64_t number) {
    if (!known(number)) return;
    handles_[static_cast<size_t>(number - first_)] = nullptr;
    for (; !handles_.empty() && !handles_.front(); ++first_) handles_.pop_front();
  }

 private:
  bool known(int64_t number) const { return number >= first_ && number < next(); }

  int64_t first_ = 0;
  std::pmr::deque<std::shared_ptr<Handle>> handles_;
};

// One response as this rank carries it out.
struct Work {
  const Response* response = nullptr;
  // This rank's tensors in the order of the response's items; empty where it has no part in it.
  std::vector<TensorEntry*> entries;
};

}  // namespace autotune
