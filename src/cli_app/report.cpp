#include "report.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>

#include "numbers.h"
#include "print.h"

namespace cudarelu::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t max_json_values = 1000;

Json json_of(const Number& number) {
  if (const double* real = std::get_if<double>(&number)) {
    if (std::isnan(*real)) return "nan";
    if (std::isinf(*real)) return *real > 0 ? "inf" : "-inf";
  }
  return std::visit([](auto value) { return Json(value); }, number);
}

Json json_of(const std::string& name, const Tensor& tensor) {
  Json json{{"name", name}, {"dtype", tensor.type->name}, {"shape", tensor.shape}};
  if (tensor.count <= max_json_values) {
    Json& values = json["values"] = Json::array();
    for (std::int64_t i = 0; i < tensor.count; ++i) values.push_back(json_of(element(tensor, i)));
  }
  return json;
}

std::string provider_text(const Provider& provider) {
  return provider.name + (provider.reason.empty() ? "" : " (auto: " + provider.reason + ")");
}

}  // namespace

void write_text(std::ostream& stream, const Report& report) {
  stream << "model     " << report.model.string() << "\nruntime   ONNX Runtime "
         << report.runtime.version() << ", " << report.runtime.library().string() << "\nprovider  "
         << provider_text(report.session.provider()) << '\n';
  if (!report.inputs.sizes.empty()) {
    stream << "sizes    ";
    for (const auto& [symbol, size] : report.inputs.sizes) stream << ' ' << symbol << '=' << size;
    stream << '\n';
  }
  for (std::size_t i = 0; i < report.inputs.tensors.size(); ++i) {
    const Tensor& tensor = report.inputs.tensors[i];
    const std::string file = report.inputs.files[i].string();
    stream << "\ninput " << report.session.inputs()[i].name << ": " << text_of(tensor) << ", "
           << (file.empty() ? "random, seed " + std::to_string(report.seed) : file) << '\n'
           << values_of(tensor) << '\n';
  }
  for (std::size_t i = 0; i < report.outputs.size(); ++i) {
    stream << "\noutput " << report.session.output_names()[i] << ": " << text_of(report.outputs[i]);
    if (!report.output_files.empty()) stream << ", written to " << report.output_files[i].string();
    stream << '\n' << values_of(report.outputs[i]) << '\n';
  }
  std::map<std::string, int> counts;  // of what ran where
  for (const NodeRun& node : report.nodes) {
    const std::string domain = node.domain.empty() ? "" : node.domain + "::";
    ++counts[domain + node.op_type + " on " + node.provider];
  }
  stream << "\nnodes that ran\n";
  for (const auto& [what, count] : counts) stream << "  " << count << " x " << what << '\n';
}

void write_json(std::ostream& stream, const Report& report) {
  const Provider& provider = report.session.provider();
  Json json{
      {"model", report.model.string()},
      {"runtime",
       {{"version", report.runtime.version()}, {"library", report.runtime.library().string()}}},
      {"provider", provider.name},
      {"provider_reason", provider.reason},
      {"sizes", report.inputs.sizes},
      {"seed", report.seed},
      {"inputs", Json::array()},
      {"outputs", Json::array()},
      {"nodes", Json::array()}};
  for (std::size_t i = 0; i < report.inputs.tensors.size(); ++i) {
    Json input = json_of(report.session.inputs()[i].name, report.inputs.tensors[i]);
    const std::string file = report.inputs.files[i].string();
    input["file"] = file.empty() ? Json() : Json(file);
    json["inputs"].push_back(input);
  }
  for (std::size_t i = 0; i < report.outputs.size(); ++i) {
    Json output = json_of(report.session.output_names()[i], report.outputs[i]);
    output["file"] = report.output_files.empty() ? Json() : Json(report.output_files[i].string());
    json["outputs"].push_back(output);
  }
  for (const NodeRun& node : report.nodes) {
    json["nodes"].push_back({{"name", node.name},
                             {"domain", node.domain},
                             {"op_type", node.op_type},
                             {"provider", node.provider}});
  }
  // Names in a model may be any bytes.
  stream << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace cudarelu::cli
