#include "engine/operation/message.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/errors.h"

namespace autotune {

namespace {

// Between the name and the id of a process set; no name of a script may have it.
constexpr char separator = '\x1f';

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) { bytes_.clear(); }
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::optional<DataType>& type) {
    put(static_cast<uint8_t>(type ? static_cast<int>(*type) + 1 : 0));
  }
  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  void put_text(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  template <typename T>
  void put_numbers(const std::vector<T>& values) {
    put(static_cast<uint32_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }

 private:
  std::string& bytes_;
};

// What is read from bytes that another rank has sent: whatever they are, a value that can be used
// or an error that names the field and the sender.
class Reader {
 public:
  // `message`: what the bytes should be, for people.
  Reader(const std::string& bytes, const char* message, int sender)
      : bytes_(bytes), message_(message), sender_(sender) {}

  // From now on fields are those of the `index`th `part`.
  void enter(const char* part, uint32_t index) {
    part_ = part;
    index_ = index;
  }

  template <typename T>
  void get(const char* field, T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    std::memcpy(&value, take(field, sizeof value), sizeof value);
    if constexpr (std::is_enum_v<T>) {
      if (!is_known(value)) refuse(field, "one that there is", static_cast<int>(value));
    }
  }
  void get(const char* field, bool& value) {
    const auto byte = get_byte(field);
    if (byte > 1) refuse(field, "0 or 1", byte);
    value = byte == 1;
  }
  void get(const char* field, std::optional<DataType>& value) {
    const auto byte = get_byte(field);
    value = byte == 0 ? std::nullopt : std::optional(static_cast<DataType>(byte - 1));
    if (value && !is_known(*value)) refuse(field, "0 or one more than a data type", byte);
  }
  template <typename T>
  void get(const char* field, T& value, T least, T most) {
    get(field, value);
    expect_range(field, value, least, most);
  }
  void get(const char* field, std::string& text) {
    const uint32_t length = get_count(field, 1);
    text.assign(take(field, length), length);
  }
  template <typename T>
  void get(const char* field, std::vector<T>& values) {
    const uint32_t count = get_count(field, sizeof(T));
    const char* const bytes = take(field, count * sizeof(T));
    values.resize(count);
    if (count) std::memcpy(values.data(), bytes, count * sizeof(T));
  }
  template <typename T>
  void get(const char* field, std::vector<T>& values, T least, T most) {
    get(field, values);
    for (const T value : values) expect_range(field, value, least, most);
  }
  // Of things that take at least `bytes` each: how many follow. There is room for them.
  uint32_t get_count(const char* field, size_t bytes) {
    uint32_t count;
    get(field, count);
    if ((bytes_.size() - position_) / bytes < count) cut_short(field);
    return count;
  }

  void end() {
    if (position_ == bytes_.size()) return;
    enter(nullptr, 0);
    fail(std::to_string(bytes_.size() - position_) + " bytes too many");
  }

  template <typename T>
  [[noreturn]] void refuse(const char* field, const std::string& expected, const T& got) const {
    fail(text_of(got) + " as its " + field + " instead of " + expected);
  }
  [[noreturn]] void fail(const std::string& what) const {
    const std::string part =
        part_ == nullptr ? "" : ", " + std::string(part_) + " " + std::to_string(index_);
    throw EngineError("control plane: expected a " + std::string(message_) + " from rank " +
                      std::to_string(sender_) + ", got one with " + what + " (before byte " +
                      std::to_string(position_) + " of " + std::to_string(bytes_.size()) + part +
                      "); do all ranks run the same version of this package?");
  }

 private:
  static std::string text_of(const std::string& text) { return "'" + text + "'"; }
  template <typename T>
  static std::string text_of(const T& number) {
    return std::to_string(number);
  }
  template <typename T>
  void expect_range(const char* field, T value, T least, T most) const {
    if (value >= least && value <= most) return;  // false for what is no number
    refuse(field, "at least " + std::to_string(least) + " and at most " + std::to_string(most),
           value);
  }
  [[noreturn]] void cut_short(const char* field) const {
    fail("its " + std::string(field) + " cut short");
  }
  uint8_t get_byte(const char* field) { return static_cast<uint8_t>(*take(field, 1)); }
  const char* take(const char* field, size_t length) {
    if (bytes_.size() - position_ < length) cut_short(field);
    const char* data = bytes_.data() + position_;
    position_ += length;
    return data;
  }

  const std::string& bytes_;
  const char* message_;
  int sender_;
  size_t position_ = 0;
  const char* part_ = nullptr;
  uint32_t index_ = 0;
};

void put_kind(Writer& out, const OperationKind& kind) {
  visit_fields([&](const char*, auto member, AgreedBy) { out.put(kind.*member); });
}

void get_kind(Reader& in, OperationKind& kind) {
  visit_fields([&](const char* name, auto member, AgreedBy) { in.get(name, kind.*member); });
  if (kind.root_rank < 0) in.refuse("root rank", "at least 0", kind.root_rank);
  if (kind.process_set < 0) in.refuse("process set", "at least 0", kind.process_set);
  if (kind.wire_type && !is_wire_type(*kind.wire_type)) {
    in.refuse("compression", "a float type of 2 bytes", std::string(name_of(*kind.wire_type)));
  }
}

// Of an item whose slot alone is sent.
constexpr size_t least_item_bytes = sizeof(int64_t) + sizeof(bool);
// Of a request or a response: its kind and some of its counts.
constexpr size_t least_entry_bytes = 32;
// Of a list that is passed on: its rank, a flag and its length.
constexpr size_t least_relayed_bytes = sizeof(int32_t) + sizeof(bool) + sizeof(uint32_t);

void put_request(Writer& out, const Request& request) {
  put_kind(out, request);
  out.put_text(request.name);
  out.put_numbers(request.shape);
  out.put(request.cacheable);
  out.put_numbers(request.splits);
  out.put(request.group);
}

Request get_request(Reader& in) {
  Request request;
  get_kind(in, request);
  in.get("name", request.name);
  if (!is_complete(request.name, request.process_set)) {
    in.refuse("name", "one of process set " + std::to_string(request.process_set), request.name);
  }
  in.get("shape", request.shape, int64_t{0}, most_elements);
  if (!can_exist(request.shape, request.dtype)) {
    in.refuse("shape", "less than " + std::to_string(most_elements) + " bytes",
              to_string(request.shape));
  }
  in.get("cacheable", request.cacheable);
  in.get("splits", request.splits, int64_t{0}, most_elements);
  in.get("group", request.group);
  return request;
}

void put_item(Writer& out, const ResponseItem& item) {
  out.put(item.cache_slot);
  out.put(item.from_cache);
  if (item.from_cache) return;
  out.put_text(item.name);
  out.put_numbers(item.rows);
  out.put(item.count);
}

ResponseItem get_item(Reader& in) {
  ResponseItem item;
  in.get("cache slot", item.cache_slot, int64_t{-1}, most_elements);
  in.get("from cache", item.from_cache);
  if (item.from_cache) {
    if (item.cache_slot < 0) in.refuse("cache slot", "one that is in use", item.cache_slot);
    return item;
  }
  in.get("name", item.name);
  in.get("rows", item.rows, int64_t{0}, most_elements);
  in.get("count", item.count, int64_t{-1}, most_elements);
  return item;
}

void put_response(Writer& out, const Response& response) {
  put_kind(out, response);
  out.put(response.step);
  out.put(response.check);
  out.put_text(response.error);
  out.put(static_cast<uint32_t>(response.items.size()));
  for (const ResponseItem& item : response.items) put_item(out, item);
}

// What all ranks have to do with the items alike, whichever they are.
void check_items(Reader& in, const Response& response) {
  const size_t count = response.items.size();
  const bool is_alone = !can_fuse(response);
  if (count == 0 || (is_alone && count > 1)) {
    in.refuse("number of items", is_alone ? "1" : "at least 1", count);
  }
  if (response.check >= static_cast<int64_t>(count)) {
    in.refuse("check", "one of " + std::to_string(count) + " items", response.check);
  }
  const bool is_remembered = response.error.empty() && moves_data(response.operation);
  const ResponseItem& first = response.items[0];
  if (!is_remembered && (first.cache_slot >= 0 || first.from_cache)) {
    in.refuse("cache slot", "-1, as nothing is remembered of it", first.cache_slot);
  }
}

// Into `response`, an empty one.
Response get_response(Reader& in, Response response) {
  get_kind(in, response);
  in.get("step", response.step, int64_t{-1}, most_steps);
  in.get("check", response.check, int32_t{-1}, std::numeric_limits<int32_t>::max());
  in.get("error", response.error);
  const uint32_t count = in.get_count("number of items", least_item_bytes);
  response.items.reserve(count);
  for (uint32_t i = 0; i < count; ++i) response.items.push_back(get_item(in));
  check_items(in, response);
  return response;
}

void put_change(Writer& out, const ParamsChange& change) {
  out.put(change.epoch);
  out.put(change.first_step);
  visit_params([&](const char*, const char*, auto member) { out.put(change.params.*member); });
}

ParamsChange get_change(Reader& in) {
  ParamsChange change;
  in.get("epoch", change.epoch);
  in.get("first step", change.first_step, int64_t{0}, most_steps);
  visit_params([&](const char* name, const char*, auto member) {
    auto& value = change.params.*member;
    using Value = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, bool>) {
      in.get(name, value);
    } else {
      in.get(name, value, Value{0}, static_cast<Value>(most_elements));
    }
  });
  return change;
}

}  // namespace

