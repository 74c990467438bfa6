// The operations of this rank by name and by the number of their handle.
//
// An operation is found by its name from enqueue to completion; its address does not change. Its
// handle is what remains, as long as its owner has not released it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/operation/message.h"
#include "engine/operation/tensor.h"

namespace autotune {

class InFlightTable {
 public:
  // Moves the entries into the table and numbers them one after the other, all or none of them:
  // throws InvalidRequest, which names rank and size, when a name is taken already.
  const std::vector<InFlight*>& add(TensorEntry* entries, size_t count, int rank, int size);
  // Takes back what the last `add` has taken.
  void take_back();

  int64_t next_number() const { return next_number_; }
  bool empty() const { return by_name_.empty(); }
  // nullptr when there is none.
  TensorEntry* find(const NameKey& name) const;
  // nullptr when it is released.
  const std::shared_ptr<Handle>* find_handle(int64_t number) const;
  // Throws InvalidRequest when it is released.
  const std::shared_ptr<Handle>& handle(int64_t number) const;
  void release(int64_t number) { handles_.erase(number); }

  // The operation is complete: it goes, its handle stays.
  void erase(const TensorEntry& entry);
  // The same, and its handle with it.
  void erase_with_handle(const TensorEntry& entry);
  // Calls `act(entry)` for each, which may erase it.
  template <typename Act>
  void for_each(Act&& act) {
    for (auto each = by_name_.begin(); each != by_name_.end();) act((each++)->second->entry);
  }

 private:
  // What follows takes its memory from it: no step allocates anew.
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::unordered_map<int64_t, std::shared_ptr<Handle>> handles_{&pool_};
  std::pmr::unordered_map<NameKey, std::shared_ptr<InFlight>, NameKeyHash> by_name_{&pool_};
  int64_t next_number_ = 0;
  std::vector<InFlight*> taken_;  // the last `add` has taken them
};

}  // namespace autotune
