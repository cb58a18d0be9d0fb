// Runs a model with one input and one output of float32:
//
//   runner model.onnx libby_hand_ops.so x.npy cpu
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};

std::int64_t size_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Array read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, 10> start{};
  file.read(reinterpret_cast<char*>(start.data()), start.size());
  const std::string_view magic(reinterpret_cast<const char*>(start.data()), 7);
  if (!file || magic != "\x93NUMPY\x01") throw std::runtime_error(path + ": not a .npy file");
  std::string header(start[8] + 256 * start[9], ' ');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (header.find("'descr': '<f4', 'fortran_order': False") == std::string::npos) {
    throw std::runtime_error(path + ": not float32 in C order");
  }
  Array array;
  const std::string key = "'shape': (";
  std::istringstream sizes(header.substr(header.find(key) + key.size()));
  for (std::int64_t size; sizes >> size; sizes.ignore()) array.shape.push_back(size);
  array.data.resize(size_of(array.shape));
  file.read(reinterpret_cast<char*>(array.data.data()),
            static_cast<std::streamsize>(array.data.size() * sizeof(float)));
  if (!file) throw std::runtime_error(path + ": the file is too short");
  return array;
}

void print(const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    throw std::runtime_error("the output is not float32");
  }
  const auto* data = value.GetTensorData<float>();
  for (std::size_t i = 0; i < info.GetElementCount(); ++i) std::printf("%.9g\n", data[i]);
}

int main(int argc, char** argv) try {
  if (argc != 5) throw std::runtime_error("usage: runner MODEL LIBRARY INPUT.npy cpu|cuda");
  Ort::Env env;
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(argv[2]);
  if (std::string_view(argv[4]) == "cuda") {
    options.AppendExecutionProvider_CUDA(OrtCUDAProviderOptions{});
  }
  Ort::Session session(env, argv[1], options);
  if (session.GetInputCount() != 1 || session.GetOutputCount() != 1) {
    throw std::runtime_error("the model does not have one input and one output");
  }
  Array x = read_npy(argv[3]);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const Ort::Value input = Ort::Value::CreateTensor<float>(memory, x.data.data(), x.data.size(),
                                                           x.shape.data(), x.shape.size());
  Ort::AllocatorWithDefaultOptions allocator;
  const auto input_name = session.GetInputNameAllocated(0, allocator);
  const auto output_name = session.GetOutputNameAllocated(0, allocator);
  const char* const inputs[] = {input_name.get()};
  const char* const outputs[] = {output_name.get()};
  print(session.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 1)[0]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
