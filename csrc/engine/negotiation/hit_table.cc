#include "engine/negotiation/hit_table.h"

#include <algorithm>

namespace autotune {

void HitTable::grow_to(int64_t slot) {
  if (has(slot)) return;
  words_.resize(word_of(slot) + 1);
  bits_.resize(words_.size() * static_cast<size_t>(size_), 0);
  since_.resize(words_.size() * 64);
  steps_.resize(words_.size() * 64);
}

void HitTable::add(int rank, size_t index, uint64_t bits, int64_t step, TimePoint now) {
  Word& word = words_[index];
  const uint64_t fresh = bits & ~word.open;
  // All slots of a word mostly belong to one step, so that only the first rank's are looked at.
  if (fresh != 0) {
    word.step = word.open == 0 ? step : std::min(word.step, step);
    for_each_slot(index, fresh, [&](int64_t slot) {
      since_[static_cast<size_t>(slot)] = now;
      steps_[static_cast<size_t>(slot)] = step;
    });
    word.open |= fresh;
    open_count_ += __builtin_popcountll(fresh);
  }
  if (step > word.step) {
    for_each_slot(index, bits & ~fresh, [&](int64_t slot) {
      int64_t& newest = steps_[static_cast<size_t>(slot)];
      newest = std::max(newest, step);
    });
  }
  rank_bits(index)[rank] |= bits;
}

uint64_t HitTable::complete(size_t index, uint64_t bits, const std::vector<bool>& joined) {
  const uint64_t* const ranks = rank_bits(index);
  int& witness = words_[index].witness;
  int rank = witness;
  for (int looked_at = 0; looked_at < size_; ++looked_at) {
    if (!joined[static_cast<size_t>(rank)]) bits &= ranks[rank];
    if (bits == 0) {
      witness = rank;
      return 0;
    }
    if (++rank == size_) rank = 0;
  }
  return bits;
}

void HitTable::close(size_t index, uint64_t bits) {
  words_[index].open &= ~bits;
  open_count_ -= __builtin_popcountll(bits);
  uint64_t* const ranks = rank_bits(index);
  for (int rank = 0; rank < size_; ++rank) ranks[rank] &= ~bits;
}

}  // namespace autotune
