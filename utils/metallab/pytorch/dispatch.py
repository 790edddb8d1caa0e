"""Watching PyTorch's dispatcher without loading its compiler; which module and line call an operator, or raise."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib.util
import linecache
import os
import sys
import sysconfig
import textwrap
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


def watching(see: Callable[[Any, tuple, dict], Any]) -> TorchDispatchMode:
    """Return a mode, entered with ``with``, under which each operator becomes ``see(operator, args, kwargs)``.

    PyTorch keeps its compiler away from the methods of a mode's class, and loads the compiler for that, which takes
    seconds. It decides so when the class is made. That is here, each time: while no compiler is loaded there is none to
    keep away.

    Parameters
    ----------
    see
        Returns the operator's result; what it calls itself is not seen.
    """

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return see(operator, args, kwargs or {})

    return Watching()


BACKWARD = "the backward pass"


def _list_folders(package: str) -> list[str]:
    """Return the folders of a package's code, without importing it; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    return [folder + os.sep for folder in spec.submodule_search_locations or ()]


INSIDE = (
    os.path.dirname(torch.__file__) + os.sep,
    str(Path(__file__).parents[1]) + os.sep,
    *_list_folders("metalsim"),
    contextlib.__file__,
    importlib.__file__,
)
"""PyTorch's code, this package's and the simulated GPU's, and what of Python's own they go through.

A wrong kernel that is planted is the simulated GPU's code: what it calls is called by the line that met it.
"""

MODELS_OF_PAGES = str(Path(__file__).parents[1] / "language") + os.sep
"""Models that pages read like a script of the reader's, such as ``found.py``: their lines are told as well."""


@functools.cache  # asked of each frame of each operator that is traced
def _is_inside(file: str) -> bool:
    """Return True for code of PyTorch, of this package and of the simulated GPU, which no reader has to change."""
    if file.startswith(MODELS_OF_PAGES):
        return False
    return file.startswith((*INSIDE, "<frozen"))


