"""`torch.utils.cpp_extension.load` for ``.mm`` files, as on a Mac.

On a Mac the compiler is a clang that knows the language by the file's suffix, and ``-framework Metal`` names what to
link. Here g++ is torch's compiler; an extension with an ``.mm`` file is compiled as shaders are, with headers and a
library that stand for the frameworks. Everything else stays torch's: the folder, ninja, what is built again and when.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from metalsim import preload
from metalsim.objc.bridge import Bridge

MODULE = "torch.utils.cpp_extension"


def offer(connect: Callable[[int], None]) -> None:
    """Let torch build ``.mm`` files from now on; ``connect`` gives the device the address of their stream.

    Nothing is imported, built or asked for before the first one comes.
    """
    bridge = functools.cache(functools.partial(Bridge, connect))
    if MODULE in sys.modules:
        _teach(sys.modules[MODULE], bridge)
    else:
        preload.after_import(MODULE, lambda: _teach(sys.modules[MODULE], bridge))


def _teach(cpp_extension: Any, bridge: Callable[[], Bridge]) -> None:
    """Have torch's module for extensions write what ninja is to do with ``.mm`` files, too."""
    write = cpp_extension._write_ninja_file

    @functools.wraps(write)
    def write_ninja_file(**build: Any) -> None:
        has_objective_c = any(source.endswith(".mm") for source in build["sources"])
        # without `ldflags` it is setuptools that links, and nothing can be added here
        if not has_objective_c or build["ldflags"] is None:
            write(**build)
            return

        loaded = bridge()
        build["cflags"] = [*build["cflags"], *loaded.tools.cflags]
        build["ldflags"] = [*without_frameworks(build["ldflags"]), *_link_flags(loaded.path)]

        compiler = _as_torch_takes_it(loaded.tools.compiler, cpp_extension)
        with mock.patch.object(cpp_extension, "get_cxx_compiler", return_value=compiler):
            write(**build)
        _link_with(loaded.tools.gxx, Path(build["path"]))

    cpp_extension._write_ninja_file = write_ninja_file


def _link_flags(runtime: Path) -> list[str]:
    """Return what links an extension with the library that stands for the frameworks, and finds it at run time."""
    return [shlex.quote(str(runtime)), f"-Wl,-rpath,{shlex.quote(str(runtime.parent))}"]


def _as_torch_takes_it(compiler: Sequence[str], cpp_extension: Any) -> list[str] | str:
    """Return a compiler's command as words, which torch takes since 2.13; before it took a text."""
    if hasattr(cpp_extension, "_wrap_compiler"):
        return list(compiler)
    return shlex.join(compiler)


def _link_with(gxx: str, file: Path) -> None:
    """Have ninja link by g++, whose C++ library is PyTorch's, and not by the compiler."""
    written = file.read_text(encoding="utf-8")
    linking = f"command = {shlex.quote(gxx)} $in"
    file.write_text(written.replace("command = $cxx $in", linking), encoding="utf-8")


def without_frameworks(flags: Iterable[str]) -> list[str]:
    """Return linker flags without ``-framework NAME``, be it one flag or two."""
    kept = []
    remaining = iter(flags)
    for flag in remaining:
        if flag == "-framework":
            next(remaining, None)
        elif not flag.startswith(("-framework ", "-Wl,-framework,")):
            kept.append(flag)
    return kept