bool can_exist(const Shape& shape, DataType dtype) {
  auto product = static_cast<int64_t>(size_of(dtype));
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > most_elements) return false;
    // Also where another dimension is 0.
    if (__builtin_mul_overflow(product, std::max<int64_t>(dim, 1), &product)) return false;
  }
  return product <= most_elements;
}

bool can_fuse(const Response& response) {
  return response.error.empty() && (response.operation == Operation::allreduce ||
                                    response.operation == Operation::allgather ||
                                    response.operation == Operation::reducescatter);
}

void complete_name(std::string& name, int32_t process_set) {
  if (name.find(separator) != std::string::npos) {
    throw InvalidRequest("expected a name without the control character 0x1f, got '" + name + "'");
  }
  if (process_set != 0) name += separator + std::to_string(process_set);
}

bool is_complete(const std::string& name, int32_t process_set) {
  const size_t end = name.find(separator);
  if (end == std::string::npos) return process_set == 0;
  return process_set != 0 && name.substr(end + 1) == std::to_string(process_set);
}

std::string shown_name(const std::string& full_name) {
  const size_t end = full_name.find(separator);
  const std::string quoted = "'" + full_name.substr(0, end) + "'";
  if (end == std::string::npos) return quoted;
  return quoted + " (process set " + full_name.substr(end + 1) + ")";
}

