// What the engine fills into memory that is used again, as values: for tests, where that reads
// better.
#pragma once

#include <string>
#include <vector>

#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/fusion.h"
#include "engine/operation/message.h"

namespace autotune {

template <typename List>
std::string encode(const List& list) {
  std::string bytes;
  encode(list, bytes);
  return bytes;
}

inline RequestList decode_request_list(const std::string& bytes, int sender = 1) {
  RequestList list;
  decode(bytes, sender, list);
  return list;
}

inline ResponseList decode_response_list(const std::string& bytes, int sender = 0) {
  ResponsePool none;
  return decode(bytes, sender, none);
}

inline std::vector<ResponseList> take(Coordinator& coordinator) {
  std::vector<ResponseList> lists;
  coordinator.take(lists);
  return lists;
}

inline std::vector<std::vector<size_t>> plan_fusion(const std::vector<FusionCandidate>& candidates,
                                                    int64_t threshold_bytes) {
  FusionPlan plan;
  plan.make(candidates, threshold_bytes);
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < plan.size(); ++i) groups.push_back(plan.group(i));
  return groups;
}

}  // namespace autotune
