#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "arrays/numbers.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

constexpr const char* footer = R"(
Inputs without --input are random: floating-point numbers in [-1, 1), integers from 0 to 9.
Exit code: 0; 1 if an output differs; 2 after an error, with one line on stderr; 130 after Ctrl-C.
Examples:
  ort_infer model.onnx --input x=x.npy --output-dir out --compare y=y.npy
  ort_infer model.onnx --provider cuda --dim N=32 --seconds 5 --concurrency 4 --json)";

/// The options as text, before they are parsed.
struct Texts {
  std::string require_provider, tolerance, warmup, iterations, seconds, concurrency, on_error, list;
  std::string device = "0", seed = "0";
  std::string max_memcpy, batches, max_array;
  std::vector<std::string> dims;
  bool cuda_graph = false, io_binding = false, no_io_binding = false, resume = false;
};

void declare(CLI::App& app, Options& options, Texts& texts) {
  const auto option = [&](const char* group, const char* name, auto& value, const char* type,
                          const char* help) {
    return app.add_option(name, value, help)->type_name(type)->group(group);
  };
  const auto list = [&](const char* group, const char* name, auto& value, const char* type,
                        const char* help) {
    option(group, name, value, type, help)->allow_extra_args(false);
  };
  app.add_option("MODEL", options.model, "the ONNX model")->required()->type_name("");

  const char* group = "Provider";
  option(group, "--provider", options.provider, "P", "auto (CUDA if it is available), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""));
  option(group, "--device", texts.device, "N", "the CUDA device (0)");
  option(group, "--require-provider", texts.require_provider, "cuda",
         "fail if a node would run on another provider")
      ->check(CLI::IsMember({"cuda"}).description(""));
  option(group, "--max-memcpy", texts.max_memcpy, "N",
         "fail if a run has more copies between devices");
  app.add_flag("--explain", options.explain,
               "list the nodes with their providers and shapes, and the copies")
      ->group(group);
  list(group, "--library", options.libraries, "FILE", "another custom-op library; repeatable");
  option(group, "--ort", options.ort, "FILE", "the ONNX Runtime to load ($CUDARELU_ORT_LIBRARY)");

  group = "Inputs (NAME: the longest name in the model that is followed by a =)";
  list(group, "--input", options.inputs, "NAME=X",
       "X: FILE.npy, FILE.npz, FILE.pb, random, zeros, ones, a number");
  option(group, "--inputs", options.input_folder, "DIR",
         "read input_0.pb, ... from DIR; compare with its output_0.pb, ...");
  list(group, "--dim", texts.dims, "NAME=SIZE", "size of a free dimension (4); repeatable");
  option(group, "--seed", texts.seed, "S", "seed of the random inputs, an integer (0)");
  option(group, "--max-array", texts.max_array, "MB",
         "the largest input that is read or made (half of the memory)");

  group = "Outputs";
  option(group, "--output-dir", options.output_dir, "DIR", "write each output to DIR/<name>.npy");
  list(group, "--compare", options.compared, "NAME=FILE",
       "exit with 1 if the output differs; repeatable");
  option(group, "--tolerance", texts.tolerance, "REL[,ABS]",
         "tolerance of --compare for floating-point outputs (1e-3,1e-5)");
  app.add_flag("--json", options.json, "print one JSON object")->group(group);

  group = "Measuring";
  option(group, "--iterations", texts.iterations, "N", "number of measured runs, over all threads");
  option(group, "--seconds", texts.seconds, "S", "time to measure (3 without --iterations)");
  option(group, "--warmup", texts.warmup, "N", "runs of each thread that are not measured (10)");
  option(group, "--concurrency", texts.concurrency, "K", "threads that share the session (1)");
  option(group, "--batch-sweep", texts.batches, "1,2,4",
         "measure these sizes of the inputs' first free dimension");
  app.add_flag("--io-binding", texts.io_binding,
               "use fixed input and output buffers (CUDA: default)")
      ->group(group);
  app.add_flag("--no-io-binding", texts.no_io_binding, "let ONNX Runtime allocate them in each run")
      ->group(group);
  app.add_flag("--cuda-graph", texts.cuda_graph, "capture the run in a CUDA graph and replay it")
      ->group(group);
  option(group, "--profile", options.profile, "FILE", "write ONNX Runtime's trace of all runs");

  group = "Many inputs";
  option(group, "--list", texts.list, "FILE|DIR",
         "run each input; write results and manifest to --output-dir");
  app.add_flag("--resume", texts.resume, "skip the items that the manifest has as done")
      ->group(group);
  option(group, "--on-error", texts.on_error, "stop|skip", "what to do after a bad input (skip)")
      ->check(CLI::IsMember({"stop", "skip"}).description(""));

  app.set_help_flag("-h,--help", "print this help")->group("Other");
  app.set_version_flag("--version", "ort_infer " CUDARELU_VERSION)
      ->description("print the version")
      ->group("Other");
  app.get_formatter()->column_width(27);
  app.get_formatter()->label("OPTIONS", "options");
  app.footer(footer);
}

[[noreturn]] void refuse(const std::string& option, const std::string& value, const char* reason) {
  throw Error(option + " " + value + ": " + reason);
}

/// Returns the positions of each = that may divide NAME=VALUE, not the first or last character.
std::vector<std::size_t> dividers(const std::string& option, const std::string& text) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '=') positions.push_back(i);
  }
  if (positions.empty()) refuse(option, text, "must be NAME=VALUE");
  return positions;
}

