"""Describes an ONNX model: its values, its nodes, and what defines them."""

from __future__ import annotations

import collections
import shlex
import textwrap
from typing import Any

import onnx
import onnx.defs

from .._cache import cached_libraries
from .._onnx.graphs import scopes
from .models import agrees
from .nodes import calls, common_labels, complete_nodes, is_ours


def describe(model: onnx.ModelProto) -> dict[str, Any]:
    """Describes a model in JSON's types.

    Returns:
        - ir_version, and opsets by domain;
        - inputs (without initializers) and outputs: name, type and shape. A size is a number, a
          name or None; a shape is None if the rank is unknown;
        - nodes: the number of nodes of each `domain::type` in the graph, its subgraphs and the
          functions, except functions that define our ops;
        - ours: the node types that call an op of a loaded module, with the op and whether the type
          is an alias;
        - definitions: the attached definitions of our ops, and whether each equals the table's;
        - functions: the other functions, among them the attached definitions of ops of modules that
          are not loaded;
        - unknown: the node types that neither ONNX (in these opsets), nor a loaded module, nor a
          function of the model defines. Those of ONNX Runtime's domain com.microsoft are not
          checked;
        - libraries: for the domain of a function or of an unknown node type, the library that
          `cudarelu.load` built last for the module of this name, if there is one. It is not loaded.

    Raises:
        ValueError: as `cudarelu.onnx.attach_definitions` does, but accepts any opset and any
            attached definition.
    """
    definitions = [each for each in model.functions if is_ours(each)]
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    for each in definitions:
        rest.functions.remove(each)
    called = complete_nodes(rest)
    nodes = collections.Counter(
        (node.domain or "ai.onnx", node.op_type) for scope in scopes(rest) for node in scope.node
    )
    standard = {"ai.onnx": ""}  # one domain with two names
    opsets = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    defined = {(each.domain, each.name) for each in model.functions} | set(called)
    initializers = {each.name for each in model.graph.initializer}
    unknown = [
        (domain, op_type)
        for domain, op_type in sorted(nodes.keys() - defined)
        if not f"{domain}.".startswith("com.microsoft.")
        and not onnx.defs.has(op_type, opsets.get(domain, 0), standard.get(domain, domain))
    ]
    functions = sorted((each.domain, each.name) for each in rest.functions)
    # The cache is listed, and no name of the model is part of a path.
    cached = cached_libraries() if unknown or functions else {}
    return {
        "ir_version": model.ir_version,
        "opsets": opsets,
        "inputs": [_value(each) for each in model.graph.input if each.name not in initializers],
        "outputs": [_value(each) for each in model.graph.output],
        "nodes": {"::".join(name): count for name, count in sorted(nodes.items())},
        "ours": {
            "::".join(name): {"op": op.short_name, "alias": name == op.onnx.alias}
            for name, op in sorted(called.items())
        },
        "definitions": {
            f"{each.domain}::{each.name}": agrees(
                each, common_labels(calls(rest, each.domain, each.name))
            )
            for each in definitions
        },
        "functions": ["::".join(name) for name in functions],
        "unknown": ["::".join(name) for name in unknown],
        "libraries": {
            domain: str(cached[domain]) for domain, _ in (*functions, *unknown) if domain in cached
        },
    }


def _value(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        name = kind.removesuffix("_type") if kind else "unknown"
        return {"name": value.name, "type": name, "shape": None}
    tensor = value.type.tensor_type
    sizes = [getattr(dim, dim.WhichOneof("value") or "", None) for dim in tensor.shape.dim]
    return {
        "name": value.name,
        "type": f"tensor({onnx.TensorProto.DataType.Name(tensor.elem_type).lower()})",
        "shape": sizes if tensor.HasField("shape") else None,
    }


def text(description: dict[str, Any]) -> str:
    ours, definitions = description["ours"], description["definitions"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in description["opsets"].items())
    lines = [f"IR version {description['ir_version']}; opsets: {opsets}"]
    for kind in ("inputs", "outputs"):
        lines.append(f"{kind}:")
        for each in description[kind]:
            sizes = ["?" if size is None else str(size) for size in each["shape"] or []]
            shape = "of any rank" if each["shape"] is None else f"[{', '.join(sizes)}]"
            lines.append(f"    {each['name']}: {each['type']} {shape}")
    counts = [f"{name} {count}" for name, count in description["nodes"].items()]
    indent: Any = {"initial_indent": "    ", "subsequent_indent": "    "}
    lines += ["nodes:", *textwrap.wrap(", ".join(counts), 100, **indent)]
    lines.append("nodes of our ops:" if ours else "nodes of our ops: none")
    for name, each in ours.items():
        lines.append(f"    {name}: {each['op']}{', by its alias' if each['alias'] else ''}")
    lines.append("definitions of our ops:" if definitions else "definitions of our ops: none")
    for name, agreed in definitions.items():
        lines.append(f"    {name}: {'equals' if agreed else 'DIFFERS from'} this library's")
    if description["functions"]:
        lines.append("functions that are not definitions of ops of a loaded module:")
        lines += textwrap.wrap(", ".join(description["functions"]), 100, **indent)
    if description["unknown"]:
        lines.append("unknown nodes without a definition:")
        lines += textwrap.wrap(", ".join(description["unknown"]), 100, **indent)
    if found := description["libraries"].items():
        lines.append("modules that cudarelu.load has built:")
        lines += [f"    {domain}: --library {shlex.quote(path)}" for domain, path in found]
    elif not all(name.startswith("ai.onnx") for name in description["unknown"]):
        lines.append("--library FILE.so loads a module that has them")
    return "\n".join(lines)
