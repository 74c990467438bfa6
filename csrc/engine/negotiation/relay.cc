#include "engine/negotiation/relay.h"

#include <algorithm>
#include <string>

#include "common/errors.h"

namespace autotune {

namespace {

bool has_hits(const RequestList& list) {
  return std::any_of(list.hit_bits.begin(), list.hit_bits.end(),
                     [](uint64_t bits) { return bits != 0; });
}

bool has_join(const RequestList& list) {
  return std::any_of(list.requests.begin(), list.requests.end(),
                     [](const Request& each) { return each.operation == Operation::join; });
}

}  // namespace

void check_relayed(const RelayedList& relayed, int sender, const Tree& tree) {
  if (relayed.rank < tree.size() && tree.is_in_branch(relayed.rank, sender)) return;
  throw EngineError("control plane: expected requests of ranks below rank " +
                    std::to_string(sender) + " from it, got some of rank " +
                    std::to_string(relayed.rank) + " (of " + std::to_string(tree.size()) +
                    "); do all ranks run the same version of this package?");
}

Relay::Relay(const Tree& tree, int rank, const ResponseCache& cache)
    : tree_(tree), rank_(rank), cache_(cache) {
  parts_.push_back({rank, false, {}});
  for (const int child : tree.children(rank)) parts_.push_back({child, true, {}});
}

size_t Relay::part_of(int child) const {
  for (size_t i = 1; i < parts_.size(); ++i) {
    if (parts_[i].rank == child) return i;
  }
  throw EngineError("control plane: expected requests from ranks that report to rank " +
                    std::to_string(rank_) + ", got some from rank " + std::to_string(child));
}

void Relay::hear(int child, const RequestList& list, TimePoint now) {
  add(part_of(child), list, now);
}

void Relay::hear(int child, const std::vector<RelayedList>& lists, TimePoint now) {
  const size_t part = part_of(child);
  for (const RelayedList& each : lists) {
    check_relayed(each, child, tree_);
    decode_relayed(each, child, heard_);
    if (each.is_branch && each.rank == child) {
      add(part, heard_, now);
      continue;
    }
    release(parts_[part]);
    note(heard_);
    up_.push_back(each);
  }
}

void Relay::add(size_t index, const RequestList& list, TimePoint now) {
  Part& part = parts_[index];
  // The coordinator looks at a list's hits before its requests.
  const bool stays_whole = list.shutdown || has_join(list);
  if (stays_whole) release_all();
  if (stays_whole || !has_hits(list) || !may_hold(list)) {
    note(list);
    return pass(part, list);
  }
  if (!list.requests.empty()) {
    rest_ = list;
    rest_.hit_bits.clear();
    note(rest_);
    pass(part, rest_);
  }
  hold(part, list, now);
}

// The hits of `list`, as far as others of their kind may come; the rest passes.
void Relay::hold(Part& part, const RequestList& list, TimePoint now) {
  RequestList& held = part.held;
  if (has_hits(held) && held.step != list.step) release(part);
  if (!is_held()) held_since_ = now;
  if (!has_hits(held)) {
    held.step = list.step;
    held.processed = list.processed;
    held.hit_bits.clear();
  }
  held.processed = std::min(held.processed, list.processed);
  if (held.hit_bits.size() < list.hit_bits.size()) held.hit_bits.resize(list.hit_bits.size(), 0);
  begin_rest(list, list.hit_bits.size());
  for (size_t word = 0; word < list.hit_bits.size(); ++word) {
    const uint64_t bits = list.hit_bits[word];
    const uint64_t alone = word < alone_.size() ? alone_[word] : 0;
    const uint64_t kept = bits & cache_.slots_of_all(word) & ~alone & ~held.hit_bits[word];
    held.hit_bits[word] |= kept;
    rest_.hit_bits[word] = bits & ~kept;
  }
  if (!has_hits(rest_)) return;
  note_hits(rest_.hit_bits);
  pass(part, rest_);
}

// Others of what is not merged are not waited for.
void Relay::note(const RequestList& list) {
  note_hits(list.hit_bits);
  for (const Request& request : list.requests) {
    if (request.operation == Operation::join) {
      release_all();
      has_joined_ = true;
    }
    const int64_t slot = cache_.slot_of(request.name);
    if (slot >= 0) set_alone(slot);
  }
}

void Relay::note_hits(const std::vector<uint64_t>& bits) {
  if (alone_.size() < bits.size()) alone_.resize(bits.size(), 0);
  for (size_t word = 0; word < bits.size(); ++word) alone_[word] |= bits[word];
}

void Relay::set_alone(int64_t slot) {
  const size_t word = word_of(slot);
  if (alone_.size() <= word) alone_.resize(word + 1, 0);
  alone_[word] |= bit_of(slot);
}

void Relay::answered(int64_t slot) {
  if (word_of(slot) < alone_.size()) alone_[word_of(slot)] &= ~bit_of(slot);
}

// Makes `rest_` a list of hits that is as old as `list`; its `words` are to be filled.
void Relay::begin_rest(const RequestList& list, size_t words, uint64_t bits) {
  rest_.step = list.step;
  rest_.processed = list.processed;
  rest_.shutdown = false;
  rest_.requests.clear();
  rest_.hit_bits.assign(words, bits);
}

bool Relay::may_hold(const RequestList& list) const {
  return !has_joined_ && list.processed >= unchanged_since_ && list.processed <= processed_;
}

void Relay::pass(const Part& part, const RequestList& list) {
  RelayedList& each = up_.emplace_back();
  each.rank = part.rank;
  each.is_branch = part.is_branch;
  encode(list, each.list);
}

void Relay::release(Part& part) {
  if (!has_hits(part.held)) return;
  note_hits(part.held.hit_bits);
  pass(part, part.held);
  part.held.hit_bits.clear();
}

void Relay::release_all() {
  for (Part& part : parts_) release(part);
}

bool Relay::is_held() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return has_hits(part.held); });
}

