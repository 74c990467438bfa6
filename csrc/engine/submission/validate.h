// What can be refused without asking the other ranks.
#pragma once

#include "engine/operation/message.h"
#include "engine/operation/process_set.h"

namespace autotune {

// Throws InvalidRequest with a sentence that says what was expected. Completes what the caller may
// leave out: the splits of an alltoall into equal parts. `rank` is the
// caller's.
void validate(SharedRequest& request, const ProcessSetTable& sets, int rank);

}  // namespace autotune
