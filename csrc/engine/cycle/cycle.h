// One turn of negotiating and performing: announces what this rank has due, reads the control
// plane, and performs the responses that have come, as the coordinator itself on rank 0. It holds
// what that takes: the control plane's frames, the response cache, the coordinator and the
// executor with its communicators. It is reached through Guarded<Cycle> only, and whoever holds it
// is the one thread inside the communicators; it takes the submission's lock for moments.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/choose.h"
#include "common/message_memory.h"
#include "control/control.h"
#include "engine/cycle/idle_progress.h"
#include "engine/execute/executor.h"
#include "engine/guarded.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/relay.h"
#include "engine/negotiation/response_cache.h"
#include "engine/negotiation/stall.h"
#include "engine/operation/process_set.h"
#include "engine/options.h"
#include "engine/status.h"
#include "engine/submission/submission.h"
#include "engine/timeline/timeline.h"

namespace autotune {

class Cycle {
 public:
  using Clock = std::chrono::steady_clock;

  // A GPU's result is looked at so many response lists after its operation: some training steps.
  static constexpr uint64_t lists_before_check = 24;
  // A GPU that has work is asked so often whether it has failed.
  static constexpr std::chrono::milliseconds device_check_interval{100};

  // All references outlive this. Collective: makes the communicators of all ranks.
  Cycle(const EngineOptions& options, ControlPlane& control, CommunicatorFactory make_communicators,
        Timeline& timeline, Guarded<Submission>& submission, EngineStatus& status);

  // One turn. An error ends the engines of all ranks.
  void run();
  // Response lists so far.
  uint64_t processed() const { return processed_; }
  // When what is held for other ranks wants a turn; `max`: never.
  Clock::time_point relay_due() const { return relay_ ? relay_->due() : Clock::time_point::max(); }
  // When the transport does; `max`: never.
  Clock::time_point progress_due() const { return idle_.due(); }
  // When something here wants a turn though nothing is announced and heard; `max`: never.
  // `in_flight`: operations of this rank are.
  Clock::time_point next_check(Clock::time_point now, bool in_flight) const;
  // The same of the GPU's timeline.
  Clock::time_point next_device_timeline(Clock::time_point now);

  // Ends the operations in flight and the engine of this rank. `fatal`: by an error.
  void fail_everything(const std::string& reason, bool fatal);

  // After the end, when other ranks may still be within their last operation: a look at the
  // transport where it is due; returns when the next one is, or `max`: never.
  Clock::time_point let_transport_go_on();

  void use_device(DeviceBackend backend);
  // Puts into the timeline what the GPU has done; false when there is more to come.
  bool write_device_timeline() { return executor_.write_device_timeline(); }
  void close_device(bool failed) { executor_.close_device(failed); }

 private:
  // They stand in for tensors while this rank has joined.
  struct Zeros {
    std::deque<TensorEntry> entries;
    std::deque<MessageVector<char>> memory;
  };

  bool exchange();
  void send_and_process();
  void collect();
  RequestList& new_list(int64_t step);
  void announce(TensorEntry& entry);
  void say(const RequestList& list);
  void send_relayed();
  void watch_pending();
  void handle_frames();
  void heard_requests();
  void heard_relayed();
  [[noreturn]] void refuse_frame(const char* what) const;
  void heard_responses();
  void process(ResponseList& list);
  void find_work(ResponseList& list);
  void compress(Response& response) const;
  void take_answer(const Response& response, const ResponseItem& item, TensorEntry& entry,
                   const ProcessSet& set, int position) const;
  [[noreturn]] void refuse_slot(int64_t slot) const;
  TensorEntry* find_entry(const Submission& submission, const Response& response,
                          ResponseItem& item);
  TensorEntry* zeros_for(const Response& response, const ResponseItem& item);
  void perform(const Work& work);
  void remember(const Work& work);
  void agree(const Work& work);
  void add_set(int32_t id, const ProcessSet& set);
  void remove_set(int32_t id);
  void finish_check();
  void complete(const Work& work);
  void end(Submission& submission, TensorEntry& entry, const std::string& error);
  void on_wait();
  void hear_of_ends();
  void watch_transfer();
  std::string describe_performed() const;
  std::vector<int> ranks_of_performed();
  std::string seen_here() const;
  void watch_coordinator(bool heard, Clock::time_point now);
  void heard_goodbye(const Frame& frame);
  void check_connections(Clock::time_point now);
  void check_device();

  const int rank_;
  const int size_;
  ControlPlane& control_;
  const CommunicatorFactory make_communicators_;
  Timeline& timeline_;
  Guarded<Submission>& submission_;
  EngineStatus& status_;

  // What is said and heard is here.
  FrameQueue frames_;
  Frame frame_;                   // it is being handled
  RequestList heard_;             // the frame says it
  ResponsePool pool_of_lists_;    // what is heard is made of it
  std::vector<RequestList> own_;  // this rank says the first `own_count_` of them
  size_t own_count_ = 0;
  std::string encoded_;
  std::unique_ptr<Relay> relay_;  // only ranks that have a parent and children have one
  std::vector<RelayedList> relayed_;
  std::vector<std::vector<int>> branches_;  // by their top, as far as they were looked up
  bool heard_parent_ = false;               // in this turn
  bool shutdown_announced_ = false;
  // By rank it tells who has done all that it had to, and may leave.
  std::vector<bool> said_goodbye_;

  // What was agreed is here; on rank 0 the coordinator has done so.
  ResponseCache cache_;
  std::unique_ptr<Coordinator> coordinator_;  // only rank 0 has one
  Params params_;                             // they are in force for what is performed
  int64_t most_slots_;       // the cache has never had more, with any parameters so far
  bool has_joined_ = false;  // this rank has, and the others have not all done so
  StallInspector stalls_;
  std::vector<ResponseList> lists_;  // the coordinator has decided them
  uint64_t processed_ = 0;
  uint64_t said_processed_ = 0;  // the coordinator was told so last

  // What is performed is here.
  Executor executor_;
  IdleProgress idle_;
  std::vector<Work> works_;          // they are of the response list that is being processed
  const Work* performed_ = nullptr;  // this one of them is under way
  // A GPU's check that is open is of this epoch, and ends after so many lists.
  uint64_t checked_epoch_ = 0;
  uint64_t check_ends_at_ = 0;
  bool checks_ = false;  // the open check is being ended
  WaitWatch transfer_;   // it knows how long the transfer has gone on
  // It knows how long the coordinator has said nothing to what is in flight.
  WaitWatch answer_;
  WaitWatch pending_;  // the same of the coordinator's: how long it has had nothing to say
  bool has_operations_ = false;  // some were in flight when `collect` looked
  std::vector<int> gone_;        // these ranks ended after the goodbye
  Zeros zeros_;
  Clock::time_point device_checked_{};
};

}  // namespace autotune
