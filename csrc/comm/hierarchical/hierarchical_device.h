// Allreduce over GPUs in two levels: reduce-scatter within a host, allreduce of the slices between
// hosts (lane j: the ranks with local rank j), allgather within a host. Hosts have equally many
// ranks. Everything else takes the flat way.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"

namespace autotune {

class HierarchicalDevice final : public DeviceCommunicator {
 public:
  // `flat` outlives this; `local`: the ranks of this host, `cross`: those of this lane.
  HierarchicalDevice(DeviceCommunicator& flat, std::unique_ptr<DeviceCommunicator> local,
                     std::unique_ptr<DeviceCommunicator> cross)
      : flat_(flat), local_(std::move(local)), cross_(std::move(cross)) {}

  int rank() const override { return flat_.rank(); }
  int size() const override { return flat_.size(); }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) override;
  void reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                      ReduceOp op) override {
    flat_.reduce_scatter(blocks, own, count, type, op);
  }
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override {
    flat_.allgather(blocks, bytes_per_rank);
  }
  void broadcast(void* data, int64_t bytes, int root_rank) override {
    flat_.broadcast(data, bytes, root_rank);
  }
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override {
    flat_.alltoall(send, receive, bytes);
  }
  void begin_group() override { flat_.begin_group(); }
  void end_group() override { flat_.end_group(); }
  std::string failure() override;
  void abort() override;

 private:
  DeviceCommunicator& flat_;
  std::unique_ptr<DeviceCommunicator> local_;
  std::unique_ptr<DeviceCommunicator> cross_;
};

}  // namespace autotune
