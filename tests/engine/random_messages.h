// Random messages of every kind, valid ones, and whether two are the same.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/operation/message.h"
#include "fuzz.h"

namespace autotune {

inline std::vector<int64_t> random_numbers(Random& random, int64_t most_count, int64_t most) {
  std::vector<int64_t> numbers(static_cast<size_t>(random.pick(0, most_count)));
  for (int64_t& number : numbers) number = random.pick(0, random.one_in(4) ? most : 4);
  return numbers;
}

inline OperationKind random_kind(Random& random) {
  OperationKind kind;
  kind.operation = static_cast<Operation>(random.pick(0, 8));
  kind.dtype = static_cast<DataType>(random.pick(0, 9));
  kind.on_device = random.one_in(4);
  if (random.one_in(4)) kind.wire_type = random.one_in(2) ? DataType::float16 : DataType::bfloat16;
  kind.reduce_op = static_cast<ReduceOp>(random.pick(0, 5));
  if (random.one_in(4)) kind.prescale = static_cast<double>(random.odd_number()) / 3;
  if (random.one_in(4)) kind.postscale = static_cast<double>(random.odd_number()) * 1e200;
  if (random.one_in(2)) kind.root_rank = static_cast<int32_t>(random.pick(0, 0x7fffffff));
  if (random.one_in(4)) kind.process_set = static_cast<int32_t>(random.pick(0, 0x7fffffff));
  return kind;
}

inline std::string random_name(Random& random, int32_t process_set) {
  std::string name = random.bytes(random.one_in(20) ? 300 : 12);
  for (char& byte : name) byte = byte == '\x1f' ? 'x' : byte;
  complete_name(name, process_set);
  return name;
}

inline Request random_request(Random& random) {
  Request request;
  static_cast<OperationKind&>(request) = random_kind(random);
  request.name = random_name(random, request.process_set);
  request.shape = random_numbers(random, 3, 1000);
  request.cacheable = random.one_in(2);
  request.splits = random_numbers(random, 4, most_elements);
  if (random.one_in(2)) request.group = random.bits();
  return request;
}

inline RequestList random_requests(Random& random) {
  RequestList list;
  list.step = random.pick(0, random.one_in(2) ? most_steps : 9);
  list.processed = random.bits();
  list.shutdown = random.one_in(4);
  for (int64_t hits = random.pick(0, 3); hits > 0; --hits) list.set_hit(random.pick(0, 200));
  for (int64_t count = random.pick(0, 4); count > 0; --count) {
    list.requests.push_back(random_request(random));
  }
  return list;
}

inline ResponseItem random_item(Random& random, bool remembers) {
  ResponseItem item;
  if (remembers && random.one_in(2)) item.cache_slot = random.pick(0, 5000);
  item.from_cache = item.cache_slot >= 0 && random.one_in(2);
  if (item.from_cache) return item;
  item.name = random_name(random, 0);
  item.rows = random_numbers(random, 4, most_elements);
  item.count = random.pick(-1, most_elements);
  return item;
}

inline Response random_response(Random& random) {
  Response response;
  static_cast<OperationKind&>(response) = random_kind(random);
  response.step = random.pick(-1, most_steps);
  if (random.one_in(4)) response.error = random.bytes(30) + "!";
  const int64_t count = can_fuse(response) ? random.pick(1, 4) : 1;
  const bool remembers = response.error.empty() && moves_data(response.operation);
  for (int64_t i = 0; i < count; ++i) response.items.push_back(random_item(random, remembers));
  response.check = static_cast<int32_t>(random.pick(-1, count - 1));
  return response;
}

inline ResponseList random_responses(Random& random) {
  ResponseList list;
  if (random.one_in(3)) {
    list.change = ParamsChange{random.bits(),
                               random.pick(0, most_steps),
                               {random.pick(0, most_elements), random.pick(0, 1000) * 0.1,
                                random.pick(0, most_elements), random.one_in(2), random.one_in(2)}};
  }
  list.evicted_slots = random_numbers(random, 3, most_elements);
  list.shutdown = random.one_in(4);
  if (list.shutdown) list.shutdown_reason = random.bytes(20);
  for (int64_t count = random.pick(0, 4); count > 0; --count) {
    list.responses.push_back(random_response(random));
  }
  return list;
}

inline bool same(const Request& a, const Request& b) {
  return same_request(a, b) && a.name == b.name && a.cacheable == b.cacheable;
}

inline bool same(const ResponseItem& a, const ResponseItem& b) {
  return a.name == b.name && a.cache_slot == b.cache_slot && a.from_cache == b.from_cache &&
         a.rows == b.rows && a.count == b.count;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return same(x, y); });
}

inline bool same(const Response& a, const Response& b) {
  const OperationKind& kind = a;
  return kind == b && a.step == b.step && a.check == b.check && a.error == b.error &&
         same(a.items, b.items);
}

inline bool same(const std::optional<ParamsChange>& a, const std::optional<ParamsChange>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  bool equal = a->epoch == b->epoch && a->first_step == b->first_step;
  visit_params([&](const char*, const char*, auto member) {
    equal = equal && a->params.*member == b->params.*member;
  });
  return equal;
}

inline bool same(const RequestList& a, const RequestList& b) {
  return a.step == b.step && a.processed == b.processed && a.shutdown == b.shutdown &&
         a.hit_bits == b.hit_bits && same(a.requests, b.requests);
}

inline bool same(const ResponseList& a, const ResponseList& b) {
  return same(a.change, b.change) && a.evicted_slots == b.evicted_slots &&
         a.shutdown == b.shutdown && a.shutdown_reason == b.shutdown_reason &&
         same(a.responses, b.responses);
}

}  // namespace autotune
