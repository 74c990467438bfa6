#include "engine/operation/message.h"

#include <cmath>
#include <optional>
#include <type_traits>

#include "check.h"
#include "common/errors.h"
#include "common/message_format.h"
#include "common/sha256.h"
#include "returning.h"

using namespace autotune;

namespace {

Request sample_request() {
  Request request;
  request.name = "allgather.x\"\n\xff";
  complete_name(request.name, 7);
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

RequestList sample_requests() {
  RequestList list;
  list.step = 7;
  list.processed = uint64_t{1} << 63;
  list.shutdown = true;
  list.set_hit(3);
  list.set_hit(130);
  list.requests = {sample_request(), Request{}};
  return list;
}

ResponseList sample_responses() {
  ResponseList list;
  list.change = ParamsChange{9, 12, {1 << 20, 2.5, 16, true, false}};
  list.evicted_slots = {1, 5};
  Response response;
  response.operation = Operation::allgather;
  response.process_set = 3;
  response.step = 99;
  response.check = 1;
  response.items = {{"a", 4, false, {1, 2}, 12}, {"ignored", 8, true, {}}};
  Response failed;
  failed.operation = Operation::broadcast;
  failed.root_rank = 2;
  failed.error = "why";
  failed.items = {{"b", -1, false, {}}};
  list.responses = {response, failed};
  list.shutdown = true;
  list.shutdown_reason = "rank 1 shut down";
  return list;
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
    complete_name(requests.requests[0].name, changed.process_set);
    static_cast<OperationKind&>(responses.responses.emplace_back()) = changed;
    responses.responses[0].items.emplace_back();
    const RequestList heard = decode_request_list(encode(requests));
    const ResponseList answered = decode_response_list(encode(responses));
    CHECK(static_cast<const OperationKind&>(heard.requests[0]) == changed);
    CHECK(static_cast<const OperationKind&>(answered.responses[0]) == changed);
  });
}

TEST(a_request_list_survives_encoding) {
  const RequestList list = sample_requests();
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
  const ResponseList list = sample_responses();
  const ResponseList back = decode_response_list(encode(list));
  CHECK(back.change.has_value());
  CHECK_EQUAL(back.change->epoch, uint64_t{9});
  CHECK_EQUAL(back.change->first_step, 12);
  CHECK_EQUAL(back.change->params.cycle_time_ms, 2.5);
  CHECK_EQUAL(back.change->params.cache_capacity, 16);
  CHECK(back.change->params.hierarchical_allreduce);
  CHECK(back.evicted_slots == list.evicted_slots);
  CHECK_EQUAL(back.responses[0].check, 1);
  CHECK_EQUAL(back.responses[1].error, "why");
  CHECK_EQUAL(back.responses[1].root_rank, 2);
  CHECK_EQUAL(back.responses[0].process_set, 3);
  CHECK_EQUAL(back.responses[0].step, 99);
  CHECK_EQUAL(back.responses[0].items[0].name, "a");
  CHECK_EQUAL(back.responses[0].items[0].count, 12);
  CHECK_EQUAL(back.responses[0].items[1].cache_slot, 8);
  CHECK(back.responses[0].items[1].from_cache);
  CHECK_EQUAL(back.responses[0].items[1].name, "");  // a hit travels as its slot alone
  CHECK_EQUAL(back.shutdown_reason, "rank 1 shut down");
}

