# %% [markdown]
# # An op of your own in Python
#
# The function says what the op computes. The kernels for the CPU and CUDA, the gradient and the
# ONNX operator follow from it. docs/define.md goes on from here.

# %%
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu.elementwise import relu


@cudarelu.define("star_relu(x: T[*], *, scale: float = 0.8944, bias: float = -0.4472) -> y: T[*]")
def star_relu(x, scale, bias):
    """scale max(x, 0)^2 + bias (Yu et al., 2022)."""
    return scale * relu(x) ** 2 + bias


# %% [markdown]
# ## In PyTorch
#
# The first call compiles for some seconds; the next process finds the library in a cache.

# %%
x = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
torch.testing.assert_close(star_relu(x), 0.8944 * x.relu() ** 2 - 0.4472)
assert torch.autograd.gradcheck(star_relu, x)

# %% [markdown]
# ## Training with it

# %%
torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Linear(1, 32), cudarelu.nn.Op(star_relu), torch.nn.Linear(32, 1)
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
points = torch.linspace(-3, 3, 128)[:, None]
for _ in range(200):
    loss = torch.nn.functional.mse_loss(network(points), points.sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")

# %% [markdown]
# ## In ONNX Runtime
#
# The session registers the library of every op that this process has loaded.

# %%
cudarelu.onnx.export(network.eval(), (points,), "star_relu.onnx", input_names=["x"], verbose=False)
session = cudarelu.ort.Session("star_relu.onnx", provider="cpu")
torch.testing.assert_close(session(points), network(points).detach(), rtol=1e-4, atol=1e-5)
