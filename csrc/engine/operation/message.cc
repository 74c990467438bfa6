#include "engine/operation/message.h"

#include <cstring>
#include <type_traits>

#include "common/errors.h"

namespace autotune {

namespace {

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) { bytes_.clear(); }
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
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

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  void get(T& value) {
    std::memcpy(&value, take(sizeof value), sizeof value);
  }
  template <typename T>
  T get() {
    T value;
    get(value);
    return value;
  }
  std::string get_text() {
    const auto length = get<uint32_t>();
    return std::string(take(length), length);
  }
  template <typename T>
  void get_numbers(std::vector<T>& values) {
    const auto count = get<uint32_t>();
    const char* const bytes = take(count * sizeof(T));
    values.resize(count);
    if (count) std::memcpy(values.data(), bytes, count * sizeof(T));
  }
  // Of things that take at least `bytes` each: the number that follows, if there is room for them.
  uint32_t get_count(size_t bytes) {
    const auto count = get<uint32_t>();
    if ((bytes_.size() - position_) / bytes < count) cut_short();
    return count;
  }

 private:
  [[noreturn]] static void cut_short() { throw EngineError("control plane: message cut short"); }
  const char* take(size_t length) {
    if (bytes_.size() - position_ < length) cut_short();
    const char* data = bytes_.data() + position_;
    position_ += length;
    return data;
  }

  const std::string& bytes_;
  size_t position_ = 0;
};

void put_kind(Writer& out, const OperationKind& kind) {
  visit_fields([&](const char*, auto member, AgreedBy) { out.put(kind.*member); });
}

void get_kind(Reader& in, OperationKind& kind) {
  visit_fields([&](const char*, auto member, AgreedBy) { in.get(kind.*member); });
}

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
  request.name = in.get_text();
  in.get_numbers(request.shape);
  in.get(request.cacheable);
  in.get_numbers(request.splits);
  in.get(request.group);
  return request;
}

// Of an item whose slot alone is sent.
constexpr size_t least_item_bytes = sizeof(int64_t) + sizeof(bool);

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
  in.get(item.cache_slot);
  in.get(item.from_cache);
  if (item.from_cache) return item;
  item.name = in.get_text();
  in.get_numbers(item.rows);
  in.get(item.count);
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

// Into `response`, an empty one.
Response get_response(Reader& in, Response response) {
  get_kind(in, response);
  in.get(response.step);
  in.get(response.check);
  response.error = in.get_text();
  const uint32_t count = in.get_count(least_item_bytes);
  response.items.reserve(count);
  for (uint32_t i = 0; i < count; ++i) response.items.push_back(get_item(in));
  return response;
}

void put_change(Writer& out, const ParamsChange& change) {
  out.put(change.epoch);
  out.put(change.first_step);
  visit_params([&](const char*, const char*, auto member) { out.put(change.params.*member); });
}

ParamsChange get_change(Reader& in) {
  ParamsChange change;
  in.get(change.epoch);
  in.get(change.first_step);
  visit_params([&](const char*, const char*, auto member) { in.get(change.params.*member); });
  return change;
}

// Between the name and the id of a process set; no name of a script may have it.
constexpr char separator = '\x1f';

}  // namespace

void complete_name(std::string& name, int32_t process_set) {
  if (name.find(separator) != std::string::npos) {
    throw InvalidRequest("expected a name without the control character 0x1f, got '" + name + "'");
  }
  if (process_set != 0) name += separator + std::to_string(process_set);
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
  visit_fields(
      [&](const char*, auto member, AgreedBy) { equal = equal && one.*member == other.*member; });
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

void decode(const std::string& bytes, RequestList& list) {
  Reader in(bytes);
  in.get(list.step);
  in.get(list.processed);
  in.get(list.shutdown);
  in.get_numbers(list.hit_bits);
  const auto count = in.get<uint32_t>();
  list.requests.clear();
  for (uint32_t i = 0; i < count; ++i) list.requests.push_back(get_request(in));
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

ResponseList decode(const std::string& bytes, ResponsePool& pool) {
  Reader in(bytes);
  ResponseList list = pool.take_list();
  if (in.get<bool>()) list.change = get_change(in);
  in.get_numbers(list.evicted_slots);
  in.get(list.shutdown);
  list.shutdown_reason = in.get_text();
  const auto count = in.get<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) list.responses.push_back(get_response(in, pool.take()));
  return list;
}

}  // namespace autotune