std::string track_name(const std::string& full_name) {
  const size_t end = full_name.find(separator);
  if (end == std::string::npos) return full_name;
  return full_name.substr(0, end) + " (process set " + full_name.substr(end + 1) + ")";
}

std::string describe(const Request& request) {
  return std::string(name_of(request.operation)) + " " + shown_name(request.name);
}

Request& SharedRequest::edit() {
  if (!body_) {
    body_ = std::make_shared<Body>();
  } else if (body_.use_count() > 1) {
    *this = SharedRequest(body_->request);
  }
  body_->is_hashed = false;
  body_->likely_slot = -1;
  return body_->request;
}

NameKey SharedRequest::key() const {
  const std::string_view name = body_->request.name;
  if (!body_->is_hashed) {
    body_->name_hash = NameKey(name).hash;
    body_->is_hashed = true;
  }
  return {name, body_->name_hash};
}

bool operator==(const OperationKind& one, const OperationKind& other) {
  bool equal = true;
  visit_fields([&](const char*, auto member, AgreedBy) {
    equal = equal && is_same(one.*member, other.*member);
  });
  return equal;
}

bool same_request(const Request& request, const Request& known) {
  const OperationKind& kind = request;
  return kind == known && request.shape == known.shape && request.splits == known.splits &&
         request.group == known.group;
}

void RequestList::set_hit(int64_t slot) {
  const auto word = static_cast<size_t>(slot / 64);
  if (hit_bits.size() <= word) hit_bits.resize(word + 1, 0);
  hit_bits[word] |= uint64_t{1} << (slot % 64);
}

