#include "engine/negotiation/response_cache.h"

#include "check.h"
#include "engine/operation/tensor.h"

using namespace autotune;

namespace {

CacheEntry entry(const std::string& name, int64_t length = 1) {
  CacheEntry e;
  e.request.edit().name = name;
  e.request.edit().shape = {length};
  return e;
}

const auto nothing_pinned = [](int64_t) { return false; };

}  // namespace

TEST(a_request_is_a_hit_only_if_every_field_is_equal) {
  ResponseCache cache;
  cache.put(2, entry("x", 5));
  Request request = entry("x", 5).request;
  CHECK_EQUAL(cache.find(request), 2);
  request.shape = {6};
  CHECK_EQUAL(cache.find(request), -1);
  request = entry("x", 5).request;
  request.dtype = DataType::float64;
  CHECK_EQUAL(cache.find(request), -1);
  CHECK_EQUAL(cache.find(entry("y", 5).request), -1);
}

TEST(a_request_that_is_shared_is_found_where_it_is_now) {
  ResponseCache cache;
  const SharedRequest x = entry("x").request;
  cache.put(1, {x, {}});
  CHECK_EQUAL(cache.find(x), 1);
  cache.put(1, entry("y"));
  CHECK_EQUAL(cache.find(x), -1);
  cache.put(0, entry("x"));  // another description of the same
  CHECK_EQUAL(cache.find(x), 0);
  CHECK(cache.at(0)->request.is(x));
  cache.erase(0);
  CHECK_EQUAL(cache.find(x), -1);
}

TEST(a_slot_knows_the_announced_tensor_until_it_changes_or_the_tensor_ends) {
  ResponseCache cache;
  TensorEntry tensor, other;
  cache.put(0, entry("x"));
  CHECK(cache.announced(0) == nullptr);
  cache.set_announced(0, &tensor);
  cache.forget(&other, 0);
  CHECK(cache.announced(0) == &tensor);
  cache.forget(&tensor, 0);
  CHECK(cache.announced(0) == nullptr);
  for (const bool is_erased : {true, false}) {
    cache.set_announced(0, &tensor);
    is_erased ? cache.erase(0) : cache.put(0, entry("y"));
    CHECK(cache.announced(0) == nullptr);
    if (is_erased) cache.put(0, entry("x"));
  }
  cache.forget(&tensor, -1);
}

TEST(a_slot_that_is_given_to_another_name_forgets_the_first) {
  ResponseCache cache;
  cache.put(0, entry("x"));
  cache.put(0, entry("y"));
  CHECK_EQUAL(cache.find(entry("x").request), -1);
  CHECK_EQUAL(cache.find(entry("y").request), 0);
  cache.erase(0);
  CHECK(cache.at(0) == nullptr);
}

TEST(the_least_recently_used_slot_goes_first) {
  CacheDirectory directory(2);
  CHECK_EQUAL(directory.insert(entry("a"), 1, nothing_pinned), 0);
  CHECK_EQUAL(directory.insert(entry("b"), 1, nothing_pinned), 1);
  directory.touch(0);
  CHECK_EQUAL(directory.insert(entry("c"), 2, nothing_pinned), 1);
  CHECK_EQUAL(directory.slot_of("b"), -1);
  CHECK_EQUAL(directory.slot_of("a"), 0);
}

TEST(a_pinned_slot_is_never_given_away) {
  CacheDirectory directory(1);
  directory.insert(entry("a"), 1, nothing_pinned);
  CHECK_EQUAL(directory.insert(entry("b"), 2, [](int64_t) { return true; }), -1);
  CHECK_EQUAL(directory.slot_of("a"), 0);
}

TEST(a_hit_means_what_the_slot_held_when_its_sender_looked) {
  CacheDirectory directory(1);
  directory.insert(entry("a"), 1, nothing_pinned);
  directory.insert(entry("b"), 5, nothing_pinned);
  CHECK_EQUAL(directory.as_of(0, 4)->request->name, "a");
  CHECK_EQUAL(directory.as_of(0, 5)->request->name, "b");
  CHECK(directory.as_of(0, 0) == nullptr);
  CHECK(directory.as_of(9, 5) == nullptr);
  directory.forget_before(5);
  directory.insert(entry("c"), 6, nothing_pinned);
  CHECK_EQUAL(directory.as_of(0, 5)->request->name, "b");  // the slowest rank may still mean it
}

TEST(shrinking_names_the_slots_that_went_and_capacity_zero_remembers_nothing) {
  CacheDirectory directory(3);
  for (const char* name : {"a", "b", "c"}) directory.insert(entry(name), 1, nothing_pinned);
  CHECK(directory.resize(1) == (std::vector<int64_t>{0, 1}));
  CHECK(directory.resize(0) == (std::vector<int64_t>{2}));
  CHECK_EQUAL(directory.insert(entry("d"), 2, nothing_pinned), -1);
  directory.resize(2);
  CHECK(directory.insert(entry("e"), 3, nothing_pinned) >= 0);
}

TEST(after_a_shrinkage_there_are_never_more_entries_than_the_capacity) {
  CacheDirectory directory(4);
  for (const char* name : {"a", "b", "c", "d"}) directory.insert(entry(name), 1, nothing_pinned);
  directory.resize(2);
  for (const char* name : {"e", "f", "g"}) {
    CHECK(directory.insert(entry(name), 2, nothing_pinned) >= 0);
    CHECK_EQUAL(directory.size(), 2);
  }
  CHECK_EQUAL(directory.slot_of("e"), -1);  // the least recently used one
  directory.resize(4);
  for (const char* name : {"h", "i"}) directory.insert(entry(name), 3, nothing_pinned);
  CHECK_EQUAL(directory.size(), 4);
}
