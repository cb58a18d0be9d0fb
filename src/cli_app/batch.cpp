#include "batch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <utility>

#include "arrays/array_file.h"
#include "error.h"
#include "interrupt.h"
#include "manifest.h"
#include "report/progress.h"
#include "report/report.h"
#include "session/inputs.h"
#include "session/session.h"

namespace cudarelu::cli {
namespace {

using Path = std::filesystem::path;
using Clock = std::chrono::steady_clock;

/// Returns the items of --list: the lines of a file, as paths relative to its folder; or the arrays
/// and test folders in a folder, sorted.
std::vector<std::string> items_of(const Path& list) {
  std::vector<std::string> items;
  if (std::filesystem::is_directory(list)) {
    for (const auto& entry : std::filesystem::directory_iterator(list)) {
      const Path extension = entry.path().extension();
      const bool array = extension == ".npy" || extension == ".npz" || extension == ".pb";
      std::error_code ignored;  // of an entry that cannot be read
      const bool folder = std::filesystem::exists(entry.path() / "input_0.pb", ignored);
      if (array || folder) items.push_back(entry.path().string());
    }
    std::ranges::sort(items);
  } else {
    std::ifstream file(list);
    if (!file) throw Error("--list " + list.string() + ": there is no such file or folder");
    for (std::string line; std::getline(file, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) items.push_back((list.parent_path() / line).string());
    }
  }
  if (items.empty()) throw Error("--list " + list.string() + ": has no inputs");
  return items;
}

std::map<std::string, std::string> sources_of(const std::string& item,
                                              const std::vector<InputInfo>& infos) {
  std::map<std::string, std::string> sources;
  if (std::filesystem::is_directory(item)) {
    add_folder(item, infos, sources);
  } else if (infos.size() == 1 || Path(item).extension() == ".npz") {
    for (const InputInfo& info : infos) sources[info.name] = item;
  } else {
    throw Error(item + ": is one array, but the model has " + std::to_string(infos.size()) +
                " inputs; give an .npz archive, or a folder with input_0.pb, ...");
  }
  return sources;
}

/// The folder of an item's outputs, for example "000012_name".
std::string folder_name(std::size_t index, const std::string& item) {
  std::array<char, 32> number;
  std::snprintf(number.data(), number.size(), "%06zu_", index);
  return number.data() + file_name(Path(item).stem().string());
}

struct Counts {
  std::size_t total = 0, done = 0, failed = 0, done_before = 0;
  std::size_t left() const { return total - done - failed - done_before; }
};

void write_report(const Options& options, const Runtime& runtime, const Session& session,
                  const Path& manifest, const Counts& counts, double seconds) {
  if (options.json) {
    Json json = json_heading(options.model, runtime, session.provider());
    json["manifest"] = manifest.string();
    json["items"] = counts.total;
    json["done"] = counts.done;
    json["failed"] = counts.failed;
    json["done_before"] = counts.done_before;
    json["left"] = counts.left();
    json["seconds"] = seconds;
    write(std::cout, json);
  } else {
    write_heading(std::cout, options.model, runtime, session.provider());
    std::cout << "manifest  " << manifest.string() << "\nitems     " << counts.total << ": "
              << counts.done << " done, " << counts.failed << " failed, " << counts.done_before
              << " done before, " << counts.left() << " left, in " << seconds << " s\n";
  }
  if (!std::cout.flush()) throw Error("cannot write to stdout");
}

}  // namespace

int infer_batch(const Options& options, const BatchOptions& batch) {
  const std::vector<std::string> items = items_of(batch.list);
  const Path folder = options.output_dir;
  const Runtime runtime(options.ort);
  const ProviderChoice choice{options.provider, static_cast<int>(options.device),
                              options.require_cuda, false};
  Session session(runtime, options.model, choice, options.libraries);
  Manifest manifest(folder, items, batch.resume);
  Counts counts;
  counts.total = items.size();
  bool traced = true;
  Progress progress;
  const Clock::time_point begin = Clock::now();
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  for (std::size_t i = 0; i < items.size() && !interrupted(); ++i) {
    if (manifest.is_done(i)) {
      ++counts.done_before;
      continue;
    }
    progress.show(std::to_string(i) + " of " + std::to_string(items.size()) + " items");
    const Clock::time_point item_begin = Clock::now();
    ItemResult result{i, items[i], "", {}, 0};
    std::vector<Tensor> outputs;
    try {
      const Inputs inputs = make_inputs(
          session.inputs(), {sources_of(items[i], session.inputs()), options.sizes, options.seed});
      outputs = session.run(inputs.tensors);
    } catch (const Error& error) {
      result.error = error.what();
      if (!result.error.starts_with(items[i])) result.error.insert(0, items[i] + ": ");
    } catch (const std::filesystem::filesystem_error& error) {
      result.error = items[i] + ": " + error.code().message();
    } catch (const std::bad_alloc&) {
      result.error = items[i] + ": out of memory";
    }
    if (result.error.empty()) {
      if (std::exchange(traced, false)) {
        check_copies(session.end_trace({}), options.max_memcpy);
      }
      const std::string name = folder_name(i, items[i]);
      const std::vector<std::string>& names = session.output_names();
      const std::vector<Path> files = write_outputs(folder / name, names, outputs);
      for (std::size_t k = 0; k < names.size(); ++k) {
        result.outputs[names[k]] = (Path(name) / files[k].filename()).string();
      }
    }
    result.seconds = seconds_since(item_begin);
    manifest.add(result);
    ++(result.error.empty() ? counts.done : counts.failed);
    if (result.error.empty()) continue;
    progress.clear();
    if (batch.stop_on_error) throw Error(result.error);
    print_error(result.error + "; skipped");
  }
  progress.clear();
  write_report(options, runtime, session, manifest.path(), counts, seconds_since(begin));
  return interrupted() ? interrupted_exit_code : counts.failed > 0 ? 2 : 0;
}

}  // namespace cudarelu::cli
