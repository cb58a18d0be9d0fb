#include "session/session.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>

#include "error.h"
#include "session/invocation.h"
#include "session/model_ops.h"
#include "session/op_modules.h"

namespace cudarelu::cli {
namespace {

/// Converts the description of an input or output; releases `type`.
InputInfo info_of(const Runtime& runtime, const char* what, std::string name, OrtTypeInfo* type) {
  const Owned<OrtTypeInfo> owner(type, runtime->ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // owned by `type`
  runtime.check(runtime->CastTypeInfoToTensorInfo(type, &tensor));
  InputInfo info{std::move(name), nullptr, {}};
  ONNXTensorElementDataType element{};
  if (tensor != nullptr) {
    runtime.check(runtime->GetTensorElementType(tensor, &element));
    const auto* found = std::ranges::find(element_types, element, &ElementType::onnx);
    if (found != element_types.end()) info.type = &*found;
  }
  if (info.type == nullptr) {
    throw Error(std::string(what) + " " + info.name + " is " +
                (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? "a tensor of strings"
                 : tensor == nullptr ? "not a tensor"
                                     : "of an element type that NumPy lacks") +
                "; ort_infer takes models whose inputs and outputs are tensors of numbers");
  }
  std::size_t rank = 0;
  runtime.check(runtime->GetDimensionsCount(tensor, &rank));
  std::vector<std::int64_t> sizes(rank);
  std::vector<const char*> symbols(rank);
  runtime.check(runtime->GetDimensions(tensor, sizes.data(), rank));
  runtime.check(runtime->GetSymbolicDimensions(tensor, symbols.data(), rank));
  for (std::size_t i = 0; i < rank; ++i) info.shape.push_back({sizes[i], symbols[i]});
  return info;
}

}  // namespace

Owned<OrtValue> value_of(const Runtime& runtime, const Tensor& tensor) {
  OrtMemoryInfo* memory = nullptr;
  runtime.check(runtime->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  const Owned<OrtMemoryInfo> owner(memory, runtime->ReleaseMemoryInfo);
  OrtValue* value = nullptr;
  runtime.check(runtime->CreateTensorWithDataAsOrtValue(memory, tensor.data.get(), tensor.bytes(),
                                                        tensor.shape.data(), tensor.shape.size(),
                                                        tensor.type->onnx, &value));
  return {value, runtime->ReleaseValue};
}

Tensor tensor_of(const Runtime& runtime, Owned<OrtValue> value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  runtime.check(runtime->GetTensorTypeAndShape(value.get(), &info));
  const Owned<OrtTensorTypeAndShapeInfo> owner(info, runtime->ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType element{};
  runtime.check(runtime->GetTensorElementType(info, &element));
  const auto* type = std::ranges::find(element_types, element, &ElementType::onnx);
  if (type == element_types.end()) throw Error("an output is not a tensor of numbers");
  std::size_t rank = 0;
  runtime.check(runtime->GetDimensionsCount(info, &rank));
  Tensor tensor{&*type, Sizes(rank), 1, nullptr};
  runtime.check(runtime->GetDimensions(info, tensor.shape.data(), rank));
  for (const std::int64_t size : tensor.shape) tensor.count *= size;
  void* data = nullptr;
  runtime.check(runtime->GetTensorMutableData(value.get(), &data));
  tensor.data = {std::shared_ptr<OrtValue>(std::move(value)), static_cast<std::byte*>(data)};
  return tensor;
}

std::string InputInfo::text() const {
  std::string text = std::string(type->name) + " [";
  for (const Dim& dim : shape) {
    if (!text.ends_with('[')) text += ", ";
    text += dim.size >= 0 ? std::to_string(dim.size) : dim.symbol.empty() ? "?" : dim.symbol;
  }
  return text + "]";
}

Session::Session(const Runtime& runtime, const std::filesystem::path& model,
                 const ProviderChoice& choice, const std::vector<std::string>& libraries)
    : runtime_(runtime),
      environment_(no_object<OrtEnv>()),
      session_(no_object<OrtSession>()),
      run_options_(no_object<OrtRunOptions>()) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) {
    throw Error(model.string() + ": there is no such model");
  }
  if (!std::filesystem::is_regular_file(model, error)) throw Error(model.string() + ": not a file");

  // ONNX Runtime logs nothing; main() prints errors in one line.
  OrtEnv* environment = nullptr;
  runtime.check(runtime->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "ort_infer", &environment));
  environment_ = {environment, runtime->ReleaseEnv};
  OrtSessionOptions* created = nullptr;
  runtime.check(runtime->CreateSessionOptions(&created));
  const Owned<OrtSessionOptions> options(created, runtime->ReleaseSessionOptions);
  runtime.check(runtime->EnableProfiling(options.get(), profile_.prefix().c_str()));
  const DomainNames own = register_libraries(runtime, *options, libraries);
  provider_ = add_provider(runtime, *options, choice);
  if (choice.require_cuda) {
    runtime.check(
        runtime->AddSessionConfigEntry(options.get(), "session.disable_cpu_ep_fallback", "1"));
  }
  if (choice.cuda_graph) skip_graph_in_run();
  ops_ = read_model_ops(model, own);
  check_model(model, ops_);

