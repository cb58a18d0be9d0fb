#include "report/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ostream>

#include "arrays/array_text.h"
#include "arrays/numbers.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

// The version of the JSON. Keys may be added without a new version, but not removed or changed.
constexpr int report_schema = 1;

constexpr std::int64_t max_json_values = 1000;

Json json_of(double real) {
  if (std::isnan(real)) return "nan";
  if (std::isinf(real)) return real > 0 ? "inf" : "-inf";
  return real;
}

Json json_of(const Number& number) {
  if (const double* real = std::get_if<double>(&number)) return json_of(*real);
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

std::string digits(const char* pattern, double value) {
  std::array<char, 64> text;
  return {text.data(),
          static_cast<std::size_t>(std::snprintf(text.data(), text.size(), pattern, value))};
}

void write(std::ostream& stream, const Comparison& comparison) {
  stream << "\ncompare " << comparison.output << " with " << comparison.file << ": ";
  if (!comparison.mismatch.empty()) {
    stream << "DIFFERS: it is " << comparison.mismatch << '\n';
    return;
  }
  if (comparison.equal()) {
    stream << "equal";
  } else {
    stream << "DIFFERS in " << comparison.differing << " of " << comparison.count << " elements";
  }
  if (comparison.worst >= 0) {
    stream << ", largest error " << digits("%.3g", comparison.max_absolute) << " at "
           << text_of(comparison.worst_index) << ", relative "
           << digits("%.3g", comparison.max_relative);
  }
  stream << '\n';
}

Json json_of(const Comparison& comparison) {
  return {{"name", comparison.output},
          {"file", comparison.file},
          {"equal", comparison.equal()},
          {"mismatch", comparison.mismatch.empty() ? Json() : Json(comparison.mismatch)},
          {"count", comparison.count},
          {"differing", comparison.differing},
          {"max_absolute_error", json_of(comparison.max_absolute)},
          {"max_relative_error", json_of(comparison.max_relative)},
          {"worst_index", comparison.worst < 0 ? Json() : Json(comparison.worst_index)}};
}

void write_row(std::ostream& stream, const char* name, const std::optional<Latency>& latency) {
  if (!latency) return;
  stream << "  " << name;
  for (const double value :
       {latency->mean, latency->min, latency->p50, latency->p90, latency->p99, latency->max}) {
    stream << digits("%11.4f", value);
  }
  stream << '\n';
}

void write(std::ostream& stream, const Measurement& measurement, const MeasureOptions& options) {
  stream << "\nmeasured " << measurement.runs << " runs in " << digits("%.3f", measurement.seconds)
         << " s on " << options.concurrency << (options.concurrency == 1 ? " thread" : " threads");
  for (const auto& [symbol, size] : measurement.sizes) stream << ", " << symbol << '=' << size;
  stream << '\n';
  if (!measurement.total) return;
  stream << "  throughput" << digits("%11.1f", measurement.runs_per_second()) << " runs/s";
  if (measurement.batch) {
    stream << ", " << digits("%.1f", measurement.items_per_second()) << " items/s";
  }
  stream << "\n  latency, ms      mean        min        p50        p90        p99        max\n";
  write_row(stream, "total     ", measurement.total);
  write_row(stream, "to device ", measurement.to_device);
  write_row(stream, "run       ", measurement.run);
  write_row(stream, "to host   ", measurement.to_host);
}

Json json_of(const std::optional<Latency>& latency) {
  if (!latency) return {};
  return {{"mean", latency->mean}, {"min", latency->min}, {"p50", latency->p50},
          {"p90", latency->p90},   {"p99", latency->p99}, {"max", latency->max}};
}

Json json_of(const Measurement& measurement, const MeasureOptions& options) {
  const bool some = measurement.total.has_value();
  return {{"sizes", measurement.sizes},
          {"batch", measurement.batch ? Json(*measurement.batch) : Json()},
          {"concurrency", options.concurrency},
          {"warmup", options.warmup},
          {"runs", measurement.runs},
          {"seconds", measurement.seconds},
          {"runs_per_second", some ? Json(measurement.runs_per_second()) : Json()},
          {"items_per_second",
           some && measurement.batch ? Json(measurement.items_per_second()) : Json()},
          {"latency_ms",
           {{"total", json_of(measurement.total)},
            {"to_device", json_of(measurement.to_device)},
            {"run", json_of(measurement.run)},
            {"to_host", json_of(measurement.to_host)}}}};
}

/// Lists the nodes in the order of the run.
void explain(std::ostream& stream, const std::vector<NodeRun>& nodes) {
  stream << "\nnodes in their order\n";
  for (const NodeRun& node : nodes) {
    stream << "  " << (node.domain.empty() ? "" : node.domain + "::") << node.op_type
           << (node.name.empty() ? "" : " " + node.name) << " on " << node.provider << ": "
           << joined(node.inputs, "") << " -> " << joined(node.outputs, "") << '\n';
  }
  stream << "copies between devices: " << std::ranges::count_if(nodes, &NodeRun::is_copy) << '\n';
}

}  // namespace

