"""Builds op modules from sources when a program starts, and keeps them in a cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shlex
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
from cudarelu._cache import cache_folder, check_private, explained, make_private
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
    capability 9.0. CXX and CUDACXX name other compilers, such as `ccache g++ -m64`.

    The cache is in $CUDARELU_CACHE_DIR, or else in the user's cache folder. It depends on the
    content of the sources and of what they include, the compilers, their options and the GPUs. If
    only what this package links to a module changes, the module is linked again. Several processes
    that need the same module build it once. What the cache has is used without writing there, so
    that it may be made with the image of a container.

    Args:
        name: the namespace of the ops, also in C++.
        sources: headers with the declarations of ops, and .cpp and .cu files with their kernels;
            a path or a list of paths.
        extra_include_paths: further folders for includes.
        cuda: whether to build for CUDA; by default if there is an nvcc.
        verbose: whether to print the commands to stderr.

    Raises:
        RuntimeError: if a source does not compile. The message begins with the line of the source.
            If a compiler does not run, or the user has no folder for the cache.
        FileNotFoundError: if a source or a compiler is missing.
        OSError: if the cache does not have the module and cannot be written.
        PermissionError: if other users can write what the cache has.
        ValueError: if no module can have the name, if CXX or CUDACXX cannot be read, if
            TORCH_CUDA_ARCH_LIST has an entry that is no compute capability, if a definition is not
            valid ONNX, and if the module cannot be loaded, as `load_library` does.
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
    folder = parent / key
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        with _locked(name, parent, key):
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
    compiling = [commands.cxx, commands.cpu, commands.nvcc, commands.cuda]
    identity = [compilers.identity, compiling, [_in_cache(file) for file in files]]
    compiled_files = [SDK / "module/generate.sh", *files]
    key = _digest(json.dumps(identity).encode(), *map(Path.read_bytes, compiled_files))
    linked_files = [SDK / "lib/libcudarelu_module.a", SDK / "module/exports.version"]
    link_key = _digest(
        json.dumps([commands.cxx, commands.link]).encode(), *map(Path.read_bytes, linked_files)
    )
    cache = cache_folder() / "modules" / name
    in_folder = Path(link_key, f"lib{name}.so")
    if library := _finished(cache, key, in_folder):
        check_private(library)
        return library
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
        library = folder / in_folder
        if not _is_written(library):
            with _scratch(cache, key) as scratch:
                linked = scratch / library.name
                _link(name, folder, commands, linked, verbose)
                _check_declarations(linked, files)  # before the cache has it
                library.parent.mkdir(exist_ok=True)
                linked.rename(library)
        check_private(library)
    return library


def _finished(cache: Path, key: str, in_folder: Path) -> Path | None:
    """The library with a key, if the cache has it and this user can read it."""
    try:
        folder = _current(cache, key)
        return folder / in_folder if folder and _is_written(folder / in_folder) else None
    except PermissionError:
        return None


def _check_declarations(library: Path, files: list[Path]) -> None:
    """Raises ValueError if an op of a library made of these files has a declaration that a reader
    refuses, or a definition that is not valid ONNX."""
    from cudarelu._onnx.definitions import function  # takes long to import

    try:
        module, ops = _C.read_library(str(library))
    except ValueError as error:  # names a file that is deleted
        message = str(error).removeprefix(f"{library}: ")
        op = message.partition(":")[0]
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace")
            if found := re.search(rf'["(]{re.escape(op)}\s*\(', text):
                line = text.count("\n", 0, found.start()) + 1
                raise ValueError(f"{file}:{line}: error: {message}") from None
        raise ValueError(message) from None
    for fields in ops:
        function(op_info(fields, module))


@dataclass(frozen=True)
class _Compiler:
    """A command that runs a compiler, such as `ccache g++ -m64`."""

    words: list[str]

    @property
    def program(self) -> str:
        """The compiler, which follows the programs that run it."""
        return self.words[len(self._programs) - 1]

    @property
    def options(self) -> list[str]:
        return self.words[len(self._programs) :]

    @property
    def _programs(self) -> list[str]:
        return list(itertools.takewhile(lambda word: not word.startswith("-"), self.words))

    @staticmethod
    def named_by(variable: str, example: str) -> _Compiler | None:
        """The compiler that a variable of the environment names, if it names one."""
        value = os.environ.get(variable, "").strip()
        advice = f"set {variable} to a compiler, such as {example}, or unset it"
        try:  # a path may have spaces
            compiler = _Compiler([value] if shutil.which(value) else shlex.split(value))
        except ValueError as error:
            raise ValueError(f"{variable} is {value!r} ({error}): {advice}") from None
        if not compiler.words:
            return None
        for program in compiler._programs or compiler.words:
            if not shutil.which(program):
                raise FileNotFoundError(
                    f"{variable} is {value!r}, but there is no program {program}: install it, or "
                    f"{advice}"
                )
        return compiler

    def version(self, variable: str) -> str:
        """What it says of itself."""
        command = [*self.words, "--version"]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", "").strip() or str(error)
            raise RuntimeError(
                f"`{shlex.join(command)}` fails ({output.splitlines()[-1]}): set {variable} to a "
                "compiler that runs"
            ) from None


# What nvcc itself reads.
_NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


@dataclass(frozen=True)
class _Compilers:
    cxx: _Compiler
    nvcc: _Compiler | None  # None: no CUDA
    toolkit: Path | None  # of nvcc
    architectures: tuple[str, ...]  # "80"; "90+PTX": with PTX for newer GPUs
    identity: list[str | None]  # what they say of themselves, and what nvcc reads

    @property
    def built_for(self) -> str:
        if self.nvcc is None:
            return "the CPU"
        return f"the CPU and CUDA architectures {' '.join(self.architectures)}"


def _compilers(name: str, cuda: bool | None, architectures: Sequence[str] | None) -> _Compilers:
    cxx = _Compiler.named_by("CXX", "g++")
    if cxx is None:
        found = shutil.which("g++") or shutil.which("c++")
        if found is None:
            raise FileNotFoundError(f"{name}: no C++ compiler: install g++, or set CXX")
        cxx = _Compiler([found])
    nvcc = _find_nvcc() if cuda is not False else None
    if nvcc is None and cuda is None:
        warnings.warn(f"there is no nvcc: {name} is built for the CPU only", stacklevel=4)
    if nvcc is None and cuda:
        raise FileNotFoundError(
            f"{name}: there is no nvcc: install a CUDA toolkit, or "
            "pip install 'cuda-toolkit[nvcc,cccl,cudart,crt,nvvm]==13.0.*'"
        )
    if nvcc is None:
        return _Compilers(cxx, None, None, (), [cxx.version("CXX")])
    command = _Compiler.named_by("CUDACXX", "nvcc") or _Compiler([str(nvcc)])
    identity = [cxx.version("CXX"), command.version("CUDACXX or CUDA_HOME")]
    return _Compilers(
        *(cxx, command, nvcc.parent.parent, _architectures(name, architectures)),
        [*identity, *map(os.environ.get, _NVCC_VARIABLES)],
    )


def _find_nvcc() -> Path | None:
    """The nvcc that CUDACXX names, an installed one, or that of Python's packages."""
    if named := _Compiler.named_by("CUDACXX", "nvcc"):
        return Path(shutil.which(named.program) or named.program).resolve()
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    folders = [Path(home) / "bin" for home in homes if home]
    if found := shutil.which("nvcc"):
        folders.append(Path(found).resolve().parent)
    folders.append(Path("/usr/local/cuda/bin"))
    packages = importlib.util.find_spec("nvidia")
    for path in (packages and packages.submodule_search_locations) or ():
        folders.append(Path(path) / "cu13/bin")
    return next((folder / "nvcc" for folder in folders if (folder / "nvcc").is_file()), None)


