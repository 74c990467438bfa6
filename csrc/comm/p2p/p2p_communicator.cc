#include "comm/p2p/p2p_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/element_sequence.h"
#include "comm/p2p/adasum.h"
#include "comm/p2p/backoff.h"
#include "common/copy.h"
#include "common/reduce.h"

namespace autotune {

namespace {

std::vector<ExchangeStage> stages_of(const PointToPoint& transport, std::vector<int> hosts) {
  // Without places every rank is as if on a host of its own.
  for (int rank = static_cast<int>(hosts.size()); rank < transport.size(); ++rank) {
    hosts.push_back(rank);
  }
  return make_stages(transport.rank(), hosts);
}

}  // namespace

P2pCommunicator::P2pCommunicator(std::shared_ptr<PointToPoint> transport, WaitHook on_wait,
                                 const std::vector<int>& host_of_rank)
    : transport_(std::move(transport)),
      on_wait_(std::move(on_wait)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      staged_(*transport_, on_wait_, stages_of(*transport_, host_of_rank)) {}

void P2pCommunicator::wait() { complete(*transport_, on_wait_); }

void P2pCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                double prescale, double postscale) {
  if (op == ReduceOp::adasum) {
    return adasum(*transport_, on_wait_, spans, type, prescale, postscale);
  }
  const RankReduction how(type, op, prescale, postscale, size_);
  const int64_t item = how.item();
  const int64_t piece_count = std::max<int64_t>(allreduce_piece_bytes / item, 1);
  const int64_t all =
      std::accumulate(spans.begin(), spans.end(), int64_t{0},
                      [](int64_t sum, const Span& span) { return sum + span.count; });
  staged_.begin(how, all * item >= long_call_bytes);
  for (const Span& span : spans) {
    for (int64_t begin = 0; begin < span.count; begin += piece_count) {
      char* const data = static_cast<char*>(span.output) + begin * item;
      const int64_t count = std::min(piece_count, span.count - begin);
      if (span.output != span.input) {
        copy_bytes(data, static_cast<const char*>(span.input) + begin * item, count * item);
      }
      how.scale_input(data, count);
      if (count * item > small_bytes) {
        staged_.add_long(data, count, span.takes_messages);
      } else {
        staged_.add_short(data, count);
      }
    }
  }
  staged_.finish();
}

// The contributions of the others lie in `inbox_`, in rank order, and are overwritten.
void P2pCommunicator::combine_with_inbox(char* own, int64_t count, const RankReduction& how,
                                         int64_t item) {
  char* const others = inbox_.data();
  how.combine_all(own, others, count, [&](int peer) {
    return peer == rank_ ? own : others + (peer < rank_ ? peer : peer - 1) * count * item;
  });
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
