"""Builds op modules from sources when a program starts, and keeps them in a cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from cudarelu import _C
from cudarelu._cache import cache_folder, check_private, make_private
from cudarelu._modules import OpModule, load_library
from cudarelu._sdk import SDK
from cudarelu._table import op_info

_DEFAULT_ARCHITECTURE = "90"  # without a GPU


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    extra_include_paths: Sequence[str | os.PathLike[str]] = (),
    cuda: bool | None = None,
    verbose: bool = False,
) -> OpModule:
    """Builds an op module from sources, unless the cache has it, and loads it.

    ::

        my = cudarelu.load("my", sources=["swish.h", "top_k.h", "top_k.cpp", "top_k.cu"])
        my.swish(x, beta=2.0)

    Kernels are built for the CPU and, if there is an nvcc (installed, or that of Python's
    packages), for the GPUs of this machine, or for TORCH_CUDA_ARCH_LIST; without a GPU, for compute
    capability 9.0. The cache is in $CUDARELU_CACHE_DIR, or else in the user's cache folder. It
    depends on the content of the sources and of what they include, the compilers, their options and
    the GPUs. If only what this package links to a module changes, the module is linked again.
    Several processes that need the same module build it once.

    Args:
        name: the namespace of the ops, also in C++.
        sources: headers with the declarations of ops, and .cpp and .cu files with their kernels;
            a path or a list of paths.
        extra_include_paths: further folders for includes.
        cuda: whether to build for CUDA; by default if there is an nvcc.
        verbose: whether to print the commands to stderr.

    Raises:
        RuntimeError: if a source does not compile. The message begins with the line of the source.
        FileNotFoundError: if a source or a compiler is missing.
        OSError: if the cache cannot be written.
        ValueError: if no module can have the name, if TORCH_CUDA_ARCH_LIST has an entry that is
            no compute capability, if a definition is not valid ONNX, and if the module cannot be
            loaded, as `load_library` does.
    """
    return load_library(
        build(name, sources, extra_include_paths=extra_include_paths, cuda=cuda, verbose=verbose)
    )


def load_inline(
    name: str, source: str, *, cuda: bool | None = None, verbose: bool = False
) -> OpModule:
    """Builds an op module from the text of a header, and loads it; see `load`."""
    _C.check_new_name(name)  # before a file has this name
    files = kept_sources(name, f"{name}: {source}", lambda: {f"{name}.h": source})
    return load(name, files, cuda=cuda, verbose=verbose)


def kept_sources(name: str, identity: str, write: Callable[[], Mapping[str, str]]) -> list[Path]:
    """The sources that `write` returns by name, as files of the cache, which has them by a text
    that identifies them."""
    key = _digest(identity.encode())
    parent = cache_folder() / "inline"
    with _locked(name, parent, key):
        folder = parent / key
        if not folder.exists():
            with _scratch(parent, key) as scratch:
                kept = scratch / "kept"
                kept.mkdir()
                for file, text in write().items():
                    (kept / file).write_text(text, encoding="utf-8")
                kept.rename(folder)
    sources = sorted(folder.iterdir())
    for each in sources:
        check_private(each)
    return sources


def chosen_architectures(
    name: str, given: Sequence[str] | None, cuda: bool | None = None
) -> tuple[str, ...]:
    """The architectures that `build` compiles for: those given, or those of `load`; none without
    CUDA."""
    return _architectures(name, given) if cuda is not False and _find_nvcc() else ()


def build(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    extra_include_paths: Sequence[str | os.PathLike[str]] = (),
    architectures: Sequence[str] | None = None,
    cuda: bool | None = None,
    verbose: bool = False,
) -> Path:
    """The library of a module, in the cache, where it is built if it is missing; see `load`.

    `architectures` are compute capabilities, such as "9.0"; by default those that `load` chooses.
    """
    _C.check_new_name(name)
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    files = [Path(source).resolve() for source in listed]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{name}: there is no source {file}")
    compilers = _compilers(name, cuda, architectures)
    includes = [str(Path(path).resolve()) for path in extra_include_paths]
    commands = _commands(name, includes, compilers)
    identity = [compilers.versions, commands.cpu, commands.cuda, [str(file) for file in files]]
    compiled_files = [SDK / "module/generate.sh", *files]
    key = _digest(json.dumps(identity).encode(), *map(Path.read_bytes, compiled_files))
    linked_files = [SDK / "lib/libcudarelu_module.a", SDK / "module/exports.version"]
    link_key = _digest(json.dumps(commands.link).encode(), *map(Path.read_bytes, linked_files))
    cache = cache_folder() / "modules" / name
    with _locked(name, cache, key):
        folder = _current(cache, key)
        if folder is None:
            if verbose:
                print(f"cudarelu: building {name} for {compilers.built_for}", file=sys.stderr)
            with _scratch(cache, key) as scratch:
                kept = scratch / "kept"
                used = _compile(name, files, commands, scratch, kept, verbose)
                folder = cache / f"{key}-{_digest(*(used[each].encode() for each in sorted(used)))}"
                shutil.rmtree(folder, ignore_errors=True)  # what is left if a user removed files
                kept.rename(folder)
        library = folder / link_key / f"lib{name}.so"
        if not _is_written(library):
            with _scratch(cache, key) as scratch:
                linked = scratch / library.name
                _link(name, folder, commands, linked, verbose)
                _check_definitions(linked)  # before the cache has it
                library.parent.mkdir(exist_ok=True)
                linked.rename(library)
        check_private(library)
    return library


def _check_definitions(library: Path) -> None:
    """Raises ValueError if the definition of an op is not valid ONNX."""
    from cudarelu.onnx.definitions import function  # takes long to import

    module, ops = _C.read_library(str(library))
    for fields in ops:
        function(op_info(fields, module))


@dataclass(frozen=True)
class _Compilers:
    cxx: str
    nvcc: Path | None  # None: no CUDA
    architectures: tuple[str, ...]  # "80"; "90+PTX": with PTX for newer GPUs
    versions: tuple[str, str]  # what they say of themselves

    @property
    def toolkit(self) -> Path:
        assert self.nvcc is not None
        return self.nvcc.parent.parent

    @property
    def built_for(self) -> str:
        if self.nvcc is None:
            return "the CPU"
        return f"the CPU and CUDA architectures {' '.join(self.architectures)}"


def _compilers(name: str, cuda: bool | None, architectures: Sequence[str] | None) -> _Compilers:
    cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if cxx is None:
        raise FileNotFoundError(f"{name}: no C++ compiler: install g++, or set CXX")
    nvcc = _find_nvcc() if cuda is not False else None
    if nvcc is None and cuda is None:
        warnings.warn(f"there is no nvcc: {name} is built for the CPU only", stacklevel=4)
    if nvcc is None and cuda:
        raise FileNotFoundError(
            f"{name}: there is no nvcc: install a CUDA toolkit, or "
            "pip install 'cuda-toolkit[nvcc,cccl,cudart,crt,nvvm]==13.0.*'"
        )
    chosen = _architectures(name, architectures) if nvcc else ()
    versions = (_said(cxx, "--version"), _said(str(nvcc), "--version") if nvcc else "")
    return _Compilers(cxx, nvcc, chosen, versions)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _find_nvcc() -> Path | None:
    """An installed nvcc, or that of Python's packages."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    places = [Path(home) / "bin" for home in homes if home]
    if found := shutil.which("nvcc"):
        places.append(Path(found).resolve().parent)
    places.append(Path("/usr/local/cuda/bin"))
    packages = importlib.util.find_spec("nvidia")
    for path in (packages and packages.submodule_search_locations) or ():
        places.append(Path(path) / "cu13/bin")
    return next((place / "nvcc" for place in places if (place / "nvcc").is_file()), None)


