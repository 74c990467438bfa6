#include "engine/response_cache.h"

#include <utility>

namespace autotune {

int64_t ResponseCache::find(const Request& request) const {
  const auto found = slot_of_.find(request.name);
  if (found == slot_of_.end()) return -1;
  const CacheEntry& entry = entries_[static_cast<size_t>(found->second)];
  return same_request(request, entry.request) ? found->second : -1;
}

const CacheEntry* ResponseCache::at(int64_t slot) const {
  const auto index = static_cast<size_t>(slot);
  if (index >= entries_.size() || entries_[index].request.name.empty()) return nullptr;
  return &entries_[index];
}

void ResponseCache::put(int64_t slot, CacheEntry entry) {
  const auto index = static_cast<size_t>(slot);
  if (index >= entries_.size()) entries_.resize(index + 1);
  erase(slot);
  slot_of_[entry.request.name] = slot;
  entries_[index] = std::move(entry);
}

void ResponseCache::erase(int64_t slot) {
  if (static_cast<size_t>(slot) >= entries_.size()) return;
  CacheEntry& entry = entries_[static_cast<size_t>(slot)];
  const auto found = slot_of_.find(entry.request.name);
  if (found != slot_of_.end() && found->second == slot) slot_of_.erase(found);
  entry = CacheEntry{};
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
  slot_of_.erase(vacated.history.back().second.request.name);
  order_.erase(vacated.position);
  vacated.occupied = false;
  // Keep the newest entry that the slowest rank may mean, and all after it.
  auto& history = vacated.history;
  while (history.size() > 1 && history[1].first <= oldest_needed_) history.erase(history.begin());
}

void CacheDirectory::occupy(int64_t slot, CacheEntry entry, uint64_t list) {
  Slot& occupied = slots_[static_cast<size_t>(slot)];
  slot_of_[entry.request.name] = slot;
  occupied.history.emplace_back(list, std::move(entry));
  occupied.position = order_.insert(order_.end(), slot);
  occupied.occupied = true;
}

}  // namespace autotune
