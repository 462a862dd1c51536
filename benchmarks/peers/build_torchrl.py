"""Compiles TorchRL's C++ extension for the installed torch, from the sources in its wheel.

The one in the wheel works with the torch it was built with and no other; without it there are no
prioritized buffers. `make_venv.sh torchrl` runs this.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from setuptools import Distribution
from torch.utils.cpp_extension import BuildExtension, CppExtension


def build(package: Path) -> Path:
    """Replace the extension in the installed package, and return its path."""
    sources = [str(package / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
    flags = ["-O3", "-std=c++20"]
    include = [str(package / "csrc"), str(package.parent)]
    extension = CppExtension(
        "torchrl._torchrl", sources, extra_compile_args=flags, include_dirs=include
    )
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / "lib"
        distribution = Distribution({"name": "torchrl", "ext_modules": [extension]})
        command = BuildExtension(distribution, use_ninja=False)
        command.build_lib, command.build_temp = str(built), directory
        command.ensure_finalized()
        command.run()
        made = next(built.rglob("_torchrl*.so"))
        return Path(shutil.copy(made, package / made.name))


def main() -> None:
    """Build, unless the installed extension loads."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torchrl._torchrl")
        return
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.origin is None:
        raise SystemExit("torchrl is not installed here; benchmarks/peers/make_venv.sh torchrl")
    print(build(Path(spec.origin).parent))


if __name__ == "__main__":
    main()