def _architectures(name: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """Those given, those of TORCH_CUDA_ARCH_LIST, those of the GPUs, or one that is common."""
    source = "architectures" if given else "TORCH_CUDA_ARCH_LIST"
    listed = given or re.findall(r"[^;,\s]+", os.environ.get(source, ""))
    if listed and listed != ["native"]:
        for each in listed:
            if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", each):
                raise ValueError(
                    f"{name}: {source} has {each}, which is no compute capability such as 9.0 or "
                    "9.0+PTX"
                )
        return tuple(each.replace(".", "") for each in listed)
    devices = range(torch.cuda.device_count())
    found = {torch.cuda.get_device_capability(device) for device in devices}
    return tuple(f"{major}{minor}" for major, minor in sorted(found)) or (_DEFAULT_ARCHITECTURE,)


@dataclass(frozen=True)
class _Commands:
    """The commands of a build, without the files of one build."""

    cpu: list[str]  # compiles a source for the CPU
    cuda: list[str]  # for CUDA; empty without an nvcc
    link: list[str]  # what follows the objects


def _commands(name: str, includes: list[str], compilers: _Compilers) -> _Commands:
    archive = SDK / "lib/libcudarelu_module.a"
    if not archive.exists():
        raise FileNotFoundError(f"{SDK}: this installation of cudarelu cannot build op modules")
    flags = json.loads((SDK / "module/flags.json").read_text(encoding="utf-8"))
    common = [f"-I{path}" for path in (SDK / "include", *includes)]
    common += [f'-DCUDARELU_MODULE="{name}"', f'-DCUDARELU_BUILT_FOR="{compilers.built_for}"']
    cpu = [compilers.cxx, "-std=c++20", "-fPIC", "-fvisibility=hidden", *flags["cxx"], *common]
    cuda: list[str] = []
    link = [str(archive), f"-Wl,-rpath,$ORIGIN:{SDK.parent}"]
    link += [f"-Wl,--version-script={SDK / 'module/exports.version'}", *flags["link"]]
    if compilers.nvcc:
        common.append("-DCUDARELU_WITH_CUDA")
        cpu += ["-DCUDARELU_WITH_CUDA", "-isystem", str(compilers.toolkit / "include")]
        cuda = [str(compilers.nvcc), "-ccbin", compilers.cxx, *flags["cuda"], *common]
        cuda += ["-Xcompiler", "-fPIC,-fvisibility=hidden"]
        for each in compilers.architectures:
            virtual, _, ptx = each.partition("+")
            kept = f"[compute_{virtual},sm_{virtual}]" if ptx else f"sm_{virtual}"
            cuda.append(f"-gencode=arch=compute_{virtual},code={kept}")
        link += [f"-L{compilers.toolkit / each}" for each in ("lib64", "lib")]
        link += ["-lcudart_static", "-lpthread", "-lrt"]
    return _Commands(cpu, cuda, [*link, "-ldl"])


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(name: str, folder: Path, key: str) -> Iterator[None]:
    """Creates a folder of the cache; while one process writes a key there, others wait. Explains an
    error in the cache."""
    try:
        make_private(folder)
        with (folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        cache, place = cache_folder(), Path(error.filename or folder)
        in_cache = place.is_relative_to(cache) or cache.is_relative_to(place)
        if error.strerror is None or not in_cache:  # without strerror: of check_private()
            raise
        raise OSError(
            f"{name}: the cache folder {folder} cannot be written ({error.strerror}); "
            "set CUDARELU_CACHE_DIR to another one"
        ) from error


@contextlib.contextmanager
def _scratch(folder: Path, key: str) -> Iterator[Path]:
    """A temporary folder for a key that is locked. Removes those that processes left there when
    they were killed: their keys are locked by this process, or by none."""
    for left in folder.glob("*.part"):
        its_key = left.name.partition(".")[0]
        with (folder / f"{its_key}.lock").open("w") as lock, contextlib.suppress(BlockingIOError):
            if its_key != key:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    # Not the same name again: a compiler may run on after the process that started it.
    with tempfile.TemporaryDirectory(prefix=f"{key}.", suffix=".part", dir=folder) as scratch:
        yield Path(scratch)


def _is_written(file: Path) -> bool:
    """Whether the file is there. After a crash of the system, it may be empty."""
    return file.is_file() and file.stat().st_size > 0


def _current(cache: Path, key: str) -> Path | None:
    """The folder with a key that has all objects, of the files that the sources include now."""

    @functools.cache
    def digest_of(path: str) -> str | None:
        return _digest(Path(path).read_bytes()) if Path(path).is_file() else None

    for folder in sorted(cache.glob(f"{key}-*")):
        record = folder / "compiled.json"
        if _is_written(record):
            compiled = json.loads(record.read_text(encoding="utf-8"))
            included = compiled["included"].items()
            if sum(map(_is_written, folder.glob("*.o"))) == compiled["objects"] and all(
                digest_of(path) == digest for path, digest in included
            ):
                return folder
    return None


def _included(scratch: Path) -> dict[str, str]:
    """The files that the compilers read, of the user and of the SDK, with their digests."""
    used: set[Path] = set()
    for file in scratch.glob("*.d"):
        text = os.fsdecode(file.read_bytes())
        _, _, listed = text.replace("\\\n", " ").partition(": ")
        # As make reads it: a space in a path is `\ `, and `$` is `$$`.
        for path in re.findall(r"(?:\\ |\S)+", listed):
            # A link stays one, since another file may take its place.
            used.add(Path(re.sub(r"\\([ #])|\$(\$)", r"\1\2", path)).absolute())
    system = [Path("/usr"), scratch.resolve()]
    return {
        str(path): _digest(path.read_bytes())
        for path in sorted(used)
        if path.is_relative_to(SDK)  # also if Python's packages are in /usr
        or not any(path.resolve().is_relative_to(folder) for folder in system)
    }


def _compile(
    name: str, files: list[Path], commands: _Commands, scratch: Path, kept: Path, verbose: bool
) -> dict[str, str]:
    """Creates the folder `kept` with the objects of a module; returns `_included`."""
    kept.mkdir()
    generate = ["sh", str(SDK / "module/generate.sh"), str(scratch), name, name, *map(str, files)]
    # It prints paths, in which Python keeps bytes that are no text by surrogates.
    generated = subprocess.run(
        generate, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if generated.returncode != 0:
        raise RuntimeError(f"{name}: {generated.stderr.strip()}")
    sources = [f"cpu {SDK / 'module/module.cpp'}", *generated.stdout.splitlines()]
    compiling = []
    for i, source in enumerate(sources):
        part, path = source.split(" ", 1)
        output = ["-MMD", "-MF", str(scratch / f"{i}.d"), "-c", path, "-o", str(kept / f"{i}.o")]
        if command := commands.cuda if part == "cuda" else commands.cpu:
            compiling.append([command[0], f"-I{scratch}", *command[1:], *output])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # CUDA sources take longest.
        for done in pool.map(lambda command: _run(command, verbose), reversed(compiling)):
            if done.returncode != 0:
                raise RuntimeError(f"{name}: {_first_error(done.stdout, files)}")
    used = _included(scratch)
    record = {"objects": len(compiling), "included": used}
    (kept / "compiled.json").write_text(json.dumps(record), encoding="utf-8")
    return used


def _link(name: str, folder: Path, commands: _Commands, library: Path, verbose: bool) -> None:
    """Links the objects in a folder of the cache."""
    objects = sorted(folder.glob("*.o"))
    for each in objects:
        check_private(each)
    command = [commands.cpu[0], "-shared", "-o", str(library), *map(str, objects), *commands.link]
    done = _run(command, verbose)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {_link_error(done.stdout)}")


def _run(command: list[str], verbose: bool) -> subprocess.CompletedProcess[str]:
    if verbose:
        print(*command, file=sys.stderr)
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",  # compilers quote sources, in any encoding
        check=False,
    )


def _first_error(output: str, files: list[Path]) -> str:
    """What a compiler said, with one line about the user's own sources in front."""
    if "SignatureParser" in output and (said := _signature_error(files)):
        return said  # the compiler knows no more
    lines = output.splitlines()
    own = [
        line for line in lines if any(line.startswith((f"{file}:", f"{file}(")) for file in files)
    ]
    first = next((line for line in own if "error" in line), None)
    if first is None and own:  # the line that uses a template in which the error is
        place = own[0].split(": ", 1)[0]
        errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
        first = f"{place}: error: {errors[0]}" if errors else own[0]
    return f"{first}\n\n{output.strip()}" if first else output.strip()


def _link_error(output: str) -> str:
    """What a linker said, with the function that is missing or there twice in front."""
    first = re.search(r"(undefined reference to|multiple definition of) [`'].*?'", output)
    return f"{first[0]}\n\n{output.strip()}" if first else output.strip()


def _signature_error(files: list[Path]) -> str | None:
    """The first signature that cannot be parsed. Compilers say only that parsing it failed."""
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        for found in re.finditer(r'\.signature\s*=\s*((?:"[^"\n]*"\s*)+)', text):
            signature = "".join(re.findall(r'"([^"\n]*)"', found[1]))
            try:
                _C.read_signature(signature)
            except ValueError as problem:
                line = text.count("\n", 0, found.start()) + 1
                return f"{file}:{line}: error: {problem}"
    return None
