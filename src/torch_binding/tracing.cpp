#include "tracing.h"

#include <ATen/core/stack.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <memory>
#include <optional>
#include <utility>

namespace cudarelu::binding {
namespace {

void (*check_write)(const Op& op) = nullptr;

class TracerKernel final : public c10::OperatorKernel {
 public:
  explicit TracerKernel(const Op& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    namespace tracer = torch::jit::tracer;
    if (check_write != nullptr) check_write(op_);
    auto state = tracer::getTracingState();
    const std::string& name = handle.schema().name();
    torch::jit::Node* const node = state->graph->create(c10::Symbol::fromQualString(name), 0);
    tracer::recordSourceLocation(node);
    const auto& arguments = handle.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      add(node, arguments[i].name().c_str(), torch::jit::peek(*stack, i, arguments.size()));
    }
    state->graph->insertNode(node);
    tracer::setTracingState(nullptr);  // what the kernels call is not of the graph
    const auto restore = c10::make_scope_exit([&] { tracer::setTracingState(std::move(state)); });
    handle.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Tracer),
        stack);
  }

 private:
  static void add(torch::jit::Node* node, const char* name, const c10::IValue& value) {
    namespace tracer = torch::jit::tracer;
    if (value.isTensor()) return tracer::addInputs(node, name, value.toTensor());
    if (value.isNone()) return tracer::addInputs(node, name, std::optional<at::Tensor>());
    if (value.isDouble()) return tracer::addInputs(node, name, value.toDouble());
    if (value.isBool()) return tracer::addInputs(node, name, value.toBool());
    if (value.isString()) return tracer::addInputs(node, name, value.toStringView());
    tracer::addInputs(node, name, value.toInt());
  }

  const Op& op_;
};

}  // namespace

void check_traced_writes(void (*with)(const Op& op)) { check_write = with; }
void check_interpreted_write(const Op& op) {
  if (check_write != nullptr && !torch::jit::currentCallstack().empty()) check_write(op);
}

torch::CppFunction tracer_kernel(const Op& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<TracerKernel>(op));
}

}  // namespace cudarelu::binding
