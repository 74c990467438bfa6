#include "comm/shm/shared_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/copy.h"
#include "common/errors.h"
#include "common/message_memory.h"
#include "common/reduce.h"

namespace autotune {

namespace {

// Half of a usual second-level cache.
constexpr int64_t usual_slot_bytes = 512 << 10;
// Of 2 ranks' slices the lines come back sooner when they are short: 102 MB take 19.6 ms by
// 64 KiB and 21.9 by 256 KiB on an Intel Xeon; on an AMD EPYC it makes no difference.
constexpr int64_t most_slice_bytes = 64 << 10;
// Of a host's memory, for each process set.
constexpr int64_t most_bytes = 24 << 20;
constexpr int64_t small_bytes = 16 << 10;
constexpr int64_t cache_line = 64;
// What is combined at once, and copied while it is in the first-level cache.
constexpr int64_t piece_bytes = 8 << 10;

int64_t slice_bytes_for(int size) {
  const int64_t slot = std::min(usual_slot_bytes, most_bytes / (2 * size));
  return std::clamp(slot / size / cache_line * cache_line, cache_line, most_slice_bytes);
}

int64_t whole_pages(int64_t bytes) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

int64_t slot_bytes_for(int size) { return std::max(slice_bytes_for(size) * size, small_bytes); }

}  // namespace

int64_t SharedCommunicator::segment_bytes(int size) { return part_of_rank(size - 1, size).second; }

// Layout: barrier slots, then two slots per rank; what is of different ranks has no page in common.
std::pair<int64_t, int64_t> SharedCommunicator::part_of_rank(int rank, int size) {
  const int64_t barrier = whole_pages(static_cast<int64_t>(sizeof(BarrierSlot)) * size);
  const int64_t part = whole_pages(2 * slot_bytes_for(size));
  const int64_t begin = barrier + part * rank;
  return {rank == 0 ? 0 : begin, begin + part};
}

SharedCommunicator::SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size,
                                       WaitHook on_wait)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      slot_bytes_(slot_bytes_for(size)),
      slice_bytes_(slice_bytes_for(size)),
      part_bytes_(whole_pages(2 * slot_bytes_)),
      slots_(segment_->data() + segment_bytes(size) - part_bytes_ * size),
      on_wait_(std::move(on_wait)),
      barrier_(reinterpret_cast<BarrierSlot*>(segment_->data()), rank_, size_),
      piece_(static_cast<size_t>(piece_bytes)) {}

char* SharedCommunicator::slot(int rank, int parity) const {
  return slots_ + part_bytes_ * rank + slot_bytes_ * parity;
}

std::pair<int64_t, int64_t> SharedCommunicator::Rounds::range(int64_t round, int slice) const {
  const auto [begin, end] = slice_of(elements.count(), slice, slices);
  const int64_t from = std::min(begin + round * slice_elements, end);
  return {from, std::min(from + slice_elements, end)};
}

SharedCommunicator::Rounds SharedCommunicator::rounds_for(const ElementSequence& elements,
                                                          const RankReduction& how,
                                                          int slices) const {
  Rounds rounds{elements, how, slices};
  rounds.is_long = elements.count() * elements.item() >= long_call_bytes;
  rounds.slice_elements = slice_bytes_ / elements.item();
  const int64_t longest = (elements.count() + slices - 1) / slices;
  rounds.count = (longest + rounds.slice_elements - 1) / rounds.slice_elements;
  return rounds;
}

void SharedCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                   double prescale, double postscale) {
  const ElementSequence elements(spans, type);
  Rounds rounds = rounds_for(elements, {type, op, prescale, postscale, size_}, size_);
  if (elements.count() * elements.item() <= small_bytes) return allreduce_small(rounds);
  rounds.are_measured = true;
  int parity = next_parity();
  copy_in(rounds, 0, parity);
  barrier();
  auto begin = Clock::now();
  for (int64_t round = 0; round < rounds.count; ++round) {
    reduce_own_slice(rounds, round, parity);
    const int next = round + 1 < rounds.count ? next_parity() : parity;
    if (round + 1 < rounds.count) copy_in(rounds, round + 1, next);
    barrier();
    copy_out(rounds, round, parity);
    parity = next;
    if (round + 2 >= rounds.count) continue;  // the last ones are short
    const auto end = Clock::now();
    add_time(rounds, std::chrono::duration<double, std::nano>(end - begin).count());
    begin = end;
  }
}

StoreChoice& SharedCommunicator::slots_of(const Rounds& rounds) {
  return rounds.is_long ? slots_of_long_ : slots_of_short_;
}

bool SharedCommunicator::streams_slots(const Rounds& rounds) {
  return slots_of(rounds).streaming(rounds.are_measured);
}

bool SharedCommunicator::streams_outputs(const Rounds& rounds) {
  return rounds.is_long && outputs_of_long_.streaming(rounds.are_measured);
}

