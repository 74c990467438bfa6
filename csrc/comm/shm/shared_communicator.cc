#include "comm/shm/shared_communicator.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/errors.h"
#include "common/reduce.h"

namespace autotune {

namespace {

constexpr int64_t slot_bytes = 32 << 10;
constexpr size_t max_spans = 480;
// Contributions are combined while they are in the second-level cache.
constexpr int64_t chunk_bytes = 128 << 10;
constexpr uint64_t probe_value = 0x6876642d6175746f;

}  // namespace

struct SharedCommunicator::Board {
  std::array<uint64_t, max_spans> addresses;
};

// Layout: barrier slots, boards, then two small-payload slots per rank.
int64_t SharedCommunicator::segment_bytes(int size) {
  const int64_t per_rank =
      static_cast<int64_t>(sizeof(BarrierSlot) + sizeof(Board)) + 2 * slot_bytes;
  return per_rank * size;
}

SharedCommunicator::SharedCommunicator(std::unique_ptr<Segment> segment, int rank,
                                       std::vector<Peer> peers, Progress progress)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(static_cast<int>(peers.size())),
      peers_(std::move(peers)),
      progress_(std::move(progress)),
      barrier_(reinterpret_cast<BarrierSlot*>(segment_->data()), rank_, size_) {}

SharedCommunicator::Board& SharedCommunicator::board(int rank) const {
  char* boards = segment_->data() + sizeof(BarrierSlot) * static_cast<size_t>(size_);
  return reinterpret_cast<Board*>(boards)[rank];
}

char* SharedCommunicator::slot(int rank, int parity) const {
  char* slots =
      segment_->data() + (sizeof(BarrierSlot) + sizeof(Board)) * static_cast<size_t>(size_);
  return slots + (static_cast<int64_t>(rank) * 2 + parity) * slot_bytes;
}

void SharedCommunicator::read(int peer, void* to, uint64_t from, int64_t bytes) {
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const iovec local{next, static_cast<size_t>(bytes)};
    const iovec remote{reinterpret_cast<void*>(from), static_cast<size_t>(bytes)};
    const ssize_t n =
        ::process_vm_readv(peers_[static_cast<size_t>(peer)].pid, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      progress_();  // tells if the rank has died
      throw EngineError("reading the memory of local rank " + std::to_string(peer) +
                        " failed: " + std::strerror(errno));
    }
    next += n;
    from += static_cast<uint64_t>(n);
    bytes -= n;
  }
}

bool SharedCommunicator::probe() {
  const uint64_t own = probe_value + static_cast<uint64_t>(rank_);
  board(rank_).addresses[0] = reinterpret_cast<uint64_t>(&own);
  barrier();
  bool readable = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    uint64_t seen = 0;
    const iovec local{&seen, sizeof seen};
    const iovec remote{reinterpret_cast<void*>(board(peer).addresses[0]), sizeof seen};
    const ssize_t n =
        ::process_vm_readv(peers_[static_cast<size_t>(peer)].pid, &local, 1, &remote, 1, 0);
    readable = readable && n == sizeof seen && seen == probe_value + static_cast<uint64_t>(peer);
  }
  barrier();
  return readable;
}

void SharedCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                   double postscale) {
  int64_t count = 0;
  for (const Span& span : spans) count += span.count;
  if (count == 0) return;
  if (count * static_cast<int64_t>(size_of(type)) <= slot_bytes) {
    return allreduce_small(spans, count, type, op, postscale);
  }
  for (size_t begin = 0; begin < spans.size(); begin += max_spans) {
    allreduce_large(&spans[begin], std::min(max_spans, spans.size() - begin), type, op, postscale);
  }
}

// The slot is free again after the barrier of the next small call: two slots per rank are enough.
void SharedCommunicator::allreduce_small(const std::vector<Span>& spans, int64_t count,
                                         DataType type, ReduceOp op, double postscale) {
  parity_ = 1 - parity_;
  char* next = slot(rank_, parity_);
  for (const Span& span : spans) {
    const size_t bytes = static_cast<size_t>(span.count) * size_of(type);
    std::memcpy(next, span.data, bytes);
    next += bytes;
  }
  barrier();
  inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(slot_bytes)));
  const char* partial = slot(0, parity_);
  for (int peer = 1; peer < size_; ++peer) {
    combine(inbox_.data(), partial, slot(peer, parity_), count, type, op);
    partial = inbox_.data();
  }
  scale(inbox_.data(), count, type, postscale, op == ReduceOp::average ? size_ : 1);
  const char* result = inbox_.data();
  for (const Span& span : spans) {
    const size_t bytes = static_cast<size_t>(span.count) * size_of(type);
    std::memcpy(span.data, result, bytes);
    result += bytes;
  }
}

namespace {

// The part of elements [begin, end) of all spans together that lies in each span.
template <typename Act>
void for_each_part(const Span* spans, size_t span_count, int64_t begin, int64_t end, Act&& act) {
  int64_t first = 0;
  for (size_t i = 0; i < span_count && first < end; first += spans[i].count, ++i) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + spans[i].count);
    if (from < to) act(i, from - first, to - from);
  }
}

int64_t total_count(const Span* spans, size_t span_count) {
  return std::accumulate(spans, spans + span_count, int64_t{0},
                         [](int64_t sum, const Span& span) { return sum + span.count; });
}

}  // namespace

