#include "engine/negotiation/response_cache.h"

#include <algorithm>
#include <utility>

namespace autotune {

int64_t ResponseCache::find(const SharedRequest& request) {
  const auto likely = static_cast<size_t>(request.likely_slot());
  if (likely < slots_.size() && slots_[likely].occupied && slots_[likely].entry.request.is(request))
    return request.likely_slot();
  const auto found = slot_of_.find(request->name);
  if (found == slot_of_.end()) return -1;
  CacheEntry& entry = slots_[static_cast<size_t>(found->second)].entry;
  if (!same_request(request, entry.request)) return -1;
  entry.request = request;  // is found without a look at it from now on
  request.set_likely_slot(found->second);
  return found->second;
}

int64_t ResponseCache::slot_of(const std::string& name) const {
  const auto found = slot_of_.find(name);
  return found == slot_of_.end() ? -1 : found->second;
}

const CacheEntry* ResponseCache::at(int64_t slot) const {
  const auto index = static_cast<size_t>(slot);
  return index < slots_.size() && slots_[index].occupied ? &slots_[index].entry : nullptr;
}

void ResponseCache::put(int64_t slot, CacheEntry entry) {
  const auto index = static_cast<size_t>(slot);
  if (index >= slots_.size()) slots_.resize(index + 1);
  erase(slot);
  slot_of_[entry.request->name] = slot;
  entry.request.set_likely_slot(slot);
  ++version_;
  if (of_all_.size() <= index / 64) of_all_.resize(index / 64 + 1, 0);
  if (entry.request->process_set == 0) of_all_[index / 64] |= uint64_t{1} << (index % 64);
  slots_[index] = {true, std::move(entry), nullptr};
}

void ResponseCache::erase(int64_t slot) {
  if (at(slot) == nullptr) return;
  ++version_;
  const auto index = static_cast<size_t>(slot);
  of_all_[index / 64] &= ~(uint64_t{1} << (index % 64));
  Slot& erased = slots_[index];
  const auto found = slot_of_.find(erased.entry.request->name);
  if (found != slot_of_.end() && found->second == slot) slot_of_.erase(found);
  erased = Slot{};
}

void ResponseCache::forget(const TensorEntry* tensor, int64_t slot) {
  if (slot < 0) return;
  TensorEntry*& announced = slots_[static_cast<size_t>(slot)].announced;
  if (announced == tensor) announced = nullptr;
}

int64_t CacheDirectory::slot_of(const std::string& name) const {
  const auto found = slot_of_.find(name);
  return found == slot_of_.end() ? -1 : found->second;
}

const CacheEntry& CacheDirectory::current(int64_t slot) const {
  return slots_[static_cast<size_t>(slot)].history.back().second;
}

const CacheEntry* CacheDirectory::as_of(int64_t slot, uint64_t processed) const {
  if (slot < 0 || slot >= static_cast<int64_t>(slots_.size())) return nullptr;
  const auto& history = slots_[static_cast<size_t>(slot)].history;
  for (auto entry = history.rbegin(); entry != history.rend(); ++entry) {
    if (entry->first <= processed) return &entry->second;
  }
  return nullptr;
}

uint64_t CacheDirectory::current_slots(size_t index, uint64_t processed) const {
  if (index >= words_.size()) return 0;
  const Word& word = words_[index];
  if (word.newest_list <= processed) return word.occupied;
  uint64_t current = 0;
  for (size_t bit = 0; bit < 64; ++bit) {
    if ((word.occupied >> bit & 1) == 0) continue;
    if (slots_[index * 64 + bit].history.back().first <= processed) current |= uint64_t{1} << bit;
  }
  return current;
}

void CacheDirectory::touch(int64_t slot) {
  Slot& touched = slots_[static_cast<size_t>(slot)];
  order_.splice(order_.end(), order_, touched.position);
}

std::vector<int64_t> CacheDirectory::resize(int64_t capacity) {
  std::vector<int64_t> gone;
  capacity_ = capacity;
  while (size() > capacity_) {
    const int64_t slot = order_.front();
    vacate(slot);
    free_.push_back(slot);
    gone.push_back(slot);
  }
  return gone;
}

void CacheDirectory::vacate(int64_t slot) {
  Slot& vacated = slots_[static_cast<size_t>(slot)];
  slot_of_.erase(vacated.history.back().second.request->name);
  order_.erase(vacated.position);
  Word& word = words_[static_cast<size_t>(slot / 64)];
  word.occupied &= ~(uint64_t{1} << (slot % 64));
  word.of_sets &= word.occupied;
  // Keep the newest entry that the slowest rank may mean, and all after it.
  auto& history = vacated.history;
  while (history.size() > 1 && history[1].first <= oldest_needed_) history.erase(history.begin());
}

void CacheDirectory::occupy(int64_t slot, CacheEntry entry, uint64_t list) {
  Slot& occupied = slots_[static_cast<size_t>(slot)];
  slot_of_[entry.request->name] = slot;
  Word& word = words_[static_cast<size_t>(slot / 64)];
  const uint64_t bit = uint64_t{1} << (slot % 64);
  word.occupied |= bit;
  if (entry.request->process_set != 0) word.of_sets |= bit;
  word.newest_list = std::max(word.newest_list, list);
  occupied.history.emplace_back(list, std::move(entry));
  occupied.position = order_.insert(order_.end(), slot);
}

}  // namespace autotune
