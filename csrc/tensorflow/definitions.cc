#include "tensorflow/definitions.h"

#include <vector>

#include "tensorflow/c_api.h"

namespace autotune::tensorflow {

namespace {

// What is reduced, and what is only moved: types of the same size are the same there.
constexpr const char* reduced_types =
    "T: list({uint8, int8, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1";
constexpr const char* moved_types =
    "T: list({uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, "
    "double, complex64, bool}) >= 1";

constexpr const char* process_set = "process_set_id: int = 0";
// What the script calls it; empty in a graph: the node's own name, else the next number.
constexpr const char* tensor_name = "tensor_name: string = ''";
// The script's thread waits for it.
constexpr const char* eager = "eager: bool = false";
constexpr const char* grouped = "grouped: bool = false";
constexpr const char* reduce_op = "reduce_op: int = 1";  // Horovod's number
// Factors, bit by bit: TensorFlow's own numbers have 32 bits.
constexpr const char* prescale = "prescale_bits: int = 4607182418800017408";
constexpr const char* postscale = "postscale_bits: int = 4607182418800017408";
// A gradient: the parameters in force may let it travel in a shorter type.
constexpr const char* may_compress = "may_compress: bool = false";
constexpr const char* root_rank = "root_rank: int = 0";

using Texts = std::vector<const char*>;

// Output i is like input i.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const shape = tf.TF_NewShapeHandle();
  const int64_t inputs = tf.TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < inputs && tf.TF_GetCode(status) == TF_OK; ++i) {
    tf.TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.TF_GetCode(status) != TF_OK) break;
    tf.TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  tf.TF_DeleteShapeHandle(shape);
}

// Another number of rows: mpi_ops.py says what is known of the rest.
void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf.TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void scalar_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const shape = tf.TF_ShapeInferenceContextScalar(context);
  tf.TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  tf.TF_DeleteShapeHandle(shape);
}

void no_shape(TF_ShapeInferenceContext*, TF_Status*) {}

struct Definition {
  const char* name;
  Texts inputs, outputs, attributes;
  InferShapes infer_shapes;
  // TensorFlow lets such operations run one after the other, and leaves none out.
  bool is_stateful;
};

std::string define(const Definition& definition) {
  TF_OpDefinitionBuilder* const builder = tf.TF_NewOpDefinitionBuilder(definition.name);
  for (const char* each : definition.inputs) tf.TF_OpDefinitionBuilderAddInput(builder, each);
  for (const char* each : definition.outputs) tf.TF_OpDefinitionBuilderAddOutput(builder, each);
  for (const char* each : definition.attributes) tf.TF_OpDefinitionBuilderAddAttr(builder, each);
  // Not otherwise: it takes `false` for true.
  if (definition.is_stateful) tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.infer_shapes);
  Status status;
  tf.TF_RegisterOpDefinition(builder, status);
  return status.ok() ? "" : std::string(definition.name) + ": " + status.text();
}

}  // namespace

std::string define_all() {
  const Definition definitions[] = {
      {name_of_op::allreduce,
       {"tensors: T"},
       {"reduced: T"},
       {reduced_types, reduce_op, prescale, postscale, may_compress, process_set, tensor_name,
        eager, grouped},
       same_shapes,
       false},
      {name_of_op::allgather,
       {"tensors: T"},
       {"gathered: T"},
       {moved_types, process_set, tensor_name, eager, grouped},
       unknown_shapes,
       false},
      {name_of_op::broadcast,
       {"tensors: T"},
       {"received: T"},
       {moved_types, root_rank, process_set, tensor_name, eager, grouped},
       same_shapes,
       false},
      {name_of_op::alltoall,
       {"tensors: T", "splits: int32"},
       {"received: T", "rows: int32"},
       {moved_types, process_set, tensor_name, eager, grouped},
       unknown_shapes,
       false},
      {name_of_op::reducescatter,
       {"tensors: T"},
       {"reduced: T"},
       {reduced_types, reduce_op, prescale, postscale, process_set, tensor_name, eager, grouped},
       unknown_shapes,
       false},
      {name_of_op::join, {}, {"last: int32"}, {eager}, scalar_shape, true},
      {name_of_op::use, {"tensor: T"}, {}, {"T: type"}, no_shape, true},
      {name_of_op::rank, {}, {"value: int32"}, {}, scalar_shape, true},
      {name_of_op::size, {}, {"value: int32"}, {process_set}, scalar_shape, true},
      {name_of_op::local_rank, {}, {"value: int32"}, {}, scalar_shape, true},
      {name_of_op::local_size, {}, {"value: int32"}, {}, scalar_shape, true},
      {name_of_op::set_included, {}, {"value: int32"}, {process_set}, scalar_shape, true},
  };
  for (const Definition& each : definitions) {
    const std::string error = define(each);
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace autotune::tensorflow