void SharedCommunicator::allreduce_large(const Span* spans, size_t span_count, DataType type,
                                         ReduceOp op, double postscale) {
  Board& own = board(rank_);
  for (size_t i = 0; i < span_count; ++i) {
    own.addresses[i] = reinterpret_cast<uint64_t>(spans[i].data);
  }
  barrier();  // all inputs are there
  reduce_slice(spans, span_count, type, op, postscale);
  barrier();  // all slices are finished
  const int64_t count = total_count(spans, span_count);
  const auto item = static_cast<int64_t>(size_of(type));
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    for_each_part(spans, span_count, count * peer / size_, count * (peer + 1) / size_,
                  [&](size_t span, int64_t offset, int64_t length) {
                    read(peer, static_cast<char*>(spans[span].data) + offset * item,
                         board(peer).addresses[span] + static_cast<uint64_t>(offset * item),
                         length * item);
                  });
  }
  barrier();  // nobody reads this rank's memory any more
}

void SharedCommunicator::reduce_slice(const Span* spans, size_t span_count, DataType type,
                                      ReduceOp op, double postscale) {
  const int64_t count = total_count(spans, span_count);
  const auto item = static_cast<int64_t>(size_of(type));
  const int64_t chunk = chunk_bytes / item;
  inbox_.resize(std::max(inbox_.size(), static_cast<size_t>(chunk_bytes * (size_ - 1))));
  for_each_part(spans, span_count, count * rank_ / size_, count * (rank_ + 1) / size_,
                [&](size_t span, int64_t offset, int64_t length) {
                  for (int64_t done = 0; done < length; done += chunk) {
                    const int64_t at = (offset + done) * item;
                    reduce_chunk(static_cast<char*>(spans[span].data) + at, span, at,
                                 std::min(chunk, length - done), type, op, postscale);
                  }
                });
}

void SharedCommunicator::reduce_chunk(char* own, size_t span, int64_t offset_bytes, int64_t count,
                                      DataType type, ReduceOp op, double postscale) {
  const int64_t bytes = count * static_cast<int64_t>(size_of(type));
  const auto inbox_of = [&](int peer) {
    return inbox_.data() + bytes * (peer < rank_ ? peer : peer - 1);
  };
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    read(peer, inbox_of(peer), board(peer).addresses[span] + static_cast<uint64_t>(offset_bytes),
         bytes);
  }
  combine_in_rank_order(own, inbox_.data(), rank_, size_, count, type, op);
  scale(own, count, type, postscale, op == ReduceOp::average ? size_ : 1);
}

void SharedCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  board(rank_).addresses[0] = reinterpret_cast<uint64_t>(blocks);
  barrier();
  int64_t offset = 0;
  for (int peer = 0; peer < size_; ++peer) {
    const int64_t bytes = bytes_per_rank[static_cast<size_t>(peer)];
    if (peer != rank_) {
      read(peer, static_cast<char*>(blocks) + offset,
           board(peer).addresses[0] + static_cast<uint64_t>(offset), bytes);
    }
    offset += bytes;
  }
  barrier();
}

void SharedCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  if (rank_ == root_rank) board(rank_).addresses[0] = reinterpret_cast<uint64_t>(data);
  barrier();
  if (rank_ != root_rank) read(root_rank, data, board(root_rank).addresses[0], bytes);
  barrier();
}

namespace {

// What a rank tells the others while they agree; fixed size, so that it travels by allgather.
struct Introduction {
  int32_t pid;
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

bool all_work(Communicator& base, bool works) {
  Introduction own{};
  own.works = works;
  const std::vector<Introduction> all = introduce(base, own);
  return std::all_of(all.begin(), all.end(), [](const auto& rank) { return rank.works != 0; });
}

}  // namespace

std::unique_ptr<Communicator> make_shared_communicator(Communicator& base, const Progress& progress,
                                                       std::string& why_not) {
#ifdef PR_SET_PTRACER
  // Where Yama restricts reading another process to its parents, this process allows it.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
  std::unique_ptr<Segment> segment;
  Introduction own{static_cast<int32_t>(::getpid()), 1, {}};
  const int64_t bytes = SharedCommunicator::segment_bytes(base.size());
  try {
    if (base.rank() == 0) segment = Segment::create(bytes);
    if (segment)
      std::strncpy(own.segment_name.data(), segment->name().c_str(), own.segment_name.size() - 1);
  } catch (const EngineError& error) {
    why_not = error.what();
    own.works = 0;
  }
  const std::vector<Introduction> all = introduce(base, own);
  std::vector<SharedCommunicator::Peer> peers;
  for (const Introduction& rank : all) peers.push_back({rank.pid});
  try {
    if (all[0].works && !segment) segment = Segment::attach(all[0].segment_name.data(), bytes);
  } catch (const EngineError& error) {
    why_not = error.what();
  }
  if (!all_work(base, segment != nullptr)) {
    if (why_not.empty()) why_not = "another rank cannot map shared memory";
    return nullptr;
  }
  segment->unlink();
  auto shared =
      std::make_unique<SharedCommunicator>(std::move(segment), base.rank(), peers, progress);
  if (!all_work(base, shared->probe())) {
    why_not = "process_vm_readv is not permitted between the ranks";
    return nullptr;
  }
  return shared;
}

}  // namespace autotune
