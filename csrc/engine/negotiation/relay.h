// What an inner rank of the control tree (control/tree.h) says for its *branch*: itself and all
// ranks below it.
//
// The coordinator's logic is that of a star: it is told what each rank has announced. A relay only
// changes how many messages that takes. It has some *parts*, itself and the branch of each child,
// and *holds* the hits of a part until all parts have hit the same cache slots: these go up as one
// list that stands for every rank of the branch. All else is passed on as it is, with the number of
// the rank, or of the branch, that it is of; all that is due goes up as one message.
//
// What is merged means the same of every rank: hits are held only while the cache here has not
// changed since their sender said them (`processed`), so that a slot is one tensor to all. The
// merged list is as old as the oldest of them, and of the newest training step, which is what the
// coordinator would have made of them one by one.
//
// Hits are held for others of their kind only while these may come, and never for longer than
// `most_held`, so that the coordinator knows whom it waits for. At once are passed on
//
//   slots of process sets that are not all ranks, and slots that the cache here does not know;
//   slots that some rank has passed by already (by a hit or by a whole request), until answered;
//   everything while a rank of the branch has joined.
//
// What one rank has said stays in order but for hits that were held, which may come after whole
// requests of other tensors. Pure logic: no sockets, no threads, no clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "control/tree.h"
#include "engine/negotiation/hit_table.h"
#include "engine/negotiation/response_cache.h"
#include "engine/operation/message.h"

namespace autotune {

// Throws EngineError unless `relayed` is of a rank below `sender`, or of that itself.
void check_relayed(const RelayedList& relayed, int sender, const Tree& tree);

class Relay {
 public:
  static constexpr std::chrono::milliseconds most_held{1};

  // `cache`: of rank `rank`; both outlive this.
  Relay(const Tree& tree, int rank, const ResponseCache& cache);

  // What this rank itself has to say.
  void add(const RequestList& list, TimePoint now) { add(0, list, now); }
  // What the child `child` has said, of itself alone or of all of its branch. Both throw
  // EngineError that names it.
  void hear(int child, const RequestList& list, TimePoint now);
  void hear(int child, const std::vector<RelayedList>& lists, TimePoint now);
  // What goes up now; empty: nothing. Into an earlier one, whose memory is used again.
  void take(std::vector<RelayedList>& lists, TimePoint now);
  // When `take` has to be called next, if nothing is heard before; `max`: it need not be.
  TimePoint due() const;
  // This rank has processed `list`, its `processed`th.
  void follow(const ResponseList& list, uint64_t processed);

 private:
  struct Part {
    int rank;  // it and all below it; of the first part it alone
    bool is_branch;
    RequestList held;  // hits only
  };

  void add(size_t part, const RequestList& list, TimePoint now);
  void hold(Part& part, const RequestList& list, TimePoint now);
  void note(const RequestList& list);
  void note_hits(const std::vector<uint64_t>& bits);
  void set_alone(int64_t slot);
  void answered(int64_t slot);
  void begin_rest(const RequestList& list, size_t words, uint64_t bits = 0);
  bool may_hold(const RequestList& list) const;
  void pass(const Part& part, const RequestList& list);
  void release(Part& part);
  void release_all();
  bool is_held() const;
  void take_common();
  size_t part_of(int child) const;

  const Tree& tree_;
  const int rank_;
  const ResponseCache& cache_;
  std::vector<Part> parts_;
  std::vector<RelayedList> up_;
  // Slots that some rank has passed by and that are not answered, 64 a word.
  std::vector<uint64_t> alone_;
  bool has_joined_ = false;  // a rank of the branch has, and all ranks have not
  uint64_t processed_ = 0;
  uint64_t cache_version_ = 0;
  uint64_t unchanged_since_ = 0;  // the cache is what it was after so many lists
  TimePoint held_since_{};
  RequestList heard_;
  RequestList rest_;
};

}  // namespace autotune
