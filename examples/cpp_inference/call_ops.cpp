// Trains a layer with cudarelu's ops on tensors of LibTorch, without Python:
//
//   call_ops libcudarelu_torch.so [cpu|cuda]
//
// The exit status is 1 if a gradient differs from that of LibTorch's own operators, and 2 after an
// error.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <iostream>
#include <optional>
#include <stdexcept>

namespace {

/// max(x weight^T + bias, 0), with a gradient. The types are those of the op's schema.
at::Tensor linear_relu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  using Schema = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("cudarelu::linear_relu", "").typed<Schema>();
  return op.call(x, weight, bias);
}

int train(const char* library, const at::Device& device) {
  // Loading the library registers the ops. It stays loaded until the process ends.
  if (dlopen(library, RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());
  const at::Tensor x = at::randn({64, 8}, device);
  const at::Tensor target = at::relu(at::linear(x, at::randn({4, 8}, device)));
  const at::Tensor weight = at::randn({4, 8}, device).requires_grad_();
  const at::Tensor bias = at::zeros(4, device).requires_grad_();

  bool all_equal = true;
  for (int step = 0; step <= 200; ++step) {
    const at::Tensor loss = (linear_relu(x, weight, bias) - target).square().mean();
    loss.backward();
    const at::Tensor gradient = weight.grad().clone();
    weight.mutable_grad().reset();
    (at::relu(at::linear(x, weight, bias)) - target).square().mean().backward();
    all_equal = all_equal && at::allclose(gradient, weight.grad(), 1e-4, 1e-6);
    if (step % 100 == 0) std::cout << "step " << step << ": loss " << loss.item<float>() << '\n';

    const at::NoGradGuard no_gradients;
    weight.sub_(gradient, 0.2);
    weight.mutable_grad().reset();
  }
  std::cout << "the gradients on " << device << (all_equal ? " equal" : " DIFFER from")
            << " those of LibTorch\n";
  return all_equal ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    if (count < 2) throw std::runtime_error("usage: call_ops libcudarelu_torch.so [cpu|cuda]");
    return train(values[1], at::Device(count > 2 ? values[2] : "cpu"));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
