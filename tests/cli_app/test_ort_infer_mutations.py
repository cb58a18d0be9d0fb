"""Damaged models and inputs: ort_infer rejects or runs them, and never crashes or hangs."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.cases import slow_after
from support.ort_infer import BUILT, ORT_INFER, X, make_model, relu, tensor

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
COUNT = 2000 if os.environ.get("CUDARELU_SLOW_TESTS") == "1" else 60


def mutated(whole: bytes, generator: np.random.Generator) -> bytes:
    """The bytes, with some of them replaced, truncated, removed or duplicated."""
    bytes_ = bytearray(whole)
    for _ in range(generator.integers(1, 5)):
        at = int(generator.integers(len(bytes_) + 1))
        length = int(generator.integers(1, 9))
        match generator.integers(6):
            case 0:
                del bytes_[at:]
            case 1:
                del bytes_[at : at + length]
            case 2:
                bytes_[at:at] = bytes_[at : at + length]
            case 3:
                bytes_[at : at + length] = b"\xff" * length
            case _:
                bytes_[at : at + 1] = generator.bytes(1)
    return bytes(bytes_)


def with_subgraph() -> onnx.ModelProto:
    def branch(op_type):
        node = helper.make_node(op_type, ["x"], [op_type], domain="cudarelu")
        return helper.make_graph([node], op_type, [], [tensor(op_type, ["N", 4])])

    branches = {"then_branch": branch("Relu"), "else_branch": branch("Tanh")}
    node = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = [tensor("x", ["N", 4]), tensor("c", [], TensorProto.BOOL)]
    return make_model([node], inputs, [tensor("y", ["N", 4])])


def with_weights() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("LeakyRelu", ["z"], ["y"], domain="cudarelu", negative_slope=0.5),
    ]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 3])])
    model.graph.initializer.append(weights)
    return model


def with_function() -> onnx.ModelProto:
    body = onnx.parser.parse_function(
        '<domain: "elsewhere", opset_import: ["" : 18]> Other (x) => (y) { y = Neg(x) }'
    )
    node = helper.make_node("Other", ["x"], ["y"], domain="elsewhere")
    return make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], [body])


MODELS = {
    "relu": relu,
    "subgraph": with_subgraph,
    "weights": with_weights,
    "function": with_function,
}


def check(whole: bytes, path: Path, arguments: list[str], seed: str) -> None:
    generator = np.random.default_rng(list(seed.encode()))
    for number in range(COUNT // 4 + 1):
        bytes_ = mutated(whole, generator)
        path.write_bytes(bytes_)
        done = subprocess.run([ORT_INFER, *arguments], capture_output=True, timeout=60)
        errors = done.stderr.decode(errors="replace")
        sanitized = "Sanitizer" in errors or "runtime error: " in errors  # with sanitizers only
        if done.returncode not in (0, 2) or sanitized:
            path.with_name("kept").write_bytes(bytes_)
            pytest.fail(f"{seed} {number}, {path.with_name('kept')}: {done.returncode} {errors}")


@pytest.mark.parametrize("name", slow_after(1, MODELS))
def test_models(name):
    arguments = ["model.onnx", "--provider", "cpu"]
    check(MODELS[name]().SerializeToString(), Path("model.onnx"), arguments, name)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


def npz(save) -> bytes:
    file = io.BytesIO()
    save(file, x=X, other=np.arange(3))
    return file.getvalue()


FILES = {
    "x.npy": npy,
    "stored.npz": lambda: npz(np.savez),
    "deflated.npz": lambda: npz(np.savez_compressed),
    "x.pb": lambda: numpy_helper.from_array(X, "x").SerializeToString(),
}


@pytest.mark.parametrize("name", slow_after(1, FILES))
def test_input_files(name):
    arguments = ["model.onnx", "--provider", "cpu", "--input", f"x={name}"]
    check(FILES[name](), Path(name), arguments, name)
