"""The ops in ONNX models.

`export` writes a PyTorch model as a file that every ONNX runtime reads: our ops are nodes of the
domain "cudarelu", which ONNX Runtime runs by our kernels where the library is registered
(`cudarelu.ort`), and anything else by the definitions attached as model-local functions. For
readers without model-local functions, `lower` turns the nodes into standard operators::

    import cudarelu.onnx

    cudarelu.onnx.export(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},))
    onnx.save(cudarelu.onnx.lower(onnx.load("model.onnx")), "lowered.onnx")

`accelerate` goes the other way: it finds definitions in a model and puts our ops in their place.

`export` and `accelerate` need onnxscript, as torch.onnx.export does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.helper
import onnx.inliner

from . import _C, ops
from ._onnx_accelerate import Report, prepare, rewrite, rewrite_if_faster
from ._onnx_definitions import (
    IR_VERSION,
    attach_definitions,
    function,
    is_ours,
    scopes,
    split_by_labels,
)
from ._onnx_export import export, register_symbolics, translation_table
from ._onnx_files import load, save_beside

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "accelerate",
    "attach_definitions",
    "demo_model",
    "export",
    "function",
    "lower",
    "register_symbolics",
    "translation_table",
]


def accelerate(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    only_if_faster: bool = False,
    provider: str = "cpu",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> tuple[Any, Report]:
    """A copy of a model in which our ops take the place of standard operators, and what was done.

    Each group of nodes, in the graph, in subgraphs and in functions, that is as the definition of
    an op, becomes a node of that op: with operands in either order, a constant for an attribute, no
    factor of 1, ONNX's own operator of the same meaning. Groups of more nodes go first. Nodes stay
    where the dtype, a shape or an attribute is not the op's or is not known, where the definition
    needs a later opset, and where a value within is used outside. The definitions are attached.

    A node of ours has the name of the last node that it stands for, and the doc_strings of all, one
    below another; its output keeps its name, doc_string and quantization annotation. Annotations of
    values within go with these.

    A node of ours may cost what ONNX Runtime would have made of the standard ones together with
    their neighbours. `only_if_faster` measures whole models, in ONNX Runtime with this library, op
    by op: an op stays where the model is faster with it, by 1 % or more and in 3 rounds of 4, and
    has the same outputs; and none stays where the model with all of them is slower than before.

    Args:
        model: of opset 13 or later. As a path, with external data that is never loaded.
        path: of the file to write: whole or not at all, as `python -m cudarelu lower` does. None:
            the model is only returned.
        only_if_faster: measure, as above. Needs onnxruntime, for external data of 1.21 or later.
        provider: to measure on, "cpu" or "cuda".
        dims: sizes of named dimensions of the inputs, to measure with; others are 4.
        inputs: arrays to measure with, by name; others are random, integers of 0 and 1.

    Returns:
        The model, of the argument's kind (onnx.ModelProto for a path), and a `Report`.

    Raises:
        ValueError: as `attach_definitions` does, for a model before opset 13, one that is not
            valid, and one that is to be measured and does not run.
        OSError: where a file cannot be read or written.
    """
    source, folder = _source(model)
    prepared = prepare(source)
    if only_if_faster:
        result, report = rewrite_if_faster(prepared, folder, provider, dims or {}, inputs or {})
    else:
        candidates = [op.name for op in ops()]
        result, report = rewrite(prepared, folder, candidates)
    if not report.replaced:  # not even types are added
        result.CopyFrom(source)
    if path is not None:
        save_beside(result, Path(path), folder or Path())
    if isinstance(model, onnx.ModelProto | str | os.PathLike):
        return result, report
    import onnx_ir as ir

    graph = (converted := ir.from_proto(result)).graph
    for name, value in model.graph.initializers.items():
        if name in graph.initializers:
            graph.initializers[name].const_value = value.const_value
    return converted, report


def _source(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
) -> tuple[onnx.ModelProto, Path | None]:
    """A model with its external data left where it is, and the folder of that."""
    if isinstance(model, onnx.ModelProto):
        return model, None
    if isinstance(model, str | os.PathLike):
        file = Path(model).resolve()
        return load(file), file.parent
    import onnx_ir as ir

    folders = {
        Path(each.const_value.base_dir)
        for each in model.graph.initializers.values()
        if isinstance(each.const_value, ir.ExternalTensor)
    }
    if len(folders) > 1:
        raise ValueError(f"the model's external data is in {len(folders)} folders: save it first")
    return ir.to_proto(model), next(iter(folders), None)


def lower(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model in which standard operators take the place of our ops.

    Each node that calls an op of the table, by its name or its alias, in the graph, in subgraphs
    and in functions, becomes the op's definition: of an enumerated attribute, the branch for the
    node's value, where that is not an attribute of the function that the node is in.

    Args:
        model: as `attach_definitions` takes it.

    Raises:
        ValueError: as `attach_definitions` does.
    """
    result = attach_definitions(model)
    others = [(each.domain, each.name) for each in result.functions if not is_ours(each)]
    domains = {each.domain for each in result.functions if is_ours(each)}
    split_by_labels(result)
    result = onnx.inliner.inline_selected_functions(result, others, exclude=True)
    used = {node.domain for scope in scopes(result) for node in scope.node}
    for holder in (result, *result.functions):
        for each in list(holder.opset_import):
            if each.domain in domains - used:
                holder.opset_import.remove(each)
    return result


def demo_model() -> onnx.ModelProto:
    """The tutorials' one-node model: `custom_domain::CustomRelu` of a float32 `[N, 4]`.

    The definition is attached, so that the model also runs where the library is absent; the IR
    version is the lowest that has model-local functions.
    """
    relu = next(op for op in ops() if op.name == "relu")
    assert relu.onnx.alias
    domain, op_type = relu.onnx.alias
    tensor = functools.partial(
        onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=["N", 4]
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, ["x"], ["y"], name="relu", domain=domain)],
        "myrelu",
        [tensor("x")],
        [tensor("y")],
    )
    model = onnx.helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[
            onnx.helper.make_opsetid("", _C.DEFINITION_OPSET),
            onnx.helper.make_opsetid(domain, _C.ONNX_DOMAIN_VERSION),
        ],
        functions=[function(relu, domain, op_type)],
        producer_name="cudarelu",
    )
    onnx.checker.check_model(model, full_check=True)
    return model
