# %% [markdown]
# # Accelerate a model that exists
#
# Models from a hub are files of standard operators. `accelerate` finds the ops of this library in
# them, by their definitions, and replaces the nodes. The file stays valid for every runtime.

# %%
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import cudarelu.onnx
import cudarelu.ort

# %% [markdown]
# ## The model
#
# Put a file of your own here. Without one, PyTorch exports an encoder of two layers.

# %%
path = Path("encoder.onnx")
if not path.exists():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        128, 4, 512, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 32, 128)
    torch.onnx.export(encoder, (x,), path, dynamo=True, external_data=False, verbose=False)

# %% [markdown]
# ## Replace
#
# The report says what became an op, and why other nodes that match one did not.

# %%
accelerated = path.with_stem(path.stem + "-accelerated")
_, report = cudarelu.onnx.accelerate(path, accelerated)
print(report)

# %% [markdown]
# ## Compare
#
# Both files, in ONNX Runtime, on the same inputs.


# %%
def run(file: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = cudarelu.ort.register(onnxruntime.SessionOptions())
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


rng = np.random.default_rng(0)
inputs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
feeds = {
    each.name: rng.standard_normal([d if isinstance(d, int) else 4 for d in each.shape], np.float32)
    for each in inputs
}
for before, after in zip(run(path, feeds), run(accelerated, feeds), strict=True):
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)
    print(f"{after.shape}: largest difference {np.abs(after - before).max():.1e}")

# %% [markdown]
# ## Keep what pays
#
# Runtimes fuse standard operators with their neighbours, so that a replacement can lose. Measured,
# only the ops stay that make the whole model faster on this machine.

# %%
fastest = path.with_stem(path.stem + "-fastest")
_, report = cudarelu.onnx.accelerate(path, fastest, only_if_faster=True)
for each in report.measured:
    print(f"{each.op:12} {each.nodes} nodes: time x {each.ratio:.3f}", "kept" if each.kept else "")
print(f"the whole model: time x {report.ratio or 1:.3f}")
