// What was agreed before, so that it need not be said again.
//
// The coordinator owns a CacheDirectory, which decides what is remembered in which slot; every rank
// (the coordinator's too) has a ResponseCache, which only follows the response sequence. Because
// slots are reused, a hit is meant as of the response list that its sender had processed last: the
// directory keeps what a slot held before.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/operation/message.h"

namespace autotune {

struct TensorEntry;

struct CacheEntry {
  SharedRequest request;      // it is this rank's own; in the directory, the first member's
  std::vector<int64_t> rows;  // they are as in ResponseItem
};

class ResponseCache {
 public:
  // Slot of an agreed request equal to `request`, or -1.
  int64_t find(const SharedRequest& request);
  // Slot of an agreed request of that name, or -1.
  int64_t slot_of(const std::string& name) const;
  // nullptr when the slot is empty.
  const CacheEntry* at(int64_t slot) const;
  // Of the slots 64 * word + bit those that hold a request of all ranks, as bits.
  uint64_t slots_of_all(size_t word) const { return word < of_all_.size() ? of_all_[word] : 0; }
  // It is another one after every change of what the slots hold.
  uint64_t version() const { return version_; }
  void put(int64_t slot, CacheEntry entry);
  void erase(int64_t slot);

  // Which tensor this rank has announced by the slot; nullptr: none, or the slot has changed since.
  TensorEntry* announced(int64_t slot) const { return slots_[static_cast<size_t>(slot)].announced; }
  void set_announced(int64_t slot, TensorEntry* tensor) {
    slots_[static_cast<size_t>(slot)].announced = tensor;
  }
  // `tensor` comes to its end.
  void forget(const TensorEntry* tensor, int64_t slot);

 private:
  struct Slot {
    bool occupied = false;
    CacheEntry entry;
    TensorEntry* announced = nullptr;
  };
  std::vector<Slot> slots_;
  std::vector<uint64_t> of_all_;
  uint64_t version_ = 0;
  std::unordered_map<std::string, int64_t> slot_of_;
};

class CacheDirectory {
 public:
  explicit CacheDirectory(int64_t capacity) : capacity_(capacity) {}

  int64_t capacity() const { return capacity_; }
  int64_t size() const { return static_cast<int64_t>(slot_of_.size()); }

  // Current slot of `name`, or -1.
  int64_t slot_of(const std::string& name) const;
  const CacheEntry& current(int64_t slot) const;
  // What `slot` held for a rank that had processed `processed` response lists; nullptr: nothing.
  const CacheEntry* as_of(int64_t slot, uint64_t processed) const;
  // The slots 64 * word + bit whose current entry is what `as_of` says, as bits.
  uint64_t current_slots(size_t word, uint64_t processed) const;
  // Those whose entry is of another process set than that of all ranks.
  uint64_t slots_of_sets(size_t word) const { return words_[word].of_sets; }

  // Remember `entry` from response list number `list` on. `pinned(slot)` tells which slots may not
  // be given away. Returns the slot, or -1 when there is no room.
  template <typename Pinned>
  int64_t insert(CacheEntry entry, uint64_t list, Pinned&& pinned);
  // No rank will ask `as_of` with less than `processed` any more.
  void forget_before(uint64_t processed) { oldest_needed_ = processed; }
  void touch(int64_t slot);
  // Change the capacity; returns the slots that had to go, least recently used first.
  std::vector<int64_t> resize(int64_t capacity);

 private:
  struct Slot {
    // It is of (list number, entry), the oldest first.
    std::vector<std::pair<uint64_t, CacheEntry>> history;
    // It is in order_, and valid while the slot is occupied.
    std::list<int64_t>::iterator position;
  };
  // What is known of 64 slots.
  struct Word {
    uint64_t occupied = 0;
    uint64_t of_sets = 0;
    uint64_t newest_list = 0;  // since this list all of them have held what they hold
  };

  bool is_occupied(int64_t slot) const {
    return (words_[static_cast<size_t>(slot / 64)].occupied >> (slot % 64) & 1) != 0;
  }
  void vacate(int64_t slot);
  void occupy(int64_t slot, CacheEntry entry, uint64_t list);

  int64_t capacity_;
  uint64_t oldest_needed_ = 0;
  std::vector<Slot> slots_;
  std::vector<Word> words_;
  std::vector<int64_t> free_;
  std::list<int64_t> order_;  // the least recently used one comes first
  std::unordered_map<std::string, int64_t> slot_of_;
};

template <typename Pinned>
int64_t CacheDirectory::insert(CacheEntry entry, uint64_t list, Pinned&& pinned) {
  if (capacity_ == 0) return -1;
  int64_t slot = slot_of(entry.request->name);
  const bool has_room = size() < capacity_;  // after a shrinkage not all free slots are room
  if (slot < 0 && has_room && !free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slot < 0 && has_room) {
    slot = static_cast<int64_t>(slots_.size());
    slots_.emplace_back();
    words_.resize(static_cast<size_t>(slot / 64) + 1);
  } else if (slot < 0) {
    for (int64_t candidate : order_) {
      if (pinned(candidate)) continue;
      slot = candidate;
      break;
    }
    if (slot < 0) return -1;
  }
  if (is_occupied(slot)) vacate(slot);
  occupy(slot, std::move(entry), list);
  return slot;
}

}  // namespace autotune
