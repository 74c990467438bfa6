// What ranks say to each other in negotiation, and its encoding.
//
//   Request      one tensor that a rank is ready to communicate
//   RequestList  one rank -> coordinator: hits in the response cache, new requests, flags
//   RelayedList  what a rank that speaks for others sends up: one list of them
//   Response     the coordinator's decision about one operation: the tensors that fuse into it
//   ResponseList coordinator -> all ranks: responses in the one global order, parameter changes
//
// All ranks run the same binary on one kind of machine (checked at init), so numbers travel as they
// lie in memory.
//
// What arrives is believed to be neither whole nor sane: every field is looked at. Here that is
// what can be seen by the bytes alone; what does not fit the state of the coordinator is found by
// Coordinator::add, and what does not fit a rank's own tensors by check_response.h. There is one
// encoding of a list: what is accepted is encoded to the same bytes again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/types.h"

namespace autotune {

// No tensor has so many elements or bytes (an address has 47 bits), and the sum over all ranks is
// still a number.
constexpr int64_t most_elements = int64_t{1} << 48;
// No job has so many training steps.
constexpr int64_t most_steps = int64_t{1} << 53;

// False for shapes of which an element count, by whichever dimensions, could overflow.
bool can_exist(const Shape& shape, DataType dtype);

// What an operation does, whatever its tensors are: the part that the ranks' requests and the
// response to them have in common. `visit_fields` lists its fields for all who encode, compare or
// print them.
struct OperationKind {
  Operation operation = Operation::allreduce;
  DataType dtype = DataType::float32;
  bool on_device = false;  // the tensor lies in the memory of a GPU
  // An allreduce of float32 travels in this shorter float type; where none is given, it travels as
  // it is, or as the parameters in force say if it may be compressed.
  std::optional<DataType> wire_type;
  bool may_compress = false;
  ReduceOp reduce_op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  // This global rank is the root of a broadcast or, in a response to a join, the one that joined
  // last. For process sets it is the id of the one that is made or removed.
  int32_t root_rank = 0;
  int32_t process_set = 0;
};

// Of fields: a factor that is no number is the same as another such.
template <typename T>
bool is_same(const T& one, const T& other) {
  return one == other || (one != one && other != other);
}

bool operator==(const OperationKind& one, const OperationKind& other);
inline bool operator!=(const OperationKind& one, const OperationKind& other) {
  return !(one == other);
}

// Which operations' ranks have to agree in a field.
enum class AgreedBy { all, reductions, broadcasts };

// Calls `visit(name, member, agreed_by)` for every field, in the order in which ranks are compared.
// `name` is for people.
template <typename Visit>
void visit_fields(Visit&& visit) {
  using Kind = OperationKind;
  visit("operation", &Kind::operation, AgreedBy::all);
  visit("data type", &Kind::dtype, AgreedBy::all);
  visit("device", &Kind::on_device, AgreedBy::all);
  visit("compression", &Kind::wire_type, AgreedBy::all);
  visit("leave to compress", &Kind::may_compress, AgreedBy::all);
  visit("reduce op", &Kind::reduce_op, AgreedBy::reductions);
  visit("prescale factor", &Kind::prescale, AgreedBy::reductions);
  visit("postscale factor", &Kind::postscale, AgreedBy::reductions);
  visit("root rank", &Kind::root_rank, AgreedBy::broadcasts);
  visit("process set", &Kind::process_set, AgreedBy::all);
}

struct Request : OperationKind {
  std::string name;             // it is the full one, see complete_name
  Shape shape;                  // add_process_set has the ranks here, remove_process_set the id
  bool cacheable = true;        // it is false for generated names, which never come back
  std::vector<int64_t> splits;  // an alltoall sends so many rows to each rank of the set
  uint64_t group = 0;           // unless it is 0, it fuses only with requests of the same group

  int64_t count() const { return element_count(shape); }
  int64_t bytes() const { return count() * static_cast<int64_t>(size_of(dtype)); }
  // They are counted as they travel.
  int64_t wire_bytes() const {
    return count() * static_cast<int64_t>(size_of(wire_type.value_or(dtype)));
  }
};
bool operator==(const Request&, const Request&) = delete;  // its kind's says less

// Make a script's name the full name by which the ranks know a request: with the process set's id
// where that is not 0. Throws InvalidRequest.
void complete_name(std::string& name, int32_t process_set);
// Whether it is one that `complete_name` has made for the process set.
bool is_complete(const std::string& name, int32_t process_set);
// For people: "'x'", "'x' (process set 2)".
std::string shown_name(const std::string& full_name);
// For timelines: "x", "x (process set 2)".
std::string track_name(const std::string& full_name);
// For people: "allreduce 'x'".
std::string describe(const Request& request);

// A name and its hash, which is not computed again.
struct NameKey {
  explicit NameKey(std::string_view text) : NameKey(text, std::hash<std::string_view>{}(text)) {}
  NameKey(std::string_view text, size_t its_hash) : name(text), hash(its_hash) {}
  bool operator==(const NameKey& other) const { return hash == other.hash && name == other.name; }

