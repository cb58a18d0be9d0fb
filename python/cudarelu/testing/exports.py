"""PyTorch models that call an op, exported to ONNX and run in ONNX Runtime."""

from __future__ import annotations

import functools
import re
import unittest.mock
import warnings
from typing import Any

import numpy as np
import onnx
import torch

from .._pytorch.functions import FUNCTIONS
from .._table import OpInfo, SizeExpression
from .cases import DTYPES, Case, Plan, make_case, output_dtypes
from .hosts import Torch, from_ort, full_precision, onnx_type
from .reference import assert_close, reference
from .torch_calls import as_tuple


class Calls(torch.nn.Module):
    """Calls an op once for each case; the inputs and outputs of all calls are concatenated."""

    def __init__(self, op: OpInfo, cases: list[Case]) -> None:
        super().__init__()
        self.op, self.cases = op, cases

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        left = list(inputs)
        outputs: list[torch.Tensor] = []
        for case in self.cases:
            values = [None if a is None else left.pop(0) for a in case.inputs.values()]
            y = FUNCTIONS[self.op.qualified_name](*values, **case.attributes)
            outputs += as_tuple(y)
        return outputs


def arrays(cases: list[Case]) -> list[np.ndarray]:
    """The inputs of all cases, without absent ones."""
    return [a for case in cases for a in case.inputs.values() if a is not None]


def symbols(op: OpInfo, cases: list[Case], of: str = "inputs") -> list[list[str | int]]:
    """The sizes of all inputs or outputs: names of the signature with the number of the call."""
    result = []
    for number, case in enumerate(cases):
        known = {a.name: a.default for a in op.attributes} | case.attributes
        rows = op.leading_of([None if a is None else a.ndim for a in case.inputs.values()])
        for parameter in getattr(op, of):
            if of == "inputs" and case.inputs[parameter.name] is None:
                continue
            leading = [f"row{axis}_{number}" for axis in range(rows)]
            sizes: list[Any] = [
                dim if isinstance(dim, int) else known.get(str(dim), _symbol(dim, number))
                for dim in parameter.own_dims
            ]
            result.append(parameter.with_star(sizes, leading, known))
    return result


def _symbol(dim: str | SizeExpression, number: int) -> str:
    """A name for a size in a call: letters, digits and underscores."""
    return re.sub(r"\W+", "_", f"{dim}_{number}")


@functools.cache
def _torchlib_ops() -> Any:
    from torch.onnx._internal.exporter import _registration

    return _registration.onnxscript_apis.get_torchlib_ops()


def export_calls(op: OpInfo, cases: list[Case], exporter: str, **options: Any) -> onnx.ModelProto:
    """Exports `Calls` with free sizes by the exporter "dynamo" or "torchscript". The inputs of the
    model are in0, in1, ..."""
    from torch.onnx._internal.exporter import _registration

    from ..onnx import export

    tensors = tuple(Torch("cpu").tensor(a) for a in arrays(cases))
    names = [f"in{i}" for i in range(len(tensors))]
    named = [
        {axis: name for axis, name in enumerate(each) if isinstance(name, str)}
        for each in symbols(op, cases)
    ]
    if exporter == "dynamo":
        options["dynamic_shapes"] = (tuple(named),)
    else:
        options |= {"dynamo": False, "dynamic_axes": dict(zip(names, named, strict=True))}
    # PyTorch parses its 500 translations for each export, which takes half of the time.
    _torchlib_ops()
    with (
        unittest.mock.patch.object(
            _registration.onnxscript_apis, "get_torchlib_ops", _torchlib_ops
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        module = Calls(op, cases).eval()
        return export(module, tensors, input_names=names, verbose=False, **options)


def feeds(model: onnx.ModelProto, cases: list[Case]) -> dict[str, np.ndarray]:
    """The arrays of the cases by the names of the model's inputs."""
    names = [each.name for each in model.graph.input]
    return dict(zip(names, map(np.ascontiguousarray, arrays(cases)), strict=True))


def check_results(op: OpInfo, cases: list[Case], outputs: list[np.ndarray]) -> None:
    """Raises AssertionError if the outputs of `Calls` differ from the references."""
    left = list(outputs)
    for case in cases:
        dtypes = output_dtypes(op, case)
        for wanted, dtype in zip(reference(op, case), dtypes, strict=True):
            assert_close(op, case, left.pop(0), wanted, dtype)
    assert not left


def check_export(op: OpInfo, device: str) -> None:
    """Exports a model that calls the op with every dtype, and runs it in ONNX Runtime.

    The sizes of the run differ from the sizes of the export.

    Raises AssertionError if a result differs from the op's definition.
    """
    import onnxruntime as ort

    from ..ort import register

    # ONNX's Relu and others do not support uint8.
    dtypes = [DTYPES[dtype] for dtype in op.dtypes if dtype != "uint8"]
    seen, run = (
        [make_case(op, dtype, Plan("exported", *sizes)) for dtype in dtypes]
        for sizes in (((3, 5), 13), ((2, 6), 9))
    )
    # Asinh supports bfloat16 from opset 22 on.
    model = export_calls(op, seen, "dynamo", opset_version=22)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    register(options)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=[full_precision(device)]
    )
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(a, onnx_type(a.dtype))
        for name, a in feeds(model, run).items()
    }
    check_results(op, run, [from_ort(y) for y in session.run_with_ort_values(None, values)])