void Relay::take(std::vector<RelayedList>& lists, TimePoint now) {
  for (Part& part : parts_) {
    begin_rest(part.held, part.held.hit_bits.size());
    for (size_t word = 0; word < std::min(rest_.hit_bits.size(), alone_.size()); ++word) {
      rest_.hit_bits[word] = part.held.hit_bits[word] & alone_[word];
      part.held.hit_bits[word] &= ~alone_[word];
    }
    if (has_hits(rest_)) pass(part, rest_);
  }
  take_common();
  if (is_held() && now - held_since_ >= most_held) release_all();
  lists.clear();
  std::swap(lists, up_);
}

void Relay::take_common() {
  size_t words = parts_[0].held.hit_bits.size();
  for (const Part& part : parts_) words = std::min(words, part.held.hit_bits.size());
  if (words == 0) return;
  begin_rest(parts_[0].held, words, ~uint64_t{0});
  for (const Part& part : parts_) {
    rest_.step = std::max(rest_.step, part.held.step);
    rest_.processed = std::min(rest_.processed, part.held.processed);
    for (size_t word = 0; word < words; ++word) rest_.hit_bits[word] &= part.held.hit_bits[word];
  }
  if (!has_hits(rest_)) return;
  for (Part& part : parts_) {
    for (size_t word = 0; word < words; ++word) {
      part.held.hit_bits[word] &= ~rest_.hit_bits[word];
    }
  }
  pass({rank_, true, {}}, rest_);
}

TimePoint Relay::due() const { return is_held() ? held_since_ + most_held : TimePoint::max(); }

void Relay::follow(const ResponseList& list, uint64_t processed) {
  for (const int64_t slot : list.evicted_slots) answered(slot);
  for (const Response& response : list.responses) {
    if (response.operation == Operation::join) has_joined_ = false;
    for (const ResponseItem& item : response.items) {
      if (item.cache_slot >= 0) answered(item.cache_slot);
    }
  }
  processed_ = processed;
  if (cache_.version() == cache_version_) return;
  cache_version_ = cache_.version();
  unchanged_since_ = processed;
  release_all();
}

}  // namespace autotune
