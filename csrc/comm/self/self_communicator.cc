#include "comm/self/self_communicator.h"

#include "common/copy.h"
#include "common/reduce.h"

namespace autotune {

void SelfCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp /*op*/,
                                 double prescale, double postscale) {
  for (const Span& span : spans) {
    const size_t bytes = static_cast<size_t>(span.count) * size_of(type);
    copy_bytes(span.output, span.input, bytes);
    scale(span.output, span.count, type, prescale);
    scale(span.output, span.count, type, postscale);
  }
}

void SelfCommunicator::allgather(void* /*blocks*/, const std::vector<int64_t>& /*bytes_per_rank*/) {
}

void SelfCommunicator::broadcast(void* /*data*/, int64_t /*bytes*/, int /*root_rank*/) {}

void SelfCommunicator::alltoall(const void* send, void* receive,
                                const std::vector<int64_t>& bytes) {
  copy_bytes(receive, send, bytes[0]);
}

}  // namespace autotune
