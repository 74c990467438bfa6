#include "comm/shm/shared_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/reduce.h"

namespace autotune {

namespace {

// Half of a usual second-level cache; 64 KiB - 1 MiB make no difference on 2 ranks (measured),
// larger ones mean fewer barriers where ranks share cores.
constexpr int64_t usual_slot_bytes = 512 << 10;
// A container's /dev/shm may have 64 MB in all.
constexpr int64_t most_bytes = 24 << 20;
constexpr int64_t small_bytes = 16 << 10;
constexpr int64_t cache_line = 64;

int64_t slice_bytes_for(int size) {
  const int64_t slot = std::min(usual_slot_bytes, most_bytes / (2 * size));
  return std::max(slot / size / cache_line * cache_line, cache_line);
}

int64_t slot_bytes_for(int size) { return std::max(slice_bytes_for(size) * size, small_bytes); }

}  // namespace

class SharedCommunicator::Stream {
 public:
  Stream(const std::vector<Span>& spans, DataType type)
      : spans_(spans), item_(static_cast<int64_t>(size_of(type))) {
    ends_.reserve(spans.size());
    for (const Span& span : spans) ends_.push_back(count() + span.count);
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t item() const { return item_; }

  // act(input, output, elements, elements before it in [begin, end)) for each contiguous part.
  template <typename Act>
  void for_each_part(int64_t begin, int64_t end, Act&& act) const {
    auto i =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (int64_t at = begin; at < end; ++i) {
      const int64_t offset = (at - (ends_[i] - spans_[i].count)) * item_;
      const int64_t length = std::min(end, ends_[i]) - at;
      if (length > 0) {
        act(static_cast<const char*>(spans_[i].input) + offset,
            static_cast<char*>(spans_[i].output) + offset, length, at - begin);
      }
      at += length;
    }
  }

  void read(int64_t begin, int64_t end, char* to) const {
    for_each_part(begin, end, [&](const char* input, char*, int64_t length, int64_t before) {
      std::memcpy(to + before * item_, input, static_cast<size_t>(length * item_));
    });
  }

  void write(int64_t begin, int64_t end, const char* from) const {
    for_each_part(begin, end, [&](const char*, char* output, int64_t length, int64_t before) {
      std::memcpy(output, from + before * item_, static_cast<size_t>(length * item_));
    });
  }

 private:
  const std::vector<Span>& spans_;
  int64_t item_;
  std::vector<int64_t> ends_;
};

// Layout: barrier slots, then two slots per rank.
int64_t SharedCommunicator::segment_bytes(int size) {
  return (static_cast<int64_t>(sizeof(BarrierSlot)) + 2 * slot_bytes_for(size)) * size;
}

SharedCommunicator::SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size,
                                       Progress progress)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      slot_bytes_(slot_bytes_for(size)),
      slice_bytes_(slice_bytes_for(size)),
      progress_(std::move(progress)),
      barrier_(reinterpret_cast<BarrierSlot*>(segment_->data()), rank_, size_) {}

char* SharedCommunicator::slot(int rank, int parity) const {
  char* slots = segment_->data() + sizeof(BarrierSlot) * static_cast<size_t>(size_);
  return slots + (static_cast<int64_t>(rank) * 2 + parity) * slot_bytes_;
}

char* SharedCommunicator::slice(int rank, int parity, int of_rank) const {
  return slot(rank, parity) + slice_bytes_ * of_rank;
}

void SharedCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                   double prescale, double postscale) {
  const Stream stream(spans, type);
  const Arithmetic arithmetic{type, op, prescale, postscale};
  if (stream.count() * stream.item() <= small_bytes) return allreduce_small(stream, arithmetic);
  const int64_t chunk_count = slice_bytes_ / stream.item() * size_;
  const auto chunk_at = [&](int64_t begin) {
    next_parity();
    return Chunk{begin, std::min(chunk_count, stream.count() - begin), parity_};
  };
  Chunk chunk = chunk_at(0);
  copy_in(stream, chunk, arithmetic);
  barrier();
  while (true) {
    reduce_own_slice(stream, chunk, arithmetic);
    const int64_t next_begin = chunk.begin + chunk.count;
    const bool is_last = next_begin == stream.count();
    const Chunk next = is_last ? chunk : chunk_at(next_begin);
    if (!is_last) copy_in(stream, next, arithmetic);
    barrier();
    copy_out(stream, chunk);
    if (is_last) return;
    chunk = next;
  }
}

