#include "comm/communicator.h"

#include "comm/stream.h"

namespace autotune {

void Communicator::reduce_scatter(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                  double prescale, int /*slices*/) {
  allreduce(spans, type, op == ReduceOp::average ? ReduceOp::sum : op, prescale, 1.0);
}

void Communicator::allgather_slices(const std::vector<Span>& spans, DataType type, int slices) {
  const Stream stream(spans, type);
  for (int root = 0; root < slices; ++root) {
    const auto [begin, end] = slice_of(stream.count(), root, slices);
    stream.for_each_part(begin, end, [&](const char*, char* output, int64_t length, int64_t) {
      broadcast(output, length * stream.item(), root);
    });
  }
}

}  // namespace autotune
