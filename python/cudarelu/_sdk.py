"""The folders of the SDK for op modules; imports nothing that needs PyTorch."""

from pathlib import Path

from cudarelu import _build_info

SDK = Path(_build_info.__file__).absolute().parent / "sdk"
CMAKE = SDK / "lib/cmake/cudarelu"  # has cudarelu-config.cmake
