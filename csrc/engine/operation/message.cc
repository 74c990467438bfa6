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
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
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
  template <typename T>
  std::vector<T> get_numbers() {
    std::vector<T> values;
    get_numbers(values);
    return values;
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

void put_request(Writer& out, const Request& request) {
  out.put_text(request.name);
  out.put(request.operation);
  out.put(request.dtype);
  out.put(request.wire_type);
  out.put(request.on_device);
  out.put(request.reduce_op);
  out.put(request.root_rank);
  out.put(request.prescale);
  out.put(request.postscale);
  out.put_numbers(request.shape);
  out.put(request.cacheable);
  out.put(request.process_set);
  out.put_numbers(request.splits);
  out.put(request.group);
}

Request get_request(Reader& in) {
  Request request;
  request.name = in.get_text();
  request.operation = in.get<Operation>();
  request.dtype = in.get<DataType>();
  request.wire_type = in.get<std::optional<DataType>>();
  request.on_device = in.get<bool>();
  request.reduce_op = in.get<ReduceOp>();
  request.root_rank = in.get<int32_t>();
  request.prescale = in.get<double>();
  request.postscale = in.get<double>();
  request.shape = in.get_numbers<int64_t>();
  request.cacheable = in.get<bool>();
  request.process_set = in.get<int32_t>();
  request.splits = in.get_numbers<int64_t>();
  request.group = in.get<uint64_t>();
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
  item.cache_slot = in.get<int64_t>();
  item.from_cache = in.get<bool>();
  if (item.from_cache) return item;
  item.name = in.get_text();
  item.rows = in.get_numbers<int64_t>();
  item.count = in.get<int64_t>();
  return item;
}

void put_response(Writer& out, const Response& response) {
  out.put(response.operation);
  out.put(response.dtype);
  out.put(response.wire_type);
  out.put(response.on_device);
  out.put(response.reduce_op);
  out.put(response.root_rank);
  out.put(response.prescale);
  out.put(response.postscale);
  out.put(response.process_set);
  out.put(response.step);
  out.put(response.check);
  out.put_text(response.error);
  out.put(static_cast<uint32_t>(response.items.size()));
  for (const ResponseItem& item : response.items) put_item(out, item);
}

// Into `response`, an empty one.
Response get_response(Reader& in, Response response) {
  response.operation = in.get<Operation>();
  response.dtype = in.get<DataType>();
  response.wire_type = in.get<std::optional<DataType>>();
  response.on_device = in.get<bool>();
  response.reduce_op = in.get<ReduceOp>();
  response.root_rank = in.get<int32_t>();
  response.prescale = in.get<double>();
  response.postscale = in.get<double>();
  response.process_set = in.get<int32_t>();
  response.step = in.get<int64_t>();
  response.check = in.get<int32_t>();
  response.error = in.get_text();
  const uint32_t count = in.get_count(least_item_bytes);
  response.items.reserve(count);
  for (uint32_t i = 0; i < count; ++i) response.items.push_back(get_item(in));
  return response;
}

void put_change(Writer& out, const ParamsChange& change) {
  out.put(change.epoch);
  out.put(change.first_step);
  out.put(change.params.fusion_threshold_bytes);
  out.put(change.params.cycle_time_ms);
  out.put(change.params.cache_capacity);
  out.put(change.params.hierarchical_allreduce);
  out.put(change.params.hierarchical_allgather);
}

ParamsChange get_change(Reader& in) {
  ParamsChange change;
  change.epoch = in.get<uint64_t>();
  change.first_step = in.get<int64_t>();
  change.params.fusion_threshold_bytes = in.get<int64_t>();
  change.params.cycle_time_ms = in.get<double>();
  change.params.cache_capacity = in.get<int64_t>();
  change.params.hierarchical_allreduce = in.get<bool>();
  change.params.hierarchical_allgather = in.get<bool>();
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

bool same_request(const Request& request, const Request& known) {
  return request.operation == known.operation && request.dtype == known.dtype &&
         request.wire_type == known.wire_type && request.on_device == known.on_device &&
         request.reduce_op == known.reduce_op && request.root_rank == known.root_rank &&
         request.prescale == known.prescale && request.postscale == known.postscale &&
         request.shape == known.shape && request.splits == known.splits &&
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
  list.step = in.get<int64_t>();
  list.processed = in.get<uint64_t>();
  list.shutdown = in.get<bool>();
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
  list.shutdown = in.get<bool>();
  list.shutdown_reason = in.get_text();
  const auto count = in.get<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) list.responses.push_back(get_response(in, pool.take()));
  return list;
}

}  // namespace autotune
