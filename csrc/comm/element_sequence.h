// The elements of several spans, one after the other, as one vector.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "common/copy.h"

namespace autotune {

// Elements [begin, end) of `count` that slice `i` of `slices` has; lengths differ by at most one.
inline std::pair<int64_t, int64_t> slice_of(int64_t count, int i, int slices) {
  return {count * i / slices, count * (i + 1) / slices};
}

class ElementSequence {
 public:
  ElementSequence(const std::vector<Span>& spans, DataType type)
      : spans_(spans), item_(static_cast<int64_t>(size_of(type))), ends_(&memory_) {
    ends_.reserve(spans.size());
    for (const Span& span : spans) ends_.push_back(count() + span.count);
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t item() const { return item_; }  // an element has so many bytes

  // act(input, output, elements, elements before it in [begin, end)) for each contiguous part.
  template <typename Act>
  void for_each_part(int64_t begin, int64_t end, Act&& act) const {
    auto i =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (int64_t at = begin; at < end; ++i) {
      const int64_t offset = (at - (ends_[i] - spans_[i].count)) * item_;
      const int64_t length = std::min(end, ends_[i]) - at;
      if (length == 0) continue;
      act(static_cast<const char*>(spans_[i].input) + offset,
          static_cast<char*>(spans_[i].output) + offset, length, at - begin);
      at += length;
    }
  }

  void read(int64_t begin, int64_t end, char* to) const {
    for_each_part(begin, end, [&](const char* input, char*, int64_t length, int64_t before) {
      copy_bytes(to + before * item_, input, length * item_);
    });
  }

  void read_outputs(int64_t begin, int64_t end, char* to) const {
    for_each_part(begin, end, [&](const char*, char* output, int64_t length, int64_t before) {
      copy_bytes(to + before * item_, output, length * item_);
    });
  }

  void write(int64_t begin, int64_t end, const char* from, bool streaming = false) const {
    const auto copy = streaming ? stream_bytes : copy_bytes;
    for_each_part(begin, end, [&](const char*, char* output, int64_t length, int64_t before) {
      copy(output, from + before * item_, length * item_);
    });
  }

 private:
  const std::vector<Span>& spans_;
  int64_t item_;
  // Usual steps fit into it: nothing is allocated for them.
  std::array<std::byte, 4096> usual_;
  std::pmr::monotonic_buffer_resource memory_{usual_.data(), usual_.size()};
  std::pmr::vector<int64_t> ends_;
};

}  // namespace autotune
