"""Compares two ONNX models in ONNX Runtime: their times and their outputs."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import torch

from ..ort.library import PROVIDERS, register
from .files import without_links

DEFAULT_SIZE = 4  # of a free dimension, as in ort_infer

_SECONDS, _ROUND_SECONDS, _ROUNDS = 3.0, 0.004, (11, 51)
# The tolerances of outputs, relative to the largest element. They are larger than the rounding
# errors of one node, since later nodes amplify those.
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def random_inputs(
    model: onnx.ModelProto,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    size: int = DEFAULT_SIZE,
) -> dict[str, np.ndarray]:
    """An array for each input of a model, the same in every call.

    Floating-point numbers are normally distributed. Integers are 0 or 1, so that they are valid
    indices into any dimension of at least two elements.

    Args:
        model: its inputs must be tensors of numbers, and those that are not given of known rank.
        dims: the sizes of named dimensions; others have the size in the first given array with the
            name, else `size`. Given arrays may have any sizes: names are hints.
        given: arrays for inputs, instead of random ones.
        size: of other free dimensions.

    Raises:
        ValueError: for an input that is not such a tensor, a given array of another dtype, and
            names that the model does not have.
    """
    rng = np.random.default_rng(0)
    initializers = {each.name for each in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    names: set[str] = set()
    sizes = dict(dims)
    for each in model.graph.input:
        known = given[each.name].shape if each.name in given else ()
        for dim, given_size in zip(each.type.tensor_type.shape.dim, known, strict=False):
            if dim.dim_param:
                sizes.setdefault(dim.dim_param, given_size)
    for each in model.graph.input:
        tensor = each.type.tensor_type
        names |= {dim.dim_param for dim in tensor.shape.dim if dim.dim_param}
        if each.name in initializers and each.name not in given:
            continue
        if not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
            raise ValueError(f"input {each.name} is not a tensor of numbers")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if each.name in given:
            if given[each.name].dtype != dtype:
                raise ValueError(f"input {each.name} is {given[each.name].dtype}, not {dtype}")
            inputs[each.name] = given[each.name]
            continue
        if not tensor.HasField("shape"):
            raise ValueError(f"input {each.name} has an unknown rank: pass an array in inputs")
        shape = [
            dim.dim_value if dim.HasField("dim_value") else sizes.get(dim.dim_param, size)
            for dim in tensor.shape.dim
        ]
        is_index = np.issubdtype(dtype, np.integer) or dtype == np.bool_
        array = rng.integers(0, 2, shape) if is_index else rng.normal(size=shape)
        inputs[each.name] = np.asarray(array).astype(dtype)
    if unknown := given.keys() - inputs.keys():
        raise ValueError(f"the model has no input {min(unknown)}")
    if unknown := set(dims) - names:
        found = ", ".join(sorted(names)) or "none"
        raise ValueError(f"no input has a dimension {min(unknown)}; named dimensions: {found}")
    return inputs


@contextlib.contextmanager
def _in_a_line() -> Iterator[None]:
    """Turns an error of ONNX Runtime, whose errors have no base class, into a ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"ONNX Runtime: {' '.join(str(error).split())}") from error


