"""A model with an op of this module: trained in PyTorch, exported, served by ONNX Runtime."""

import numpy as np
import onnxruntime
import torch

import cudarelu.nn
import cudarelu.onnx
import my_ops

swish = cudarelu.nn.Op(my_ops.swish, beta=2.0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), swish, torch.nn.Linear(16, 1))
x = torch.randn(256, 4)
target = x.sum(1, keepdim=True).sin()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")

model.eval()
cudarelu.onnx.export(model, (x,), "model.onnx", input_names=["x"], dynamic_shapes=({0: "batch"},))
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(my_ops.LIBRARY)
session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
(served,) = session.run(None, {"x": x.numpy()})
np.testing.assert_allclose(served, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
np.save("x.npy", x.numpy())
print("the same outputs in ONNX Runtime; without Python:")
print(f"  ort_infer model.onnx --library {my_ops.LIBRARY} --input x=x.npy")