template <class T>
T whole_number(const std::string& option, const std::string& text, T least = 0) {
  T number = 0;
  if (!parse_all(text, number) || text.starts_with('-') || number < least) {
    throw Error(option + ": must be an integer from " + std::to_string(least) + " to " +
                std::to_string(std::numeric_limits<T>::max()) + ", not " + text);
  }
  return number;
}

double real_number(const std::string& option, const std::string& text) {
  double number = 0;
  if (!parse_all(text, number) || !std::isfinite(number) || number < 0) {
    throw Error(option + ": must be a non-negative number, not " + text);
  }
  return number;
}

/// Splits the text at its commas.
std::vector<std::string> parts(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Tolerance tolerance(const std::string& text) {
  const std::vector<std::string> numbers = parts(text);
  if (numbers.size() > 2) throw Error("--tolerance: must be REL or REL,ABS, not " + text);
  Tolerance tolerance;
  tolerance.relative = real_number("--tolerance", numbers[0]);
  tolerance.absolute = numbers.size() > 1 ? real_number("--tolerance", numbers[1]) : 0;
  return tolerance;
}

std::optional<MeasureOptions> measure_options(const CLI::App& app, const Texts& texts) {
  std::optional<MeasureOptions> result;
  for (const char* name : {"--iterations", "--seconds", "--warmup", "--concurrency",
                           "--batch-sweep", "--io-binding", "--no-io-binding", "--cuda-graph"}) {
    if (app.count(name) > 0) result.emplace();
  }
  if (!result) return result;
  MeasureOptions& measure = *result;
  if (app.count("--warmup") > 0) {
    measure.warmup = whole_number<std::int64_t>("--warmup", texts.warmup);
  }
  if (app.count("--iterations") > 0) {
    measure.iterations = whole_number<std::int64_t>("--iterations", texts.iterations, 1);
  }
  if (app.count("--seconds") > 0) {
    measure.seconds = real_number("--seconds", texts.seconds);
    if (measure.seconds > 1e6) throw Error("--seconds: must be at most 1e6");
  }
  if (app.count("--concurrency") > 0) {
    measure.concurrency = whole_number<std::int64_t>("--concurrency", texts.concurrency, 1);
    if (measure.concurrency > 1024) throw Error("--concurrency: must be at most 1024");
  }
  if (app.count("--batch-sweep") > 0) {
    for (const std::string& size : parts(texts.batches)) {
      measure.batches.push_back(whole_number<std::int64_t>("--batch-sweep", size, 1));
    }
  }
  if (texts.io_binding && texts.no_io_binding) {
    throw Error("--io-binding and --no-io-binding are mutually exclusive");
  }
  if (texts.io_binding || texts.no_io_binding) measure.io_binding = texts.io_binding;
  measure.cuda_graph = texts.cuda_graph;
  if (measure.cuda_graph && measure.io_binding == false) {
    throw Error("--cuda-graph needs fixed buffers: leave out --no-io-binding");
  }
  if (measure.cuda_graph && measure.concurrency > 1) {
    throw Error("--cuda-graph needs --concurrency 1: a CUDA graph belongs to one thread");
  }
  if (!measure.iterations && !measure.seconds) measure.seconds = 3;
  return result;
}

std::optional<BatchOptions> batch_options(const CLI::App& app, const Options& options,
                                          const Texts& texts) {
  if (app.count("--list") == 0) {
    for (const char* name : {"--resume", "--on-error"}) {
      if (app.count(name) > 0) throw Error(std::string(name) + " needs --list");
    }
    return std::nullopt;
  }
  if (options.output_dir.empty()) throw Error("--list needs --output-dir for its results");
  for (const char* name : {"--input", "--inputs", "--compare", "--profile", "--explain"}) {
    if (app.count(name) > 0) throw Error(std::string(name) + " cannot be combined with --list");
  }
  if (options.measure) throw Error("options that measure cannot be combined with --list");
  return BatchOptions{texts.list, texts.resume, texts.on_error == "stop"};
}

}  // namespace

