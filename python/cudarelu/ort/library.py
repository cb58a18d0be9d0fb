"""The custom-op libraries, and their registration in ONNX Runtime's session options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudarelu import _build_info
from cudarelu._modules import modules

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnxruntime


def library_path() -> str:
    """The path of the custom-op library with the ops of this package.

    Raises FileNotFoundError if the package was built without it.
    """
    # In the folder that the build writes to; in an editable install, this file is elsewhere.
    path = Path(_build_info.__file__).parent / "libcudarelu_ort.so"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: build cudarelu with -DCUDARELU_ORT=ON; CMake's report lists what "
            "this needs"
        )
    return str(path)


def _libraries() -> dict[str, set[str]]:
    """The custom-op library of each loaded module, and the domains of the aliases of its ops."""
    own, *others = modules()
    return {
        path: {op.onnx.alias[0] for op in module.ops() if op.onnx.alias}
        for path, module in [(library_path(), own), *((each.path, each) for each in others)]
    }


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
    libraries = _libraries()
    wanted = None if alias_domains is None else list(alias_domains)
    for path, own in libraries.items():
        if wanted is not None:
            # The library reads this entry, and refuses a domain that none of its aliases has.
            foreign = set().union(*libraries.values()) - own
            entry = ",".join(domain for domain in wanted if domain not in foreign)
            session_options.add_session_config_entry("cudarelu.alias_domains", entry)
        session_options.register_custom_ops_library(path)
    return session_options
