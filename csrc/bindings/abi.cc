#include "bindings/abi.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/errors.h"
#include "common/message_memory.h"
#include "engine/engine.h"

namespace autotune {

namespace {

// The engine that runs, and what is counted as long as it does.
struct Offered {
  std::mutex mutex;
  std::weak_ptr<Engine> engine;
  std::vector<int> host_of_rank;
  std::atomic<pid_t> process{0};
  std::map<std::pair<int32_t, std::string>, int64_t> unnamed;  // by (process set, kind)
};

Offered& offered() {
  static auto* const only = new Offered;  // outlives all threads
  return *only;
}

thread_local std::string last_error;

// nullptr: none runs here; `last_error` says why.
std::shared_ptr<Engine> running() {
  Offered& own = offered();
  if (own.process != 0 && own.process != ::getpid()) {  // first: a thread may have had the lock
    last_error =
        "Horovod cannot communicate in a forked child: the engine stays with the parent; "
        "communicate there, or start the child by 'spawn'";
    return nullptr;
  }
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Engine> engine = own.engine.lock();
  if (!engine) last_error = "Horovod has not been initialized; call hvd.init() first";
  return engine;
}

// After a join, until which ranks may have done differently many.
void count_anew() {
  const std::lock_guard lock(offered().mutex);
  offered().unnamed.clear();
}

// Calls back, once for each operation.
class Callback final : public Completion {
 public:
  Callback(const autotune_manner& manner, int32_t index, bool is_join)
      : Completion(manner.is_awaited != 0),
        completed_(manner.completed),
        argument_(manner.argument),
        index_(index),
        is_join_(is_join) {}

  void completed(const Handle& handle) override {
    if (is_join_) count_anew();
    autotune_outcome outcome{};
    outcome.status = handle.error.empty() ? AUTOTUNE_OK : AUTOTUNE_FAILED;
    outcome.error = handle.error.c_str();
    outcome.result = handle.result.get();
    outcome.result_bytes = handle.result_bytes;
    outcome.shape = handle.result_shape.data();
    outcome.dimensions = static_cast<int32_t>(handle.result_shape.size());
    outcome.received_splits = handle.received_splits.data();
    outcome.received_count = static_cast<int32_t>(handle.received_splits.size());
    outcome.value = handle.value;
    outcome.is_left_behind = !handle.error.empty() && messages_were_left_behind;
    outcome.handle = &handle;
    completed_(argument_, index_, &outcome);
  }

