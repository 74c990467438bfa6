#include "tensorflow/kernels.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/types.h"
#include "tensorflow/c_api.h"
#include "tensorflow/definitions.h"
#include "tensorflow/done.h"

namespace autotune::tensorflow {

namespace {

const autotune_api* engine_api = nullptr;
std::atomic<int> gpu_kernel_count{0};

// ---------------------------------------------------------------- what an operation is

// Attributes of an operation, as they are read once for each kernel.
struct Kernel {
  Operation operation = Operation::allreduce;
  ReduceOp reduce_op = ReduceOp::sum;
  int32_t root_rank = 0;
  int32_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool may_compress = false;
  std::string name;  // empty: the engine numbers it
  std::string kind;  // begins the name of one without a name
  bool is_group = false;
  bool is_eager = false;
};

// Horovod's numbers.
constexpr std::array<ReduceOp, 6> reduce_ops{ReduceOp::average, ReduceOp::sum, ReduceOp::adasum,
                                             ReduceOp::min,     ReduceOp::max, ReduceOp::product};

// Reads attributes until one is wrong.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int64_t integer(const char* name) {
    int64_t value = 0;
    if (ok()) tf.TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_);
    return value;
  }
  double factor(const char* name) {
    const int64_t bits = integer(name);
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  bool flag(const char* name) {
    unsigned char value = 0;
    if (ok()) tf.TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status_);
    return value != 0;
  }
  std::string text(const char* name) {
    int32_t entries = 0, bytes = 0;
    if (ok()) {
      tf.TF_OpKernelConstruction_GetAttrSize(construction_, name, &entries, &bytes, status_);
    }
    std::string value(static_cast<size_t>(ok() && bytes > 0 ? bytes : 0), '\0');
    if (!value.empty()) {
      tf.TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                               status_);
    }
    return value;
  }
  std::string node() {
    const TF_StringView name = tf.TF_OpKernelConstruction_GetName(construction_);
    return {name.data, name.len};
  }
  void refuse(const std::string& text) { status_.set(TF_INVALID_ARGUMENT, text); }
  bool ok() const { return status_.ok(); }
  // Tells TensorFlow where one was wrong.
  void settle() {
    if (!ok()) tf.TF_OpKernelConstruction_Failure(construction_, status_);
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

void read_reduction(Attributes& attributes, Kernel& kernel) {
  const int64_t number = attributes.integer("reduce_op");
  kernel.prescale = attributes.factor("prescale_bits");
  kernel.postscale = attributes.factor("postscale_bits");
  if (number < 0 || number >= static_cast<int64_t>(reduce_ops.size())) {
    return attributes.refuse("reduce_op: expected Average, Sum, Adasum, Min, Max or Product, got " +
                             std::to_string(number));
  }
  kernel.reduce_op = reduce_ops[static_cast<size_t>(number)];
}

// By the script's name, or the node's, which is unique in its graph and the same on all ranks.
void read_name(Attributes& attributes, Kernel& kernel) {
  const std::string begin =
      std::string(kernel.is_group ? "grouped_" : "") + autotune::name_of(kernel.operation) + ".";
  std::string name = attributes.text("tensor_name");
  if (name.empty() && !kernel.is_eager) name = attributes.node();
  if (!name.empty()) kernel.name = begin + name;
  kernel.kind = begin + "tensorflow";
}

template <Operation operation>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  Attributes attributes(construction);
  kernel->operation = operation;
  kernel->is_eager = attributes.flag("eager");
  if (operation == Operation::join) {
    kernel->kind = autotune::name_of(operation);
  } else {
    kernel->is_group = attributes.flag("grouped");
    kernel->process_set = static_cast<int32_t>(attributes.integer("process_set_id"));
    read_name(attributes, *kernel);
  }
  if (operation == Operation::allreduce || operation == Operation::reducescatter) {
    read_reduction(attributes, *kernel);
  }
  if (operation == Operation::allreduce) kernel->may_compress = attributes.flag("may_compress");
  if (operation == Operation::broadcast) {
    kernel->root_rank = static_cast<int32_t>(attributes.integer("root_rank"));
  }
  attributes.settle();
  return kernel.release();
}

template <Operation operation>
void* create_on_gpu(TF_OpKernelConstruction* construction) {
  ++gpu_kernel_count;
  return create<operation>(construction);
}

template <typename T>
void destroy(void* kernel) {
  delete static_cast<T*>(kernel);
}

// ---------------------------------------------------------------- one call of it