  OrtSession* session = nullptr;
  try {
    runtime.check(runtime->CreateSession(environment, model.c_str(), options.get(), &session));
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("fallback to CPU EP") != std::string_view::npos) {
      throw Error(model.string() + ": --require-provider cuda: some of its nodes run on the CPU; " +
                  "to list them, run with --explain and without --require-provider");
    }
    throw Error(why_not_loaded(model, ops_, own, error.what()));
  }
  session_ = {session, runtime->ReleaseSession};
  if (!ops_.mistake.empty()) throw Error(model.string() + ": " + ops_.mistake);
  describe();
}

void Session::skip_graph_in_run() {
  constexpr int oldest = 18;
  if (provider_.name != "cuda") {
    throw Error("--cuda-graph needs CUDA, but the model runs on the CPU: " +
                (provider_.reason.empty() ? "--provider cpu" : provider_.reason));
  }
  if (runtime_.minor() < oldest) {
    throw Error("--cuda-graph needs ONNX Runtime 1." + std::to_string(oldest) + ", and " +
                runtime_.library().string() + " is " + runtime_.version() +
                "; name a later one with --ort FILE");
  }
  OrtRunOptions* options = nullptr;
  runtime_.check(runtime_->CreateRunOptions(&options));
  run_options_ = {options, runtime_->ReleaseRunOptions};
  runtime_.check(runtime_->AddRunConfigEntry(options, "gpu_graph_id", "-1"));
}

void Session::describe() {
  OrtAllocator* allocator = nullptr;  // the default allocator; not to be released
  runtime_.check(runtime_->GetAllocatorWithDefaultOptions(&allocator));
  const auto take = [&](char* text) {
    const std::string result = text;
    runtime_.check(runtime_->AllocatorFree(allocator, text));
    return result;
  };
  std::size_t count = 0;
  runtime_.check(runtime_->SessionGetInputCount(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    OrtTypeInfo* type = nullptr;
    runtime_.check(runtime_->SessionGetInputName(session_.get(), i, allocator, &name));
    runtime_.check(runtime_->SessionGetInputTypeInfo(session_.get(), i, &type));
    inputs_.push_back(info_of(runtime_, "input", take(name), type));
    inputs_.back().scalar = ops_.scalar_inputs.contains(inputs_.back().name);
  }
  runtime_.check(runtime_->SessionGetOutputCount(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    OrtTypeInfo* type = nullptr;
    runtime_.check(runtime_->SessionGetOutputName(session_.get(), i, allocator, &name));
    runtime_.check(runtime_->SessionGetOutputTypeInfo(session_.get(), i, &type));
    output_names_.push_back(info_of(runtime_, "output", take(name), type).name);
  }
}

std::vector<Tensor> Session::run(const std::vector<Tensor>& inputs) {
  PlainInvocation invocation(*this, inputs);
  invocation.run();
  return invocation.take_outputs();
}

std::vector<NodeRun> Session::end_trace(const std::filesystem::path& keep) {
  OrtAllocator* allocator = nullptr;
  runtime_.check(runtime_->GetAllocatorWithDefaultOptions(&allocator));
  char* name = nullptr;
  runtime_.check(runtime_->SessionEndProfiling(session_.get(), allocator, &name));
  const std::filesystem::path file = name;
  runtime_.check(runtime_->AllocatorFree(allocator, name));
  if (!keep.empty()) {
    std::error_code error;  // A rename alone would fail if the temporary folder is on another disk.
    const std::filesystem::path part = keep.string() + ".part";
    std::filesystem::copy_file(file, part, std::filesystem::copy_options::overwrite_existing,
                               error);
    if (!error) std::filesystem::rename(part, keep, error);
    if (error) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw Error("--profile " + keep.string() + ": " + error.message());
    }
  }
  return read_profile(file, ops_);
}

}  // namespace cudarelu::cli
