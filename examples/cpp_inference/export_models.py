"""Write one module in each form that a C++ program can load, and an example to check the results.

usage: python examples/cpp_inference/export_models.py FOLDER [--device cuda]

    scripted.pt, traced.pt   TorchScript, for torch::jit::load
    aoti.pt2                 compiled by AOTInductor, for AOTIModelPackageLoader; any batch size
    example.pt               {"input": tensor, "output": tensor}
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import cudarelu  # noqa: F401  (registers torch.ops.cudarelu)


class Net(nn.Module):
    """Two linear layers; bias_relu, leaky_relu and softmax follow them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 16))
        self.second = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ops.cudarelu.bias_relu(self.first(x), self.bias, scale=0.5)
        hidden = torch.ops.cudarelu.leaky_relu(self.second(hidden), negative_slope=0.1)
        return torch.ops.cudarelu.softmax(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False).to(arguments.device)
    x = torch.randn(6, 8, device=arguments.device)
    torch.save({"input": x, "output": net(x)}, folder / "example.pt")

    smaller = x[:3]  # the models must work for other batch sizes than the example's
    with warnings.catch_warnings():
        # PyTorch recommends torch.export, used below, but some programs load TorchScript.
        warnings.filterwarnings("ignore", message=".*torch.jit")
        torch.jit.script(net).save(folder / "scripted.pt")
        torch.jit.trace(net, (smaller,)).save(folder / "traced.pt")

    batch = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(net, (smaller,), dynamic_shapes=batch)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "aoti.pt2"))
    print(f"wrote {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")


if __name__ == "__main__":
    main()