// False: there is none. Types that are only moved go as others of their size.
bool find_type(TF_DataType type, DataType& found) {
  switch (type) {
    case TF_UINT8:
      found = DataType::uint8;
      return true;
    case TF_INT8:
      found = DataType::int8;
      return true;
    case TF_INT16:
    case TF_UINT16:
      found = DataType::int16;
      return true;
    case TF_INT32:
    case TF_UINT32:
      found = DataType::int32;
      return true;
    case TF_INT64:
    case TF_UINT64:
    case TF_COMPLEX64:
      found = DataType::int64;
      return true;
    case TF_HALF:
      found = DataType::float16;
      return true;
    case TF_BFLOAT16:
      found = DataType::bfloat16;
      return true;
    case TF_FLOAT:
      found = DataType::float32;
      return true;
    case TF_DOUBLE:
      found = DataType::float64;
      return true;
    case TF_BOOL:
      found = DataType::boolean;
      return true;
  }
  return false;
}

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { tf.TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

std::vector<int64_t> shape_of(const Tensor& tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(tf.TF_NumDims(tensor.get())));
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = tf.TF_Dim(tensor.get(), static_cast<int>(i));
  return shape;
}

// From TensorFlow's call until the engine has ended all its operations; deletes itself then.
class Call {
 public:
  Call(const Kernel& kernel, TF_OpKernelContext* context, Done done)
      : kernel_(kernel), context_(context), done_(std::move(done)) {}

  void start() {
    if (kernel_.operation == Operation::join) {
      operations_.emplace_back();
    } else if (!read_tensors()) {
      return finish();
    }
    left_ = static_cast<int>(operations_.size());
    for (autotune_operation& each : operations_) describe(each);
    autotune_manner manner{};
    manner.name = kernel_.name.empty() ? nullptr : kernel_.name.c_str();
    manner.kind = kernel_.kind.c_str();
    manner.is_group = kernel_.is_group;
    manner.is_awaited = kernel_.is_eager;
    manner.completed = completed;
    manner.argument = this;
    const auto count = static_cast<int32_t>(operations_.size());
    const int32_t result = engine_api->enqueue(operations_.data(), count, &manner);
    if (result == AUTOTUNE_OK) return;  // another thread may have deleted this by now
    fail(result, engine_api->last_error());
    finish();
  }

 private:
  // What the engine needs of the tensors; false: an error is noted.
  bool read_tensors() {
    const bool has_splits = kernel_.operation == Operation::alltoall;
    const int count = tf.TF_NumInputs(context_) - (has_splits ? 1 : 0);
    operations_.resize(static_cast<size_t>(count));
    inputs_.resize(operations_.size());
    outputs_.resize(operations_.size());
    shapes_.resize(operations_.size());
    for (int i = 0; i < count; ++i) {
      if (!read_input(i)) return false;
    }
    return !has_splits || read_splits(count);
  }

