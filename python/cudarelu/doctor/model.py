"""Checks of a model: its content, and whether a session of it can be created."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator

from .context import Context
from .records import Record, from_error, ok, trouble, waits


def checks(context: Context) -> Iterator[Record]:
    if context.model is None:
        return
    module = [str(context.module.resolve())] if context.module else []
    content = context.probes("model", str(context.model), *module)
    yield from _content(context, content)
    if not context.model.is_file():
        return
    library = context.plugin if module else context.library or context.plugin
    for provider in context.devices:
        id = f"model.{provider}"
        if context.probes("onnx_runtime")["error"] or not library.exists():
            yield waits(id)
            continue
        libraries = [str(library.resolve()), *module]
        answer = context.probes("session", provider, str(context.model), *libraries)
        if answer["error"]:
            yield from_error(id, "a session of the model fails", answer["error"], context)
        elif provider == "cuda" and "CUDAExecutionProvider" not in answer["providers"]:
            yield waits(id)
        else:
            yield ok(id, f"ONNX Runtime loads the model on {provider.upper()}")


def _content(context: Context, content: dict) -> Iterator[Record]:
    path, error = context.model, content["error"]
    if "names" not in content:  # cudarelu or onnx does not import, or the module does not load
        if "No module named 'onnx'" in error or context.module:
            yield from_error("model.content", "the model cannot be checked", error, context)
        else:
            yield waits("model.content")
        return
    if error:
        kind, _, why = error.partition(": ")
        unreadable = "is not an ONNX model" in why or "the external data" in why
        if unreadable or kind != "ValueError":
            yield trouble("model.content", "model-unreadable", why=why, path=path)
        elif "but the installed onnx knows" in why:
            yield from_error("model.content", "", error, context)
        else:
            yield trouble("model.content", "model-calls", why=why)
        return
    opsets = ", ".join(f"{domain} {version}" for domain, version in content["opsets"].items())
    ours = ", ".join(content["ours"]) or "none"
    what = f"IR version {content['ir_version']}; opsets {opsets}; our ops: {ours}"
    yield ok("model.content", what, str(path))
    if context.library and not context.module:
        return  # it has other ops, which the session checks
    for name in content["unknown"]:
        domain, _, op_type = name.partition("::")
        id = f"model.unknown.{name}"
        values = {"name": name, "domain": domain, "path": shlex.quote(str(path))}
        if built := content["libraries"].get(domain):
            yield trouble(id, "op-of-module", **values, library=shlex.quote(built))
            continue
        same = [known for known in content["names"] if known.endswith(f"::{op_type}")]
        near = same or difflib.get_close_matches(name, content["names"], 1, cutoff=0.5)
        evidence = f"the most similar op is {near[0]}" if near else ""
        yield trouble(id, "unknown-op", evidence, **values)
