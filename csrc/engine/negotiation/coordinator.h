// The coordinator (rank 0) decides what all ranks perform next. It is told what each rank has
// announced, checks that the ranks mean the same, and answers with response lists: one global order
// of operations over all process sets, with the changes of the parameters in it. It is pure logic
// with no sockets, no threads and no clock; the Cycle of rank 0 has it, sends its lists and
// performs them.
//
// A tensor is *pending* when some ranks have announced it, by whole requests or by hits of one
// cache slot (in both ways: by requests); *ready* when all ranks of its process set have that have
// not joined, and it is not sent yet.
//
// Every rank gets every response and passes over those of sets that it is not in: so sets can never
// wait for each other, and the caches of all ranks stay alike.
//
// A parameter change travels in the response sequence: it is placed before the first operation of a
// training step that no earlier operation belonged to, i.e. between two steps, and at the same
// place on every rank.
//
// The first step of every epoch is not scored, so its time does not matter: there the coordinator
// picks one result that all ranks check.
//
// Rank r *joins* when it has nothing more to contribute. From then on tensors become ready without
// it; their responses are sent in full and not remembered, so that r can take part with zeros. When
// the last rank has joined, all go on as before.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/negotiation/fusion.h"
#include "engine/negotiation/hit_table.h"
#include "engine/negotiation/response_cache.h"
#include "engine/operation/message.h"
#include "engine/operation/process_set.h"

namespace autotune {

class Timeline;

struct Stalled {
  std::string name;
  Operation operation;
  std::vector<int> missing_ranks;  // they are global
  std::chrono::duration<double> age;
  bool is_counted = false;  // the script gave it no name: it is the next one of its kind
};

// Rank 0's side of the negotiation. It is told what ranks have announced and which parameters are
// to come, and gives the response lists that all ranks have to process, in order. It moves no data
// and knows nothing of how lists travel.
class Coordinator {
 public:
  // `timeline` is told who announces what; nullptr: nobody is.
  Coordinator(int size, const Params& params, Timeline* timeline = nullptr);

  // Throws EngineError that names the rank, for what it cannot have meant.
  void add(int rank, const RequestList& list, TimePoint now);
  void propose(uint64_t epoch, const Params& params);
  // Append everything that is due, in order. Each list must be sent to all ranks and processed by
  // this one.
  void take(std::vector<ResponseList>& lists);
  // A list that is processed: its memory is used again.
  void give_back(ResponseList&& list) { pool_.give(std::move(list)); }

  // Time in which something was announced by some ranks and the last one was waited for.
  std::chrono::nanoseconds skew() const { return skew_; }

  // Tensors that some ranks announced at least `age` ago and others, which have not joined, did
  // not.
  std::vector<Stalled> stalled(TimePoint now, std::chrono::duration<double> age) const;
  bool has_pending() const { return !pending_.empty() || hits_.open_count() > 0; }

 private:
  struct Pending {
    std::vector<std::optional<Request>> requests;  // each global rank has a place
    int count = 0;
    int32_t process_set = 0;
    int64_t step = 0;
    TimePoint since;
  };
  // What is decided about one tensor, as far as it is the same every time.
  struct Decision {
    // It is of the tensor alone; where that is in the cache, the response has no item.
    Response response;
    int64_t bytes = 0;
    uint64_t group = 0;
    bool is_checkable = false;
  };
  struct Uncached {
    Decision decision;
    // It is put into the cache when the response is sent.
    std::optional<CacheEntry> remembered;
  };
  struct Ready {
    int64_t slot = -1;                   // the tensor is there in the cache
    std::unique_ptr<Uncached> uncached;  // it is there for a tensor that was not in the cache
    int64_t step = 0;
    bool check = false;  // whether its result is right is looked at
    TimePoint since;     // the first rank announced it then
    TimePoint ready;     // the last rank announced it then
  };

