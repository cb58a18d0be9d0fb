"""The custom-op libraries, and their registration in ONNX Runtime's session options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudarelu import _build_info
from cudarelu._modules import modules

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnxruntime

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def library_path() -> str:
    """The path of the custom-op library with the ops of this package.

    Raises FileNotFoundError if the package was built without it.
    """
    if not _build_info.ORT:
        raise FileNotFoundError(
            "this cudarelu was built without ONNX Runtime: build it with -DCUDARELU_ORT=ON; "
            "CMake's report lists what this needs"
        )
    return modules()[0].path


def register(
    session_options: onnxruntime.SessionOptions, *, alias_domains: Iterable[str] | None = None
) -> onnxruntime.SessionOptions:
    """Registers the ops with the options, and returns the options. A second call has no effect.

    These are the ops of all modules that are loaded by now (``cudarelu.load_library``).

    ONNX Runtime rejects a session with two domains of the same name, and other libraries may
    register the domain of an alias, such as "custom_domain". ``alias_domains`` are the domains of
    aliases to register, by default all. A domain that the options already have is skipped, so
    register other libraries first, or pass ``alias_domains=()``. ONNX Runtime's Python package
    before 1.23 does not report the domains that the options have.

    Raises TypeError if ``alias_domains`` is a single string, and ONNX Runtime's error if the
    library cannot be loaded or no op has an alias in one of the domains.
    """
    if isinstance(alias_domains, str):
        raise TypeError(f"alias_domains must be several names, not the string {alias_domains!r}")
    library_path()  # raises the error
    wanted = None if alias_domains is None else list(alias_domains)
    aliases = {
        module.name: {op.onnx.alias[0] for op in module.ops() if op.onnx.alias}
        for module in modules()
    }
    for module in modules():
        if wanted is not None:
            # The library reads this entry, and refuses a domain that none of its aliases has.
            foreign = set().union(*aliases.values()) - aliases[module.name]
            entry = ",".join(domain for domain in wanted if domain not in foreign)
            session_options.add_session_config_entry(f"{module.name}.alias_domains", entry)
        session_options.register_custom_ops_library(module.path)
    return session_options