// Where it fails, the encoding has changed: raise `message_format`, then write down what it is now.
TEST(the_encoding_of_messages_is_that_of_their_format) {
  CHECK_EQUAL(message_format, 5);
  CHECK_EQUAL(to_hex(sha256(encode(sample_requests()))),
              "0b034da43e784e51d7757111de26393d36e38feff49d27d0305ea9ed6b50b4ec");
  CHECK_EQUAL(to_hex(sha256(encode(sample_responses()))),
              "14c4973c3cf3846a8ad13b7f1709c13332f6d868a0ebd18e35b6e2db3bf02e45");
  const std::vector<RelayedList> relayed{{3, true, "first"}, {70'000, false, ""}};
  CHECK_EQUAL(to_hex(sha256(encode(relayed))),
              "c4ec0187d6300fda90c7026d1f4dd93b598c364c605391f8f3339188f8779484");
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

TEST(a_message_that_is_cut_short_or_too_long_is_an_error_that_names_its_sender) {
  RequestList list;
  list.requests = {sample_request()};
  const std::string bytes = encode(list);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS(EngineError, "list of requests from rank 3",
                 decode_request_list(bytes.substr(0, length), 3));
    CHECK_THROWS(EngineError, "cut short", decode_request_list(bytes.substr(0, length), 3));
  }
  CHECK_THROWS(EngineError, "1 bytes too many", decode_request_list(bytes + "x"));
  CHECK_THROWS(EngineError, "2 bytes too many",
               decode_response_list(encode(ResponseList{}) + "xy"));
}

TEST(a_count_beyond_the_bytes_that_follow_is_an_error_before_anything_is_made_of_it) {
  RequestList list;
  const std::string bytes = encode(list);
  const std::string many = bytes.substr(0, bytes.size() - 4) + "\xff\xff\xff\x7f";
  CHECK_THROWS(EngineError, "its number of requests cut short", decode_request_list(many));
}

namespace {

// The error of a list with one request, that `change` makes one of its own.
template <typename Change>
std::string refused_request(Change&& change) {
  RequestList list;
  list.requests.emplace_back();
  list.requests.emplace_back();
  change(list.requests[1]);
  try {
    decode_request_list(encode(list), 2);
  } catch (const EngineError& error) {
    return error.what();
  }
  return "";
}

// The same of a list with one response of one item.
template <typename Change>
std::string refused_responses(Change&& change) {
  ResponseList list;
  list.responses.emplace_back().items.emplace_back();
  change(list);
  try {
    decode_response_list(encode(list));
  } catch (const EngineError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(every_field_of_a_request_that_cannot_be_is_named_with_its_sender_and_place) {
  using R = Request;
  const int beyond = 77;
  const std::string text = refused_request([&](R& r) { r.dtype = DataType(beyond); });
  CHECK_EQUAL(
      text.find("control plane: expected a list of requests from rank 2, got one with 77 as "
                "its data type instead of"),
      size_t{0});
  CHECK(contains(text, ", request 1)"));
  CHECK(contains(refused_request([&](R& r) { r.operation = Operation(beyond); }), "operation"));
  CHECK(contains(refused_request([&](R& r) { r.reduce_op = ReduceOp(beyond); }), "reduce op"));
  CHECK(contains(refused_request([&](R& r) { r.wire_type = DataType(beyond); }), "compression"));
  CHECK(contains(refused_request([](R& r) { r.wire_type = DataType::int8; }), "compression"));
  CHECK(contains(refused_request([](R& r) { r.root_rank = -1; }), "root rank"));
  CHECK(contains(refused_request([](R& r) { r.process_set = -1; }), "process set"));
  CHECK(contains(refused_request([](R& r) {
                   r.name =
                       "x\x1f"
                       "2";
                 }),
                 "name"));
  CHECK(contains(refused_request([](R& r) { r.process_set = 2; }), "name"));
  CHECK(contains(refused_request([](R& r) { r.shape = {3, -1}; }), "shape"));
  const int64_t large = int64_t{1} << 33;
  CHECK(contains(refused_request([&](R& r) { r.shape = {large, large}; }), "shape"));
  CHECK(contains(refused_request([&](R& r) { r.shape = {0, large, large}; }), "shape"));
  CHECK(contains(refused_request([](R& r) { r.splits = {-1}; }), "splits"));
}

TEST(bools_that_are_neither_0_nor_1_are_refused) {
  RequestList list;
  list.requests.emplace_back();
  const std::string bytes = encode(list);
  int refused = 0;
  for (size_t place = 0; place < bytes.size(); ++place) {
    std::string changed = bytes;
    changed[place] = 2;
    try {
      CHECK(encode(decode_request_list(changed)) == changed);
    } catch (const EngineError& error) {
      refused += contains(error.what(), "instead of 0 or 1") ? 1 : 0;
    }
  }
  CHECK_EQUAL(refused, 4);  // shutdown, device, leave to compress, cacheable
}

TEST(every_field_of_a_response_that_cannot_be_is_named) {
  using L = ResponseList;
  const auto item = [](L& list) -> ResponseItem& { return list.responses[0].items[0]; };
  CHECK_EQUAL(refused_responses([](L&) {}), "");
  CHECK(contains(refused_responses([](L& l) { l.responses[0].items.clear(); }), "number of items"));
  CHECK(contains(refused_responses([](L& l) {
                   l.responses[0].operation = Operation::alltoall;
                   l.responses[0].items.emplace_back();
                 }),
                 "number of items"));
  CHECK(contains(refused_responses([](L& l) { l.responses[0].check = 1; }), "check"));
  CHECK(contains(refused_responses([](L& l) { l.responses[0].check = -2; }), "check"));
  CHECK(contains(refused_responses([&](L& l) { item(l).cache_slot = -2; }), "cache slot"));
  CHECK(contains(refused_responses([&](L& l) { item(l).from_cache = true; }), "cache slot"));
  CHECK(contains(refused_responses([&](L& l) {
                   l.responses[0].error = "why";
                   item(l).cache_slot = 1;
                 }),
                 "cache slot"));
  CHECK(contains(refused_responses([&](L& l) { item(l).rows = {1, -1}; }), "rows"));
  CHECK(contains(refused_responses([&](L& l) { item(l).count = int64_t{1} << 60; }), "count"));
  CHECK(contains(refused_responses([](L& l) { l.evicted_slots = {-1}; }), "evicted slots"));
  const auto change = [](Params params) {
    return refused_responses([&](L& l) { l.change = ParamsChange{1, 0, params}; });
  };
  CHECK_EQUAL(change({}), "");
  CHECK(contains(change({-1}), "fusion_threshold_bytes"));
  CHECK(contains(change({1, -0.5}), "cycle_time_ms"));
  CHECK(contains(change({1, std::nan("")}), "cycle_time_ms"));
  CHECK(contains(change({1, 1, -1}), "cache_capacity"));
  CHECK(
      contains(refused_responses([](L& l) { l.change = ParamsChange{1, -1, {}}; }), "first step"));
}
