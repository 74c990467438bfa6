// Collectives over GPUs by NCCL.
//
// NCCL connects ranks when a call first needs it, and waits for them without end. Which call does
// is its own business: it depends on the operation, the type and the lengths. So a call that is
// unlike all before it is made in a thread of its own, which is watched; one that is like an
// earlier one finds all its connections made, and costs no thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "comm/nccl/nccl_call.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_tuner.h"

namespace autotune {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  // See DeviceConnector. `device` outlives this.
  static std::unique_ptr<DeviceCommunicator> connect(std::shared_ptr<const NcclLibrary> nccl,
                                                     std::shared_ptr<NcclTuner> tuner,
                                                     const Device& device,
                                                     const std::string& host_id,
                                                     Communicator* plain, int color,
                                                     const WaitHook& on_wait);
  // Seconds at most, see DeviceCommunicator::abort.
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
  void begin_group() override { ++depth_; }
  void end_group() override;
  std::string failure() override;
  void abort() override;

 private:
  enum class Kind { allreduce, reduce_scatter, allgather, broadcast, send, receive };
  // One call of NCCL's; `other`: its operation, or the rank of the other side.
  struct Part {
    Kind kind;
    const void* from;
    void* to;
    size_t count;
    int type;
    int other;
  };
  // What the calls are made with; they may outlive this.
  struct Caller {
    std::shared_ptr<const NcclLibrary> nccl;
    std::shared_ptr<NcclTuner> tuner;
    uint64_t number;  // by which the tuner knows the communicator; 0: it does not
    void* communicator;
    void* stream;

    int call(const Part& part) const;
    int call_all(const std::vector<Part>& parts) const;
  };

  // `bind` makes its GPU the calling thread's.
  NcclCommunicator(Caller caller, std::function<void()> bind, int rank, int size, WaitHook on_wait)
      : caller_(std::move(caller)),
        bind_(std::move(bind)),
        rank_(rank),
        size_(size),
        on_wait_(std::move(on_wait)) {}

  void add(const Part& part);
  void launch();
  void end(int (*NcclLibrary::*how)(void*));

  const Caller caller_;
  const std::function<void()> bind_;
  const int rank_;
  const int size_;
  const WaitHook on_wait_;
  int depth_ = 0;                       // so many groups are open
  std::vector<Part> parts_;             // they are of the launch in preparation
  std::unordered_set<uint64_t> known_;  // earlier launches have been like these
  std::optional<NcclCall> running_;     // it is the last one that was watched
  std::optional<NcclCall> ending_;      // it aborts or destroys the communicator
  std::chrono::steady_clock::time_point end_until_{};
};

}  // namespace autotune
