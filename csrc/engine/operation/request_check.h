// Whether a request makes sense by itself: asked before it is sent, and again where it arrives.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/operation/message.h"
#include "engine/operation/process_set.h"

namespace autotune {

// Throws InvalidRequest with a sentence that says what was expected. The request is complete: an
// alltoall has its splits, the ranks of a new process set are sorted. `set`: the request's; `size`:
// ranks of the job.
void check_request(const Request& request, const ProcessSet& set, int size);

// One or several different ranks of a job of `size`, sorted.
bool are_ranks(const std::vector<int64_t>& ranks, int size);

}  // namespace autotune
