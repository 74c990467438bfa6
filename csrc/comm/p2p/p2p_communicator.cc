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
  for (const Span& span : spans) {
    if (span.output != span.input && span.count > 0) {
      copy_bytes(span.output, span.input, span.count * item);
    }
    how.scale_input(span.output, span.count);
    for (int64_t begin = 0; begin < span.count; begin += piece_count) {
      const Piece piece{static_cast<char*>(span.output) + begin * item,
                        std::min(piece_count, span.count - begin)};
      if (piece.count * item <= small_bytes) {
        exchange_small(piece, how, item);
        continue;
      }
      post_reduce_scatter(piece, static_cast<size_t>(item));
      wait();
      reduce_own_slice(piece, how, item);
      post_allgather(piece, static_cast<size_t>(item));
      wait();
      place_slices(piece, static_cast<size_t>(item));
    }
  }
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

void P2pCommunicator::post_reduce_scatter(const Piece& piece, size_t item) {
  const int64_t own_bytes =
      (slice_begin(piece.count, rank_ + 1) - slice_begin(piece.count, rank_)) *
      static_cast<int64_t>(item);
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
    transport_->send(peer, piece.data + begin * static_cast<int64_t>(item),
                     count * static_cast<int64_t>(item));
  }
}

void P2pCommunicator::reduce_own_slice(const Piece& piece, const RankReduction& how, int64_t item) {
  const int64_t begin = slice_begin(piece.count, rank_);
  const int64_t count = slice_begin(piece.count, rank_ + 1) - begin;
  combine_with_inbox(piece.data + begin * item, count, how, item);
}

// The others' slices come into `inbox_` and go to the tensor when they are whole: nothing that a
// script may use again is ever written by a message.
void P2pCommunicator::post_allgather(const Piece& piece, size_t item) {
  const auto bytes = static_cast<int64_t>(item);
  inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(piece.count * bytes)));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const int64_t begin = slice_begin(piece.count, peer);
    transport_->receive(peer, inbox_.data() + begin * bytes,
                        (slice_begin(piece.count, peer + 1) - begin) * bytes);
  }
  const int64_t begin = slice_begin(piece.count, rank_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transport_->send(peer, piece.data + begin * bytes,
                     (slice_begin(piece.count, rank_ + 1) - begin) * bytes);
  }
}

void P2pCommunicator::place_slices(const Piece& piece, size_t item) {
  const auto bytes = static_cast<int64_t>(item);
  const int64_t begin = slice_begin(piece.count, rank_) * bytes;
  const int64_t end = slice_begin(piece.count, rank_ + 1) * bytes;
  copy_bytes(piece.data, inbox_.data(), begin);
  copy_bytes(piece.data + end, inbox_.data() + end, piece.count * bytes - end);
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
      inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(length)));
      transport_->receive(absolute(relative - lowest), inbox_.data(), length);
      wait();
      copy_bytes(piece, inbox_.data(), length);
    }
    for (int step = lowest >> 1; step > 0; step >>= 1) {
      if (relative + step < size_) transport_->send(absolute(relative + step), piece, length);
    }
  }
  wait();
}

}  // namespace autotune
