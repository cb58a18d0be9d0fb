#include "cuda/gemm/tuning.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

namespace cudarelu::gpu {
namespace {

constexpr std::string_view separator = " = ";

/// A pair of events that measure a time on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    error_ = cudaEventCreate(&begin_);
    if (error_ == cudaSuccess) error_ = cudaEventCreate(&end_);
  }
  ~Stopwatch() {
    if (begin_ != nullptr) (void)cudaEventDestroy(begin_);
    if (end_ != nullptr) (void)cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// The mean milliseconds of `calls` calls.
  template <class Run>
  cudaError_t measure(int calls, const Run& run, float& milliseconds) {
    step(cudaEventRecord, begin_, stream_);
    for (int i = 0; i < calls; ++i) step(run);
    step(cudaEventRecord, end_, stream_);
    step(cudaEventSynchronize, end_);
    step(cudaEventElapsedTime, &milliseconds, begin_, end_);
    milliseconds /= static_cast<float>(calls);
    return error_;
  }

 private:
  template <class F, class... Arguments>
  void step(const F& f, Arguments... arguments) {
    if (error_ == cudaSuccess) error_ = f(arguments...);
  }

  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace

const std::filesystem::path& tuning_folder() {
  static const std::filesystem::path folder = [] {
    const char* value = std::getenv("CUDARELU_TUNING_DIR");
    return value == nullptr ? "" : value;
  }();
  return folder;
}

TuningRecords read_tuning(const std::filesystem::path& file) {
  TuningRecords records;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    records.insert_or_assign(line.substr(0, at), line.substr(at + separator.size()));
  }
  return records;
}

Status write_tuning(const std::filesystem::path& file, const std::string& product,
                    const std::string& algorithm) {
  TuningRecords records = read_tuning(file);
  records.insert_or_assign(product, algorithm);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  std::filesystem::path part = file;
  part += std::to_string(std::random_device{}()) + ".part";  // containers may share a folder
  std::ofstream out(part);
  for (const auto& [name, value] : records) out << name << separator << value << '\n';
  out.close();
  if (out) std::filesystem::rename(part, file, error);
  if (out && !error) return {};
  std::filesystem::remove(part, error);
  return {Status::Code::invalid_argument,
          "cannot write " + file.string() +
              "; CUDARELU_TUNING_DIR must name a folder that can be written, or be unset"};
}

cudaError_t find_fastest(cudaStream_t stream, std::size_t count,
                         FunctionRef<cudaError_t(std::size_t)> run, std::size_t& best) {
  constexpr int rounds = 5;
  constexpr float milliseconds_of_round = 0.5f;  // of one alternative
  constexpr float max_calls = 50;
  constexpr float advantage = 0.98f;
  Stopwatch stopwatch(stream);
  std::vector<float> least(count, std::numeric_limits<float>::max());
  std::vector<int> calls(count, 1);
  for (int round = -2; round < rounds; ++round) {  // two to load each, and to count its calls
    for (std::size_t i = 0; i < count; ++i) {
      float milliseconds = 0;
      const cudaError_t error = stopwatch.measure(calls[i], [&] { return run(i); }, milliseconds);
      if (error != cudaSuccess) return error;
      if (round == -1) {
        calls[i] = static_cast<int>(
            std::clamp(milliseconds_of_round / std::max(milliseconds, 1e-6f), 1.0f, max_calls));
      }
      if (round >= 0) least[i] = std::min(least[i], milliseconds);
    }
  }
  best = 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (least[i] < advantage * least[best]) best = i;
  }
  return cudaSuccess;
}

}  // namespace cudarelu::gpu
