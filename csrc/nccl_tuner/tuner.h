// How the process that has loaded the tuner's library tells it what to choose: a C ABI, found by
// name at run time, by the engine and by Python.
//
// A communicator of NCCL takes NCCL's own choices until one of two ways is agreed on by all of its
// ranks, so that ranks that disagree, which would wait for each other without end, cannot come
// about:
//
// * it *follows* (the engine's): the choice of the process counts, which the engine changes between
//   the same two operations on all ranks;
// * it is *held* (anybody's): its operations are counted, and the next one waits until the ranks
//   have told each other their counts. Where those are equal, all of them put the same choice in
//   force from that operation on; else none does.
//
// Everything may be called by any thread.
#pragma once

#include <cstdint>

extern "C" {

// Numbers are NCCL's plus one; 0: NCCL's own choice.
struct AutotuneNcclChoice {
  int32_t
      algorithm;  // 1 tree, 2 ring, 3 collnet_direct, 4 collnet_chain, 5 nvls, 6 nvls_tree, 7 pat
  int32_t protocol;  // 1 LL, 2 LL128, 3 simple
  int32_t channels;  // most channels of a group of operations
  int32_t reserved;
  int64_t least_bytes;  // operations below are NCCL's own choice
};

// What has been seen so far, of all communicators.
struct AutotuneNcclSeen {
  int32_t interface;  // 4 or 5: by which NCCL has loaded the library; 0: it has not
  int32_t communicators;
  int64_t operations;
  int64_t chosen;  // operations that were told something
  // Of the operation that NCCL expects to take longest: its bytes and, by NCCL's own model, time.
  int64_t largest_bytes;
  double largest_us;
};

// Before a communicator is made ...
uint64_t autotune_nccl_begin();
// ... and after: `begun` is what `autotune_nccl_begin` returned. Returns the number of the one that
// was made in between; 0: none, or several.
uint64_t autotune_nccl_end(uint64_t begun);
// Whether a communicator follows the choice of the process.
void autotune_nccl_follow(uint64_t number, int32_t follows);
// The next operations of a communicator that follows are one group of so many.
void autotune_nccl_group(uint64_t number, int32_t operations);
void autotune_nccl_choose(const AutotuneNcclChoice* choice);

// Holds the next operation of every communicator of `ranks` ranks that does not follow, for
// `patience_ms` at most. Returns a number that is the same where there are as many of them with as
// many operations so far; 0: there is none.
uint64_t autotune_nccl_hold(int32_t ranks, int32_t patience_ms);
// Lets them go on: with a choice from here on, nullptr: as before. Returns 0 where patience has
// ended before: then all go on as before.
int32_t autotune_nccl_release(const AutotuneNcclChoice* choice);

void autotune_nccl_seen(AutotuneNcclSeen* seen);
}
