#include "comm/p2p/p2p_communicator.h"

#include <algorithm>
#include <utility>

#include "comm/element_sequence.h"
#include "comm/p2p/adasum.h"
#include "comm/p2p/backoff.h"
#include "common/copy.h"
#include "common/reduce.h"

namespace autotune {

P2pCommunicator::P2pCommunicator(std::shared_ptr<PointToPoint> transport, WaitHook on_wait)
    : transport_(std::move(transport)),
      on_wait_(std::move(on_wait)),
      rank_(transport_->rank()),
      size_(transport_->size()) {}

void P2pCommunicator::wait() { complete(*transport_, on_wait_); }

void P2pCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                double prescale, double postscale) {
  if (op == ReduceOp::adasum) {
    return adasum(*transport_, on_wait_, spans, type, prescale, postscale);
  }
  const RankReduction how(type, op, prescale, postscale, size_);
  const auto item = static_cast<int64_t>(size_of(type));
  const int64_t piece_count = std::max<int64_t>(piece_bytes / item, 1);
  OnTheWay way;
  const auto next = [&](const Piece& piece) { advance(way, piece, how, item); };
  for (const Span& span : spans) {
    for (int64_t begin = 0; begin < span.count; begin += piece_count) {
      const Piece piece{static_cast<char*>(span.output) + begin * item,
                        std::min(piece_count, span.count - begin)};
      if (span.output != span.input) {
        copy_bytes(piece.data, static_cast<const char*>(span.input) + begin * item,
                   piece.count * item);
      }
      how.scale_input(piece.data, piece.count);
      if (piece.count * item > small_bytes) {
        next(piece);
        continue;
      }
      next({});
      next({});
      exchange_small(piece, how, item);
    }
  }
  next({});
  next({});
}

// Waits for what is on its way and has the next piece follow. While that travels, the piece that is
// whole now is put in place.
void P2pCommunicator::advance(OnTheWay& way, const Piece& next, const RankReduction& how,
                              int64_t item) {
  if (way.scattered.count > 0 || way.gathered.count > 0) wait();
  const Piece whole = std::exchange(way.gathered, std::exchange(way.scattered, next));
  std::swap(gather_box_, whole_box_);
  if (way.gathered.count > 0) {
    reduce_own_slice(way.gathered, how, item);
    post_allgather(way.gathered, item);
  }
  if (next.count > 0) post_reduce_scatter(next, item);
  if (whole.count > 0) place_slices(whole, item);
}

void P2pCommunicator::exchange_small(const Piece& piece, const RankReduction& how, int64_t item) {
  const int64_t bytes = piece.count * item;
  inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(bytes * (size_ - 1))));
  char* slot = inbox_.data();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transport_->receive(peer, slot, bytes);
    slot += bytes;
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) transport_->send(peer, piece.data, bytes);
  }
  wait();
  combine_with_inbox(piece.data, piece.count, how, item);
}

// The contributions of the others lie in `inbox_`, in rank order, and are overwritten.
void P2pCommunicator::combine_with_inbox(char* own, int64_t count, const RankReduction& how,
                                         int64_t item) {
  char* const others = inbox_.data();
  how.combine_all(own, others, count, [&](int peer) {
    return peer == rank_ ? own : others + (peer < rank_ ? peer : peer - 1) * count * item;
  });
}

void P2pCommunicator::post_reduce_scatter(const Piece& piece, int64_t item) {
  const int64_t own_bytes =
      (slice_begin(piece.count, rank_ + 1) - slice_begin(piece.count, rank_)) * item;
  inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(own_bytes * (size_ - 1))));
  char* slot = inbox_.data();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transport_->receive(peer, slot, own_bytes);
    slot += own_bytes;
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const int64_t begin = slice_begin(piece.count, peer);
    const int64_t count = slice_begin(piece.count, peer + 1) - begin;
    transport_->send(peer, piece.data + begin * item, count * item);
  }
}

void P2pCommunicator::reduce_own_slice(const Piece& piece, const RankReduction& how, int64_t item) {
  const int64_t begin = slice_begin(piece.count, rank_);
  const int64_t count = slice_begin(piece.count, rank_ + 1) - begin;
  combine_with_inbox(piece.data + begin * item, count, how, item);
}

// Where a transport can leave messages behind, the others' slices come into a box and go to the
// tensor when they are whole: nothing that a script may use again is ever written by a message.
void P2pCommunicator::post_allgather(const Piece& piece, int64_t item) {
  char* target = piece.data;
  if (transport_->leaves_behind()) {
    gather_box_.resize(std::max(gather_box_.size(), static_cast<size_t>(piece.count * item)));
    target = gather_box_.data();
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const int64_t begin = slice_begin(piece.count, peer);
    transport_->receive(peer, target + begin * item,
                        (slice_begin(piece.count, peer + 1) - begin) * item);
  }
  const int64_t begin = slice_begin(piece.count, rank_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transport_->send(peer, piece.data + begin * item,
                     (slice_begin(piece.count, rank_ + 1) - begin) * item);
  }
}

void P2pCommunicator::place_slices(const Piece& piece, int64_t item) {
  if (!transport_->leaves_behind()) return;
  const int64_t begin = slice_begin(piece.count, rank_) * item;
  const int64_t end = slice_begin(piece.count, rank_ + 1) * item;
  copy_bytes(piece.data, whole_box_.data(), begin);
  copy_bytes(piece.data + end, whole_box_.data() + end, piece.count * item - end);
}

