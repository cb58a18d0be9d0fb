"""What PyInstaller does not see of cudarelu in a program that imports it."""

from PyInstaller.utils.hooks import collect_dynamic_libs

# The folder of _C joins the path of the package when it is imported.
binaries = collect_dynamic_libs("cudarelu", search_patterns=["*.so"])

# A library finds the ops in the folder above its own; a link elsewhere would be loaded instead.
bindepend_symlink_suppression = ["**/cudarelu/*.so", "**/cudarelu/pytorch_*/*.so"]

# Imported by _C.
hiddenimports = ["cudarelu._arrays", "ml_dtypes"]

# Only for programs that import these themselves, and for benchmarks and tests.
excludedimports = ["cupy", "jax", "matplotlib", "pytest", "tensorflow", "transformers", "triton"]
