// Carries out responses on a GPU. Everything is put into the engine's stream: waiting for the
// tensors (by events), packing in one launch, the collective, unpacking in one launch. Nothing here
// waits for the GPU; a response is complete when it is put there, and its event says when it is
// done. Where the host has to wait for the GPU or for other ranks nevertheless, it looks after the
// job: before a communicator is made, which has to find an idle GPU, and when the GPU is so far
// behind that its queue would hold the host up.
//
// A result that is to be checked is copied to the host behind its operation, and looked at some
// responses later, when the GPU has long done it.
//
// Tensors of at least in_place_bytes are not packed but become calls of their own within the
// collective's group. Where a rank has too little memory for what is to be packed, all ranks pack
// it in pieces, one after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.h"
#include "engine/execute/device_buffer.h"
#include "engine/execute/layout.h"
#include "engine/execute/members.h"
#include "engine/execute/result_check.h"
#include "engine/operation/counters.h"
#include "engine/operation/tensor.h"
#include "engine/timeline/device_timeline.h"

namespace autotune {

class DeviceExecutor {
 public:
  // `timeline` and `counters` outlive this.
  DeviceExecutor(DeviceBackend backend, Timeline* timeline, Counters& counters)
      : backend_(std::move(backend)),
        device_(*backend_.device),
        job_timeline_(timeline),
        timeline_(device_, timeline),
        counters_(counters),
        buffer_(*backend_.memory, device_) {}

  // See Executor::run. Sets `finished` of the entries' handles.
  void run(const Work& work, const Members& set, const Params& params);
  void remove_set(int32_t id, const WaitHook& on_wait);

  // True until the GPU has done everything so far. Throws EngineError when it or a communicator has
  // failed.
  bool busy();

  // A result that was to be checked, and what it came to.
  struct Checked {
    std::string name;
    double worst_error;
  };
  // The process set of the check that waits for its end, none: there is none. Its beginning and its
  // end are at the same place among the responses of all ranks.
  std::optional<int32_t> checked_set() const;
  // Ends it: waits for the GPU where that has not come so far, and for the other ranks of the set.
  Checked finish_check(const Members& set);
  void drop_check() { checking_.reset(); }

  // See Executor.
  std::string take_shortage() { return buffer_.take_shortage(); }
  void params_changed(const Params& before, const Params& now) {
    if (before.fusion_threshold_bytes != now.fusion_threshold_bytes) buffer_.reset();
    if (backend_.tune) backend_.tune(now);
  }

  DeviceTimeline& timeline() { return timeline_; }

  // After the last response: end the communicators, see Executor::close_device.
  void close(bool failed);

 private:
  // The communicators of a process set; they are made when they are needed.
  struct Connected {
    std::unique_ptr<DeviceCommunicator> flat;
    std::unique_ptr<DeviceCommunicator> hierarchical;  // it goes before `flat`
    bool knows_levels = false;                         // it was found out whether there can be two
  };

  // How a reduction travels: elements are of `type` on the way, and `op` is what the library knows
  // for it. They are multiplied by `prescale` before and by `postscale` after, and then divided by
  // `divisor`.
  struct Reduction {
    DataType type;
    ReduceOp op;
    double prescale;
    double postscale;
    int divisor;
  };

  // Elements of an entry of an allreduce that travel together.
  struct Part {
    const TensorEntry* entry;
    int64_t first;
    int64_t count;
    int64_t offset;  // it is in the buffer; -1 means that they travel from where they lie
  };

  // A check whose elements are on their way to the host.
  struct Checking {
    std::unique_ptr<ResultCheck> check;
    std::shared_ptr<char> memory;  // they go there
    int64_t used = 0;              // so many bytes of it are used
    int32_t set = 0;
    EventPtr done;  // they are there
  };

  void begin_check(const Work& work, const Members& set);
  const char* read(const void* tensor, const std::vector<ElementRange>& ranges, int64_t item_bytes);
  DeviceCommunicator& connect(int32_t id, const Members& set, bool hierarchical);
  void wait_for(const DeviceEvent& event, const WaitHook& on_wait);
  void drain(const WaitHook& on_wait);
  void make_room(const WaitHook& on_wait);
  void check_communicators();
  bool has_work();
  bool idle_within(std::chrono::seconds time);
  static Reduction reduction_of(const Response& response, int size);
  void wait_for_inputs(const Entries& entries);
  void allreduce(const Response& response, const Entries& entries,
                 DeviceCommunicator& communicator);
  void reduce_parts(const Response& response, const Reduction& how,
                    DeviceCommunicator& communicator);
  void allgather(const Response& response, const Entries& entries,
                 DeviceCommunicator& communicator);
  void gather(const Entries& entries, const std::vector<ResponseItem>& items,
              DeviceCommunicator& communicator);
  void reducescatter(const Response& response, const Entries& entries,
                     DeviceCommunicator& communicator);
  void scatter(const Response& response, const Entries& entries, int64_t room_bytes,
               DeviceCommunicator& communicator);
  void alltoall(const Response& response, TensorEntry& entry, DeviceCommunicator& communicator);
  void broadcast(TensorEntry& entry, int root, DeviceCommunicator& communicator);
  void pack(const std::vector<DeviceCopy>& copies);
  void unpack(const std::vector<DeviceCopy>& copies);
  int64_t grant(const Response& response, int64_t bytes);
  DeviceMemory allocate(int64_t bytes);
  void make_result(TensorEntry& entry, int64_t rows);
  void* zeros(int64_t bytes);

  DeviceBackend backend_;  // it goes after what uses it
  Device& device_;         // it is the backend's
  Timeline* job_timeline_;
  DeviceTimeline timeline_;
  Counters& counters_;
  DeviceBuffer buffer_;
  const Members* set_ = nullptr;    // the response that is carried out is of it
  const Params* params_ = nullptr;  // they are in force for that response
  EventPtr last_;
  std::deque<EventPtr> under_way_;  // responses end there
  // They are of one response, by the stream's id.
  std::vector<std::pair<uint64_t, EventPtr>> latest_;
  std::vector<DeviceCopy> before_, after_;
  std::vector<Span> spans_;
  std::vector<int64_t> offsets_;       // they are in the buffer, of one response
  std::vector<Part> parts_;            // they are of one piece of a response
  std::vector<DeviceMemory> scratch_;  // it is of one response
  std::optional<Checking> checking_;
  std::map<int32_t, Connected> connected_;  // each process set has its own
};

}  // namespace autotune
