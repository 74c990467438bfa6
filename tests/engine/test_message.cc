#include "engine/operation/message.h"

#include <optional>
#include <type_traits>

#include "check.h"
#include "common/errors.h"
#include "returning.h"

using namespace autotune;

namespace {

Request sample_request() {
  Request request;
  request.name = "allgather.x\"\n\xff";
  request.operation = Operation::allgather;
  request.dtype = DataType::bfloat16;
  request.reduce_op = ReduceOp::max;
  request.root_rank = 3;
  request.prescale = 0.1;
  request.postscale = 1e300;
  request.shape = {4, 0, int64_t{1} << 40};
  request.cacheable = false;
  request.process_set = 7;
  request.splits = {1, 0, 3};
  request.group = uint64_t{1} << 63;
  return request;
}

}  // namespace

TEST(who_shares_a_request_does_not_see_it_edited) {
  Request request;
  request.name = "x";
  SharedRequest first(request);
  const SharedRequest second = first;
  CHECK(first.is(second));
  CHECK(first.key() == NameKey("x"));
  first.edit().name = "y";
  CHECK(!first.is(second));
  CHECK_EQUAL(second->name, "x");
  CHECK(second.key() == NameKey("x"));
  CHECK(first.key() == NameKey("y"));
  first.set_likely_slot(3);
  first.edit().name = "z";  // nobody shares it now
  CHECK(first.key() == NameKey("z"));
  CHECK_EQUAL(first.likely_slot(), int64_t{-1});
  SharedRequest none;
  none.edit().name = "new";
  CHECK_EQUAL(none->name, "new");
}

TEST(every_field_of_a_kind_is_compared_and_survives_encoding) {
  const auto other = [](auto value) {
    using T = decltype(value);
    if constexpr (std::is_same_v<T, std::optional<DataType>>) {
      return T{DataType::float16};
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(static_cast<int>(value) + 1);
    } else if constexpr (std::is_same_v<T, bool>) {
      return !value;
    } else {
      return static_cast<T>(value + 1);
    }
  };
  const OperationKind usual;
  visit_fields([&](const char*, auto member, AgreedBy) {
    OperationKind changed;
    changed.*member = other(usual.*member);
    CHECK(changed != usual);
    RequestList requests;
    ResponseList responses;
    static_cast<OperationKind&>(requests.requests.emplace_back()) = changed;
    static_cast<OperationKind&>(responses.responses.emplace_back()) = changed;
    const RequestList heard = decode_request_list(encode(requests));
    const ResponseList answered = decode_response_list(encode(responses));
    CHECK(static_cast<const OperationKind&>(heard.requests[0]) == changed);
    CHECK(static_cast<const OperationKind&>(answered.responses[0]) == changed);
  });
}

TEST(a_request_list_survives_encoding) {
  RequestList list;
  list.step = 7;
  list.processed = uint64_t{1} << 63;
  list.shutdown = true;
  list.set_hit(3);
  list.set_hit(130);
  list.requests = {sample_request(), Request{}};
  const RequestList back = decode_request_list(encode(list));
  CHECK_EQUAL(back.step, 7);
  CHECK_EQUAL(back.processed, list.processed);
  CHECK(back.shutdown);
  CHECK(back.hit_bits == list.hit_bits);
  CHECK_EQUAL(back.requests.size(), size_t{2});
  CHECK(same_request(back.requests[0], list.requests[0]));
  CHECK_EQUAL(back.requests[0].name, list.requests[0].name);
  CHECK(!back.requests[0].cacheable);
  CHECK_EQUAL(back.requests[0].process_set, 7);
  CHECK(back.requests[0].splits == list.requests[0].splits);
  CHECK_EQUAL(back.requests[0].group, list.requests[0].group);
}

TEST(a_response_list_survives_encoding) {
  ResponseList list;
  list.change = ParamsChange{9, 12, {1 << 20, 2.5, 16, true, false}};
  list.evicted_slots = {1, 5};
  Response response;
  response.operation = Operation::broadcast;
  response.root_rank = 2;
  response.error = "why";
  response.process_set = 3;
  response.step = 99;
  response.items = {{"a", 4, false, {1, 2}, 12}, {"ignored", 8, true, {}}};
  list.responses = {response};
  list.shutdown = true;
  list.shutdown_reason = "rank 1 shut down";
  const ResponseList back = decode_response_list(encode(list));
  CHECK(back.change.has_value());
  CHECK_EQUAL(back.change->epoch, uint64_t{9});
  CHECK_EQUAL(back.change->first_step, 12);
  CHECK_EQUAL(back.change->params.cycle_time_ms, 2.5);
  CHECK_EQUAL(back.change->params.cache_capacity, 16);
  CHECK(back.change->params.hierarchical_allreduce);
  CHECK(back.evicted_slots == list.evicted_slots);
  CHECK_EQUAL(back.responses[0].error, "why");
  CHECK_EQUAL(back.responses[0].process_set, 3);
  CHECK_EQUAL(back.responses[0].step, 99);
  CHECK_EQUAL(back.responses[0].items[0].name, "a");
  CHECK_EQUAL(back.responses[0].items[0].count, 12);
  CHECK_EQUAL(back.responses[0].items[1].cache_slot, 8);
  CHECK(back.responses[0].items[1].from_cache);
  CHECK_EQUAL(back.responses[0].items[1].name, "");  // a hit travels as its slot alone
  CHECK_EQUAL(back.shutdown_reason, "rank 1 shut down");
}

TEST(names_of_process_sets_differ_from_all_names_of_scripts) {
  std::string global = "x", other = "x",
              reserved =
                  "x\x1f"
                  "2";
  complete_name(global, 0);
  complete_name(other, 2);
  CHECK_EQUAL(global, "x");
  CHECK(other != "x");
  CHECK_EQUAL(shown_name(other), "'x' (process set 2)");
  CHECK_EQUAL(track_name(other), "x (process set 2)");
  CHECK_THROWS(InvalidRequest, "0x1f", complete_name(reserved, 0));
}

TEST(a_message_that_is_cut_short_is_an_error_at_every_length) {
  RequestList list;
  list.requests = {sample_request()};
  const std::string bytes = encode(list);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS(EngineError, "cut short", decode_request_list(bytes.substr(0, length)));
  }
}
