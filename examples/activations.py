# %% [markdown]
# # Twelve activations of the literature
#
# Each is defined in a line or two. The kernels, the gradient and the ONNX operator follow from it.
# A command makes a library of this file, which is then checked in all hosts, and measured:
#
#     python -m cudarelu build examples/activations.py -o libactivations.so
#     python -m cudarelu check libactivations.so
#     python -m cudarelu bench --library libactivations.so

# %%
import math

import torch
from torch.nn import functional

import cudarelu
from cudarelu.elementwise import elu, hard_swish, mish, relu, sigmoid, sin, softplus, tanh, where

with cudarelu.Library("activations") as library:

    @cudarelu.define("swish(x: T[*], *, beta: float = 1.0) -> y: T[*]")
    def swish(x, beta):
        """x sigmoid(beta x) (Ramachandran et al., 2017)."""
        return x * sigmoid(beta * x)

    @cudarelu.define("mish(x: T[*]) -> y: T[*]")
    def mish_(x):
        """x tanh(softplus(x)) (Misra, 2019)."""
        return mish(x)

    @cudarelu.define("hard_swish(x: T[*]) -> y: T[*]")
    def hard_swish_(x):
        """x max(0, min(1, x / 6 + 1/2)) (Howard et al., 2019)."""
        return hard_swish(x)

    @cudarelu.define("quick_gelu(x: T[*]) -> y: T[*]")
    def quick_gelu(x):
        """x sigmoid(1.702 x) (Hendrycks and Gimpel, 2016)."""
        return x * sigmoid(1.702 * x)

    @cudarelu.define("softplus(x: T[*]) -> y: T[*]")
    def softplus_(x):
        """log(1 + exp(x))."""
        return softplus(x)

    @cudarelu.define("snake(x: T[*], *, a: float = 1.0) -> y: T[*]")
    def snake(x, a):
        """x + sin(a x)^2 / a (Ziyin et al., 2020)."""
        return x + sin(a * x) ** 2 / a

    @cudarelu.define("squared_relu(x: T[*]) -> y: T[*]")
    def squared_relu(x):
        """max(x, 0)^2 (So et al., 2021)."""
        return relu(x) ** 2

    @cudarelu.define("gelu_tanh(x: T[*]) -> y: T[*]")
    def gelu_tanh(x):
        """GELU with tanh (Hendrycks and Gimpel, 2016)."""
        return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    @cudarelu.define("log_cosh(x: T[*]) -> y: T[*]")
    def log_cosh(x):
        """log(cosh(x)), as |x| + log(1 + exp(-2 |x|)) - log(2), which does not overflow."""
        return abs(x) + softplus(-2 * abs(x)) - math.log(2)

    @cudarelu.define("celu(x: T[*], *, alpha: float = 1.0 in [0.125, inf]) -> y: T[*]")
    def celu(x, alpha):
        """x where x > 0, else alpha (exp(x / alpha) - 1) (Barron, 2017)."""
        return alpha * elu(x / alpha)

    @cudarelu.define("sinc(x: T[*]) -> y: T[*]")
    def sinc(x):
        """sin(x) / x, and 1 at 0."""
        return where(x == 0, 1, sin(x) / where(x == 0, 1, x))

    @cudarelu.define("polynomial(x: T[*]) -> y: T[*]")
    def polynomial(x):
        """tanh(x) for small x: its Taylor polynomial of degree 7, by Horner's rule."""
        square = x * x
        return x * (1 + square * (-1 / 3 + square * (2 / 15 - 17 / 315 * square)))


# %% [markdown]
# The first call compiles all of them, for a minute or two. They have gradients; some of them are in
# PyTorch, too.

# %%
if __name__ == "__main__":  # not where the command reads the file
    x = torch.linspace(-4, 4, 14, dtype=torch.float64, requires_grad=True)
    for ours, theirs in [
        (swish, functional.silu),
        (mish_, functional.mish),
        (hard_swish_, functional.hardswish),
        (softplus_, functional.softplus),
        (celu, functional.celu),
    ]:
        torch.testing.assert_close(ours(x), theirs(x))
        assert torch.autograd.gradcheck(ours, x)
        print(f"{ours.__name__} is {theirs.__name__}")
