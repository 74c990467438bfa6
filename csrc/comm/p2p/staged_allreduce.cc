#include "comm/p2p/staged_allreduce.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/p2p/backoff.h"
#include "common/copy.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

// Copies of fewer say little about stores.
constexpr int64_t measured_bytes = 128 << 10;

// Makes room for `bytes`; memory is kept for the next time.
char* room(MessageVector<char>& box, int64_t bytes) {
  box.resize(std::max(box.size(), static_cast<size_t>(bytes)));
  return box.data();
}

}  // namespace

StagedAllreduce::StagedAllreduce(PointToPoint& transport, const WaitHook& on_wait,
                                 std::vector<ExchangeStage> stages)
    : transport_(transport),
      on_wait_(on_wait),
      stages_(std::move(stages)),
      inboxes_(stages_.size()),
      partials_(stages_.size()),
      boxes_(stages_.size() + 1) {}

void StagedAllreduce::wait() { complete(transport_, on_wait_); }

void StagedAllreduce::begin(const RankReduction& how, bool is_long) {
  how_ = &how;
  is_long_ = is_long;
  on_the_way_.clear();
}

void StagedAllreduce::add_long(char* data, int64_t count, bool takes_messages) {
  const Piece next{data, count, takes_messages, 0, next_box_++ % boxes_.size()};
  advance(&next);
}

void StagedAllreduce::finish() {
  while (!on_the_way_.empty()) advance(nullptr);
}

// Waits for what is on its way and posts the next round of each piece. While that travels, the
// piece that is whole now is put in place.
void StagedAllreduce::advance(const Piece* next) {
  if (!on_the_way_.empty()) wait();
  // The furthest first: a piece overwrites what the one before it has left in the same stage.
  for (Piece& piece : on_the_way_) {
    if (piece.round < stages_.size()) combine(piece, piece.round);
    ++piece.round;
    post(piece);
  }
  if (next != nullptr) {
    on_the_way_.push_back(*next);
    post(*next);
  }
  if (!on_the_way_.empty() && on_the_way_.front().round == 2 * stages_.size()) {
    place(on_the_way_.front());
    on_the_way_.pop_front();
  }
}

void StagedAllreduce::post(const Piece& piece) {
  const size_t rounds = 2 * stages_.size();
  if (piece.round < stages_.size()) {
    scatter(piece, piece.round);
  } else if (piece.round < rounds) {
    gather(piece, rounds - 1 - piece.round);
  }
}

StagedAllreduce::Range StagedAllreduce::range(const Piece& piece, size_t stage) const {
  Range own{0, piece.count};
  for (size_t i = 0; i < stage; ++i) own = own.slice(stages_[i].place, stages_[i].ranks.size());
  return own;
}

char* StagedAllreduce::scattered(const Piece& piece, size_t stage) {
  const int64_t item = how_->item();
  if (how_->item_before(step(stage)) != item) return partials_[stage - 1].data();
  return piece.data + range(piece, stage).begin * item;
}

char* StagedAllreduce::gathered(const Piece& piece) {
  if (piece.takes_messages || !transport_.leaves_behind()) return piece.data;
  return room(boxes_[piece.box], piece.count * how_->item());
}

// No message writes there, so in one stage it need not pass through a box; in several it goes on
// together with what has come from others.
char* StagedAllreduce::combined(const Piece& piece) {
  return stages_.size() == 1 ? piece.data : gathered(piece);
}

void StagedAllreduce::scatter(const Piece& piece, size_t stage) {
  const auto& [ranks, place] = stages_[stage];
  const int64_t item = how_->item_before(step(stage));
  const Range whole{0, range(piece, stage).count};
  const int64_t own_bytes = whole.slice(place, ranks.size()).count * item;
  char* slot = room(inboxes_[stage], own_bytes * static_cast<int64_t>(ranks.size() - 1));
  const char* const from = scattered(piece, stage);
  for (const int peer : ranks) {
    if (peer == transport_.rank()) continue;
    transport_.receive(peer, slot, own_bytes);
    slot += own_bytes;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == transport_.rank()) continue;
    const Range slice = whole.slice(static_cast<int>(i), ranks.size());
    transport_.send(ranks[i], from + slice.begin * item, slice.count * item);
  }
}

