"""Times of ONNX models in ONNX Runtime, one against another."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import torch

from ..ort.library import register

DEFAULT_SIZE = 4  # of a dimension that is not fixed, as ort_infer has it
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_SECONDS, _ROUND_SECONDS, _ROUNDS = 3.0, 0.004, (11, 51)
# How far outputs may be apart, relative to the largest: what follows a node enlarges its rounding.
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def random_inputs(
    model: onnx.ModelProto, dims: Mapping[str, int], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """An array for each input of a model, the same in every call.

    Floating-point numbers are normal ones, integers are 0 and 1, so that they are indices of
    whatever has two elements.

    Args:
        model: whose inputs are tensors of numbers, of a known rank where they are not given.
        dims: the sizes of named dimensions; those of others are `DEFAULT_SIZE`.
        given: inputs that are not to be random.

    Raises:
        ValueError: for another kind of input, a given one of another dtype, and for names that the
            model has not.
    """
    rng = np.random.default_rng(0)
    initializers = {each.name for each in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    names: set[str] = set()
    for each in model.graph.input:
        tensor = each.type.tensor_type
        names |= {dim.dim_param for dim in tensor.shape.dim if dim.dim_param}
        if each.name in initializers and each.name not in given:
            continue
        if not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
            raise ValueError(f"input {each.name} is no tensor of numbers")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if each.name in given:
            if given[each.name].dtype != dtype:
                raise ValueError(f"input {each.name} is {given[each.name].dtype}, not {dtype}")
            inputs[each.name] = given[each.name]
            continue
        if not tensor.HasField("shape"):
            raise ValueError(f"input {each.name} is of unknown rank: give it in inputs")
        shape = [
            dim.dim_value if dim.HasField("dim_value") else dims.get(dim.dim_param, DEFAULT_SIZE)
            for dim in tensor.shape.dim
        ]
        is_index = np.issubdtype(dtype, np.integer) or dtype == np.bool_
        array = rng.integers(0, 2, shape) if is_index else rng.normal(size=shape)
        inputs[each.name] = np.asarray(array).astype(dtype)
    if unknown := given.keys() - inputs.keys():
        raise ValueError(f"the model has no input {min(unknown)}")
    if unknown := set(dims) - names:
        found = ", ".join(sorted(names)) or "none"
        raise ValueError(f"no input has a dimension {min(unknown)}; there are: {found}")
    return inputs


@contextlib.contextmanager
def _in_a_line() -> Iterator[None]:
    """Turns what ONNX Runtime raises, which has no base of its own, into a ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"ONNX Runtime: {' '.join(str(error).split())}") from error


class Running:
    """A model in a session with our library, its inputs and outputs on the provider's device.

    Args:
        model: may have external data.
        folder: of that data.
        provider: "cpu" or "cuda".
        inputs: by name.

    Raises:
        ValueError: where ONNX Runtime has no such provider or does not take the model.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path | None,
        provider: str,
        inputs: Mapping[str, np.ndarray],
    ) -> None:
        self.provider = provider
        options = register(onnxruntime.SessionOptions())
        options.log_severity_level = 3
        if folder is not None:
            entry = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(entry, str(folder))
        name = PROVIDERS[provider]
        if name not in onnxruntime.get_available_providers():
            raise ValueError(f"this ONNX Runtime has no {name}")
        with _in_a_line():
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=[name]
            )
        if name not in self._session.get_providers():  # it goes on without, in silence
            raise ValueError(f"{name} does not load in this ONNX Runtime")
        self._binding = self._session.io_binding()
        self._held = []
        types = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
        with _in_a_line():
            for each, array in inputs.items():
                bytes_ = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                self._held.append(torch.from_numpy(bytes_).to(provider))
                pointer = self._held[-1].data_ptr()
                self._binding.bind_input(each, provider, 0, types[each], array.shape, pointer)
            for each in self._session.get_outputs():
                self._binding.bind_output(each.name, provider)
            self.run()

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> list[torch.Tensor]:
        self.run()
        found = self._binding.get_outputs()
        return [torch.from_dlpack(each._ortvalue.to_dlpack()).cpu().clone() for each in found]

    def seconds(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - start) / calls


def difference(before: Running, after: Running) -> str | None:
    """How the outputs of two models differ beyond rounding, or None."""
    for index, (a, b) in enumerate(zip(before.outputs(), after.outputs(), strict=True)):
        # Products of float32 are in TF32 on CUDA, unless the session says otherwise.
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
    """The time of a call of one model to that of another: the median over rounds, the quartiles.

    They take turns, each first in every other round.
    """
    once = max(each.seconds(2) for each in (before, after))
    calls = max(1, round(_ROUND_SECONDS / once))
    fewest, most = _ROUNDS
    rounds = int(min(max(_SECONDS / (2 * calls * once), fewest), most))
    ratios = []
    for index in range(rounds):
        order = (before, after) if index % 2 else (after, before)
        times = {each: each.seconds(calls) for each in order}
        ratios.append(times[after] / times[before])
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, (low, high)