  [[noreturn]] static void refuse(int rank, const std::string& what);
  [[noreturn]] static void refuse_other_set(int rank, const Request& request);
  void check_list(int rank, const RequestList& list) const;
  bool check_request_of(int rank, const Request& request) const;
  void check_hits(int rank, size_t word, uint64_t bits) const;
  void add_request(int rank, Request request, int64_t step, TimePoint now);
  void add_hits(int rank, size_t word, uint64_t bits, const RequestList& list, TimePoint now);
  void add_old_hit(int rank, int64_t slot, const RequestList& list, TimePoint now);
  void add_current_hits(int rank, size_t word, uint64_t bits, int64_t step, TimePoint now);
  void prepare_slots_of_sets(int rank_that_hits, size_t word, uint64_t& bits);
  // Ranks that hit `slot` are from now on pending like ranks that sent the whole request.
  void hits_to_requests(int64_t slot);
  void add_join(int rank, const Request& request, int64_t step, TimePoint now);
  void complete_what_joined_ranks_held_up(TimePoint now);
  template <typename Announced>
  bool is_complete(const ProcessSet& set, int count, Announced&& announced) const;
  void complete(const std::string& name, TimePoint now);
  void complete_hits(size_t word, uint64_t bits, TimePoint now);
  void complete_hit(int64_t slot, TimePoint now);
  void change_process_sets(Response& response);
  std::string in_flight_of(int32_t process_set) const;
  template <typename Announced>
  std::vector<int> missing(int32_t process_set, Announced&& announced) const;
  void add_skew(TimePoint since, TimePoint ready);
  bool is_checkable_set(int32_t process_set) const;
  const ProcessSet& set_of(int64_t slot) const;
  const Decision& decision_about(const Ready& ready) const;
  ResponseList take_run(bool with_change);
  Response fuse(Ready* run, const std::vector<size_t>& members);
  void remember(Ready& ready);
  void choose_check(Ready& ready);
  void apply_change(ResponseList& list);
  void name_items_of(const std::vector<int64_t>& evicted_slots);
  bool change_is_due() const;
  std::string who_ended() const;

  // This is the job at this place of the sequence: its ranks, the parameters in force, its process
  // sets.
  int size_;
  Params params_;
  ProcessSetTable sets_;
  int32_t next_set_id_ = 1;

  // Ranks have said this of themselves: the response lists that each is known to have processed,
  // how many operations it has announced, whether it has joined, and who has shut down, which ends
  // the job's communication with the next `take`.
  std::vector<uint64_t> processed_;
  std::vector<int64_t> announced_;
  std::vector<bool> joined_;
  int joined_count_ = 0;
  TimePoint first_joined_;
  std::vector<int> ended_;

  // These are pending: they were announced by whole requests, or by hits of the cache's slots. The
  // directory says which tensor a slot is for, and `decisions_` what was decided about it, by slot.
  std::unordered_map<std::string, Pending> pending_;
  HitTable hits_;
  CacheDirectory directory_;
  std::vector<Decision> decisions_;

  // These are ready, in the order in which it became so; those before `taken_` are on their way.
  // The rest is the memory in which a run of them is fused into responses.
  std::vector<Ready> ready_;
  size_t taken_ = 0;
  std::vector<FusionCandidate> candidates_;
  FusionPlan fusion_;
  ResponsePool pool_;
  uint64_t lists_sent_ = 0;

  // The change of the parameters waits for the end of a training step; the newest steps of what was
  // sent and of what was announced tell where one ends.
  std::optional<ParamsChange> proposal_;
  int64_t last_step_ = -1;
  int64_t newest_step_ = -1;

  // In the first step of every epoch one result is checked, another one each time. These are the
  // step whose check is still to come, the place of the result among the checkable ones of that
  // step, and how many were chosen so far. Checkable ones are counted in the newest step that has
  // one.
  int64_t checked_step_ = -1;
  int64_t checked_place_ = 0;
  int64_t checks_ = 0;
  int64_t counted_step_ = -1;
  int64_t checkable_count_ = 0;

  // This is told about the negotiation: what the timeline gets, and for how long the last rank of a
  // tensor was waited for. Every moment counts once, up to `skew_counted_until_`.
  Timeline* timeline_;
  std::chrono::nanoseconds skew_{0};
  TimePoint skew_counted_until_{};
};

}  // namespace autotune
