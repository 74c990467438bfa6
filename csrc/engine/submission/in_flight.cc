#include "engine/submission/in_flight.h"

#include <utility>

#include "common/errors.h"

namespace autotune {

namespace {

[[noreturn]] void refuse(const Request& request, bool twice, int rank, int size) {
  const std::string what = describe(request);
  if (twice) throw InvalidRequest(what + ": expected different names in a group, got one twice");
  throw InvalidRequest(what + ": expected a name that is not in flight, got one that is (rank " +
                       std::to_string(rank) + " of " + std::to_string(size) +
                       "); wait for the first one or use another name");
}

}  // namespace

const std::vector<InFlight*>& InFlightTable::add(TensorEntry* entries, size_t count, int rank,
                                                 int size) {
  const int64_t first = next_number_;
  taken_.clear();
  taken_.reserve(count);
  const std::pmr::polymorphic_allocator<InFlight> memory(&pool_);
  try {
    for (size_t i = 0; i < count; ++i) {
      const NameKey key = entries[i].request.key();
      if (const auto known = by_name_.find(key); known != by_name_.end()) {
        refuse(entries[i].request, known->second->number >= first, rank, size);
      }
      const auto operation = std::allocate_shared<InFlight>(memory);
      operation->entry = std::move(entries[i]);
      operation->entry.handle = &operation->handle;
      operation->number = next_number_++;
      by_name_.emplace(key, operation);
      taken_.push_back(operation.get());
      handles_.emplace(operation->number, std::shared_ptr<Handle>(operation, &operation->handle));
    }
  } catch (...) {
    take_back();
    throw;
  }
  return taken_;
}

void InFlightTable::take_back() {
  for (InFlight* each : taken_) {
    handles_.erase(each->number);
    erase(each->entry);
  }
  taken_.clear();
}

TensorEntry* InFlightTable::find(const NameKey& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second->entry;
}

const std::shared_ptr<Handle>* InFlightTable::find_handle(int64_t number) const {
  const auto found = handles_.find(number);
  return found == handles_.end() ? nullptr : &found->second;
}

const std::shared_ptr<Handle>& InFlightTable::handle(int64_t number) const {
  const std::shared_ptr<Handle>* found = find_handle(number);
  if (found == nullptr) throw InvalidRequest("unknown handle " + std::to_string(number));
  return *found;
}

void InFlightTable::erase(const TensorEntry& entry) {
  by_name_.erase(by_name_.find(entry.request.key()));  // not by key: it lies in the entry
}

void InFlightTable::erase_with_handle(const TensorEntry& entry) {
  const auto found = by_name_.find(entry.request.key());
  release(found->second->number);
  by_name_.erase(found);
}

}  // namespace autotune
