"""A model of more than two gigabytes, which takes no disk space."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx import TensorProto, external_data_helper


def save_large(model: onnx.ModelProto, path: Path) -> None:
    """Saves the model with one more weight, which no node uses; its data is a sparse file."""
    size = 3 << 30
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4], raw_data=b"0")
    external_data_helper.set_external_data(weight, "weights.bin", length=size)
    weight.ClearField("raw_data")
    model.graph.initializer.append(weight)
    onnx.save(model, path)
    (path.parent / "weights.bin").touch()
    os.truncate(path.parent / "weights.bin", size)
