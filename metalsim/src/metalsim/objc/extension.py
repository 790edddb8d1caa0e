"""`torch.utils.cpp_extension.load` for ``.mm`` files, as on a Mac.

On a Mac the compiler is a clang that knows the language by the file's suffix, and ``-framework Metal`` names what to
link. Here g++ is torch's compiler; an extension with an ``.mm`` file is compiled as shaders are, with headers and a
library that stand for the frameworks. Everything else stays torch's: the folder, ninja, what is built again and when.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
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


def _teach(cpp_extension: ModuleType, bridge: Callable[[], Bridge]) -> None:
    write = cpp_extension._write_ninja_file

    @functools.wraps(write)
    def write_ninja_file(**build: Any) -> None:
        # without `ldflags` it is setuptools that links, and nothing can be added here
        if build["ldflags"] is None or not any(
            source.endswith(".mm") for source in build["sources"]
        ):
            return write(**build)
        tools, runtime = bridge().tools, bridge().path
        build["cflags"] = [*build["cflags"], *tools.cflags]
        build["ldflags"] = [
            *without_frameworks(build["ldflags"]),
            *(shlex.quote(str(runtime)), f"-Wl,-rpath,{shlex.quote(str(runtime.parent))}"),
        ]
        takes_words = hasattr(cpp_extension, "_wrap_compiler")  # since PyTorch 2.13; before, a text
        compiler = list(tools.compiler) if takes_words else shlex.join(tools.compiler)
        with mock.patch.object(cpp_extension, "get_cxx_compiler", return_value=compiler):
            write(**build)
        file = Path(build["path"])
        linking = f"command = {shlex.quote(tools.gxx)} $in"
        file.write_text(
            file.read_text(encoding="utf-8").replace("command = $cxx $in", linking),
            encoding="utf-8",
        )

    cpp_extension._write_ninja_file = write_ninja_file


def without_frameworks(flags: Iterable[str]) -> list[str]:
    """Linker flags without ``-framework NAME``, be it one flag or two."""
    kept, remaining = [], iter(flags)
    for flag in remaining:
        if flag == "-framework":
            next(remaining, None)
        elif not flag.startswith(("-framework ", "-Wl,-framework,")):
            kept.append(flag)
    return kept