class Running:
    """A model in a session with our library, its inputs and outputs on the provider's device.

    Args:
        model: may have external data.
        folder: the folder of that data.
        provider: "cpu" or "cuda".
        inputs: arrays by name; None only loads the model.
        library: of ops that the model needs beside the loaded ones.

    Raises:
        ValueError: if ONNX Runtime does not have this provider or rejects the model.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path | None,
        provider: str,
        inputs: Mapping[str, np.ndarray] | None,
        library: Path | None = None,
    ) -> None:
        self.provider = provider
        options = register(onnxruntime.SessionOptions())
        if library is not None:
            options.register_custom_ops_library(str(library))
        options.log_severity_level = 4  # errors are raised
        if folder is not None:
            model, folder = without_links(model, folder)
            entry = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(entry, str(folder))
        name = PROVIDERS[provider]
        if name not in onnxruntime.get_available_providers():
            raise ValueError(f"this ONNX Runtime has no {name}")
        with _in_a_line():
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=[name]
            )
        if name not in self._session.get_providers():  # ONNX Runtime does not report this
            raise ValueError(f"{name} does not load in this ONNX Runtime")
        if inputs is None:
            return
        found = [each.type for each in self._session.get_outputs()]
        self._only_tensors = all(re.fullmatch(r"tensor\((?!string).*\)", each) for each in found)
        self._binding = self._session.io_binding()
        self._held = []
        types = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
        with _in_a_line():
            for each, array in inputs.items():
                bytes_ = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                self._held.append(torch.from_numpy(bytes_).to(provider))
                pointer = self._held[-1].data_ptr()
                self._binding.bind_input(each, provider, 0, types[each], array.shape, pointer)
            self._bind_outputs()
            self.run()

    def _bind_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        for each in self._session.get_outputs():
            self._binding.bind_output(each.name, self.provider)

    def run(self) -> None:
        if not self._only_tensors:  # ONNX Runtime appends to a sequence of the run before
            self._bind_outputs()
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> list[torch.Tensor]:
        """The outputs, each sequence as its elements and each map as its keys and values."""
        self.run()
        if not self._only_tensors:
            return list(_tensors(self._binding.copy_outputs_to_cpu()))
        found = self._binding.get_outputs()
        return [torch.from_dlpack(each._ortvalue.to_dlpack()).cpu().clone() for each in found]

    def seconds(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - start) / calls


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists and maps. A string gives its bytes, an absent value nothing."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == object):
        for each in value:
            yield from _tensors(each)
    elif value is not None:
        value = list(value.encode()) if isinstance(value, str) else value
        yield torch.as_tensor(value)


def refusal(before: onnx.ModelProto, after: onnx.ModelProto, folder: Path | None) -> str | None:
    """Why ONNX Runtime refuses a changed model, or how its outputs differ.

    None if they do not differ, and if the original is refused too.
    """

    def error_of(model: onnx.ModelProto) -> str | None:
        try:
            Running(model, folder, "cpu", None)
        except ValueError as error:
            return str(error)
        return None

    for size in DEFAULT_SIZE, 32:  # images of networks that halve their sizes are larger
        try:
            feeds = random_inputs(before, {}, {}, size)
            original = Running(before, folder, "cpu", feeds)
        except ValueError:
            continue
        try:
            return difference(original, Running(after, folder, "cpu", feeds))
        except ValueError as error:
            return str(error)
    refused = error_of(after)
    return refused if refused and error_of(before) is None else None


def difference(before: Running, after: Running) -> str | None:
    """How the outputs of two models differ by more than rounding; None if they do not."""
    pairs = list(itertools.zip_longest(before.outputs(), after.outputs()))
    for index, (a, b) in enumerate(pairs):
        if a is None or b is None or a.shape != b.shape:
            return f"output {index} has another shape"
        # On CUDA, ONNX Runtime computes float32 products in TF32 by default.
        in_tf32 = before.provider == "cuda" and a.dtype == torch.float32
        relative = _TOLERANCES.get(torch.float16 if in_tf32 else a.dtype, 0.0)
        a, b = a.double(), b.double()
        finite = a[a.isfinite()].abs()
        largest = finite.max().item() if finite.numel() else 0.0
        tolerance = relative * max(1.0, largest)
        close = torch.isclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
        if not close.all():
            return f"output {index} differs in {(~close).sum()} of {close.numel()} elements"
    return None


def compare(before: Running, after: Running) -> tuple[float, tuple[float, float]]:
    """The ratio of the call times of two models, `after` to `before`: its median and quartiles.

    Each round measures both models; they alternate in which is first.
    """
    once = max(each.seconds(2) for each in (before, after))
    calls = max(1, round(_ROUND_SECONDS / once))
    min_rounds, max_rounds = _ROUNDS
    rounds = int(min(max(_SECONDS / (2 * calls * once), min_rounds), max_rounds))
    ratios = []
    for index in range(rounds):
        order = (before, after) if index % 2 else (after, before)
        times = {each: each.seconds(calls) for each in order}
        ratios.append(times[after] / times[before])
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, (low, high)