void StagedAllreduce::combine(const Piece& piece, size_t stage) {
  const Range whole{0, range(piece, stage).count};
  const Range own = whole.slice(stages_[stage].place, stages_[stage].ranks.size());
  char* const from = scattered(piece, stage) + own.begin * how_->item_before(step(stage));
  char* out = from;
  if (step(stage).is_last) {
    out = combined(piece) + range(piece, stage + 1).begin * how_->item();
  } else if (how_->item_after(step(stage)) != how_->item()) {
    out = room(partials_[stage], own.count * how_->item_after(step(stage)));
  }
  combine_group(stage, out, from, own.count);
}

// The contributions of the others lie in the inbox of the stage, by their places, and may be
// overwritten.
void StagedAllreduce::combine_group(size_t stage, char* out, const char* own, int64_t count) {
  const auto& [ranks, place] = stages_[stage];
  char* const others = inboxes_[stage].data();
  const int64_t bytes = count * how_->item_before(step(stage));
  how_->combine_some(out, others, static_cast<int>(ranks.size()), count, step(stage),
                     [&, place = place](int peer) {
                       return peer == place ? own
                                            : others + (peer < place ? peer : peer - 1) * bytes;
                     });
}

void StagedAllreduce::gather(const Piece& piece, size_t stage) {
  const auto& [ranks, place] = stages_[stage];
  const int64_t item = how_->item();
  const Range all = range(piece, stage), own = all.slice(place, ranks.size());
  char* const data = gathered(piece);
  const char* const finished = combined(piece) + own.begin * item;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == transport_.rank()) continue;
    const Range slice = all.slice(static_cast<int>(i), ranks.size());
    transport_.receive(ranks[i], data + slice.begin * item, slice.count * item);
  }
  for (const int peer : ranks) {
    if (peer != transport_.rank()) transport_.send(peer, finished, own.count * item);
  }
}

void StagedAllreduce::place(const Piece& piece) {
  const char* const from = gathered(piece);
  if (from == piece.data) return;
  const int64_t item = how_->item();
  const Range own = combined(piece) == from ? Range{0, 0} : range(piece, stages_.size());
  const int64_t bytes = (piece.count - own.count) * item;
  const bool is_measured = is_long_ && bytes >= measured_bytes;
  const auto copy = is_long_ && stores_.streaming(is_measured) ? stream_bytes : copy_bytes;
  const auto copy_part = [&](int64_t begin, int64_t end) {
    copy(piece.data + begin * item, from + begin * item, (end - begin) * item);
  };
  const auto begin = Clock::now();
  copy_part(0, own.begin);
  copy_part(own.end(), piece.count);
  if (!is_measured) return;
  const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
  stores_.add(time.count() / static_cast<double>(bytes));
}

void StagedAllreduce::add_short(char* data, int64_t count) {
  finish();
  const char* own = data;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const RankReduction::Step now = step(stage);
    exchange_whole(stage, own, count * how_->item_before(now));
    char* out = data;
    if (how_->item_after(now) != how_->item()) {
      out = room(partials_[stage], count * how_->item_after(now));
    }
    combine_group(stage, out, own, count);
    own = out;
  }
}

void StagedAllreduce::exchange_whole(size_t stage, const char* data, int64_t bytes) {
  const std::vector<int>& ranks = stages_[stage].ranks;
  char* slot = room(inboxes_[stage], bytes * static_cast<int64_t>(ranks.size() - 1));
  for (const int peer : ranks) {
    if (peer == transport_.rank()) continue;
    transport_.receive(peer, slot, bytes);
    slot += bytes;
  }
  for (const int peer : ranks) {
    if (peer != transport_.rank()) transport_.send(peer, data, bytes);
  }
  wait();
}

}  // namespace autotune