  std::string_view name;  // it lives elsewhere
  size_t hash;
};

struct NameKeyHash {
  size_t operator()(const NameKey& key) const { return key.hash; }
};

// A request that does not change, and of which there are no copies: an operation that comes back in
// every step is described once. What was found out about it is kept with it.
class SharedRequest {
 public:
  SharedRequest() = default;
  SharedRequest(Request request) : body_(std::make_shared<Body>()) {  // NOLINT: that is the point
    body_->request = std::move(request);
  }

  const Request& operator*() const { return body_->request; }
  const Request* operator->() const { return &body_->request; }
  operator const Request&() const { return body_->request; }  // NOLINT: it stands for one
  // To change it. Others that share it keep what they have.
  Request& edit();
  bool is(const SharedRequest& other) const { return body_ == other.body_; }

  // Its name's hash is computed the first time: by one thread only.
  NameKey key() const;
  // The cache slot in which it was seen last; a guess. Used by the thread that runs cycles.
  int64_t likely_slot() const { return body_->likely_slot; }
  void set_likely_slot(int64_t slot) const { body_->likely_slot = slot; }

 private:
  struct Body {
    Request request;
    bool is_hashed = false;
    size_t name_hash = 0;
    int64_t likely_slot = -1;
  };
  std::shared_ptr<Body> body_;
};

// True when `request` needs no new negotiation given that `known`, of the same name, was agreed.
bool same_request(const Request& request, const Request& known);

struct RequestList {
  int64_t step = 0;  // all entries are of this training step of the sender
  // The sender has processed so many response lists, which dates its cache slots.
  uint64_t processed = 0;
  bool shutdown = false;
  std::vector<uint64_t> hit_bits;  // each cache slot has a bit
  std::vector<Request> requests;

  bool empty() const { return hit_bits.empty() && requests.empty() && !shutdown; }
  void set_hit(int64_t slot);
};

// A list of requests on its way through the control tree (negotiation/relay.h).
struct RelayedList {
  int32_t rank = 0;        // it said so
  bool is_branch = false;  // and so did every rank below it: the same
  std::string list;        // it is encoded
};

// One tensor of a response.
struct ResponseItem {
  std::string name;
  // The item is remembered in this cache slot; -1 means that it is not.
  int64_t cache_slot = -1;
  // Only the slot was sent: the rest is in every rank's cache.
  bool from_cache = false;
  // These are rows (elements of the first dimension) by rank of the process set: in an allgather
  // those that it has, in an alltoall those that rank r sends to rank d, at r * size + d. For
  // add_process_set they are the ranks.
  std::vector<int64_t> rows;
  // Unless it is -1, a rank that has joined takes part without the tensor, with this many zeros.
  int64_t count = -1;
};

struct Response : OperationKind {
  int64_t step = 0;  // a join has the newest training step of all ranks
  // The result of this item is to be checked (execute/result_check.h); -1 means that none is.
  int32_t check = -1;
  std::vector<ResponseItem> items;
  std::string error;  // unless it is empty, the operation fails with it on every rank
};
// Whether it may have several items.
bool can_fuse(const Response& response);
bool operator==(const Response&, const Response&) = delete;  // its kind's says less

struct ParamsChange {
  uint64_t epoch = 0;
  int64_t first_step = 0;  // the change takes effect before the first operation of this step
  Params params;
};

struct ResponseList {
  std::optional<ParamsChange> change;  // it comes before the responses of this list
  std::vector<int64_t> evicted_slots;  // they go before the responses of this list
  std::vector<Response> responses;
  bool shutdown = false;
  std::string shutdown_reason;
};

// Lists that were used: their memory is used again.
class ResponsePool {
 public:
  Response take();  // it has no items and no error; the rest is anything
  ResponseList take_list();
  void give(ResponseList&& list);

 private:
  static constexpr size_t most = 1024;
  std::vector<Response> responses_;
  std::vector<ResponseList> lists_;
};

// Into earlier bytes, whose memory is used again.
void encode(const RequestList& list, std::string& bytes);
void encode(const ResponseList& list, std::string& bytes);
void encode(const std::vector<RelayedList>& lists, std::string& bytes);
// Into an earlier list, whose memory is used again. `sender`: the rank that the bytes are from.
// Throws EngineError that names it and the field that is wrong.
void decode(const std::string& bytes, int sender, RequestList& list);
ResponseList decode(const std::string& bytes, int sender, ResponsePool& pool);
void decode(const std::string& bytes, int sender, std::vector<RelayedList>& lists);
// What `sender` has passed on; the error names both.
void decode_relayed(const RelayedList& relayed, int sender, RequestList& list);

}  // namespace autotune
