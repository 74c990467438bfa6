// What NCCL looks for in a tuner's library, as far as it is used: nothing of NCCL is needed to
// build it. Names, fields and their order: NCCL's plugin/tuner/tuner_v4.h (2.24 to 2.30) and
// tuner_v5.h (since 2.28).
#pragma once

#include <cstddef>
#include <cstdint>

namespace autotune {

constexpr int nccl_success = 0;
// An entry of the cost table that cannot be had.
constexpr float nccl_cost_ignored = -1.0F;

// `costs` is float[algorithms][protocols], in microseconds: NCCL takes the lowest one that is not
// negative. `channels` is 0; what is set there is how many the operation gets at most.
using NcclGetCollInfo = int (*)(void* context, int function, size_t bytes, int pipelined,
                                float** costs, int algorithms, int protocols, int registered,
                                int* channels);

struct NcclTunerV4 {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, void* log, void** context);
  NcclGetCollInfo get_coll_info;
  int (*destroy)(void* context);
};

struct NcclTunerV5 {
  const char* name;
  int (*init)(void** context, uint64_t communicator_id, size_t ranks, size_t nodes, void* log,
              void* nvlink_domains, void* constants);
  NcclGetCollInfo get_coll_info;
  int (*finalize)(void* context);
};

}  // namespace autotune
