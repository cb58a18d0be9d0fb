"""The custom-op library, and how ONNX Runtime's options take it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudarelu import _build_info

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnxruntime


def library_path() -> str:
    """The path of the custom-op library.

    Raises FileNotFoundError where the package was built without it.
    """
    # Where the build writes: this file may be elsewhere, in an editable install.
    path = Path(_build_info.__file__).parent / "libcudarelu_ort.so"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: build cudarelu with -DCUDARELU_ORT=ON, whose report says what it "
            "needs"
        )
    return str(path)


def register(
    session_options: onnxruntime.SessionOptions, *, alias_domains: Iterable[str] | None = None
) -> onnxruntime.SessionOptions:
    """Registers the ops with the options, and returns them. Doing so again changes nothing.

    ONNX Runtime refuses a session with two domains of one name, and other libraries may have
    the domain of an alias, such as "custom_domain". ``alias_domains`` are those that may be
    registered here, by default all; one that the options have already is left out. So register
    other libraries first, or give ``alias_domains=()``. ONNX Runtime's Python package before 1.23
    does not tell which ones the options have.

    Raises TypeError where ``alias_domains`` is one string, and ONNX Runtime's error where the
    library cannot be loaded or no op has an alias in such a domain.
    """
    if isinstance(alias_domains, str):
        raise TypeError(f"alias_domains must be several names, not the string {alias_domains!r}")
    if alias_domains is not None:
        # The library reads it.
        session_options.add_session_config_entry("cudarelu.alias_domains", ",".join(alias_domains))
    session_options.register_custom_ops_library(library_path())
    return session_options
