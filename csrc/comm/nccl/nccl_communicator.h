// Collectives over GPUs by NCCL.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "comm/nccl/nccl_library.h"

namespace autotune {

// Something that NCCL does in a thread of its own; the thread goes on when this is gone.
class NcclCall {
 public:
  explicit NcclCall(std::function<int()> act);
  bool done() const { return state_->done; }
  int result() const { return state_->result; }  // once it is done

 private:
  struct State {
    std::atomic<bool> done{false};
    int result = 0;
  };
  std::shared_ptr<State> state_;
};

class NcclCommunicator final : public DeviceCommunicator {
 public:
  // Collective over the ranks of `plain`; nullptr: one rank. `device` outlives this.
  static std::unique_ptr<DeviceCommunicator> connect(std::shared_ptr<const NcclLibrary> nccl,
                                                     const Device& device,
                                                     const std::string& host_id,
                                                     Communicator* plain, const WaitHook& on_wait);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) override;
  void reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                      ReduceOp op) override;
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override;
  void broadcast(void* data, int64_t bytes, int root_rank) override;
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override;
  void begin_group() override;
  void end_group() override;
  std::unique_ptr<DeviceCommunicator> split(int color) override;
  std::string failure() override;
  void abort() override;

 private:
  // `bind` makes its GPU the calling thread's.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> nccl, std::function<void()> bind,
                   DeviceStream stream, void* communicator, int rank, int size)
      : nccl_(std::move(nccl)),
        bind_(std::move(bind)),
        stream_(reinterpret_cast<void*>(stream)),
        communicator_(communicator),
        rank_(rank),
        size_(size) {}

  std::shared_ptr<const NcclLibrary> nccl_;
  std::function<void()> bind_;
  void* stream_;
  void* communicator_;  // nullptr: aborted
  int rank_;
  int size_;
  std::optional<NcclCall> abort_;
  std::chrono::steady_clock::time_point abort_until_{};
};

}  // namespace autotune
