// Runs the models of export_models.py, which use cudarelu's ops, without Python:
//
//   cpp_inference libcudarelu_torch.so EXAMPLE.pt MODEL...
//
// A MODEL is TorchScript (.pt) or a package of AOTInductor (.pt2). Each runs on the example's
// input, on the device where that was saved, and must return the example's output. The exit status
// is 1 if an output differs and 2 after an error.

#include <dlfcn.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// Reads a file of torch.save.
c10::IValue read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return torch::pickle_load(std::vector<char>(std::istreambuf_iterator<char>(file), {}));
}

at::Tensor run(const std::filesystem::path& model, const at::Tensor& input) {
  c10::InferenceMode no_gradients;
  if (model.extension() == ".pt2") {
    torch::inductor::AOTIModelPackageLoader loader(model.string());
    return loader.run({input}).at(0);
  }
  torch::jit::Module module = torch::jit::load(model.string(), input.device());
  return module.forward({input}).toTensor();
}

int compare(const std::vector<std::string>& arguments) {
  // Loading the library registers the ops. It stays loaded until the process ends.
  if (dlopen(arguments.at(0).c_str(), RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());
  const auto example = read(arguments.at(1)).toGenericDict();
  const at::Tensor input = example.at("input").toTensor();
  const at::Tensor expected = example.at("output").toTensor();

  bool all_equal = true;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const std::filesystem::path model = arguments[i];
    const at::Tensor output = run(model, input);
    // A compiler may change the order of the sums in a matrix product.
    const bool equal = output.sizes() == expected.sizes() && at::allclose(output, expected);
    all_equal = all_equal && equal;
    std::cout << model.filename().string() << " on " << output.device() << ": "
              << (equal ? "equals the expected output" : "DIFFERS from the expected output")
              << ", sum " << output.sum().item<double>() << '\n';
  }
  return all_equal ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  if (count < 4) {
    std::cerr << "usage: cpp_inference libcudarelu_torch.so EXAMPLE.pt MODEL...\n";
    return 2;
  }
  try {
    return compare({values + 1, values + count});
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
