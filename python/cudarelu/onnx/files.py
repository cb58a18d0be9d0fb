"""ONNX models as files."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.checker
import onnx.defs
import onnx.external_data_helper
import onnx.shape_inference
from google.protobuf.message import DecodeError

from .graphs import scopes, standard_opset


@contextlib.contextmanager
def placed(path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yields a temporary path for a model; the files of its external data go to the same folder.

    When the block ends, the files are moved to the folder of `path`, the model last; a link is
    followed. If the block raises or `path` is None, nothing is moved.

    Raises:
        ValueError: if `path` exists and is not a file.
        OSError: if the files cannot be written.
    """
    target = None if path is None else Path(path).resolve()
    if target is not None and target.exists() and not target.is_file():
        raise ValueError(f"{path} exists and is not a file")
    if target is not None:
        os.scandir(target.parent).close()  # else the error would name the temporary folder
    # Beside the target, so that finished files are only renamed.
    with tempfile.TemporaryDirectory(dir=target and target.parent) as folder:
        yield Path(folder) / (target.name if target else "model.onnx")
        if target is not None:
            names = sorted(os.listdir(folder), key=lambda name: name == target.name)
            if len(names) > 1:  # a process that is killed leaves no old model with new data
                target.unlink(missing_ok=True)
            for name in names:
                os.replace(Path(folder) / name, target.parent / name)


@contextlib.contextmanager
def in_a_line(title: str) -> Iterator[None]:
    """Turns an error of onnx about a model into a ValueError with a message of one line."""
    try:
        yield
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{title}: {message}{_opset_of_type(message)}") from error


def _opset_of_type(message: str) -> str:
    """If an operator does not support a type in this opset: the opset that does, as text."""
    pattern = r"\(op_type:(\w+)\): .* unsupported type: (tensor\(\w+\))"
    if not (found := re.search(pattern, message)):
        return ""
    operator, dtype = found.groups()
    for opset in range(1, onnx.defs.onnx_opset_version() + 1):
        if onnx.defs.has(operator, opset, ""):
            constraints = onnx.defs.get_schema(operator, opset, "").type_constraints
            if any(dtype in each.allowed_type_strs for each in constraints):
                return f"; {operator} has it from opset {opset} on"
    return ""


def check_external_data(model: onnx.ModelProto, folder: Path) -> None:
    """Raises ValueError if a model names external data outside of its folder, also by a link."""
    for tensor in _external(model):
        named = {each.key: each.value for each in tensor.external_data}.get("location", "")
        inside = (folder / named).resolve().is_relative_to(folder.resolve())
        if not inside or Path(named).is_absolute():
            raise ValueError(f"the external data {named} is not in the folder of the model")


def _external(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data is in other files."""
    for scope in scopes(model):
        attributes = [each for node in scope.node for each in node.attribute]
        if isinstance(scope, onnx.FunctionProto):
            attributes += scope.attribute_proto
        tensors = [tensor for each in attributes for tensor in (each.t, *each.tensors)]
        sparse = [
            tensor for each in attributes for tensor in (each.sparse_tensor, *each.sparse_tensors)
        ]
        if isinstance(scope, onnx.GraphProto):
            tensors += scope.initializer
            sparse += scope.sparse_initializer
        tensors += [part for each in sparse for part in (each.values, each.indices)]
        yield from filter(onnx.external_data_helper.uses_external_data, tensors)


def load(path: Path) -> onnx.ModelProto:
    """Loads a model without its external data.

    `onnx.checker` does not check it, since it rejects models that runtimes accept, such as models
    with inputs without a shape.

    Raises:
        ValueError: for a file that is not a complete model, an opset that onnx does not know, and
            external data that is not in the model's folder.
        OSError: if the file cannot be read.
    """
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise ValueError(f"{path} is not an ONNX model, or a truncated one") from error
    if not (model.ir_version and model.HasField("graph") and model.opset_import):
        raise ValueError(f"{path} is not an ONNX model, or a truncated one")
    opset, latest = standard_opset(model), onnx.defs.onnx_opset_version()
    if opset is not None and opset > latest:
        raise ValueError(f"{path} has opset {opset}, but the installed onnx knows up to {latest}")
    check_external_data(model, path.parent)
    for tensor in _external(model):
        tensor.ClearField("raw_data")  # which onnx.save would write to the file that it names
    return model


def save_beside(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Writes a model whose external data is in `folder`.

    If `path` is in another folder, the data is copied to `<path>.data`.
    """
    with placed(path) as file:
        is_elsewhere = path.resolve().parent != folder.resolve() and any(_external(model))
        if is_elsewhere:
            with in_a_line("the external data cannot be read"):
                onnx.external_data_helper.load_external_data_for_model(model, str(folder))
        onnx.save(
            model,
            file,
            format="protobuf",
            save_as_external_data=is_elsewhere,
            location=f"{file.name}.data",
        )