  Tensor get_input(int index) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context_, index, &tensor, status_);
    return Tensor(status_.ok() ? tensor : nullptr);
  }

  bool read_input(int index) {
    const auto i = static_cast<size_t>(index);
    inputs_[i] = get_input(index);
    if (!inputs_[i]) return false;
    TF_Tensor* const input = inputs_[i].get();
    shapes_[i] = shape_of(inputs_[i]);
    autotune_operation& operation = operations_[i];
    DataType type{};
    if (!find_type(tf.TF_TensorType(input), type)) {
      status_.set(TF_INVALID_ARGUMENT, "a tensor of a type that is not served");
      return false;
    }
    operation.dtype = static_cast<int32_t>(type);
    operation.shape = shapes_[i].data();
    operation.dimensions = static_cast<int32_t>(shapes_[i].size());
    operation.input = tf.TF_TensorData(input);
    if (kernel_.operation != Operation::allreduce && kernel_.operation != Operation::broadcast) {
      return true;  // the engine allocates the result
    }
    outputs_[i].reset(tf.TF_AllocateOutput(context_, index, tf.TF_TensorType(input),
                                           shapes_[i].data(), operation.dimensions,
                                           tf.TF_TensorByteSize(input), status_));
    if (!status_.ok()) return false;
    operation.output = tf.TF_TensorData(outputs_[i].get());
    return true;
  }

  bool read_splits(int index) {
    const Tensor splits = get_input(index);
    if (!splits) return false;
    const auto count = tf.TF_TensorByteSize(splits.get()) / sizeof(int32_t);
    const auto* const first = static_cast<const int32_t*>(tf.TF_TensorData(splits.get()));
    splits_.assign(first, first + count);
    for (autotune_operation& each : operations_) {
      each.splits = splits_.data();
      each.split_count = static_cast<int32_t>(splits_.size());
    }
    return true;
  }

  void describe(autotune_operation& operation) const {
    operation.operation = static_cast<int32_t>(kernel_.operation);
    operation.reduce_op = static_cast<int32_t>(kernel_.reduce_op);
    operation.root_rank = kernel_.root_rank;
    operation.process_set = kernel_.process_set;
    operation.prescale = kernel_.prescale;
    operation.postscale = kernel_.postscale;
    operation.may_compress = kernel_.may_compress ? 1 : 0;
  }

  // By the engine: one after the other.
  static void completed(void* argument, int32_t index, const autotune_outcome* outcome) {
    auto* const self = static_cast<Call*>(argument);
    self->take(index, *outcome);
    if (--self->left_ == 0) self->finish();
  }

  void take(int32_t index, const autotune_outcome& outcome) {
    if (outcome.is_left_behind != 0 && !inputs_.empty()) {
      static_cast<void>(inputs_[static_cast<size_t>(index)].release());
    }
    if (outcome.status != AUTOTUNE_OK) return fail(outcome.status, outcome.error);
    if (!status_.ok()) return;
    if (kernel_.operation == Operation::join) {
      set_numbers(0, {}, &outcome.value, 1);
    } else if (!outputs_[static_cast<size_t>(index)]) {
      set_result(index, outcome);
    }
    if (kernel_.operation == Operation::alltoall) {
      const std::vector<int32_t> rows(outcome.received_splits,
                                      outcome.received_splits + outcome.received_count);
      const int64_t length = outcome.received_count;
      set_numbers(index + 1, {length}, rows.data(), length);
    }
  }

  // Memory of the engine, which TensorFlow takes over.
  void set_result(int32_t index, const autotune_outcome& outcome) {
    const TF_DataType type = tf.TF_TensorType(inputs_[static_cast<size_t>(index)].get());
    void* const kept = engine_api->keep(&outcome);
    const Tensor tensor(tf.TF_NewTensor(
        type, outcome.shape, outcome.dimensions, outcome.result,
        static_cast<size_t>(outcome.result_bytes),
        [](void*, size_t, void* argument) { engine_api->release(argument); }, kept));
    tf.TF_SetOutput(context_, index, tensor.get(), status_);
  }

  void set_numbers(int32_t index, const std::vector<int64_t>& shape, const int32_t* numbers,
                   int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    const Tensor tensor(tf.TF_AllocateOutput(context_, index, TF_INT32, shape.data(),
                                             static_cast<int>(shape.size()), bytes, status_));
    if (status_.ok() && bytes > 0) std::memcpy(tf.TF_TensorData(tensor.get()), numbers, bytes);
  }

  // The first error counts.
  void fail(int32_t how, const char* text) {
    if (!status_.ok()) return;
    status_.set(how == AUTOTUNE_REFUSED ? TF_INVALID_ARGUMENT : TF_FAILED_PRECONDITION, text);
  }

  void finish() {
    if (!status_.ok()) tf.TF_OpKernelContext_Failure(context_, status_);
    const Done done = std::move(done_);
    delete this;  // before: what is done may be followed by anything
    done();
  }

  const Kernel& kernel_;
  TF_OpKernelContext* const context_;
  Done done_;
  Status status_;
  std::vector<autotune_operation> operations_;
  std::vector<Tensor> inputs_, outputs_;  // of them
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> splits_;
  int left_ = 0;  // that have not ended
};

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* address) {
  Done done = take_done(address);
  if (!done) {
    Status status(TF_FAILED_PRECONDITION,
                  "horovod.tensorflow does not know this version of TensorFlow");
    tf.TF_OpKernelContext_Failure(context, status);
    return tf.TF_RunAsyncOpKernelDoneCallback(address);
  }
  (new Call(*static_cast<const Kernel*>(kernel), context, std::move(done)))->start();
}

// ---------------------------------------------------------------- questions

struct Question {
  int32_t process_set = 0;
};

template <bool has_set>
void* create_question(TF_OpKernelConstruction* construction) {
  auto question = std::make_unique<Question>();
  Attributes attributes(construction);
  if (has_set) {
    question->process_set = static_cast<int32_t>(attributes.integer("process_set_id"));
  }
  attributes.settle();
  return question.release();
}

