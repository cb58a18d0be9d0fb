// The functions of TensorFlow's C API that the reader calls, found in the running process: the same
// binary then serves many versions of TensorFlow, and is built without its headers.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace cudarelu::tf {

// Objects of TensorFlow.
struct Construction;  // of a kernel
struct Context;       // of a call
struct KernelBuilder;
struct OpBuilder;
struct ShapeContext;
struct ShapeHandle;
struct DimensionHandle;
struct Status;
struct Tensor;

enum class Type : int {
  float32 = 1,
  float64 = 2,
  int32 = 3,
  uint8 = 4,
  int8 = 6,
  int64 = 9,
  boolean = 10,
  bfloat16 = 14,
  float16 = 19
};

/// TensorFlow's library, or nullptr if the process has not loaded it.
inline void* library() { return dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD); }

/// A function of the library, by its name. Throws std::runtime_error if there is none.
template <class F>
class Function {
 public:
  explicit Function(const char* name) : function_(reinterpret_cast<F*>(dlsym(library(), name))) {
    if (function_ == nullptr) {
      throw std::runtime_error("this TensorFlow has no function " + std::string(name));
    }
  }
  template <class... Arguments>
  auto operator()(Arguments... arguments) const {
    return function_(arguments...);
  }

 private:
  F* function_;
};

struct Api {
  Function<Status*()> new_status{"TF_NewStatus"};
  Function<void(Status*)> delete_status{"TF_DeleteStatus"};
  Function<void(Status*, int, const char*)> set_status{"TF_SetStatus"};
  Function<int(const Status*)> code_of{"TF_GetCode"};
  Function<const char*(const Status*)> message_of{"TF_Message"};

  Function<OpBuilder*(const char*)> new_op{"TF_NewOpDefinitionBuilder"};
  Function<void(OpBuilder*, const char*)> add_attribute{"TF_OpDefinitionBuilderAddAttr"};
  Function<void(OpBuilder*, const char*)> add_input{"TF_OpDefinitionBuilderAddInput"};
  Function<void(OpBuilder*, const char*)> add_output{"TF_OpDefinitionBuilderAddOutput"};
  Function<void(OpBuilder*, void (*)(ShapeContext*, Status*))> set_shape_function{
      "TF_OpDefinitionBuilderSetShapeInferenceFunction"};
  Function<void(OpBuilder*, Status*)> register_op{"TF_RegisterOpDefinition"};

  Function<std::int64_t(ShapeContext*)> shape_inputs{"TF_ShapeInferenceContextNumInputs"};
  Function<ShapeHandle*()> new_shape{"TF_NewShapeHandle"};
  Function<void(ShapeHandle*)> delete_shape{"TF_DeleteShapeHandle"};
  Function<DimensionHandle*()> new_dimension{"TF_NewDimensionHandle"};
  Function<void(DimensionHandle*)> delete_dimension{"TF_DeleteDimensionHandle"};
  Function<void(ShapeContext*, int, ShapeHandle*, Status*)> input_shape{
      "TF_ShapeInferenceContextGetInput"};
  Function<void(ShapeContext*, int, ShapeHandle*, Status*)> set_output_shape{
      "TF_ShapeInferenceContextSetOutput"};
  Function<void(ShapeContext*, Status*)> set_unknown_shapes{
      "TF_ShapeInferenceContextSetUnknownShape"};
  Function<int(ShapeContext*, ShapeHandle*)> rank_known{"TF_ShapeInferenceContextRankKnown"};
  Function<std::int64_t(ShapeContext*, ShapeHandle*)> rank_of{"TF_ShapeInferenceContextRank"};
  Function<void(ShapeContext*, ShapeHandle*, std::int64_t, DimensionHandle*)> dimension_of{
      "TF_ShapeInferenceContextDim"};
  Function<int(DimensionHandle*)> value_known{"TF_DimensionHandleValueKnown"};
  Function<std::int64_t(DimensionHandle*)> value_of{"TF_DimensionHandleValue"};
  Function<ShapeHandle*(ShapeContext*)> scalar{"TF_ShapeInferenceContextScalar"};
  Function<ShapeHandle*(ShapeContext*, std::size_t)> vector{
      "TF_ShapeInferenceContextVectorFromSize"};
  Function<void(ShapeContext*, ShapeHandle*, ShapeHandle*, ShapeHandle*, Status*)> concatenate{
      "TF_ShapeInferenceContextConcatenateShapes"};

  Function<KernelBuilder*(const char*, const char*, void* (*)(Construction*),
                          void (*)(void*, Context*), void (*)(void*))>
      new_kernel{"TF_NewKernelBuilder"};
  Function<void(const char*, KernelBuilder*, Status*)> register_kernel{"TF_RegisterKernelBuilder"};
  Function<void(Construction*, const char*, Type*, Status*)> get_type{
      "TF_OpKernelConstruction_GetAttrType"};
  Function<void(Construction*, const char*, std::int64_t*, Status*)> get_integer{
      "TF_OpKernelConstruction_GetAttrInt64"};
  Function<void(Construction*, const char*, float*, Status*)> get_real{
      "TF_OpKernelConstruction_GetAttrFloat"};
  Function<void(Construction*, const char*, char*, std::size_t, Status*)> get_text{
      "TF_OpKernelConstruction_GetAttrString"};
  Function<void(Construction*, Status*)> fail_construction{"TF_OpKernelConstruction_Failure"};
  Function<void(Context*, Status*)> fail_call{"TF_OpKernelContext_Failure"};

  Function<void(Context*, int, Tensor**, Status*)> get_input{"TF_GetInput"};
  Function<Tensor*(Context*, int, Type, const std::int64_t*, int, std::size_t, Status*)>
      allocate_output{"TF_AllocateOutput"};
  Function<Tensor*(Context*, const int*, int, int, const std::int64_t*, int, int*, Status*)>
      forward_or_allocate{"TF_ForwardInputOrAllocateOutput"};
  Function<void(Tensor*)> delete_tensor{"TF_DeleteTensor"};
  Function<Type(const Tensor*)> type_of{"TF_TensorType"};
  Function<int(const Tensor*)> dimensions{"TF_NumDims"};
  Function<std::int64_t(const Tensor*, int)> size_of{"TF_Dim"};
  Function<void*(const Tensor*)> data_of{"TF_TensorData"};
};

}  // namespace cudarelu::tf
