"""`torch.utils.cpp_extension.load` for ``.mm`` files, as on a Mac.

On a Mac the compiler is a clang that knows the language by the file's suffix, and ``-framework Metal`` names what to
link. Here g++ is torch's compiler; an extension with an ``.mm`` file is compiled as shaders are, with headers and a
library that stand for the frameworks. Everything else stays torch's: the folder, ninja, what is built again and when.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from metalsim_objc.bridge import Bridge

_load_bridge = functools.cache(Bridge)


def write_ninja_file(
    cpp_extension: Any,
    write: Callable[..., None],
    build: dict[str, Any],
    connect: Callable[[int], None],
) -> None:
    """Write what ninja is to do for an extension with ``.mm`` files.

    Parameters
    ----------
    cpp_extension
        Torch's module.
    write
        Its own function for that.
    build
        What that function takes, by name.
    connect
        Gives the device the address of the run time's stream; called once, with the first such extension.
    """
    bridge = _load_bridge(connect)
    build["cflags"] = [*build["cflags"], *bridge.tools.cflags]
    build["ldflags"] = [*without_frameworks(build["ldflags"]), *_link_flags(bridge.path)]

    compiler = _as_torch_takes_it(bridge.tools.compiler, cpp_extension)
    # torch asks for its compiler while it writes the file
    with mock.patch.object(cpp_extension, "get_cxx_compiler", return_value=compiler):
        write(**build)
    _link_with(bridge.tools.gxx, Path(build["path"]))


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