class CallingModules:
    """Which module and line an operator belongs to: entered with ``with``, ask `innermost` and `find_line` of each.

    In a backward pass autograd knows it: a node has the number of the operator whose gradient it is, and operators
    were counted as they ran. Each thread counts for itself, so a number that two threads have used belongs to nobody.
    """

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._at_work: dict[int, list[tuple[int, str]]] = collections.defaultdict(list)
        """By thread, the modules that were entered, each with the backward pass that was under way."""
        self._paths: dict[int, dict[int, str]] = collections.defaultdict(dict)
        """By number and thread."""
        self._lines: dict[int, dict[int, CallingLine]] = collections.defaultdict(dict)
        """By number and thread, those that called an operator with a gradient."""
        self._noted: dict[int, int] = {}
        """The last number, by thread."""
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> CallingModules:
        self._note("")  # of what ran before
        self._entered.callback(register_module_forward_pre_hook(self._enter_module).remove)
        self._entered.callback(
            register_module_forward_hook(self._leave_module, always_call=True).remove
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def innermost(self) -> str:
        """Return the path of the innermost module, from its root's class on; empty outside of modules.

        In a backward pass that of the operator whose gradient is computed, and `BACKWARD` where that is not known; of
        what is computed a second time there (checkpointing) the module that does it. To be asked at each operator,
        counted or not: it also notes the path for the backward pass, of the nodes that autograd has made since.
        """
        entered = self._at_work[threading.get_ident()]
        path = entered[-1][1] if entered else ""
        if self.is_in_backward():
            path = self._find_path_of_gradient()

        self._note(path)
        return path

    def is_in_backward(self) -> bool:
        """Return True while gradients are computed; False in a forward pass, also in a second one (checkpointing)."""
        entered = self._at_work[threading.get_ident()]
        task = entered[-1][0] if entered else -1
        return bool(task != torch._C._current_graph_task_id())

    def find_line(self, has_node: bool, until: str = "") -> CallingLine | None:
        """Return the line that calls an operator; in a backward pass that of the operator whose gradient it computes.

        Parameters
        ----------
        has_node
            Whether the operator has a gradient, so that the last node of autograd is its own.
        until
            The name of a function: its callers are not asked.

        Returns
        -------
        CallingLine or None
            None if there is no line outside of PyTorch and of this package, and in a backward pass if it is not known.
        """
        if self.is_in_backward():
            node = torch._C._current_autograd_node()
            # whichever thread has noted it, since the backward pass may run in another one
            lines = set() if node is None else set(self._lines[node._sequence_nr()].values())
            return lines.pop() if len(lines) == 1 else None

        line = find_calling_line(until)
        if has_node and line is not None:
            number = torch.autograd._get_sequence_nr() - 1
            # the first one: an operator may call others, whose nodes have numbers of their own
            self._lines[number].setdefault(threading.get_ident(), line)
        return line

    def _find_path_of_gradient(self) -> str:
        """Return the module of the operator whose gradient is computed, or `BACKWARD` if that is not known."""
        node = torch._C._current_autograd_node()
        if node is None:
            return BACKWARD
        paths = set(self._paths[node._sequence_nr()].values())
        return (paths.pop() if len(paths) == 1 else "") or BACKWARD

    def _enter_module(self, module: nn.Module, _: object) -> None:
        self.innermost()
        if module not in self._names:
            root = type(module).__name__
            for name, each in module.named_modules():
                self._names[each] = f"{root}.{name}" if name else root

        task = torch._C._current_graph_task_id()
        self._at_work[threading.get_ident()].append((task, self._names[module]))

    def _leave_module(self, *_: object) -> None:
        self.innermost()
        entered = self._at_work[threading.get_ident()]
        if entered:  # none where the module was entered before this was
            entered.pop()

    def _note(self, path: str) -> None:
        """Note that the nodes that were made since the last time belong to a path.

        It is called before each change of module, so they do. Of a thread that is met for the first time it is the last
        node alone, since nobody has seen what made those before.
        """
        thread = threading.get_ident()
        # autograd makes the node before its operator is seen, so the last number that was given is its own
        number = torch.autograd._get_sequence_nr() - 1
        for each in range(self._noted.get(thread, number - 1) + 1, number + 1):
            self._paths[each][thread] = path
        self._noted[thread] = number


def below_root(path: str) -> str:
    """Return a path as `named_modules` has it, without the root's class: empty for the root. `BACKWARD` stays."""
    return path if path == BACKWARD else path.partition(".")[2]


@dataclass(frozen=True)
class CallingLine:
    """A line outside of PyTorch and of this package that calls an operator."""

    file: str
    """As Python has it, such as ``train.py`` of a script that was started by this name."""
    number: int
    own: CallingLine | None = None
    """The innermost line of the reader's own code, where this one belongs to an installed package; else None."""

    @property
    def source(self) -> str:
        """What stands in the line; empty if its file cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return _line(self.file, self.number)


def find_calling_line(until: str = "") -> CallingLine | None:
    """Return the innermost line that runs outside of PyTorch and of this package; None if there is none.

    Where it belongs to an installed package, it comes with the innermost line of the reader's own code (``own``).

    Parameters
    ----------
    until
        The name of a function: its callers are not asked.
    """
    lines = _list_calling_lines(until)
    innermost = next(lines, None)
    if innermost is None or not find_package(innermost[0]):
        return CallingLine(*innermost) if innermost else None

    # ``lines`` goes on from there, outwards
    own = next((line for line in lines if not find_package(line[0])), None)
    return CallingLine(*innermost, own=CallingLine(*own) if own else None)


def _list_calling_lines(until: str) -> Iterator[tuple[str, int]]:
    """Yield file and number of the lines that run outside of PyTorch and of this package, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != until:
        name = frame.f_code.co_filename
        if not _is_inside(name):
            yield name, frame.f_lineno
        frame = frame.f_back


def calling_line(until: str = "") -> str:
    """Return the innermost line that runs outside of PyTorch and of this package; empty if there is none.

    Parameters
    ----------
    until
        The name of a function: its callers are not asked.

    Returns
    -------
    str
        ``file:number``.
    """
    return str(find_calling_line(until) or "")


def call_loss(loss: Callable[[Any], Any], outputs: Any) -> Any:
    """Return the loss of a model's outputs; by this function `explain` tells that it is the loss that raised."""
    return loss(outputs)


@dataclass(frozen=True)
class Raised:
    """An exception; as text a line, ``KeyError: 'words' (in embed, at my_model.py:7)``."""

    text: str
    """Its kind and the first sentence of what it says."""
    module: str
    """The innermost module that was at work, by its place in the model; empty for the model itself and elsewhere."""
    line: str
    """See `raising_line`."""
    is_of_loss: bool = False
    """Whether the loss raised it, and no module of the model."""

    def __str__(self) -> str:
        places = []
        if self.is_of_loss:
            places.append("in the loss")
        elif self.module:
            places.append(f"in {self.module}")
        if self.line:
            places.append(f"at {self.line}")
        return f"{self.text} ({', '.join(places)})" if places else self.text


def explain(error: BaseException) -> Raised:
    """Describe an exception and where in a model it was raised: the model is the outermost module that was at work.

    Of what it says the first sentence of the first line is kept, at most 200 characters.
    """
    kind = type(error).__name__
    first_line = str(error).strip().partition("\n")[0]
    sentence = textwrap.shorten(first_line.partition(". ")[0].rstrip(".!"), 200)
    text = f"{kind}: {sentence}" if sentence else kind

    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_loss = call_loss.__code__ in codes
    module = "" if is_of_loss else _find_raising_module(error)
    return Raised(text, module, raising_line(error), is_of_loss)


def _find_raising_module(error: BaseException) -> str:
    """Return the innermost module that was at work, by its place in the outermost one; empty for that itself.

    Modules are found as the ``self`` of the methods that were running. One that the outermost does not hold is passed
    over.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [frame.f_locals.get("self") for frame in frames]
    modules = [owner for owner in owners if isinstance(owner, nn.Module)]
    if not modules:
        return ""

    names = {id(module): name for name, module in modules[0].named_modules()}
    for module in reversed(modules):  # a traceback goes from the outermost frame to the innermost
        if name := names.get(id(module)):
            return name
    return ""


def raising_line(error: BaseException) -> str:
    """Return the line from which an exception came, ``file:number``: the innermost of the reader's own code.

    That of an installed package where no code of the reader's was at work; empty if only PyTorch and this one were. Of
    a file that is no Python it is that file's.
    """
    if isinstance(error, SyntaxError) and error.filename and os.path.exists(error.filename):
        return _line(error.filename, error.lineno or 1)

    frames = [*traceback.walk_tb(error.__traceback__)]
    lines = [(frame.f_code.co_filename, number) for frame, number in reversed(frames)]
    # code without a file has a name such as <string>
    lines = [line for line in lines if not _is_inside(line[0]) and not line[0].startswith("<")]
    own = [line for line in lines if not find_package(line[0])]
    return _line(*(own or lines)[0]) if lines else ""


@functools.cache
def find_package(file: str | Path) -> str:
    """Return the installed package, or part of Python's own library, to which a file belongs; empty if to none."""
    names = ("purelib", "platlib", "stdlib", "platstdlib")
    folders = {Path(sysconfig.get_path(name)) for name in names}
    path = Path(file).absolute()
    inside = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    if not inside:
        return ""

    # site-packages lies in the folder of Python's library, so the shorter path begins with the package
    shortest = min(inside, key=lambda rest: len(rest.parts))
    return shortest.parts[0].removesuffix(".py")


def _line(file: str, number: int) -> str:
    below = os.path.relpath(file)
    return f"{file if below.startswith('..') else below}:{number}"
