// The C ABI of the engine: how a library of a front end, built without the engine, hands operations
// over. It gets one table of functions, which outlives it; the functions find the engine that runs,
// so that the table serves all jobs of the process, one after the other.
//
// An operation ends by a call: on the engine's own thread, without a lock. Who is called may hand
// over operations, and must not wait for one.
//
// Plain C on purpose: nothing of the C++ library crosses this line.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The same number: the same tables and structs.
#define AUTOTUNE_ABI_VERSION 2

// How a call or an operation ended.
enum {
  AUTOTUNE_OK = 0,
  AUTOTUNE_REFUSED = 1,  // before negotiation, on this rank: the request is wrong
  AUTOTUNE_FAILED = 2    // on all ranks; a rank died; no engine runs
};

// One tensor. Numbers are the engine's (common/types.h).
typedef struct {
  int32_t operation;
  int32_t dtype;
  int32_t reduce_op;
  int32_t root_rank;  // a global rank
  int32_t process_set;
  double prescale;
  double postscale;
  int32_t may_compress;  // not 0: float32 may travel shorter where the parameters in force say so
  const int64_t* shape;
  int32_t dimensions;
  const int64_t* splits;  // alltoall: rows for each rank; split_count 0: equal parts
  int32_t split_count;
  // Both live until the operation has ended. Where the engine allocates the result (allgather,
  // alltoall, reducescatter) `output` is null.
  const void* input;
  void* output;
} autotune_operation;

// How an operation ended; the pointers are valid during the call.
typedef struct {
  int32_t status;
  const char* error;  // "" for AUTOTUNE_OK
  // What the engine allocated: see `keep`. Aligned to 64 bytes.
  void* result;
  int64_t result_bytes;
  const int64_t* shape;
  int32_t dimensions;
  const int64_t* received_splits;  // alltoall: rows from each rank
  int32_t received_count;
  int32_t value;  // join: the rank that joined last
  // Not 0: the input may still be read, by a message that could not be taken back: it has to live
  // for ever.
  int32_t is_left_behind;
  const void* handle;  // for `keep`
} autotune_outcome;

// Operation `index` of those that were handed over together with `argument` has ended.
typedef void (*autotune_completed)(void* argument, int32_t index, const autotune_outcome* outcome);

// What they have in common.
typedef struct {
  const char* name;    // as the ranks know it; null: the next number of its `kind`
  const char* kind;    // e.g. "allreduce.tensorflow": begins the name of one without a name
  int32_t is_group;    // they belong together: several names, "<name>_<i>of<n>"
  int32_t is_awaited;  // a thread of the script sleeps until they have ended
  autotune_completed completed;
  void* argument;
} autotune_manner;

enum { AUTOTUNE_RANK, AUTOTUNE_SIZE, AUTOTUNE_LOCAL_RANK, AUTOTUNE_LOCAL_SIZE };
enum { AUTOTUNE_NO_ENGINE = -1, AUTOTUNE_NO_SET = -2 };

typedef struct {
  int32_t version;  // AUTOTUNE_ABI_VERSION
  // Hand over `count` operations, all or none. Not AUTOTUNE_OK: none, and nobody is called.
  int32_t (*enqueue)(const autotune_operation* operations, int32_t count,
                     const autotune_manner* manner);
  // Why the last call of this thread that was not AUTOTUNE_OK was not; until the next one.
  const char* (*last_error)(void);
  // The result of an outcome outlives the call, until `release` of what this returns.
  void* (*keep)(const autotune_outcome* outcome);
  void (*release)(void* kept);
  // AUTOTUNE_RANK and so on of this process, or AUTOTUNE_NO_ENGINE.
  int32_t (*place)(int32_t which);
  // The number of ranks of a process set, whether this rank is in it; or an error as above.
  int32_t (*set_size)(int32_t process_set);
  int32_t (*set_includes)(int32_t process_set);
} autotune_api;

#ifdef __cplusplus
}

#include <memory>
#include <vector>

namespace autotune {

class Engine;

// From now on the functions mean this engine. `host_of_rank`: as of Options.
void offer(const std::shared_ptr<Engine>& engine, std::vector<int> host_of_rank);

const autotune_api& api();

}  // namespace autotune
#endif