std::map<std::string, std::string> by_name(const std::string& option,
                                           const std::vector<std::string>& texts,
                                           const std::vector<std::string>& names) {
  std::map<std::string, std::string> values;
  for (const std::string& text : texts) {
    const std::vector<std::size_t> positions = dividers(option, text);
    std::size_t end = positions.front();
    for (const std::size_t position : positions) {
      if (std::ranges::find(names, text.substr(0, position)) != names.end()) end = position;
    }
    const std::string name = text.substr(0, end);
    if (!values.emplace(name, text.substr(end + 1)).second) refuse(option, name, "given twice");
  }
  return values;
}

std::optional<Options> parse_options(int argc, char** argv) {
  CLI::App app("Runs an ONNX model with ONNX Runtime and cudarelu's ops.", "ort_infer");
  Options options;
  Texts texts;
  declare(app, options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::string text = app.help();  // fits a screen without its empty lines
    const auto doubled = [](char a, char b) { return a == '\n' && b == '\n'; };
    text.erase(std::unique(text.begin(), text.end(), doubled), text.end());
    std::cout << text;
    return std::nullopt;
  } catch (const CLI::Success& request) {  // --version
    app.exit(request);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw Error(std::string(error.what()) + " (--help lists the options)");
  }
  for (const CLI::Option* each : app.get_options()) {
    const std::vector<std::string>& values = each->results();
    if (std::ranges::find(values, "") != values.end()) {
      throw Error(each->get_name() + ": must not be empty");
    }
  }
  options.device = whole_number<std::int32_t>("--device", texts.device);
  options.require_cuda = !texts.require_provider.empty();
  if (app.count("--max-memcpy") > 0) {
    options.max_memcpy = whole_number<std::int64_t>("--max-memcpy", texts.max_memcpy);
  }
  for (const std::string& text : options.inputs) dividers("--input", text);
  for (const std::string& text : options.compared) dividers("--compare", text);
  for (const std::string& text : texts.dims) {
    const std::size_t end = dividers("--dim", text).back();  // A size contains no =.
    const std::string name = text.substr(0, end);
    const auto size = whole_number<std::int64_t>("--dim " + name, text.substr(end + 1));
    if (!options.sizes.emplace(name, size).second) refuse("--dim", name, "given twice");
  }
  options.seed = whole_number<std::uint64_t>("--seed", texts.seed);
  if (app.count("--max-array") > 0) {
    options.max_array_bytes =
        std::size_t{whole_number<std::uint32_t>("--max-array", texts.max_array)} << 20;
  }
  if (app.count("--tolerance") > 0) options.tolerance = tolerance(texts.tolerance);
  options.measure = measure_options(app, texts);
  options.batch = batch_options(app, options, texts);
  return options;
}

}  // namespace cudarelu::cli