 private:
  const autotune_completed completed_;
  void* const argument_;
  const int32_t index_;
  const bool is_join_;
};

TensorEntry make_entry(const autotune_operation& operation, std::string name, bool is_named) {
  TensorEntry entry;
  Request& request = entry.request.edit();
  request.operation = static_cast<Operation>(operation.operation);
  request.dtype = static_cast<DataType>(operation.dtype);
  request.reduce_op = static_cast<ReduceOp>(operation.reduce_op);
  if (!is_known(request.operation) || !is_known(request.dtype) || !is_known(request.reduce_op)) {
    throw InvalidRequest(name + ": expected an operation, type and reduction of this engine");
  }
  request.root_rank = operation.root_rank;
  request.process_set = operation.process_set;
  request.prescale = operation.prescale;
  request.postscale = operation.postscale;
  request.may_compress = operation.may_compress != 0;
  request.shape.assign(operation.shape, operation.shape + operation.dimensions);
  request.splits.assign(operation.splits, operation.splits + operation.split_count);
  request.cacheable = is_named;
  request.name = std::move(name);
  complete_name(request.name, request.process_set);
  if (operation.input == nullptr && moves_data(request.operation) && request.count() > 0) {
    throw InvalidRequest(request.name + ": expected a tensor with memory, got one without");
  }
  entry.input = operation.input;
  entry.output = operation.output;
  return entry;
}

std::vector<TensorEntry> make_entries(const autotune_operation* operations, int32_t count,
                                      const autotune_manner& manner, const std::string& name) {
  std::vector<TensorEntry> entries;
  entries.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const std::string place = "_" + std::to_string(i + 1) + "of" + std::to_string(count);
    entries.push_back(
        make_entry(operations[i], manner.is_group ? name + place : name, manner.name != nullptr));
    const bool is_join = entries.back().request->operation == Operation::join;
    entries.back().completion = std::make_shared<Callback>(manner, i, is_join);
  }
  return entries;
}

void hand_over(Engine& engine, std::vector<TensorEntry> entries, bool is_group) {
  if (is_group) {
    engine.enqueue_group(entries.data(), entries.size());
  } else {
    engine.enqueue_all(entries.data(), entries.size());
  }
}

// One that is refused does not count.
void hand_over_unnamed(Engine& engine, const autotune_operation* operations, int32_t count,
                       const autotune_manner& manner) {
  Offered& own = offered();
  const std::lock_guard lock(own.mutex);  // numbers in the order in which the engine gets them
  int64_t& number = own.unnamed[{operations[0].process_set, manner.kind}];
  const std::string name = std::string(manner.kind) + ".noname." + std::to_string(number);
  hand_over(engine, make_entries(operations, count, manner, name), manner.is_group != 0);
  ++number;
}

int32_t enqueue(const autotune_operation* operations, int32_t count,
                const autotune_manner* manner) {
  try {
    const std::shared_ptr<Engine> engine = running();
    if (!engine) return AUTOTUNE_FAILED;
    if (manner->name == nullptr) {
      hand_over_unnamed(*engine, operations, count, *manner);
    } else {
      hand_over(*engine, make_entries(operations, count, *manner, manner->name),
                manner->is_group != 0);
    }
    return AUTOTUNE_OK;
  } catch (const InvalidRequest& error) {
    last_error = error.what();
    return AUTOTUNE_REFUSED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return AUTOTUNE_FAILED;
  }
}

const char* get_last_error() { return last_error.c_str(); }

void* keep(const autotune_outcome* outcome) {
  return new std::shared_ptr<char[]>(static_cast<const Handle*>(outcome->handle)->result);
}

void release(void* kept) { delete static_cast<std::shared_ptr<char[]>*>(kept); }

int32_t place(int32_t which) {
  const std::shared_ptr<Engine> engine = running();
  if (!engine) return AUTOTUNE_NO_ENGINE;
  if (which == AUTOTUNE_RANK) return engine->rank();
  if (which == AUTOTUNE_SIZE) return engine->size();
  Offered& own = offered();
  const std::lock_guard lock(own.mutex);
  const std::vector<int>& hosts = own.host_of_rank;
  const auto self = hosts.begin() + engine->rank();
  const auto end = which == AUTOTUNE_LOCAL_RANK ? self : hosts.end();
  return static_cast<int32_t>(std::count(hosts.begin(), end, *self));
}

// Calls `ask(set, rank)`.
template <typename Ask>
int32_t ask_set(int32_t process_set, Ask&& ask) {
  const std::shared_ptr<Engine> engine = running();
  if (!engine) return AUTOTUNE_NO_ENGINE;
  const std::map<int32_t, ProcessSet> sets = engine->process_sets();
  const auto found = sets.find(process_set);
  return found == sets.end() ? AUTOTUNE_NO_SET : ask(found->second, engine->rank());
}

int32_t set_size(int32_t process_set) {
  return ask_set(process_set, [](const ProcessSet& set, int) { return set.size(); });
}

int32_t set_includes(int32_t process_set) {
  return ask_set(process_set,
                 [](const ProcessSet& set, int rank) { return set.contains(rank) ? 1 : 0; });
}

}  // namespace

void offer(const std::shared_ptr<Engine>& engine, std::vector<int> host_of_rank) {
  Offered& own = offered();
  const std::lock_guard lock(own.mutex);
  own.engine = engine;
  own.host_of_rank = std::move(host_of_rank);
  own.host_of_rank.resize(static_cast<size_t>(engine->size()), 0);
  own.process = ::getpid();
  own.unnamed.clear();
}

const autotune_api& api() {
  static const autotune_api table{
      AUTOTUNE_ABI_VERSION, enqueue, get_last_error, keep, release, place, set_size, set_includes};
  return table;
}

}  // namespace autotune
