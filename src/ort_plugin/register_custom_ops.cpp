// The entry point: adds every op of the table to the options of a session.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "custom_op.h"

namespace cudarelu::ort {
namespace {

/// The ops in the form of one copy of ONNX Runtime.
class Domains {
 public:
  explicit Domains(const Runtime& runtime) : runtime_(runtime) {
    for (const Op& op : op_table()) {
      add(op, {onnx_domain, op.onnx_type});
      if (!op.spec.onnx_alias.domain.empty()) add(op, op.spec.onnx_alias);
    }
  }

  void add_to(OrtSessionOptions& options) const {
    for (const auto& [name, domain] : domains_) {
      check(runtime_.api->AddCustomOpDomain(&options, domain));
    }
  }

 private:
  /// A CPU kernel always comes along: ONNX Runtime puts nodes on the CPU for reasons of its own.
  void add(const Op& op, const OnnxName& name) {
    add(op, name, DeviceType::cpu);
    if (has_cuda_kernels()) add(op, name, DeviceType::cuda);
  }

  void add(const Op& op, const OnnxName& name, DeviceType device) {
    const auto& inputs = op.signature.inputs;
    const bool generic = std::ranges::any_of(
        inputs, [](const Parameter& input) { return input.kind == ElementKind::type_variable; });
    for (const DType variable : all_dtypes) {
      // Where nothing is of type T, one kernel serves.
      if (generic ? !op.spec.dtypes.contains(variable) : variable != all_dtypes.front()) continue;
      OrtCustomOp* custom_op = &ops_.emplace_back(runtime_, op, name.op_type, device, variable);
      check(runtime_.api->CustomOpDomain_Add(domain(name.domain), custom_op));
    }
  }

  /// The one domain of that name: a session refuses two.
  OrtCustomOpDomain* domain(std::string_view name) {
    OrtCustomOpDomain*& domain = domains_[std::string(name)];
    if (domain == nullptr) {
      check(runtime_.api->CreateCustomOpDomain(std::string(name).c_str(), &domain));
    }
    return domain;
  }

  Runtime runtime_;
  std::deque<CustomOp> ops_;  // ONNX Runtime keeps pointers to them
  std::map<std::string, OrtCustomOpDomain*> domains_;
};

/// Made once for each copy of ONNX Runtime and never destroyed: sessions may outlive everything.
const Domains& domains_of(const Runtime& runtime) {
  static std::mutex mutex;
  static auto& made = *new std::map<const OrtApi*, std::unique_ptr<Domains>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Domains>& domains = made[runtime.api];
  if (domains == nullptr) domains = std::make_unique<Domains>(runtime);
  return *domains;
}

/// Leaves a mark in the options, so that registering again, or by another copy of this library,
/// does nothing: a session refuses a domain that comes twice.
void register_ops(const Runtime& runtime, OrtSessionOptions& options) {
  constexpr const char* mark = "cudarelu.registered";
  int registered = 0;
  check(runtime.api->HasSessionConfigEntry(&options, mark, &registered));
  if (registered != 0) return;
  domains_of(runtime).add_to(options);
  check(runtime.api->AddSessionConfigEntry(&options, mark, "1"));
}

}  // namespace
}  // namespace cudarelu::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  using namespace cudarelu::ort;
  const OrtApi* api = base->GetApi(1);  // as much of it as a status needs, in every version
  if (api == nullptr) return nullptr;   // nothing can be done, nor said
  return guarded(*api, [&] { register_ops(negotiate(*base), *options); });
}
