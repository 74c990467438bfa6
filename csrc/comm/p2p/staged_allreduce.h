// An allreduce by messages in stages (stages.h), piece after piece.
//
// A long piece is cut into one slice per rank of the first stage's group; each rank combines one
// slice, which is cut again in the next stage, and so on (recursive halving, by any factor). Then
// the slices travel back the same way, the last stage first (recursive doubling). That is two
// rounds a stage, and of M bytes every rank sends 2 (n-1)/n M in all. A piece waits once a round,
// and other pieces are in their other rounds meanwhile.
//
// A short piece is not cut: in each stage all of the group send it whole, which is one round.
//
// Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", IJHPCA 19 (2005), sections 4.4 and 4.5, for factors of 2.
#pragma once

#include <deque>
#include <vector>

#include "comm/communicator.h"
#include "comm/p2p/stages.h"
#include "comm/point_to_point.h"
#include "common/message_memory.h"
#include "common/reduce.h"
#include "common/store_choice.h"

namespace autotune {

class StagedAllreduce {
 public:
  // `transport` and `on_wait` live as long as this.
  StagedAllreduce(PointToPoint& transport, const WaitHook& on_wait,
                  std::vector<ExchangeStage> stages);

  // A call, of long_call_bytes or not: `how` lives until `finish`. What an error has left of the
  // call before is forgotten.
  void begin(const RankReduction& how, bool is_long);
  // Reduces `count` elements at `data`, which are scaled, in place; they are whole after `finish`.
  // `takes_messages`: a message that was left behind may be written into `data` at any time.
  void add_long(char* data, int64_t count, bool takes_messages);
  // These are whole on return, and so are those of all calls before.
  void add_short(char* data, int64_t count);
  void finish();

 private:
  struct Piece {
    char* data;
    int64_t count;
    bool takes_messages;
    size_t round = 0;  // it is on the way in this one: scattered in the first half, then gathered
    size_t box = 0;
  };
  struct Range {
    int64_t begin, count;
    int64_t end() const { return begin + count; }
    // Of `place` of `ranks`.
    Range slice(int place, size_t ranks) const {
      const auto parts = static_cast<int64_t>(ranks);
      const int64_t from = count * place / parts, to = count * (place + 1) / parts;
      return {begin + from, to - from};
    }
  };

  void advance(const Piece* next);
  void post(const Piece& piece);
  void scatter(const Piece& piece, size_t stage);
  void combine(const Piece& piece, size_t stage);
  void gather(const Piece& piece, size_t stage);
  void place(const Piece& piece);
  void exchange_whole(size_t stage, const char* data, int64_t bytes);
  void combine_group(size_t stage, char* out, const char* own, int64_t count);

  RankReduction::Step step(size_t stage) const { return {stage == 0, stage + 1 == stages_.size()}; }
  // What this rank has before `stage`, in elements of the piece.
  Range range(const Piece& piece, size_t stage) const;
  // Where that lies while it is scattered.
  char* scattered(const Piece& piece, size_t stage);
  // Where the piece is put together of what others send.
  char* gathered(const Piece& piece);
  // Where that of it is made which this rank combines.
  char* combined(const Piece& piece);
  void wait();

  PointToPoint& transport_;
  const WaitHook& on_wait_;
  const std::vector<ExchangeStage> stages_;
  const RankReduction* how_ = nullptr;
  bool is_long_ = false;
  StoreChoice stores_;            // of the copies of long calls
  std::deque<Piece> on_the_way_;  // the first one is the furthest
  size_t next_box_ = 0;
  std::vector<MessageVector<char>> inboxes_;   // by stage: contributions of the others
  std::vector<MessageVector<char>> partials_;  // by stage: what it made, where that is float32
  // Where a transport can leave messages behind, pieces of a script's memory are put together here
  // and then copied: nothing that a script may use again is ever written by a message.
  std::vector<MessageVector<char>> boxes_;
};

}  // namespace autotune
