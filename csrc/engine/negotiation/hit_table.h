// Which ranks have hit which slots of the response cache, until all of them have.
//
// In the steady state there are ranks x tensors hits in every step, so they are not looked at one
// by one: 64 slots are a *word*, a rank announces words, and the slots that all ranks have hit are
// the AND over the ranks' words. A rank that lacked what was asked for is remembered as the word's
// *witness* and looked at first next time: until the last rank has come, a word costs one look.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace autotune {

using TimePoint = std::chrono::steady_clock::time_point;

// Call `body(slot)` for all bits of word number `word`, in ascending order.
template <typename Body>
void for_each_slot(size_t word, uint64_t bits, Body&& body) {
  for (; bits != 0; bits &= bits - 1) {
    body(static_cast<int64_t>(word * 64) + __builtin_ctzll(bits));
  }
}

inline size_t word_of(int64_t slot) { return static_cast<size_t>(slot) / 64; }
inline uint64_t bit_of(int64_t slot) { return uint64_t{1} << (slot % 64); }

class HitTable {
 public:
  // What is known of 64 slots.
  struct Word {
    uint64_t open = 0;       // some ranks have hit these
    uint64_t ready = 0;      // the response of these is not sent yet
    uint64_t requested = 0;  // a whole request for the slot's tensor is pending
    int64_t step = 0;        // no open slot has a lower one
    int witness = 0;         // this rank is looked at first
  };

  explicit HitTable(int size) : size_(size) {}

  // Slots are made up to `slot`; the words of other slots have no bits.
  void grow_to(int64_t slot);
  size_t words() const { return words_.size(); }
  const Word& word(size_t index) const { return words_[index]; }
  bool has(int64_t slot) const { return word_of(slot) < words_.size(); }

  // Rank `rank` announces slots of one word. They are open or become so.
  void add(int rank, size_t word, uint64_t bits, int64_t step, TimePoint now);
  // `rank` is not waited for.
  void leave_out(int rank, int64_t slot) { rank_bits(word_of(slot))[rank] |= bit_of(slot); }
  // Those of the open slots `bits` that all ranks have announced which have not joined.
  uint64_t complete(size_t word, uint64_t bits, const std::vector<bool>& joined);
  // The slots are not open any more.
  void close(size_t word, uint64_t bits);

  bool is_hit(int64_t slot, int rank) const {
    return (rank_bits(word_of(slot))[rank] & bit_of(slot)) != 0;
  }
  // Slots of a word that `rank` has announced or is left out of, of the open ones.
  uint64_t hits_of(int rank, size_t word) const { return rank_bits(word)[rank]; }
  bool is_open(int64_t slot) const {
    return has(slot) && words_[word_of(slot)].open & bit_of(slot);
  }
  // Call `body(slot)` for all open slots, in ascending order; it may close its own.
  template <typename Body>
  void for_each_open(Body&& body) const {
    for (size_t index = 0; index < words_.size(); ++index) {
      for_each_slot(index, words_[index].open, body);
    }
  }
  // Announced first, and the newest step in which: of an open slot.
  TimePoint since(int64_t slot) const { return since_[static_cast<size_t>(slot)]; }
  int64_t step(int64_t slot) const { return steps_[static_cast<size_t>(slot)]; }
  // Number of open slots.
  int64_t open_count() const { return open_count_; }

  void set_ready(int64_t slot, bool on) { set(words_[word_of(slot)].ready, slot, on); }
  void set_requested(int64_t slot, bool on) { set(words_[word_of(slot)].requested, slot, on); }

 private:
  static void set(uint64_t& bits, int64_t slot, bool on) {
    bits = on ? bits | bit_of(slot) : bits & ~bit_of(slot);
  }
  uint64_t* rank_bits(size_t word) { return bits_.data() + word * static_cast<size_t>(size_); }
  const uint64_t* rank_bits(size_t word) const {
    return bits_.data() + word * static_cast<size_t>(size_);
  }

  int size_;
  std::vector<Word> words_;
  std::vector<uint64_t> bits_;    // word w of rank r is at w * size + r
  std::vector<TimePoint> since_;  // each slot has one
  std::vector<int64_t> steps_;    // each slot has one
  int64_t open_count_ = 0;
};

}  // namespace autotune
