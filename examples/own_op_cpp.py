# %% [markdown]
# # An op of your own in C++
#
# The declaration has the signature, the gradient and the meaning of the op; the functor is its
# kernel on the CPU and on CUDA. `cudarelu.load_inline` compiles it, for some seconds the first
# time. docs/your-op.md goes on from here: files, rows, products, kernels that you write yourself.

# %%
import numpy as np
import onnxruntime
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx
from cudarelu.testing import DTYPES, assert_close, cases, reference

my = cudarelu.load_inline(
    "my",
    r"""
#include <cmath>
#include "cudarelu/elementwise.h"

namespace my {

struct Softsign {
  static constexpr cudarelu::OpSpec spec{
      .signature = "softsign(x: T[*]) -> y: T[*]",
      .summary = "x / (1 + |x|), elementwise.",
      .dtypes = cudarelu::floating_types,
      .gradient = "x = softsign_backward(grad_y, y)",
      .definition = "y = Softsign(x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return x / (T(1) + std::abs(x));
  }
};

struct SoftsignBackward {
  static constexpr cudarelu::OpSpec spec{
      .signature = "softsign_backward(grad_y: T[*], y: T[*]) -> grad_x: T[*]",
      .summary = "The gradient of softsign, from its output.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, y)
                       a = Abs(y)
                       r = Sub(one, a)
                       slope = Mul(r, r)
                       grad_x = Mul(grad_y, slope))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T y) const {
    const T r = T(1) - std::abs(y);
    return grad_y * r * r;
  }
};

}  // namespace my
""",
)

# %% [markdown]
# ## In PyTorch

# %%
x = torch.randn(3, 4, requires_grad=True)
y = my.softsign(x)
torch.testing.assert_close(y, torch.nn.functional.softsign(x))
assert torch.autograd.gradcheck(my.softsign, x.double())

# %% [markdown]
# ## Tested
#
# Cases at the edges follow from the signature, the expected results from the definition.

# %%
tried = 0
for op in my.ops():
    for dtype in (DTYPES[name] for name in op.dtypes):
        for case in cases(op, dtype):
            got = getattr(my, op.name)(*case.inputs.values(), **case.attributes)
            assert_close(op, case, got, reference(op, case)[0], dtype)
            tried += 1
print(f"{tried} cases")

# %% [markdown]
# ## In ONNX Runtime

# %%
model = torch.nn.Sequential(torch.nn.Linear(4, 4), cudarelu.nn.Op(my.softsign)).eval()
cudarelu.onnx.export(model, (x.detach(),), "own_op.onnx", input_names=["x"], verbose=False)
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(str(my.path))  # one file, without Python and PyTorch
session = onnxruntime.InferenceSession("own_op.onnx", options, providers=["CPUExecutionProvider"])
(served,) = session.run(None, {"x": x.detach().numpy()})
np.testing.assert_allclose(served, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
