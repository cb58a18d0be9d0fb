#include "run_model.h"

#include <algorithm>
#include <iostream>

#include "arrays/array_file.h"
#include "error.h"
#include "interrupt.h"
#include "report/report.h"

namespace cudarelu::cli {
namespace {

/// Returns a hint for a failed run: random integers may be invalid for the model, for example as
/// indices.
std::string hint(const std::vector<InputInfo>& infos, const Inputs& inputs) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].type->kind == Kind::integer && inputs.sources[i] == "random") {
      return "; input " + infos[i].name + " has random values: set it with --input " +
             infos[i].name + "=FILE.npy";
    }
  }
  return "";
}

struct Expected {
  std::size_t output;
  std::string file;
  Tensor tensor;
};

/// Reads the expected outputs: those of --compare, and those in the folder of --inputs.
std::vector<Expected> expected_outputs(const Options& options,
                                       const std::vector<std::string>& names) {
  std::vector<Expected> expected;
  const std::map<std::string, std::string> compared = by_name("--compare", options.compared, names);
  for (const auto& [name, file] : compared) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      throw Error("--compare " + name + ": the model has no such output; it has " + joined(names));
    }
    const auto output = static_cast<std::size_t>(found - names.begin());
    expected.push_back({output, file, read_array(file, name)});
  }
  if (options.input_folder.empty()) return expected;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto file =
        std::filesystem::path(options.input_folder) / ("output_" + std::to_string(i) + ".pb");
    if (compared.contains(names[i]) || !std::filesystem::exists(file)) continue;
    expected.push_back({i, file.string(), read_array(file, names[i])});
  }
  return expected;
}

/// Returns the name of the free dimension that --batch-sweep sets.
std::string batch_symbol(const Session& session, const Options& options) {
  for (const InputInfo& info : session.inputs()) {
    if (info.shape.empty() || info.shape[0].size >= 0 || info.shape[0].symbol.empty()) continue;
    if (options.sizes.contains(info.shape[0].symbol)) {
      throw Error("--batch-sweep sets " + info.shape[0].symbol + ", and so does --dim");
    }
    return info.shape[0].symbol;
  }
  throw Error("--batch-sweep: no input has a named free dimension as its first dimension");
}

/// Throws an Error if a file decides the size that --batch-sweep sets.
void check_batch(const Session& session, const Inputs& inputs, const std::string& symbol,
                 std::int64_t batch) {
  const std::vector<InputInfo>& infos = session.inputs();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].shape.empty() || infos[i].shape[0].symbol != symbol) continue;
    if (const std::int64_t size = inputs.tensors[i].shape[0]; size != batch) {
      throw Error("--batch-sweep sets " + symbol + " to " + std::to_string(batch) + ", but it is " +
                  std::to_string(size) + " in " + inputs.files[i].string());
    }
  }
}

}  // namespace

int infer(const Options& options) {
  const Runtime runtime(options.ort);
  const bool graph = options.measure && options.measure->cuda_graph;
  const ProviderChoice choice{options.provider, static_cast<int>(options.device),
                              options.require_cuda, graph};
  Session session(runtime, options.model, choice, options.libraries);
  std::vector<std::string> input_names;
  for (const InputInfo& info : session.inputs()) input_names.push_back(info.name);
  InputRequest request{by_name("--input", options.inputs, input_names), options.sizes,
                       options.seed};
  if (!options.input_folder.empty()) {
    add_folder(options.input_folder, session.inputs(), request.sources);
  }
  const std::vector<Expected> expected = expected_outputs(options, session.output_names());

  Report report{options.model, runtime,         session,
                options.seed,  options.explain, options.measure.value_or(MeasureOptions{})};
  const std::vector<std::int64_t>& batches = report.measure.batches;
  const std::string symbol = batches.empty() ? "" : batch_symbol(session, options);
  const bool keep_trace = !options.profile.empty();
  for (std::size_t i = 0;
       i < std::max<std::size_t>(batches.size(), 1) && (i == 0 || !interrupted()); ++i) {
    if (!batches.empty()) request.sizes[symbol] = batches[i];
    report.inputs = make_inputs(session.inputs(), request);
    if (!batches.empty()) check_batch(session, report.inputs, symbol, batches[i]);
    try {
      report.outputs = session.run(report.inputs.tensors);
    } catch (const Error& error) {
      throw Error(options.model + ": " + error.what() + hint(session.inputs(), report.inputs));
    }
    if (i == 0 && !keep_trace) {
      report.nodes = session.end_trace({});  // Tracing would slow down the measured runs.
      check_copies(report.nodes, options.max_memcpy);
    }
    if (!options.measure) continue;
    Measured measured = measure(session, report.inputs.tensors, report.outputs, *options.measure,
                                choice.device, graph ? static_cast<int>(i) + 1 : 0);
    measured.measurement.sizes = report.inputs.sizes;
    if (!batches.empty()) measured.measurement.batch = batches[i];
    report.measurements.push_back(measured.measurement);
    if (!measured.outputs.empty()) report.outputs = measured.outputs;
  }
  if (keep_trace) {
    report.nodes = session.end_trace(options.profile);
    check_copies(report.nodes, options.max_memcpy);
  }

  bool equal = true;
  for (const Expected& each : expected) {
    Comparison comparison = compare(report.outputs[each.output], each.tensor, options.tolerance);
    comparison.output = session.output_names()[each.output];
    comparison.file = each.file;
    equal &= comparison.equal();
    report.comparisons.push_back(std::move(comparison));
  }
  if (!options.output_dir.empty()) {
    report.output_files = write_outputs(options.output_dir, session.output_names(), report.outputs);
  }
  options.json ? write_json(std::cout, report) : write_text(std::cout, report);
  if (!std::cout.flush()) throw Error("cannot write to stdout");
  return interrupted() ? interrupted_exit_code : equal ? 0 : 1;
}

}  // namespace cudarelu::cli