void P2pCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  std::vector<int64_t> offset(static_cast<size_t>(size_) + 1, 0);
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r)
    offset[r + 1] = offset[r] + bytes_per_rank[r];
  auto* base = static_cast<char*>(blocks);
  const auto for_each_cut = [&](int owner, auto&& act) {
    const auto r = static_cast<size_t>(owner);
    for (int64_t begin = offset[r]; begin < offset[r + 1]; begin += max_message_bytes) {
      act(base + begin, std::min(max_message_bytes, offset[r + 1] - begin));
    }
  };
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    for_each_cut(peer, [&](char* data, int64_t bytes) { transport_->receive(peer, data, bytes); });
    for_each_cut(rank_, [&](char* data, int64_t bytes) { transport_->send(peer, data, bytes); });
  }
  wait();
}

// In rounds: of every slice at most a piece, so that the boxes stay small.
void P2pCommunicator::reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                     double prescale, double postscale, int slices) {
  const ElementSequence elements(spans, type);
  const RankReduction how(type, op, prescale, postscale, size_);
  const int64_t item = elements.item();
  const int64_t most = std::max<int64_t>(piece_bytes / item / size_, 1);
  const int64_t longest = (elements.count() + slices - 1) / slices;
  for (int64_t done = 0; done < longest; done += most) {
    const auto part = [&](int slice) {
      const auto [begin, end] = slice_of(elements.count(), slice, slices);
      const int64_t from = std::min(begin + done, end);
      return std::pair{from, std::min(from + most, end)};
    };
    const auto [own_begin, own_end] =
        rank_ < slices ? part(rank_) : std::pair{int64_t{0}, int64_t{0}};
    const int64_t own_count = own_end - own_begin;
    const auto slot_bytes = static_cast<size_t>(std::min(most, longest) * item);
    inbox_.resize(std::max(inbox_.size(), slot_bytes * static_cast<size_t>(size_)));
    outbox_.resize(std::max(outbox_.size(), slot_bytes * static_cast<size_t>(slices)));
    char* slot = inbox_.data();
    for (int peer = 0; peer < size_ && rank_ < slices; ++peer) {
      if (peer == rank_) continue;
      transport_->receive(peer, slot, own_count * item);
      slot += own_count * item;
    }
    for (int slice = 0; slice < slices; ++slice) {
      const auto [begin, end] = part(slice);
      char* box = outbox_.data() + slot_bytes * static_cast<size_t>(slice);
      elements.read(begin, end, box);
      how.scale_input(box, end - begin);
      if (slice != rank_) transport_->send(slice, box, (end - begin) * item);
    }
    wait();
    if (rank_ >= slices) continue;
    char* own = outbox_.data() + slot_bytes * static_cast<size_t>(rank_);
    combine_with_inbox(own, own_count, how, item);
    elements.write(own_begin, own_end, own);
  }
}

void P2pCommunicator::alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) {
  const auto n = static_cast<size_t>(size_);
  const auto own = static_cast<size_t>(rank_);
  const auto for_each_cut = [](char* data, int64_t length, auto&& act) {
    for (int64_t begin = 0; begin < length; begin += max_message_bytes) {
      act(data + begin, std::min(max_message_bytes, length - begin));
    }
  };
  auto* in = static_cast<char*>(receive);
  for (size_t peer = 0; peer < n; in += bytes[peer * n + own], ++peer) {
    if (peer == own) continue;
    for_each_cut(in, bytes[peer * n + own], [&](char* data, int64_t length) {
      transport_->receive(static_cast<int>(peer), data, length);
    });
  }
  auto* out = const_cast<char*>(static_cast<const char*>(send));  // only read
  in = static_cast<char*>(receive);
  for (size_t peer = 0; peer < n; ++peer) {
    const int64_t length = bytes[own * n + peer];
    if (peer == own) copy_bytes(in, out, length);
    if (peer != own) {
      for_each_cut(out, length, [&](char* data, int64_t part) {
        transport_->send(static_cast<int>(peer), data, part);
      });
    }
    out += length;
    in += bytes[peer * n + own];
  }
  wait();
}

void P2pCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  // Binomial tree over ranks relative to the root: the parent of v is v without its lowest set bit,
  // and the children of v are v + 2^k for all 2^k below that bit (Knuth's numbering). Cut into
  // pieces so that the levels of the tree overlap.
  const int relative = (rank_ - root_rank + size_) % size_;
  int lowest = 1;
  while (lowest < size_ && (relative & lowest) == 0) lowest <<= 1;
  const auto absolute = [&](int v) { return (v + root_rank) % size_; };
  for (int64_t begin = 0; begin < bytes; begin += piece_bytes) {
    char* piece = static_cast<char*>(data) + begin;
    const int64_t length = std::min(piece_bytes, bytes - begin);
    if (relative != 0) {
      char* target = piece;
      if (transport_->leaves_behind()) {
        inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(length)));
        target = inbox_.data();
      }
      transport_->receive(absolute(relative - lowest), target, length);
      wait();
      if (target != piece) copy_bytes(piece, target, length);
    }
    for (int step = lowest >> 1; step > 0; step >>= 1) {
      if (relative + step < size_) transport_->send(absolute(relative + step), piece, length);
    }
  }
  wait();
}

}  // namespace autotune
