// Whether a rank can do what a response says: the checks of the receiver. Pure functions, of what a
// rank knows by itself. They throw EngineError that names the tensor and both values: the ranks do
// not mean the same any more, and nothing that follows could be right.
#pragma once

#include <vector>

#include "engine/operation/message.h"
#include "engine/operation/process_set.h"

namespace autotune {

// The response as a whole; returns its set. `sets`: those of this rank.
const ProcessSet& check_response(const Response& response, const ProcessSetTable& sets);

// One of its items, this rank's tensor for it and the rank's place in the set.
void check_item(const Response& response, const ResponseItem& item, const Request& own,
                const ProcessSet& set, int position);

}  // namespace autotune
