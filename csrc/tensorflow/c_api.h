// TensorFlow's C API, as far as it is used: declared here and found at run time, so that this
// library is built without TensorFlow and serves all its versions.
//
// Source: tensorflow/c/{tf_status,tf_datatype,tf_tensor,ops,kernels}.h. Names and types are
// TensorFlow's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace autotune::tensorflow {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

struct TF_StringView {
  const char* data;
  size_t len;
};

// tensorflow/core/framework/types.proto
enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_COMPLEX64 = 8,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_HALF = 19,
  TF_UINT32 = 22,
  TF_UINT64 = 23,
};

// tensorflow/c/tf_status.h: the numbers of absl::StatusCode
enum TF_Code : int { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_FAILED_PRECONDITION = 9 };

using Compute = void (*)(void* kernel, TF_OpKernelContext*);
using ComputeAsync = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using Create = void* (*)(TF_OpKernelConstruction*);
using Delete = void (*)(void* kernel);
using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocate = void (*)(void* data, size_t bytes, void* argument);

// X(result, name, arguments)
#define AUTOTUNE_TENSORFLOW_FUNCTIONS(X)                                                           \
  X(TF_Status*, TF_NewStatus, ())                                                                  \
  X(void, TF_DeleteStatus, (TF_Status*))                                                           \
  X(void, TF_SetStatus, (TF_Status*, TF_Code, const char*))                                        \
  X(TF_Code, TF_GetCode, (const TF_Status*))                                                       \
  X(const char*, TF_Message, (const TF_Status*))                                                   \
  X(TF_Tensor*, TF_NewTensor,                                                                      \
    (TF_DataType, const int64_t*, int, void*, size_t, Deallocate, void*))                          \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                           \
  X(TF_DataType, TF_TensorType, (const TF_Tensor*))                                                \
  X(int, TF_NumDims, (const TF_Tensor*))                                                           \
  X(int64_t, TF_Dim, (const TF_Tensor*, int))                                                      \
  X(size_t, TF_TensorByteSize, (const TF_Tensor*))                                                 \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                      \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                             \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                   \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                  \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                 \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                    \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, InferShapes)) \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                          \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                        \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                 \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                  \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                       \
  X(void, TF_ShapeInferenceContextGetInput,                                                        \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                 \
  X(void, TF_ShapeInferenceContextSetOutput,                                                       \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                 \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))        \
  X(TF_KernelBuilder*, TF_NewKernelBuilder, (const char*, const char*, Create, Compute, Delete))   \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                   \
    (const char*, const char*, Create, ComputeAsync, Delete))                                      \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                           \
  X(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                  \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                    \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                     \
    (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                       \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                                                    \
    (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))                                 \
  X(void, TF_OpKernelConstruction_GetAttrBool,                                                     \
    (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                           \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                   \
    (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))                            \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                 \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                      \
  X(int, TF_NumOutputs, (TF_OpKernelContext*))                                                     \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                        \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                  \
  X(TF_Tensor*, TF_AllocateOutput,                                                                 \
    (TF_OpKernelContext*, int, TF_DataType, const int64_t*, int, size_t, TF_Status*))              \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                           \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))

struct Functions {
#define AUTOTUNE_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  AUTOTUNE_TENSORFLOW_FUNCTIONS(AUTOTUNE_DECLARE)
#undef AUTOTUNE_DECLARE
};

// All of them are there once `find_functions` has returned "".
extern Functions tf;

// Finds the functions in the TensorFlow that this process has loaded. Returns what is missing in
// one sentence, "" for nothing.
std::string find_functions();

// A TF_Status that deletes itself.
class Status {
 public:
  Status() : status_(tf.TF_NewStatus()) {}
  Status(TF_Code code, const std::string& text) : Status() { set(code, text); }
  ~Status() { tf.TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() { return status_; }  // NOLINT: it stands for one
  void set(TF_Code code, const std::string& text) { tf.TF_SetStatus(status_, code, text.c_str()); }
  bool ok() const { return tf.TF_GetCode(status_) == TF_OK; }
  std::string text() const { return tf.TF_Message(status_); }

 private:
  TF_Status* status_;
};

}  // namespace autotune::tensorflow
