#include "session/invocation.h"

#include <algorithm>
#include <utility>

namespace cudarelu::cli {
namespace {

/// Returns the address of a value's data, on the host or on the device.
void* data_of(const Runtime& runtime, OrtValue* value) {
  void* data = nullptr;
  runtime.check(runtime->GetTensorMutableData(value, &data));
  return data;
}

}  // namespace

PlainInvocation::PlainInvocation(const Session& session, const std::vector<Tensor>& inputs)
    : session_(session), outputs_(session.output_names().size()) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs_.push_back(value_of(session.runtime(), inputs[i]));
    input_values_.push_back(inputs_.back().get());
    input_names_.push_back(session.inputs()[i].name.c_str());
  }
  for (const std::string& name : session.output_names()) output_names_.push_back(name.c_str());
}

void PlainInvocation::run() {
  release();
  const Runtime& runtime = session_.runtime();
  runtime.check(runtime->Run(session_.get(), session_.run_options(), input_names_.data(),
                             input_values_.data(), input_values_.size(), output_names_.data(),
                             output_names_.size(), outputs_.data()));
}

std::vector<Tensor> PlainInvocation::take_outputs() {
  const Runtime& runtime = session_.runtime();
  std::vector<Tensor> tensors;
  tensors.reserve(outputs_.size());
  for (OrtValue*& output : outputs_) {
    tensors.push_back(tensor_of(runtime, {std::exchange(output, nullptr), runtime->ReleaseValue}));
  }
  return tensors;
}

void PlainInvocation::release() {
  for (OrtValue*& output : outputs_) {
    if (output != nullptr) session_.runtime()->ReleaseValue(output);
    output = nullptr;
  }
}

BoundInvocation::BoundInvocation(const Session& session, const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& outputs, const CudaDevice* device,
                                 int ordinal, int graph)
    : session_(session),
      device_(device),
      allocator_(no_object<OrtAllocator>()),
      binding_(no_object<OrtIoBinding>()),
      run_options_(no_object<OrtRunOptions>()) {
  const Runtime& runtime = session.runtime();
  if (device != nullptr) {
    device->enter();
    OrtMemoryInfo* info = nullptr;
    runtime.check(
        runtime->CreateMemoryInfo("Cuda", OrtDeviceAllocator, ordinal, OrtMemTypeDefault, &info));
    const Owned<OrtMemoryInfo> owner(info, runtime->ReleaseMemoryInfo);
    OrtAllocator* allocator = nullptr;
    runtime.check(runtime->CreateAllocator(session.get(), info, &allocator));
    allocator_ = {allocator, runtime->ReleaseAllocator};
  }
  if (graph > 0) {
    OrtRunOptions* options = nullptr;
    runtime.check(runtime->CreateRunOptions(&options));
    run_options_ = {options, runtime->ReleaseRunOptions};
    runtime.check(
        runtime->AddRunConfigEntry(options, "gpu_graph_id", std::to_string(graph).c_str()));
  }
  OrtIoBinding* binding = nullptr;
  runtime.check(runtime->CreateIoBinding(session.get(), &binding));
  binding_ = {binding, runtime->ReleaseIoBinding};
  const auto host_tensor = [&](const Tensor& like) {
    if (device == nullptr) return make_tensor(*like.type, like.shape);
    return Tensor{like.type, like.shape, like.count, device->host_memory(like.bytes())};
  };
  for (const Tensor& input : inputs) {
    host_inputs_.push_back(host_tensor(input));
    std::copy_n(input.data.get(), input.bytes(), host_inputs_.back().data.get());
    inputs_.push_back(buffer(host_inputs_.back()));
  }
  copy_in();  // before BindInput, which may copy the data
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    runtime.check(runtime->BindInput(binding, session.inputs()[i].name.c_str(), inputs_[i].get()));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    host_outputs_.push_back(host_tensor(outputs[i]));
    outputs_.push_back(buffer(host_outputs_.back()));
    runtime.check(
        runtime->BindOutput(binding, session.output_names()[i].c_str(), outputs_.back().get()));
  }
}

/// Returns a value in device memory or, without a device, one that uses the tensor's memory.
Owned<OrtValue> BoundInvocation::buffer(const Tensor& tensor) {
  const Runtime& runtime = session_.runtime();
  if (device_ == nullptr) return value_of(runtime, tensor);
  OrtValue* value = nullptr;
  runtime.check(runtime->CreateTensorAsOrtValue(allocator_.get(), tensor.shape.data(),
                                                tensor.shape.size(), tensor.type->onnx, &value));
  return {value, runtime->ReleaseValue};
}

void BoundInvocation::copy_in() {
  if (device_ == nullptr) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    device_->to_device(data_of(session_.runtime(), inputs_[i].get()), host_inputs_[i].data.get(),
                       host_inputs_[i].bytes());
  }
}

void BoundInvocation::run() {
  const Runtime& runtime = session_.runtime();
  runtime.check(runtime->RunWithBinding(session_.get(), run_options_.get(), binding_.get()));
}

void BoundInvocation::copy_out() {
  if (device_ == nullptr) return;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    device_->to_host(host_outputs_[i].data.get(), data_of(session_.runtime(), outputs_[i].get()),
                     host_outputs_[i].bytes());
  }
}

}  // namespace cudarelu::cli
