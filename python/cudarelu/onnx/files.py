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

from .._onnx.graphs import scopes, standard_opset

_SMALLEST = 1024  # bytes of a tensor in a file of its own, as in onnx


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


def check_external_data(model: onnx.ModelProto, *folders: Path) -> None:
    """Raises ValueError if a model names external data outside of its folders, also by a link.

    Args:
        model: any.
        folders: the folder of the model, which names are relative to, and the folder of the file
            if the model is a link to it.
    """
    for named in _locations(model):
        targets = [(folder / named).resolve() for folder in folders]
        inside = all(
            any(target.is_relative_to(folder.resolve()) for folder in folders) for target in targets
        )
        if not inside or Path(named).is_absolute():
            raise ValueError(
                f"the external data {named} is not in the folder of the model, where alone it is "
                "read: copy it there, also where it is a link"
            )


def data_folder(path: Path, model: onnx.ModelProto) -> Path:
    """The folder of a model's external data: the folder of its path, as in ONNX Runtime; or, if the
    data is not there and the path is a link, the folder of the file."""
    here, there = path.absolute().parent, path.resolve().parent
    return here if all((here / each).exists() for each in _locations(model)) else there


def without_links(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, Path]:
    """A model whose external data is not behind links out of the folder, and that folder: ONNX
    Runtime refuses such links of a model that is not a file."""
    files = {each: (folder / each).resolve() for each in _locations(model)}
    if all(each.is_relative_to(folder.resolve()) for each in files.values()):
        return model, folder
    common = Path(os.path.commonpath([each.parent for each in files.values()]))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in _external(result):
        for each in tensor.external_data:
            if each.key == "location":
                each.value = str(files[each.value].relative_to(common))
    return result, common


def _locations(model: onnx.ModelProto) -> set[str]:
    """The names of the files with external data."""
    infos = map(onnx.external_data_helper.ExternalDataInfo, _external(model))
    return {each.location for each in infos}


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
            external data that is not in the model's folder, or if the model is a link, in the
            folder of the file.
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
    check_external_data(model, path.absolute().parent, path.resolve().parent)
    for tensor in _external(model):
        tensor.ClearField("raw_data")  # which onnx.save would write to the file that it names
    return model


def save_beside(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Writes a model whose external data is in `folder`.

    If `path` is in another folder, the data is copied to `<path>.data`. Files that are there are
    replaced.

    Raises:
        ValueError: for external data that cannot be read.
        OSError: if the files cannot be written.
    """
    folders = {path.absolute().parent.resolve(), path.resolve().parent}
    with placed(path) as file:
        if folder.resolve() not in folders:
            for tensor in _external(model):
                _read(tensor, folder)
                if len(tensor.raw_data) >= _SMALLEST:
                    # Not onnx's function for all, which also looks for such a file in the working
                    # folder.
                    onnx.external_data_helper.set_external_data(tensor, f"{file.name}.data")
        onnx.save(model, file, format="protobuf")


def _read(tensor: onnx.TensorProto, folder: Path) -> None:
    """Reads the external data of a tensor, also by a link, which onnx refuses: its folder has been
    checked."""
    info = onnx.external_data_helper.ExternalDataInfo(tensor)
    title = f"the external data {info.location} of {tensor.name} cannot be read"
    try:
        with open(folder / info.location, "rb") as file:
            file.seek(info.offset or 0)
            data = file.read(-1 if info.length is None else info.length)
    except OSError as error:
        raise ValueError(f"{title}: {error.strerror}") from error
    if len(data) < (info.length or 0):
        raise ValueError(f"{title}: the file is truncated")
    tensor.raw_data = data
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
