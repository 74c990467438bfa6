// One rank: a real communicator whose collectives have nothing to exchange.
#pragma once

#include "comm/communicator.h"

namespace autotune {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Backend backend() const override { return Backend::self; }
  bool gathers() const override { return true; }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override;
};

}  // namespace autotune
