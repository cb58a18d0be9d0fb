# %% [markdown]
# # Train an MLP, and serve it
#
# A small network learns to tell three spirals apart. Its layers are those of `cudarelu.nn`, which
# take the place of `torch.nn`'s. The exported file runs in ONNX Runtime, here and in any program.

# %%
import numpy as np
import torch

import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

# %% [markdown]
# ## The data


# %%
def spirals(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on three spirals, and the number of the spiral of each."""
    labels = torch.arange(points) % 3
    radius = 0.1 + 0.9 * torch.rand(points)
    angle = 2 * torch.pi * (labels / 3 + radius) + 0.1 * torch.randn(points)
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], -1), labels


x, labels = (each.to(device) for each in spirals(600))

# %% [markdown]
# ## Training
#
# `LinearGELU` is a linear layer and its GELU in one kernel, forward and backward.

# %%
network = torch.nn.Sequential(
    cudarelu.nn.LinearGELU(2, 64),
    cudarelu.nn.LayerNorm(64),
    cudarelu.nn.LinearGELU(64, 64),
    cudarelu.nn.LayerNorm(64),
    cudarelu.nn.Linear(64, 3),
).to(device)
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
for step in range(1, 301):
    loss = torch.nn.functional.cross_entropy(network(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# ## Export
#
# The batch is free. The definitions of the ops are in the file, so that it also runs where this
# library is absent.

# %%
served = torch.nn.Sequential(network, cudarelu.nn.Softmax(dim=-1)).eval()
shapes = ({0: "batch"},)
names = {"input_names": ["x"], "output_names": ["probabilities"]}
cudarelu.onnx.export(served, (x,), "mlp.onnx", dynamic_shapes=shapes, verbose=False, **names)

# %% [markdown]
# ## Serving

# %%
session = cudarelu.ort.Session("mlp.onnx", provider=device)
fresh, fresh_labels = (each.to(device) for each in spirals(150))
probabilities = session(fresh)
torch.testing.assert_close(probabilities, served(fresh).detach(), rtol=1e-4, atol=1e-5)
print(f"accuracy {(probabilities.argmax(-1) == fresh_labels).float().mean().item():.3f}")

# %% [markdown]
# The same without Python:
#
#     ort_infer mlp.onnx --input x=x.npy --compare probabilities=probabilities.npy

# %%
np.save("x.npy", fresh.cpu().numpy())
np.save("probabilities.npy", probabilities.cpu().numpy())
