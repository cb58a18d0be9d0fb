"""The command line of cudarelu."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# doctor and cmake-dir must run where the package or PyTorch cannot be imported: each command
# imports what it needs.
from ._command_line import repeatable
from .bench.command import add_command as add_bench
from .doctor.command import add_command as add_doctor


def list_ops(arguments: argparse.Namespace) -> None:
    from ._markdown import reference
    from ._modules import modules
    from ._table import all_ops, ops_of

    chosen = ops_of(arguments.module) if arguments.module else all_ops()
    if not chosen:
        raise ValueError(f"no op module {arguments.module!r} is loaded")
    if arguments.json:
        print(json.dumps([dataclasses.asdict(op) for op in chosen], indent=2))
        return
    if arguments.markdown:
        notes = None
        if arguments.records:
            from .bench.records import load
            from .bench.report import measured

            notes = measured(*map(load, arguments.records))
        libraries = {each.name: Path(each.path).name for each in modules()}
        print(reference(chosen, notes, libraries))
        return
    if arguments.records:
        raise ValueError("--records is for --markdown")
    for op in chosen:
        signature = op.short_name + op.signature.removeprefix(op.name)
        print(f"{signature}\n    {op.summary}\n    T: {', '.join(op.dtypes)}")


def export_demo(arguments: argparse.Namespace) -> None:
    from .onnx import demo_model
    from .onnx.files import save_beside

    save_beside(demo_model(), arguments.path, arguments.path.parent)
    print(f"wrote {arguments.path}")


def lower(arguments: argparse.Namespace) -> None:
    from .onnx import lower
    from .onnx.files import data_folder, load, save_beside

    model = load(arguments.source)
    lowered = lower(model, replace_definitions=arguments.replace_definitions)
    save_beside(lowered, arguments.path, data_folder(arguments.source, model))
    print(f"wrote {arguments.path}")


def accelerate(arguments: argparse.Namespace) -> None:
    from .onnx import accelerate

    dims = dict(map(_size, arguments.dim))
    if len(dims) < len(arguments.dim):
        raise ValueError("--dim: a name is given twice")
    with _compiling():
        _, report = accelerate(
            arguments.source,
            arguments.path,
            only_if_faster=arguments.only_if_faster,
            fuse=arguments.fuse,
            provider=arguments.provider,
            dims=dims,
            replace_definitions=arguments.replace_definitions,
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        print(f"{report}\nwrote {arguments.path}")


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Turns the error of a source that does not compile into a ValueError, which `main` reports."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(error) from error


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise ValueError(f"--dim {text}: must be NAME=SIZE")
    return name, int(size)


def inspect(arguments: argparse.Namespace) -> None:
    from .onnx.files import load
    from .onnx.inspection import describe, text

    description = describe(load(arguments.path))
    print(json.dumps(description, indent=2) if arguments.json else text(description))


def view(arguments: argparse.Namespace) -> None:
    try:
        import netron
    except ImportError as error:
        raise ValueError("view needs Netron: pip install netron") from error

    arguments.path.open("rb").close()  # Netron would show an empty page for a folder
    address = (arguments.host, arguments.port)
    netron.start(str(arguments.path), address=address, browse=not arguments.no_browser)
    netron.wait()


def build(arguments: argparse.Namespace) -> None:
    from .defining.library import library_of

    library = library_of(arguments.source)
    with _compiling():
        library.build(
            arguments.output,
            architectures=arguments.architectures,
            cuda=False if arguments.cpu_only else None,
            verbose=arguments.verbose,
        )
    print(f"wrote {arguments.output}")


def check(arguments: argparse.Namespace) -> None:
    from .testing.report import check_library

    hosts = arguments.host.split(",") if arguments.host else ()
    if check_library(
        *(arguments.path, arguments.op, hosts, arguments.provider, arguments.all),
        *(arguments.dtype, arguments.case),
    ):
        raise SystemExit(1)


def cmake_dir(arguments: argparse.Namespace) -> None:
    from ._sdk import CMAKE

    if not CMAKE.is_dir():
        raise FileNotFoundError(f"{CMAKE}: this installation of cudarelu cannot build op modules")
    print(CMAKE)


def new(arguments: argparse.Namespace) -> None:
    from ._scaffold import create

    for file in create(arguments.folder, arguments.namespace):
        print(f"wrote {arguments.folder / file}")
    folder, python = shlex.quote(str(arguments.folder)), shlex.quote(sys.executable)
    steps = [f"cd {folder}", f"make test PYTHON={python}"]
    if importlib.util.find_spec("pytest") is None:
        steps.insert(0, f"{python} -m pip install pytest")
    print("next:", " && ".join(steps))


def _add_library(*commands: argparse.ArgumentParser) -> None:
    """Adds the option of commands that work on the ops of other modules too."""
    for command in commands:
        text = "load the ops of this library too; repeatable"
        repeatable(command, "--library", "FILE.so", text, dest="libraries")


def _load(libraries: list[str]) -> None:
    if libraries:
        from . import load_library

        for path in libraries:
            load_library(path)


def main(argv: list[str] | None = None, prog: str = "python -m cudarelu") -> int:
    """Runs a command and returns the exit status; `argv` is the process's own by default."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], None], help: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.set_defaults(run=run)
        return command

    command = ops = add("ops", list_ops, "list the ops")
    command.add_argument("--module", metavar="NAME", help="only the ops of this module")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all fields of the ops as JSON")
    form.add_argument("--markdown", action="store_true", help="print a reference in Markdown")
    text = "with --markdown: errors and speeds too, of a file of `bench`; repeatable"
    repeatable(command, "--records", "FILE.jsonl", text, type=Path)

    command = add("export-demo", export_demo, "write the one-node model of the tutorials")
    command.add_argument("path", type=Path, metavar="MODEL.onnx")

    command = lowering = add("lower", lower, "replace our ops in a model by standard operators")
    command.add_argument("source", type=Path, metavar="IN.onnx")
    command.add_argument("path", type=Path, metavar="OUT.onnx", help="may be IN.onnx")

    command = accelerating = add(
        "accelerate", accelerate, "replace standard operators in a model by our ops"
    )
    command.add_argument("source", type=Path, metavar="IN.onnx")
    command.add_argument("path", type=Path, metavar="OUT.onnx", help="may be IN.onnx")
    command.add_argument(
        "--only-if-faster",
        action="store_true",
        help="measure the model and keep only the ops that make it faster",
    )
    command.add_argument(
        "--fuse",
        action="store_true",
        help="compile an op for each further group of elementwise nodes, in libOUT_ops.so",
    )
    command.add_argument(
        "--provider",
        choices=["cpu", "cuda"],
        default="cpu",
        help="the provider to measure on (default: cpu)",
    )
    text = "the size of a free dimension for the measurement (default: 4); repeatable"
    repeatable(command, "--dim", "NAME=SIZE", text)
    command.add_argument("--json", action="store_true", help="print the report as one JSON object")

    command = inspecting = add("inspect", inspect, "describe a model and its calls of our ops")
    command.add_argument("path", type=Path, metavar="MODEL.onnx")
    command.add_argument("--json", action="store_true", help="print one JSON object")

    command = add("view", view, "show a model in a browser, by Netron")
    command.add_argument("path", type=Path, metavar="MODEL.onnx")
    command.add_argument(
        "-p", "--port", type=int, help="serve at this port (default: 8080 or another free one)"
    )
    command.add_argument(
        "--host", default="localhost", metavar="ADDRESS", help="serve at it (default: localhost)"
    )
    command.add_argument("--no-browser", action="store_true", help="only serve, open no browser")

    command = add(
        "check",
        check,
        "check the ops of a library in every host; the exit status is 1 if a check fails",
    )
    command.add_argument("path", metavar="LIBRARY.so")
    repeatable(command, "--op", "NAME", "check only this op; repeatable")
    command.add_argument(
        "--host",
        metavar="NAME,...",
        help="check only in these, such as torch, onnxruntime or jax-jit",
    )
    command.add_argument(
        "--provider", choices=["cpu", "cuda"], help="check only on this device (default: both)"
    )
    repeatable(command, "--dtype", "NAME", "check only this dtype, such as float16; repeatable")
    text = "check only this case or feature, of either tier, such as wide; repeatable"
    repeatable(command, "--case", "NAME", text)
    command.add_argument(
        "--all", action="store_true", help="run the second tier too, four times as many checks"
    )

    command = add("build", build, "compile the ops that a Python file defines, as a library")
    command.add_argument("source", type=Path, metavar="OPS.py", help="has a cudarelu.Library")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="LIBRARY.so")
    command.add_argument(
        "--architectures",
        nargs="+",
        metavar="CAPABILITY",
        help="of GPUs, such as 8.0 9.0+PTX (default: those of this machine)",
    )
    command.add_argument("--cpu-only", action="store_true", help="leave CUDA out")
    command.add_argument("--verbose", action="store_true", help="print the compilers' commands")

    command = add(
        "cmake-dir",
        cmake_dir,
        "print the folder of cudarelu-config.cmake, for cmake -Dcudarelu_DIR",
    )

    command = add("new", new, "create a folder with an op module of your own")
    command.add_argument(
        "folder", type=Path, metavar="NAME", help="the folder to create, such as my_ops"
    )
    command.add_argument(
        "--namespace", help="of the ops (default: the name without its ending _ops)"
    )

    for command in (lowering, accelerating):
        command.add_argument(
            "--replace-definitions",
            action="store_true",
            help="take this library's definitions for attached ones that compute something else",
        )
    _add_library(ops, lowering, accelerating, inspecting, add_bench(commands))
    add_doctor(commands)

    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args(argv)
    try:
        _load(getattr(arguments, "libraries", []))
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 128 + signal.SIGPIPE
    except (ModuleNotFoundError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
