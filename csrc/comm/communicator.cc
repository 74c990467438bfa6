#include "comm/communicator.h"

#include <numeric>

#include "comm/element_sequence.h"
#include "common/copy.h"
#include "common/message_memory.h"

namespace autotune {

void Communicator::reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                  double prescale, double postscale, int /*slices*/) {
  allreduce(spans, type, op, prescale, postscale);
}

void Communicator::allgather_slices(const std::vector<Span>& spans, DataType type, int slices) {
  const ElementSequence elements(spans, type);
  for (int root = 0; root < slices; ++root) {
    const auto [begin, end] = slice_of(elements.count(), root, slices);
    elements.for_each_part(begin, end, [&](const char*, char* output, int64_t length, int64_t) {
      broadcast(output, length * elements.item(), root);
    });
  }
}

void Communicator::alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) {
  const auto n = static_cast<size_t>(size());
  const auto own = static_cast<size_t>(rank());
  std::vector<int64_t> sent_by(n);
  for (size_t r = 0; r < n; ++r) {
    const auto row = bytes.begin() + static_cast<std::ptrdiff_t>(r * n);
    sent_by[r] = std::accumulate(row, row + static_cast<std::ptrdiff_t>(n), int64_t{0});
  }
  MessageVector<char> all(
      static_cast<size_t>(std::accumulate(sent_by.begin(), sent_by.end(), int64_t{0})));
  const auto copy = [](void* to, const void* from, int64_t length) {
    copy_bytes(to, from, length);
  };
  char* block = all.data();
  for (size_t r = 0; r < own; ++r) block += sent_by[r];
  copy(block, send, sent_by[own]);
  allgather(all.data(), sent_by);
  const char* next = all.data();
  auto* out = static_cast<char*>(receive);
  for (size_t i = 0; i < n * n; next += bytes[i], ++i) {
    if (i % n != own) continue;
    copy(out, next, bytes[i]);
    out += bytes[i];
  }
}

}  // namespace autotune
