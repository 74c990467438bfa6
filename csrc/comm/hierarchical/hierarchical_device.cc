#include "comm/hierarchical/hierarchical_device.h"

#include <algorithm>

namespace autotune {

void HierarchicalDevice::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) {
  const auto item = static_cast<int64_t>(size_of(type));
  const int64_t slices = local_->size();
  struct Part {
    const char* input;
    char* output;
    int64_t count;  // a slice has so many
  };
  std::vector<Part> parts;
  std::vector<Span> rests, own_slices;  // what does not divide is short: all ranks at once
  for (const Span& span : spans) {
    const Part part{static_cast<const char*>(span.input), static_cast<char*>(span.output),
                    span.count / slices};
    const int64_t done = part.count * slices;
    if (part.count > 0) {
      parts.push_back(part);
      char* own = part.output + part.count * local_->rank() * item;
      own_slices.push_back({own, own, part.count});
    }
    if (done < span.count) {
      rests.push_back({part.input + done * item, part.output + done * item, span.count - done});
    }
  }
  if (!parts.empty()) {
    DeviceGroup scattering(*local_);
    for (size_t i = 0; i < parts.size(); ++i) {
      local_->reduce_scatter(parts[i].input, own_slices[i].output, parts[i].count, type, op);
    }
    scattering.end();
    cross_->allreduce(own_slices, type, op);
    DeviceGroup gathering(*local_);
    for (const Part& part : parts) {
      local_->allgather(part.output,
                        std::vector<int64_t>(static_cast<size_t>(slices), part.count * item));
    }
    gathering.end();
  }
  if (!rests.empty()) flat_.allreduce(rests, type, op);
}

std::string HierarchicalDevice::failure() {
  const std::string local = local_->failure();
  return local.empty() ? cross_->failure() : local;
}

void HierarchicalDevice::abort() {
  local_->abort();
  cross_->abort();
}

}  // namespace autotune
