#include "comm/p2p/adasum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/p2p/backoff.h"
#include "common/message_memory.h"
#include "common/reduce.h"

namespace autotune {

namespace {

// For a tensor in two versions: a.b, |a|^2, |b|^2.
struct Dots {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

double coefficient(double ab, double norm2) {
  return norm2 < std::sqrt(std::numeric_limits<double>::min()) ? 1.0 : 1.0 - ab / (2.0 * norm2);
}

// T: float or double.
template <typename T>
class Tree {
 public:
  Tree(PointToPoint& transport, const WaitHook& on_wait, MessageVector<T>& values,
       std::vector<int64_t> ends)
      : transport_(transport),
        on_wait_(on_wait),
        rank_(transport.rank()),
        size_(transport.size()),
        values_(values),
        ends_(std::move(ends)),
        partners_(values.size()) {}

  void run() {
    std::vector<Range> held{{0, static_cast<int64_t>(values_.size())}};  // by level
    for (int distance = 1; distance < size_; distance *= 2) {
      held.push_back(halve(held.back(), distance));
    }
    for (int distance = size_ / 2; distance >= 1; distance /= 2) {
      const Range own = held.back();
      held.pop_back();
      const Range other = other_half(held.back(), own);
      exchange(rank_ ^ distance, at(values_, own), own, at(values_, other), other);
    }
  }

 private:
  struct Range {
    int64_t begin;
    int64_t end;
    int64_t count() const { return end - begin; }
  };

  static T* at(MessageVector<T>& values, Range range) { return values.data() + range.begin; }
  static Range other_half(Range whole, Range half) {
    return half.begin == whole.begin ? Range{half.end, whole.end} : Range{whole.begin, half.begin};
  }

  // Keep and combine half of `range`, which the partner holds a version of, too.
  Range halve(Range range, int distance) {
    const bool lower = (rank_ & distance) == 0;  // the lower ranks' version is a
    const int64_t middle = range.begin + range.count() / 2;
    const Range kept = lower ? Range{range.begin, middle} : Range{middle, range.end};
    const Range given = other_half(range, kept);
    exchange(rank_ ^ distance, at(values_, given), given, at(partners_, kept), kept);
    MessageVector<Dots> dots(ends_.size());
    for_each_tensor(kept, [&](size_t tensor, int64_t begin, int64_t end) {
      Dots& sum = dots[tensor];
      for (int64_t i = begin; i < end; ++i) {
        const double own = value(values_, i), partner = value(partners_, i);
        sum.ab += own * partner;
        (lower ? sum.aa : sum.bb) += own * own;
        (lower ? sum.bb : sum.aa) += partner * partner;
      }
    });
    sum_over_group(dots, distance);
    for_each_tensor(kept, [&](size_t tensor, int64_t begin, int64_t end) {
      const double a = coefficient(dots[tensor].ab, dots[tensor].aa);
      const double b = coefficient(dots[tensor].ab, dots[tensor].bb);
      const double own = lower ? a : b, partner = lower ? b : a;
      for (int64_t i = begin; i < end; ++i) {
        values_[static_cast<size_t>(i)] =
            static_cast<T>(own * value(values_, i) + partner * value(partners_, i));
      }
    });
    return kept;
  }

  // Over the 2 * distance ranks around this one; every rank gets the same bits, since addition of
  // two numbers commutes.
  void sum_over_group(MessageVector<Dots>& dots, int distance) {
    MessageVector<Dots> received(dots.size());
    const auto bytes = static_cast<int64_t>(dots.size() * sizeof(Dots));
    for (int step = 1; step <= distance; step *= 2) {
      exchange_bytes(rank_ ^ step, dots.data(), bytes, received.data(), bytes);
      for (size_t i = 0; i < dots.size(); ++i) {
        dots[i].ab += received[i].ab;
        dots[i].aa += received[i].aa;
        dots[i].bb += received[i].bb;
      }
    }
  }

  // act(tensor, begin, end) for the parts of tensors in `range`.
  template <typename Act>
  void for_each_tensor(Range range, Act&& act) const {
    auto tensor = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), range.begin) -
                                      ends_.begin());
    for (int64_t begin = range.begin; begin < range.end; ++tensor) {
      const int64_t end = std::min(range.end, ends_[tensor]);
      act(tensor, begin, end);
      begin = end;
    }
  }

  static double value(const MessageVector<T>& values, int64_t i) {
    return static_cast<double>(values[static_cast<size_t>(i)]);
  }

  void exchange(int peer, const T* sent, Range send, T* received, Range receive) {
    const auto item = static_cast<int64_t>(sizeof(T));
    exchange_bytes(peer, sent, send.count() * item, received, receive.count() * item);
  }

  void exchange_bytes(int peer, const void* sent, int64_t send_bytes, void* received,
                      int64_t receive_bytes) {
    for (int64_t begin = 0; begin < receive_bytes; begin += max_message_bytes) {
      transport_.receive(peer, static_cast<char*>(received) + begin,
                         std::min(max_message_bytes, receive_bytes - begin));
    }
    for (int64_t begin = 0; begin < send_bytes; begin += max_message_bytes) {
      transport_.send(peer, static_cast<const char*>(sent) + begin,
                      std::min(max_message_bytes, send_bytes - begin));
    }
    complete(transport_, on_wait_);
  }

  PointToPoint& transport_;
  const WaitHook& on_wait_;
  const int rank_;
  const int size_;
  MessageVector<T>& values_;
  const std::vector<int64_t> ends_;  // the tensors end there
  MessageVector<T> partners_;        // it is the partner's version of what this rank keeps
};

template <typename T>
void reduce(PointToPoint& transport, const WaitHook& on_wait, const std::vector<Span>& spans,
            DataType type, double prescale, double postscale) {
  std::vector<int64_t> ends;
  int64_t count = 0;
  for (const Span& span : spans) ends.push_back(count += span.count);
  MessageVector<T> values(static_cast<size_t>(count));
  const DataType work_type = sizeof(T) == sizeof(double) ? DataType::float64 : DataType::float32;
  T* next = values.data();
  for (const Span& span : spans) {
    convert(next, work_type, span.input, type, span.count);
    next += span.count;
  }
  scale(values.data(), count, work_type, prescale);
  Tree<T>(transport, on_wait, values, std::move(ends)).run();
  scale(values.data(), count, work_type, postscale);
  next = values.data();
  for (const Span& span : spans) {
    convert(span.output, type, next, work_type, span.count);
    next += span.count;
  }
}

}  // namespace

void adasum(PointToPoint& transport, const WaitHook& on_wait, const std::vector<Span>& spans,
            DataType type, double prescale, double postscale) {
  if (type == DataType::float64) {
    reduce<double>(transport, on_wait, spans, type, prescale, postscale);
  } else {
    reduce<float>(transport, on_wait, spans, type, prescale, postscale);
  }
}

}  // namespace autotune
