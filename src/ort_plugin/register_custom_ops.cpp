// The entry point of a module: adds its ops to the options of a session.
//
// A session rejects two domains of the same name, and other libraries may use the name of an alias
// domain (custom_domain). Therefore an alias domain is added only if the options do not contain it
// yet. If another library will add it later, an entry of the options (for example
// cudarelu.alias_domains) must exclude it. Entries begin with the name of the module.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "cudarelu/host.h"
#include "cudarelu/onnx_runtime.h"
#include "custom_op.h"
#include "taken_domain.h"

namespace cudarelu::ort {
namespace {

/// The entry of a session's options with the alias domains to add, which the user sets; all if
/// there is none.
std::string allowed_entry(const Module& module) {
  return std::string(module.name) + ".alias_domains";
}

/// One of the overloads, for a template.
void checked(OrtStatus* status) { check(status); }

/// The custom ops and domains for one copy of ONNX Runtime.
class Domains {
 public:
  explicit Domains(const Runtime& runtime) : module_(own_module()), runtime_(runtime) {
    for (const Op& op : module_.ops) {
      add(op, {module_.onnx_domain, op.onnx_type}, inputs_of(op));
      const OnnxAlias& alias = op.spec.onnx_alias;
      if (!alias.domain.empty()) add(op, {alias.domain, alias.op_type}, op.alias_inputs);
    }
  }

  /// Adds the domain of the module, and the alias domains that are allowed and not taken. Returns
  /// the names of the added domains. Throws std::runtime_error if an allowed name is not an alias
  /// domain.
  std::string add_to(OrtSessionOptions& options) const {
    const OrtApi& api = *runtime_.api;
    const std::set<std::string> allowed = allowed_names(options);
    std::string added;
    for (const auto& [name, domain] : domains_) {
      if (!allowed.contains(name)) continue;
      if (name != module_.onnx_domain && is_taken(api, options, *domain)) continue;
      check(api.AddCustomOpDomain(&options, domain));
      added.append(added.empty() ? "" : ",").append(name);
    }
    return added;
  }

 private:
  std::set<std::string> allowed_names(const OrtSessionOptions& options) const {
    std::set<std::string> names{std::string(module_.onnx_domain)};
    const auto entry =
        session_config_entry(*runtime_.api, options, allowed_entry(module_), checked);
    if (!entry) {
      for (const auto& [name, domain] : domains_) names.insert(name);
      return names;
    }
    std::istringstream list(*entry);
    for (std::string name; std::getline(list, name, ',');) {
      if (!domains_.contains(name)) throw std::runtime_error(no_alias_domain(name));
      names.insert(name);
    }
    return names;
  }

  std::string no_alias_domain(const std::string& name) const {
    std::string known;
    for (const auto& [other, domain] : domains_) {
      if (other != module_.onnx_domain) known.append(known.empty() ? "" : ", ").append(other);
    }
    return allowed_entry(module_) + ": " + std::string(module_.name) + " has no alias domain " +
           name + (known.empty() ? "" : "; it has " + known);
  }

  /// Adds CUDA kernels and always CPU kernels, since ONNX Runtime may place any node on the CPU.
  void add(const Op& op, const OnnxName& name, const std::vector<NodeInput>& inputs) {
    add(op, name, inputs, DeviceType::cpu);
    if (op.cuda != nullptr) add(op, name, inputs, DeviceType::cuda);
  }

  void add(const Op& op, const OnnxName& name, const std::vector<NodeInput>& inputs,
           DeviceType device) {
    for (TensorTypes& types : tensor_types(op, runtime_)) {
      OrtCustomOp* custom_op =
          &ops_.emplace_back(runtime_, op, name.op_type, inputs, device, std::move(types));
      check(runtime_.api->CustomOpDomain_Add(domain(name.domain), custom_op));
    }
  }

  /// Returns the domain of that name; creates it on first use.
  OrtCustomOpDomain* domain(std::string_view name) {
    OrtCustomOpDomain*& domain = domains_[std::string(name)];
    if (domain == nullptr) {
      check(runtime_.api->CreateCustomOpDomain(std::string(name).c_str(), &domain));
    }
    return domain;
  }

  const Module& module_;
  Runtime runtime_;
  std::deque<CustomOp> ops_;  // ONNX Runtime keeps pointers to the elements
  std::map<std::string, OrtCustomOpDomain*> domains_;
};

/// Creates the domains once for each copy of ONNX Runtime. They are never destroyed, since sessions
/// may outlive static objects.
const Domains& domains_of(const Runtime& runtime) {
  static std::mutex mutex;
  static auto& made = *new std::map<const OrtApi*, std::unique_ptr<Domains>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Domains>& domains = made[runtime.api];
  if (domains == nullptr) domains = std::make_unique<Domains>(runtime);
  return *domains;
}

/// Registers the ops once: a second call, also by another copy of this library, finds the entry
/// with the registered domains and does nothing.
void register_ops(const Runtime& runtime, OrtSessionOptions& options) {
  const OrtApi& api = *runtime.api;
  const std::string entry = registered_entry(own_module());
  if (session_config_entry(api, options, entry, checked)) return;
  const std::string added = domains_of(runtime).add_to(options);
  check(api.AddSessionConfigEntry(&options, entry.c_str(), added.c_str()));
}

}  // namespace
}  // namespace cudarelu::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  using namespace cudarelu::ort;
  const OrtApi* api = base->GetApi(1);  // Version 1 can create a status, and always exists.
  if (api == nullptr) return nullptr;   // Without an API, no error can be returned.
  return guarded(*api, [&] { register_ops(negotiate(*base), *options); });
}