void answer(TF_OpKernelContext* context, int32_t value) {
  Status status;
  const Tensor tensor(tf.TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof value, status));
  if (!status.ok()) return tf.TF_OpKernelContext_Failure(context, status);
  std::memcpy(tf.TF_TensorData(tensor.get()), &value, sizeof value);
}

void refuse_question(TF_OpKernelContext* context, int32_t value) {
  const char* const text =
      value == AUTOTUNE_NO_SET ? "the process set is not registered" : engine_api->last_error();
  Status status(TF_FAILED_PRECONDITION, text);
  tf.TF_OpKernelContext_Failure(context, status);
}

template <int32_t which>
void answer_place(void*, TF_OpKernelContext* context) {
  const int32_t value = engine_api->place(which);
  value < 0 ? refuse_question(context, value) : answer(context, value);
}

void answer_size(void* kernel, TF_OpKernelContext* context) {
  const int32_t value = engine_api->set_size(static_cast<Question*>(kernel)->process_set);
  value < 0 ? refuse_question(context, value) : answer(context, value);
}

// As Horovod does, with the error for an answer.
void answer_included(void* kernel, TF_OpKernelContext* context) {
  answer(context, engine_api->set_includes(static_cast<Question*>(kernel)->process_set));
}

// ---------------------------------------------------------------- use of a result

void* create_nothing(TF_OpKernelConstruction*) { return nullptr; }
void do_nothing(void*, TF_OpKernelContext*) {}
void destroy_nothing(void*) {}

// ---------------------------------------------------------------- all of them

using Names = std::vector<const char*>;

std::string add(const char* op, TF_KernelBuilder* builder, const Names& on_host) {
  for (const char* each : on_host) tf.TF_KernelBuilder_HostMemory(builder, each);
  Status status;
  tf.TF_RegisterKernelBuilder(op, builder, status);
  return status.ok() ? "" : std::string(op) + ": " + status.text();
}

template <Operation operation>
std::string add_collective(const char* op, const Names& arguments) {
  const auto on_cpu =
      tf.TF_NewAsyncKernelBuilder(op, "CPU", create<operation>, compute, destroy<Kernel>);
  const std::string error = add(op, on_cpu, {});
  if (!error.empty()) return error;
  const auto on_gpu =
      tf.TF_NewAsyncKernelBuilder(op, "GPU", create_on_gpu<operation>, compute, destroy<Kernel>);
  return add(op, on_gpu, arguments);
}

template <bool has_set>
std::string add_question(const char* op, Compute compute_answer) {
  for (const char* device : {"CPU", "GPU"}) {
    const auto builder = tf.TF_NewKernelBuilder(op, device, create_question<has_set>,
                                                compute_answer, destroy<Question>);
    const bool on_gpu = std::strcmp(device, "GPU") == 0;
    const std::string error = add(op, builder, on_gpu ? Names{"value"} : Names{});
    if (!error.empty()) return error;
  }
  return "";
}

std::string add_use() {
  for (const char* device : {"CPU", "GPU"}) {
    const auto builder = tf.TF_NewKernelBuilder(name_of_op::use, device, create_nothing, do_nothing,
                                                destroy_nothing);
    const bool on_gpu = std::strcmp(device, "GPU") == 0;
    const std::string error = add(name_of_op::use, builder, on_gpu ? Names{"tensor"} : Names{});
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace

std::string register_all() {
  namespace op = name_of_op;
  for (const std::string& error : {
           add_collective<Operation::allreduce>(op::allreduce, {"tensors", "reduced"}),
           add_collective<Operation::allgather>(op::allgather, {"tensors", "gathered"}),
           add_collective<Operation::broadcast>(op::broadcast, {"tensors", "received"}),
           add_collective<Operation::alltoall>(op::alltoall,
                                               {"tensors", "splits", "received", "rows"}),
           add_collective<Operation::reducescatter>(op::reducescatter, {"tensors", "reduced"}),
           add_collective<Operation::join>(op::join, {"last"}),
           add_use(),
           add_question<false>(op::rank, answer_place<AUTOTUNE_RANK>),
           add_question<true>(op::size, answer_size),
           add_question<false>(op::local_rank, answer_place<AUTOTUNE_LOCAL_RANK>),
           add_question<false>(op::local_size, answer_place<AUTOTUNE_LOCAL_SIZE>),
           add_question<true>(op::set_included, answer_included),
       }) {
    if (!error.empty()) return error;
  }
  return "";
}

void attach(const autotune_api* api) { engine_api = api; }

int gpu_kernels() { return gpu_kernel_count; }

}  // namespace autotune::tensorflow