def _architectures(name: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The architectures: given, of TORCH_CUDA_ARCH_LIST, of the GPUs, or one that is common."""
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

    cxx: list[str]  # the compiler
    cpu: list[str]  # its options for a source for the CPU
    nvcc: list[str]  # empty without one
    cuda: list[str]
    link: list[str]  # what follows the objects


def _commands(name: str, includes: list[str], compilers: _Compilers) -> _Commands:
    archive = SDK / "lib/libcudarelu_module.a"
    if not archive.exists():
        raise FileNotFoundError(f"{SDK}: this installation of cudarelu cannot build op modules")
    flags = json.loads((SDK / "module/flags.json").read_text(encoding="utf-8"))
    common = [f"-I{path}" for path in (SDK / "include", *includes)]
    common += [f'-DCUDARELU_MODULE="{name}"', f'-DCUDARELU_BUILT_FOR="{compilers.built_for}"']
    cpu = ["-std=c++20", "-fPIC", "-fvisibility=hidden", *flags["cxx"], *common]
    cuda: list[str] = []
    link = [str(archive), f"-Wl,-rpath,$ORIGIN:{SDK.parent}"]
    link += [f"-Wl,--version-script={SDK / 'module/exports.version'}", *flags["link"]]
    if compilers.nvcc and compilers.toolkit:
        common.append("-DCUDARELU_WITH_CUDA")
        cpu += ["-DCUDARELU_WITH_CUDA", "-isystem", str(compilers.toolkit / "include")]
        # nvcc takes a program alone, and its options one by one.
        cuda = [] if os.environ.get("NVCC_CCBIN") else ["-ccbin", compilers.cxx.program]
        cuda += [*flags["cuda"], *common, "-Xcompiler", "-fPIC,-fvisibility=hidden"]
        for option in compilers.cxx.options:
            cuda += ["-Xcompiler", option.replace(",", r"\,")]
        for each in compilers.architectures:
            virtual, _, ptx = each.partition("+")
            kept = f"[compute_{virtual},sm_{virtual}]" if ptx else f"sm_{virtual}"
            cuda.append(f"-gencode=arch=compute_{virtual},code={kept}")
        link += [f"-L{compilers.toolkit / each}" for each in ("lib64", "lib")]
        link += ["-lcudart_static", "-lpthread", "-lrt"]
    nvcc = compilers.nvcc.words if compilers.nvcc else []
    return _Commands(compilers.cxx.words, cpu, nvcc, cuda, [*link, "-ldl"])


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(name: str, folder: Path, key: str) -> Iterator[None]:
    """Creates a folder of the cache; while one process writes a key there, others wait. Explains an
    error in the cache."""
    with explained(name, folder):
        make_private(folder)
        with (folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


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
        file = cache_folder() / path
        return _digest(file.read_bytes()) if file.is_file() else None

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


def _in_cache(path: Path) -> str:
    """The path, relative to the cache if it is there, since a cache may be moved."""
    cache = cache_folder().resolve()
    return str(path.relative_to(cache) if path.is_relative_to(cache) else path)


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
        _in_cache(path): _digest(path.read_bytes())
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
        if part == "cpu":
            compiling.append([*commands.cxx, f"-I{scratch}", *commands.cpu, *output])
        elif commands.nvcc:
            compiling.append([*commands.nvcc, f"-I{scratch}", *commands.cuda, *output])
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
    command = [*commands.cxx, "-shared", "-o", str(library), *map(str, objects), *commands.link]
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
    """The output of a compiler, with one line about the user's own sources in front."""
    if "SignatureParser" in output and (message := _signature_error(files)):
        return message  # the compiler knows no more
    lines = output.splitlines()
    own = [
        line for line in lines if any(line.startswith((f"{file}:", f"{file}(")) for file in files)
    ]
    first = next((line for line in own if "error" in line), None)
    if first is None and own:  # the line that uses a template in which the error is
        position = own[0].split(": ", 1)[0]
        errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
        first = f"{position}: error: {errors[0]}" if errors else own[0]
    return f"{first}\n\n{output.strip()}" if first else output.strip()


def _link_error(output: str) -> str:
    """The output of a linker, with the function that is missing or there twice in front."""
    first = re.search(r"(undefined reference to|multiple definition of) [`'].*?'", output)
    return f"{first[0]}\n\n{output.strip()}" if first else output.strip()


def _signature_error(files: list[Path]) -> str | None:
    """The first signature that cannot be parsed. Compilers say only that parsing it failed."""
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        literal = r'(?:R"(\w*)\((.*?)\)\1"|((?:"[^"\n]*"\s*)+))'
        for found in re.finditer(rf"\.signature\s*=\s*{literal}", text, re.DOTALL):
            signature = found[2] or "".join(re.findall(r'"([^"\n]*)"', found[3] or ""))
            try:
                _C.read_signature(signature)
            except ValueError as problem:
                line = text.count("\n", 0, found.start()) + 1
                return f"{file}:{line}: error: {problem}"
    return None
