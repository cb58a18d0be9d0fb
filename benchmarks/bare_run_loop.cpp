// The smallest C++ program that runs a model repeatedly, as a reference for ort_infer: one input of
// 4 x 4 float32, with plain or fixed buffers.
//
//   usage: bare_run_loop ONNXRUNTIME_LIBRARY MODEL RUNS plain|bound
//
// Prints the median time per run in nanoseconds, over groups of 100 runs. The model has the input x
// and the output y.

#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 2;
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  const OrtApi* api = base()->GetApi(16);
  const auto check = [&](OrtStatus* status) {
    if (status == nullptr) return;
    std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    std::exit(1);
  };
  OrtEnv* environment = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  OrtMemoryInfo* memory = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "bare", &environment));
  check(api->CreateSessionOptions(&options));
  check(api->CreateSession(environment, argv[2], options, &session));
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  std::array<float, 16> data{1, -1};
  std::array<float, 16> result{};
  const std::array<std::int64_t, 2> shape{4, 4};
  const auto value_of = [&](std::array<float, 16>& numbers) {
    OrtValue* value = nullptr;
    check(api->CreateTensorWithDataAsOrtValue(memory, numbers.data(), sizeof numbers, shape.data(),
                                              shape.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                              &value));
    return value;
  };
  const OrtValue* input = value_of(data);
  OrtIoBinding* binding = nullptr;
  check(api->CreateIoBinding(session, &binding));
  check(api->BindInput(binding, "x", input));
  check(api->BindOutput(binding, "y", value_of(result)));
  const char* input_name = "x";
  const char* output_name = "y";

  const std::int64_t runs = std::atoll(argv[3]);
  const bool bound = std::string_view(argv[4]) == "bound";
  const auto loop = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (bound) {
        check(api->RunWithBinding(session, nullptr, binding));
        continue;
      }
      OrtValue* output = nullptr;
      check(api->Run(session, nullptr, &input_name, &input, 1, &output_name, 1, &output));
      api->ReleaseValue(output);
    }
  };
  loop(1000);
  constexpr std::int64_t chunk =
      100;  // reading the clock for each run would take a large part of the time
  std::vector<double> times;
  for (std::int64_t i = 0; i < runs; i += chunk) {
    const auto begin = std::chrono::steady_clock::now();
    loop(chunk);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count() / chunk);
  }
  std::ranges::sort(times);
  std::printf("%.2f\n", times[times.size() / 2]);
  std::fflush(stdout);
  std::_Exit(0);  // the system frees everything
}
