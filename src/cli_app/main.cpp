// ort_infer: runs an ONNX model that calls the ops. Exit code 0, or 2 and one line on stderr.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <limits>
#include <sstream>

#include "error.h"
#include "npy.h"
#include "report.h"

namespace {

using namespace cudarelu::cli;

struct Options {
  std::string model;
  std::string provider = "auto";
  std::vector<std::string> inputs;
  std::string output_dir;
  std::vector<std::string> dims;
  std::string seed = "0";
  std::vector<std::string> libraries;
  std::string ort;
  bool json = false;
};

constexpr const char* examples = R"(
Inputs without a file are random: real numbers in [-1, 1), integers from 0 to 9.
Exit code: 0, or 2 with one line on stderr that says what is wrong.

Examples:
  ort_infer myrelu.onnx
  ort_infer myrelu.onnx --input x=x.npy --output-dir out
  ort_infer model.onnx --provider cuda --dim N=32 --json)";

void declare(CLI::App& app, Options& options) {
  app.add_option("MODEL", options.model, "ONNX model")->required();
  app.add_option("--provider", options.provider, "auto (CUDA where it is to be had), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("P");
  app.add_option("--input", options.inputs, "an input from a NumPy file; repeatable")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false);
  app.add_option("--output-dir", options.output_dir, "write each output to DIR/<name>.npy")
      ->type_name("DIR");
  app.add_option("--dim", options.dims, "the size of a free dimension (else 4); repeatable")
      ->type_name("NAME=SIZE")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "of the random inputs, a whole number (0)")
      ->type_name("S");
  app.add_option("--library", options.libraries, "a further custom-op library; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--ort", options.ort, "the ONNX Runtime library to open ($CUDARELU_ORT_LIBRARY)")
      ->type_name("FILE");
  app.add_flag("--json", options.json, "print one JSON object");
  app.set_version_flag("--version", "ort_infer " CUDARELU_VERSION);
  app.footer(examples);
}

/// NAME=VALUE
std::pair<std::string, std::string> split(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos || equals + 1 == text.size()) {
    throw Error(option + " " + text + ": must be NAME=VALUE");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::map<std::string, std::filesystem::path> input_files(const Options& options) {
  std::map<std::string, std::filesystem::path> files;
  for (const std::string& text : options.inputs) {
    const auto& [name, file] = split("--input", text);
    if (!files.emplace(name, file).second) throw Error("--input " + name + ": given twice");
  }
  return files;
}

/// The whole number that `text` is, not negative.
template <class T>
T whole_number(const std::string& option, const std::string& text) {
  T number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || text.starts_with('-')) {
    throw Error(option + ": must be a whole number from 0 to " +
                std::to_string(std::numeric_limits<T>::max()) + ", not " + text);
  }
  return number;
}

std::map<std::string, std::int64_t> dim_sizes(const Options& options) {
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& text : options.dims) {
    const auto& [name, number] = split("--dim", text);
    const auto size = whole_number<std::int64_t>("--dim " + name, number);
    if (!sizes.emplace(name, size).second) throw Error("--dim " + name + ": given twice");
  }
  return sizes;
}

/// DIR/<name>.npy for each output; what a file's name should not hold becomes _.
std::vector<std::filesystem::path> write_outputs(const std::filesystem::path& folder,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<Tensor>& outputs) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(folder.string() + ": cannot be made: " + error.message());
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string name = names[i];
    for (char& c : name) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                         (c == '.' && &c != &name.front());
      if (!plain) c = '_';
    }
    while (std::ranges::find(files, folder / (name + ".npy")) != files.end()) name += '_';
    files.push_back(folder / (name + ".npy"));
    write_npy(files.back(), outputs[i]);
  }
  return files;
}

/// A hint for a run that failed: numbers made up for integer inputs may mean nothing to the model.
std::string hint(const std::vector<InputInfo>& infos, const Inputs& inputs) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].type->kind == Kind::integer && inputs.files[i].empty()) {
      return "; input " + infos[i].name + " was random: give it with --input " + infos[i].name +
             "=FILE.npy";
    }
  }
  return "";
}

void infer(const Options& options) {
  const auto files = input_files(options);
  const auto sizes = dim_sizes(options);
  const auto seed = whole_number<std::uint64_t>("--seed", options.seed);
  const Runtime runtime(options.ort);
  Session session(runtime, options.model, options.provider, options.libraries);
  const Inputs inputs = make_inputs(session.inputs(), files, sizes, seed);
  std::vector<Tensor> outputs;
  try {
    outputs = session.run(inputs.tensors);
  } catch (const Error& error) {
    throw Error(options.model + ": " + error.what() + hint(session.inputs(), inputs));
  }
  Report report{options.model, runtime, session, inputs, seed, outputs, {}, {}};
  report.nodes = session.finish();
  if (!options.output_dir.empty()) {
    report.output_files = write_outputs(options.output_dir, session.output_names(), outputs);
  }
  options.json ? write_json(std::cout, report) : write_text(std::cout, report);
  if (!std::cout.flush()) throw Error("the output cannot be written");
}

int fail(std::string message) {
  for (char& c : message) {
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
  }
  std::cerr << "ort_infer: " << message << '\n';
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs an ONNX model with ONNX Runtime and cudarelu's ops.", "ort_infer");
  Options options;
  declare(app, options);
  try {
    app.parse(argc, argv);
    infer(options);
    return 0;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (--help lists the options)");
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
