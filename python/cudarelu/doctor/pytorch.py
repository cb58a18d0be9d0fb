"""Checks of PyTorch, and of the ops in it."""

from __future__ import annotations

from collections.abc import Iterator

from .context import Context
from .records import Record, from_error, not_asked, ok, trouble, waits


def checks(context: Context) -> Iterator[Record]:
    found = list(_installation(context))
    yield from found
    usable = all(each.status == "ok" for each in found)
    for device in context.devices:
        for check in (_op, _compile):
            yield check(context, device, usable)
    if not context.cuda:
        yield not_asked("pytorch.cuda")
    yield _export(context, usable)


def _installation(context: Context) -> Iterator[Record]:
    answer = context.probes("pytorch")
    version = answer.get("version")
    if version is None:
        missing = answer["error"] == "ModuleNotFoundError: No module named 'torch'"
        name = "torch-missing" if missing else "torch-broken"
        yield trouble("pytorch.import", name, answer["error"], **context.values)
    else:
        cuda = f"CUDA {answer['cuda']}" if answer["cuda"] else "without CUDA"
        yield ok("pytorch.import", f"PyTorch {version}, {cuda}", answer["path"])
    if context.build is None or not context.torches:
        yield trouble("pytorch.build", "not-built", str(context.folder))
    elif version is not None and ".".join(version.split(".")[:2]) not in context.torches:
        yield trouble("pytorch.build", "torch-version", **context.values)
    else:
        built = ", ".join(context.torches)
        yield ok("pytorch.build", f"cudarelu {context.build.VERSION}, built for PyTorch {built}")


def _op(context: Context, device: str, usable: bool) -> Record:
    id = f"pytorch.{device}"
    if not usable:
        return waits(id)
    torch = context.probes("pytorch")
    if device == "cuda" and not torch["cuda"]:
        plain = torch["version"].split("+")[0]
        return trouble(id, "torch-without-cuda", version=torch["version"], plain=plain)
    answer = context.probes("package", device)
    if not answer["error"]:
        return ok(id, f"ops and their gradients work on {device.upper()} tensors", answer["path"])
    what = f"an op fails on {device.upper()} tensors"
    # An error of PyTorch itself, such as an error of the driver, is more specific.
    error = (device == "cuda" and torch.get("cuda_error")) or answer["error"]
    return from_error(id, what, error, context)


def _compile(context: Context, device: str, usable: bool) -> Record:
    id = "pytorch.compile" if device == "cpu" else "pytorch.compile_cuda"
    if not usable or context.probes("package", device)["error"]:
        return waits(id)
    answer = context.probes("compile", device)
    if not answer["error"]:
        return ok(id, f"torch.compile works on {device.upper()}")
    what = f"torch.compile fails on {device.upper()}"
    return from_error(id, what, answer["error"], context)


def _export(context: Context, usable: bool) -> Record:
    if not usable or context.probes("package", "cpu")["error"]:
        return waits("pytorch.export")
    answer = context.probes("export")
    if not answer["error"]:
        return ok("pytorch.export", "cudarelu.onnx.export works")
    what = "the export to ONNX fails"
    return from_error("pytorch.export", what, answer["error"], context)
