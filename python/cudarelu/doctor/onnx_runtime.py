"""Checks of ONNX Runtime, of the ops' library in it, and of ort_infer."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .context import Context
from .processes import run
from .records import Record, from_error, not_asked, ok, skipped, trouble, waits

OLDEST = (1, 16)  # that the library supports
ARRAYS = (1, 24)  # that cudarelu.ort.Session needs
HEADERS = ["include", "include/onnxruntime", "include/onnxruntime/core/session"]
SYSTEM = ["/usr", "/usr/local"]


def checks(context: Context) -> Iterator[Record]:
    yield from _packages()
    installed = _installation(context)
    yield installed
    library = _library(context)
    yield library
    usable = installed.status != "failed" and library.status == "ok"
    yield _session(context, "cpu", usable)
    if context.cuda:
        libraries = list(_cuda_libraries(context, installed))
        yield from libraries
        loads = all(each.status in ("ok", "warning") for each in libraries)
        yield _session(context, "cuda", usable and loads)
    else:
        yield not_asked("onnxruntime.cuda")
    yield from _ort_infer(context)


def _packages() -> Iterator[Record]:
    versions = {}
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if len(versions) == 2:
        cpu, gpu = versions.values()
        yield trouble("onnxruntime.packages", "ort-both", str(versions), cpu=cpu, gpu=gpu)


def _installation(context: Context) -> Record:
    id, answer = "onnxruntime.import", context.probes("onnx_runtime")
    version = answer.get("version")
    if version is None:
        return from_error(id, "ONNX Runtime does not import", answer["error"], context)
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in answer["providers"])
    for least, status, needs in (
        (OLDEST, "failed", "the ops' library needs 1.16 or later"),
        (ARRAYS, "warning", "the library works with it, but cudarelu.ort.Session needs 1.24"),
    ):
        if tuple(map(int, version.split(".")[:2])) < least:
            values = {"found": version, "needs": needs, "least": "{}.{}".format(*least)}
            values["package"] = "onnxruntime-gpu" if "CUDA" in providers else "onnxruntime"
            return trouble(id, "ort-old", answer["path"], status=status, **values)
    return ok(id, f"ONNX Runtime {version}: {providers}", answer["path"])


def _library(context: Context) -> Record:
    """Checks that the library exists, has its entry point, and finds all its symbols."""
    id = "onnxruntime.library"
    path = context.library or context.plugin
    if context.library and not path.exists():
        return trouble(id, "library-missing", path=path)
    if not context.library and not getattr(context.build, "ORT", False):
        why = _headers_missing()
        return trouble(id, "ort-headers" if why else "plugin-missing", str(path), why=why)
    answer = context.probes("library", str(path.resolve()))
    if answer["error"]:
        return from_error(id, f"{path} does not load", answer["error"], context)
    if not answer["registers"]:
        return trouble(id, "no-entry-point", path=path)
    return ok(id, f"{path.name} exports RegisterCustomOps and finds its symbols", str(path))


def _headers_missing() -> str:
    """Returns why a build finds no header of ONNX Runtime, or "" if it finds one."""
    root = os.environ.get("ORT_ROOT")
    for folder in [root] if root else SYSTEM:
        if any((Path(folder) / each / "onnxruntime_c_api.h").exists() for each in ["", *HEADERS]):
            return ""
    if root:
        return f"ORT_ROOT is {root}, which has no include/onnxruntime_c_api.h"
    return f"ORT_ROOT is not set, and {' and '.join(SYSTEM)} have none"


def _session(context: Context, provider: str, usable: bool) -> Record:
    id = f"onnxruntime.{provider}"
    if not usable:
        return waits(id)
    if context.library:
        return skipped(id, "a --model with the library's ops checks them")
    answer = context.probes("session", provider, "", str(context.plugin))
    if answer["error"]:
        what = f"a session on {provider.upper()} fails"
        return from_error(id, what, answer["error"], context)
    if provider == "cuda" and "CUDAExecutionProvider" not in answer["providers"]:
        return from_error(id, "a session does not use CUDA", answer["log"], context)
    return ok(id, f"our ops run in a session on {provider.upper()}")


def _cuda_libraries(context: Context, installed: Record) -> Iterator[Record]:
    id = "onnxruntime.cuda_libraries"
    if installed.status == "failed":
        yield waits(id)
        return
    if "CUDAExecutionProvider" not in context.probes("onnx_runtime")["providers"]:
        torch = (context.probes("pytorch").get("cuda") or "13").split(".")[0]
        yield trouble(id, "ort-without-cuda", package=gpu_wheel(torch))
        return
    answer = context.probes("libraries")
    if answer["error"]:
        yield from_error(id, "the provider's libraries cannot be read", answer["error"], context)
        return
    absent = [each for each in answer["libraries"] if each["path"] is None]
    for each in absent:
        name, required = each["name"], each["required"]
        if each["package"].startswith("nvidia-"):
            # A package has the major version of its library.
            package = f"{each['package']}=={name.rpartition('.')[2]}.*"
            extent = "to load" if required else "for some operators, such as Conv"
            values = {"name": name, "extent": extent, "package": package}
            status = "failed" if required else "warning"
            yield trouble(f"{id}.{name}", "cuda-library", each["error"], status=status, **values)
        else:
            yield trouble(f"{id}.{name}", "driver-missing", each["error"])
    if not absent:
        names = ", ".join(each["name"] for each in answer["libraries"])
        yield ok(id, "all libraries that the CUDA provider needs load", names)


def gpu_wheel(cuda: str) -> str:
    """Returns the package for a major version of CUDA: from 1.27 on it is built for CUDA 13."""
    return "onnxruntime-gpu>=1.27" if int(cuda) >= 13 else "onnxruntime-gpu<1.27"


def _ort_infer(context: Context) -> Iterator[Record]:
    program = context.ort_infer
    if program is None:
        yield trouble("onnxruntime.ort_infer", "ort-infer-missing", str(context.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        answer = context.probes("demo_model", str(model))
        for device in context.devices:
            id = "onnxruntime.ort_infer" + ("_cuda" if device == "cuda" else "")
            if answer["error"]:
                yield from_error(
                    id, "the model for ort_infer cannot be written", answer["error"], context
                )
                continue
            code, _, error = run([str(program), str(model), "--provider", device])
            if code == 0:
                yield ok(id, f"ort_infer runs on {device.upper()}", str(program))
            else:
                yield from_error(id, f"ort_infer fails on {device.upper()}", error.strip(), context)