void SharedCommunicator::allreduce_small(const Stream& stream, const Arithmetic& arithmetic) {
  if (stream.count() == 0) return;
  next_parity();
  char* own = slot(rank_, parity_);
  stream.read(0, stream.count(), own);
  scale(own, stream.count(), arithmetic.type, arithmetic.prescale);
  barrier();
  scratch_.resize(static_cast<size_t>(small_bytes));
  char* sum = scratch_.data();
  const char* partial = slot(0, parity_);
  for (int peer = 1; peer < size_; ++peer) {
    combine(sum, partial, slot(peer, parity_), stream.count(), arithmetic.type, arithmetic.op);
    partial = sum;
  }
  scale(sum, stream.count(), arithmetic.type, arithmetic.postscale,
        arithmetic.op == ReduceOp::average ? size_ : 1);
  stream.write(0, stream.count(), sum);
}

void SharedCommunicator::copy_in(const Stream& stream, const Chunk& chunk,
                                 const Arithmetic& arithmetic) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const int64_t begin = slice_begin(chunk, peer), end = slice_begin(chunk, peer + 1);
    char* to = slice(rank_, chunk.parity, peer);
    stream.read(begin, end, to);
    scale(to, end - begin, arithmetic.type, arithmetic.prescale);
  }
}

void SharedCommunicator::reduce_own_slice(const Stream& stream, const Chunk& chunk,
                                          const Arithmetic& arithmetic) {
  const int64_t begin = slice_begin(chunk, rank_), end = slice_begin(chunk, rank_ + 1);
  char* const sum = slice(rank_, chunk.parity, rank_);
  stream.for_each_part(
      begin, end, [&](const char* input, char* output, int64_t length, int64_t before) {
        const int64_t at = before * stream.item();
        const auto bytes = static_cast<size_t>(length * stream.item());
        const char* own = input;
        if (arithmetic.prescale != 1.0) {
          scratch_.assign(input, input + bytes);
          scale(scratch_.data(), length, arithmetic.type, arithmetic.prescale);
          own = scratch_.data();
        }
        const auto contribution = [&](int peer) {
          return peer == rank_ ? own : slice(peer, chunk.parity, rank_) + at;
        };
        const char* partial = contribution(0);
        for (int peer = 1; peer < size_; ++peer) {
          combine(sum + at, partial, contribution(peer), length, arithmetic.type, arithmetic.op);
          partial = sum + at;
        }
        scale(sum + at, length, arithmetic.type, arithmetic.postscale,
              arithmetic.op == ReduceOp::average ? size_ : 1);
        std::memcpy(output, sum + at, bytes);
      });
}

void SharedCommunicator::copy_out(const Stream& stream, const Chunk& chunk) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    stream.write(slice_begin(chunk, peer), slice_begin(chunk, peer + 1),
                 slice(peer, chunk.parity, peer));
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
      return static_cast<size_t>(std::clamp<int64_t>(left, 0, slot_bytes_));
    };
    next_parity();
    const auto own = static_cast<size_t>(rank_);
    if (part(rank_) > 0) std::memcpy(slot(rank_, parity_), block[own] + begin, part(rank_));
    barrier();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || part(peer) == 0) continue;
      std::memcpy(block[static_cast<size_t>(peer)] + begin, slot(peer, parity_), part(peer));
    }
  }
}

void SharedCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  for (int64_t begin = 0; begin < bytes; begin += slot_bytes_) {
    char* const part = static_cast<char*>(data) + begin;
    const auto length = static_cast<size_t>(std::min(slot_bytes_, bytes - begin));
    next_parity();
    if (rank_ == root_rank) std::memcpy(slot(rank_, parity_), part, length);
    barrier();
    if (rank_ != root_rank) std::memcpy(part, slot(root_rank, parity_), length);
  }
}

namespace {

// What a rank tells the others while they agree; fixed size, so that it travels by allgather.
struct Introduction {
  int32_t works;
  std::array<char, 64> segment_name;
};

std::vector<Introduction> introduce(Communicator& base, const Introduction& own) {
  const auto size = static_cast<size_t>(base.size());
  std::vector<Introduction> all(size);
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

std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const Progress& progress,
                                                       std::string& why_not) {
  const int64_t bytes = SharedCommunicator::segment_bytes(base.size());
  std::unique_ptr<Segment> segment = create_on_rank_0(base, bytes, why_not);
  Introduction own{segment != nullptr, {}};
  if (segment) segment->name().copy(own.segment_name.data(), own.segment_name.size() - 1);
  const Introduction first = introduce(base, own)[0];
  try {
    if (first.works && !segment) segment = Segment::attach(first.segment_name.data(), bytes);
  } catch (const EngineError& error) {
    why_not = error.what();
  }
  own.works = segment != nullptr;
  const std::vector<Introduction> all = introduce(base, own);
  if (!std::all_of(all.begin(), all.end(), [](const auto& rank) { return rank.works != 0; })) {
    if (why_not.empty()) why_not = "another rank cannot map the shared memory of rank 0";
    return nullptr;
  }
  segment->unlink();
  return std::make_unique<SharedCommunicator>(std::move(segment), base.rank(), base.size(),
                                              progress);
}

}  // namespace autotune