Response ResponsePool::take() {
  if (responses_.empty()) return {};
  Response response = std::move(responses_.back());
  responses_.pop_back();
  return response;
}

ResponseList ResponsePool::take_list() {
  if (lists_.empty()) return {};
  ResponseList list = std::move(lists_.back());
  lists_.pop_back();
  return list;
}

void ResponsePool::give(ResponseList&& list) {
  for (Response& response : list.responses) {
    if (responses_.size() >= most) break;
    response.items.clear();
    response.error.clear();
    responses_.push_back(std::move(response));
  }
  list.responses.clear();
  list.change.reset();
  list.evicted_slots.clear();
  list.shutdown = false;
  list.shutdown_reason.clear();
  if (lists_.size() < most) lists_.push_back(std::move(list));
}

void encode(const RequestList& list, std::string& bytes) {
  Writer out(bytes);
  out.put(list.step);
  out.put(list.processed);
  out.put(list.shutdown);
  out.put_numbers(list.hit_bits);
  out.put(static_cast<uint32_t>(list.requests.size()));
  for (const Request& request : list.requests) put_request(out, request);
}

void decode(const std::string& bytes, int sender, RequestList& list) {
  Reader in(bytes, "list of requests", sender);
  in.get("step", list.step, int64_t{0}, most_steps);
  in.get("processed lists", list.processed);
  in.get("shutdown", list.shutdown);
  in.get("cache hits", list.hit_bits);
  const uint32_t count = in.get_count("number of requests", least_entry_bytes);
  list.requests.clear();
  for (uint32_t i = 0; i < count; ++i) {
    in.enter("request", i);
    list.requests.push_back(get_request(in));
  }
  in.end();
}

void encode(const ResponseList& list, std::string& bytes) {
  Writer out(bytes);
  size_t items = 0;
  for (const Response& response : list.responses) items += response.items.size();
  out.reserve(64 + 128 * list.responses.size() + least_item_bytes * items);
  out.put(list.change.has_value());
  if (list.change) put_change(out, *list.change);
  out.put_numbers(list.evicted_slots);
  out.put(list.shutdown);
  out.put_text(list.shutdown_reason);
  out.put(static_cast<uint32_t>(list.responses.size()));
  for (const Response& response : list.responses) put_response(out, response);
}

ResponseList decode(const std::string& bytes, int sender, ResponsePool& pool) {
  Reader in(bytes, "list of responses", sender);
  ResponseList list = pool.take_list();
  bool has_change;
  in.get("has a change", has_change);
  if (has_change) list.change = get_change(in);
  in.get("evicted slots", list.evicted_slots, int64_t{0}, most_elements);
  in.get("shutdown", list.shutdown);
  in.get("shutdown reason", list.shutdown_reason);
  const uint32_t count = in.get_count("number of responses", least_entry_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    in.enter("response", i);
    list.responses.push_back(get_response(in, pool.take()));
  }
  in.end();
  return list;
}

void encode(const std::vector<RelayedList>& lists, std::string& bytes) {
  Writer out(bytes);
  out.put(static_cast<uint32_t>(lists.size()));
  for (const RelayedList& each : lists) {
    out.put(each.rank);
    out.put(each.is_branch);
    out.put_text(each.list);
  }
}

void decode(const std::string& bytes, int sender, std::vector<RelayedList>& lists) {
  Reader in(bytes, "message of lists of requests", sender);
  const uint32_t count = in.get_count("number of lists", least_relayed_bytes);
  lists.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    in.enter("list", i);
    in.get("rank", lists[i].rank, int32_t{0}, std::numeric_limits<int32_t>::max());
    in.get("is of a branch", lists[i].is_branch);
    in.get("requests", lists[i].list);
  }
  in.end();
}

void decode_relayed(const RelayedList& relayed, int sender, RequestList& list) {
  try {
    decode(relayed.list, relayed.rank, list);
  } catch (const EngineError& error) {
    if (relayed.rank == sender) throw;
    throw EngineError(std::string(error.what()) + " (passed on by rank " + std::to_string(sender) +
                      ")");
  }
}

}  // namespace autotune