// Of a round.
void SharedCommunicator::add_time(const Rounds& rounds, double time) {
  const bool slots_changed = slots_of(rounds).add(time);
  if (!rounds.is_long) return;
  if (slots_changed) outputs_of_long_.forget();
  if (outputs_of_long_.add(time)) slots_of_long_.forget();
}

void SharedCommunicator::reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                        double prescale, double postscale, int slices) {
  const ElementSequence elements(spans, type);
  const Rounds rounds = rounds_for(elements, {type, op, prescale, postscale, size_}, slices);
  // Without a barrier of its own it must not turn to the parity that others may still read.
  if (rounds.count == 0) return;
  int parity = next_parity();
  copy_in(rounds, 0, parity);
  for (int64_t round = 0; round < rounds.count; ++round) {
    barrier();
    reduce_own_slice(rounds, round, parity);
    if (round + 1 == rounds.count) return;
    parity = next_parity();
    copy_in(rounds, round + 1, parity);
  }
}

void SharedCommunicator::allgather_slices(const std::vector<Span>& spans, DataType type,
                                          int slices) {
  const ElementSequence elements(spans, type);
  const Rounds rounds = rounds_for(elements, {type, ReduceOp::sum, 1.0, 1.0, size_}, slices);
  for (int64_t round = 0; round < rounds.count; ++round) {
    const int parity = next_parity();
    if (rank_ < slices) {
      const auto [begin, end] = rounds.range(round, rank_);
      elements.read_outputs(begin, end, region(rank_, parity, rank_));
    }
    barrier();
    copy_out(rounds, round, parity);
  }
}

void SharedCommunicator::allreduce_small(const Rounds& rounds) {
  const int64_t count = rounds.elements.count();
  if (count == 0) return;
  const int parity = next_parity();
  char* own = slot(rank_, parity);
  rounds.elements.read(0, count, own);
  rounds.how.scale_input(own, count);
  barrier();
  scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(small_bytes)));
  char* sum = scratch_.data();
  rounds.how.combine_all(sum, sum, count, [&](int peer) { return slot(peer, parity); });
  rounds.elements.write(0, count, sum);
}

void SharedCommunicator::copy_in(const Rounds& rounds, int64_t round, int parity) {
  for (int step = 0; step < rounds.slices; ++step) {
    const int slice = (rank_ + step) % rounds.slices;
    if (slice == rank_) continue;
    const auto [begin, end] = rounds.range(round, slice);
    char* to = region(rank_, parity, slice);
    if (!rounds.how.scales_inputs() && streams_slots(rounds)) {
      rounds.elements.for_each_part(begin, end,
                                    [&](const char* input, char*, int64_t length, int64_t before) {
                                      stream_bytes(to + before * rounds.elements.item(), input,
                                                   length * rounds.elements.item());
                                    });
      continue;
    }
    rounds.elements.read(begin, end, to);
    rounds.how.scale_input(to, end - begin);
  }
}

void SharedCommunicator::reduce_own_slice(const Rounds& rounds, int64_t round, int parity) {
  if (rank_ >= rounds.slices) return;
  const auto [begin, end] = rounds.range(round, rank_);
  char* const sums = region(rank_, parity, rank_);
  const int64_t item = rounds.elements.item();
  rounds.elements.for_each_part(
      begin, end, [&](const char* input, char* output, int64_t length, int64_t before) {
        const int64_t at = before * item;
        if (!streams_slots(rounds)) {
          reduce_piece(rounds, input, sums + at, at, length, parity);
          copy_bytes(output, sums + at, length * item);
          return;
        }
        // Through memory of one's own, in pieces that stay in the first-level cache.
        for (int64_t done = 0; done < length; done += piece_bytes / item) {
          const int64_t count = std::min(piece_bytes / item, length - done), from = done * item;
          char* const sum = rank_ < 2 ? output + from : piece_.data();
          reduce_piece(rounds, input + from, sum, at + from, count, parity);
          stream_bytes(sums + at + from, sum, count * item);
          copy_bytes(output + from, sum, count * item);
        }
      });
}

// Combine `count` elements of the own slice, `at` bytes behind its begin in the regions, into
// `sum`: this may be `input` where the own contribution is one of the first two.
void SharedCommunicator::reduce_piece(const Rounds& rounds, const char* input, char* sum,
                                      int64_t at, int64_t count, int parity) {
  const char* own = input;
  if (rounds.how.scales_inputs()) {
    scratch_.assign(input, input + count * rounds.elements.item());
    rounds.how.scale_input(scratch_.data(), count);
    own = scratch_.data();
  }
  rounds.how.combine_all(sum, sum, count, [&](int peer) {
    return peer == rank_ ? own : region(peer, parity, rank_) + at;
  });
}

void SharedCommunicator::copy_out(const Rounds& rounds, int64_t round, int parity) {
  const bool streaming = streams_outputs(rounds);
  for (int step = 0; step < rounds.slices; ++step) {
    const int slice = (rank_ + step) % rounds.slices;
    if (slice == rank_) continue;
    const auto [begin, end] = rounds.range(round, slice);
    rounds.elements.write(begin, end, region(slice, parity, slice), streaming);
  }
}

void SharedCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  std::vector<char*> block(static_cast<size_t>(size_), static_cast<char*>(blocks));
  for (size_t peer = 1; peer < block.size(); ++peer) {
    block[peer] = block[peer - 1] + bytes_per_rank[peer - 1];
  }
  const int64_t longest = *std::max_element(bytes_per_rank.begin(), bytes_per_rank.end());
  for (int64_t begin = 0; begin < longest; begin += slot_bytes_) {
    const auto part = [&](int rank) {
      const int64_t left = bytes_per_rank[static_cast<size_t>(rank)] - begin;
      return std::clamp<int64_t>(left, 0, slot_bytes_);
    };
    next_parity();
    const auto own = static_cast<size_t>(rank_);
    copy_bytes(slot(rank_, parity_), block[own] + begin, part(rank_));
    barrier();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      copy_bytes(block[static_cast<size_t>(peer)] + begin, slot(peer, parity_), part(peer));
    }
  }
}

void SharedCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  for (int64_t begin = 0; begin < bytes; begin += slot_bytes_) {
    char* const part = static_cast<char*>(data) + begin;
    const int64_t length = std::min(slot_bytes_, bytes - begin);
    next_parity();
    if (rank_ == root_rank) copy_bytes(slot(rank_, parity_), part, length);
    barrier();
    if (rank_ != root_rank) copy_bytes(part, slot(root_rank, parity_), length);
  }
}

// Block (r, d) goes through rank r's region for slice d, in as many rounds as the longest one
// needs.
void SharedCommunicator::alltoall(const void* send, void* receive,
                                  const std::vector<int64_t>& bytes) {
  const auto n = static_cast<size_t>(size_);
  const auto own = static_cast<size_t>(rank_);
  int64_t longest = 0;
  for (size_t i = 0; i < n * n; ++i) {
    if (i / n != i % n) longest = std::max(longest, bytes[i]);
  }
  std::vector<const char*> out{static_cast<const char*>(send)};
  std::vector<char*> in{static_cast<char*>(receive)};
  for (size_t peer = 0; peer + 1 < n; ++peer) {
    out.push_back(out[peer] + bytes[own * n + peer]);
    in.push_back(in[peer] + bytes[peer * n + own]);
  }
  copy_bytes(in[own], out[own], bytes[own * n + own]);
  for (int64_t begin = 0; begin < longest; begin += slice_bytes_) {
    const auto part = [&](size_t from, size_t to) {
      return std::clamp<int64_t>(bytes[from * n + to] - begin, 0, slice_bytes_);
    };
    next_parity();
    for (size_t peer = 0; peer < n; ++peer) {
      if (peer == own) continue;
      copy_bytes(region(rank_, parity_, static_cast<int>(peer)), out[peer] + begin,
                 part(own, peer));
    }
    barrier();
    for (size_t peer = 0; peer < n; ++peer) {
      if (peer == own) continue;
      copy_bytes(in[peer] + begin, region(static_cast<int>(peer), parity_, rank_), part(peer, own));
    }
  }
}

namespace {

// What a rank tells the others while they agree; fixed size, so that it travels by allgather.
struct Introduction {
  int64_t works;
  Segment::Place segment;
};

MessageVector<Introduction> introduce(Communicator& base, const Introduction& own) {
  const auto size = static_cast<size_t>(base.size());
  MessageVector<Introduction> all(size);
  all[static_cast<size_t>(base.rank())] = own;
  base.allgather(all.data(), std::vector<int64_t>(size, sizeof(Introduction)));
  return all;
}

// Rank 0's segment or nullptr; on the other ranks nullptr.
std::unique_ptr<Segment> create_on_rank_0(Communicator& base, int64_t bytes, std::string& why_not) {
  if (base.rank() != 0) return nullptr;
  try {
    return Segment::create(bytes);
  } catch (const EngineError& error) {
    why_not = error.what();
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const WaitHook& on_wait,
                                                       std::string& why_not) {
  const int64_t bytes = SharedCommunicator::segment_bytes(base.size());
  std::unique_ptr<Segment> segment = create_on_rank_0(base, bytes, why_not);
  Introduction own{segment != nullptr, segment ? segment->place() : Segment::Place{}};
  const Introduction first = introduce(base, own)[0];
  try {
    if (first.works && !segment) segment = Segment::attach(first.segment, bytes);
    const auto [begin, end] = SharedCommunicator::part_of_rank(base.rank(), base.size());
    if (segment) segment->reserve(begin, end);
  } catch (const EngineError& error) {
    why_not = error.what();
    segment.reset();
  }
  own.works = segment != nullptr;
  const MessageVector<Introduction> all = introduce(base, own);
  if (!std::all_of(all.begin(), all.end(), [](const auto& rank) { return rank.works != 0; })) {
    return nullptr;
  }
  segment->close();
  return std::make_unique<SharedCommunicator>(std::move(segment), base.rank(), base.size(),
                                              on_wait);
}

}  // namespace autotune