void write_heading(std::ostream& stream, const std::string& model, const Runtime& runtime,
                   const Provider& provider) {
  stream << "model     " << model << "\nruntime   ONNX Runtime " << runtime.version() << ", "
         << runtime.library().string() << "\nprovider  " << provider.name
         << (provider.reason.empty() ? "" : " (auto: " + provider.reason + ")") << '\n';
}

Json json_heading(const std::string& model, const Runtime& runtime, const Provider& provider) {
  return {{"schema", report_schema},
          {"model", model},
          {"runtime", {{"version", runtime.version()}, {"library", runtime.library().string()}}},
          {"provider", provider.name},
          {"provider_reason", provider.reason}};
}

void write(std::ostream& stream, const Json& json) {
  stream << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

void write_text(std::ostream& stream, const Report& report) {
  write_heading(stream, report.model.string(), report.runtime, report.session.provider());
  if (!report.inputs.sizes.empty()) {
    stream << "sizes    ";
    for (const auto& [symbol, size] : report.inputs.sizes) stream << ' ' << symbol << '=' << size;
    stream << '\n';
  }
  for (const std::string& note : report.inputs.notes) stream << "note      " << note << '\n';
  for (std::size_t i = 0; i < report.inputs.tensors.size(); ++i) {
    const Tensor& tensor = report.inputs.tensors[i];
    const std::string& source = report.inputs.sources[i];
    stream << "\ninput " << report.session.inputs()[i].name << ": " << text_of(tensor) << ", "
           << (source == "random" ? "random, seed " + std::to_string(report.seed) : source) << '\n'
           << array_text(tensor) << '\n';
  }
  for (std::size_t i = 0; i < report.outputs.size(); ++i) {
    stream << "\noutput " << report.session.output_names()[i] << ": " << text_of(report.outputs[i]);
    if (!report.output_files.empty()) stream << ", written to " << report.output_files[i].string();
    stream << '\n' << array_text(report.outputs[i]) << '\n';
  }
  std::map<std::string, int> counts;  // for each op and provider
  for (const NodeRun& node : report.nodes) {
    const std::string domain = node.domain.empty() ? "" : node.domain + "::";
    ++counts[domain + node.op_type + " on " + node.provider];
  }
  stream << "\nnodes that ran\n";
  for (const auto& [what, count] : counts) stream << "  " << count << " x " << what << '\n';
  if (report.explain) explain(stream, report.nodes);
  for (const Comparison& comparison : report.comparisons) write(stream, comparison);
  for (const Measurement& measurement : report.measurements) {
    write(stream, measurement, report.measure);
  }
}

void write_json(std::ostream& stream, const Report& report) {
  Json json = json_heading(report.model.string(), report.runtime, report.session.provider());
  json["sizes"] = report.inputs.sizes;
  json["notes"] = report.inputs.notes;
  json["seed"] = report.seed;
  json["inputs"] = Json::array();
  json["outputs"] = Json::array();
  json["nodes"] = Json::array();
  for (std::size_t i = 0; i < report.inputs.tensors.size(); ++i) {
    Json input = json_of(report.session.inputs()[i].name, report.inputs.tensors[i]);
    const std::string file = report.inputs.files[i].string();
    input["source"] = report.inputs.sources[i];
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
                             {"provider", node.provider},
                             {"inputs", node.inputs},
                             {"outputs", node.outputs}});
  }
  json["copies"] = std::ranges::count_if(report.nodes, &NodeRun::is_copy);
  json["comparisons"] = Json::array();
  for (const Comparison& comparison : report.comparisons) {
    json["comparisons"].push_back(json_of(comparison));
  }
  json["measurements"] = Json::array();
  for (const Measurement& measurement : report.measurements) {
    json["measurements"].push_back(json_of(measurement, report.measure));
  }
  write(stream, json);
}

}  // namespace cudarelu::cli
