"""A process that has imported PyTorch, with the simulated Apple GPU or without, and forks a child for each task.

A fresh interpreter takes 1.5 s for that before the first line of a cell runs. A forked child begins where the fresh one
stands after its ``import torch``, with everything as new: memory, counters, generators, caches. So only a text that
begins with that import may be given one (`may_serve`), where the environment, the folder and the cores are
those that the server was started with; and whenever anything is odd there is no child (None), and who asked starts an
interpreter. `isolated` is who asks, and what the server and its children execute.

The server has one thread and computes nothing. It is asked over a socket, one task at a time, and ends, with the child
that is at work, when the other end is closed: also where that process was killed. Who edits metallab or metalsim
restarts the notebook's kernel, as for its own imports: the server has read them.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from metallab.processes import find_process, kill_family

HARMLESS = sys.stdlib_module_names | {"numpy", "metallab", "metalsim"}
"""Modules that a text may import before torch: they neither ask whether torch is there nor change what it will be."""
MOST_BYTES = 2**16
_READY, _WAIT, _REFUSED = b"ready", b"wait", b"refused"


def may_serve(source: str, modules: Mapping[str, str]) -> bool:
    """Whether a text imports torch before it does anything else; ``modules`` are texts by name that it can import.

    Before it there may be a docstring, imports of `HARMLESS` modules, and functions without decorators, defaults and
    annotations, of which nothing is executed yet; the same holds for a module that it imports before torch.
    """
    return sys.platform == "linux" and _reaches_torch(source, modules) is True


def _reaches_torch(source: str, modules: Mapping[str, str]) -> bool | None:
    """False if something comes before torch is imported, None if nothing does and torch never is."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):  # who executes it will tell
        return False
    for statement in statements:
        match statement:
            case ast.Import(aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(str(module), _, 0):
                names = [module]
            case ast.Expr(ast.Constant()):
                names = []
            case ast.FunctionDef() if _does_nothing_yet(statement):
                names = []
            case _:
                return False
        for name in (name.partition(".")[0] for name in names):
            if name == "torch":
                return True
            if name in modules:
                others = {other: text for other, text in modules.items() if other != name}
                if (reached := _reaches_torch(modules[name], others)) is not None:
                    return reached
            elif name not in HARMLESS:
                return False
    return None


def _does_nothing_yet(function: ast.FunctionDef) -> bool:
    given = function.args
    names = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    executed = [*function.decorator_list, *given.defaults, *given.kw_defaults, function.returns]
    return not any([*executed, *(name.annotation for name in names)])


class Child:
    """A process that the server has forked: what one does with a `subprocess.Popen`."""

    def __init__(self, pid: int, server: _Server) -> None:
        self.pid, self._server, self._asked = pid, server, False
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its return code once it has ended; until somebody waits, no other process is given its number.

        subprocess.TimeoutExpired after so many seconds. Where the server has been killed it counts as killed.
        """
        if self.returncode is None:
            if not self._asked:
                self._server.send(_WAIT)
                self._asked = True
            try:
                answer = self._server.receive(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0) from None
            self.returncode = int(answer) if answer else -signal.SIGKILL
            _one_at_a_time.release()
        return self.returncode


class _Server:
    """A server, as the process sees it that started it."""

    def __init__(self, key: tuple, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.key = key
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # until `stop`
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs, stdout=self._words, stderr=self._words, env=environment, start_new_session=True
            )

    def is_ready(self, timeout: float) -> bool:
        """Whether it comes to be ready in so many seconds, and without a word: that would belong below a cell."""
        return self.receive(timeout) == _READY and self._words.seek(0, os.SEEK_END) == 0

    def send(self, message: bytes, streams: Sequence[BinaryIO] = ()) -> None:
        """Tell it something; one that has ended is noticed when an answer is wanted."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._connection, [message], [stream.fileno() for stream in streams])

    def receive(self, timeout: float | None) -> bytes:
        """Its answer; none if it has ended. TimeoutError after so many seconds."""
        self._connection.settimeout(timeout)
        with contextlib.suppress(ConnectionError):
            return self._connection.recv(MOST_BYTES)
        return b""

    def stop(self) -> None:
        """End it, and the child that is at work."""
        self._connection.close()
        self._words.close()
        if self.key[0] == os.getpid():  # else this process was forked from the one that started it
            kill_family(find_process(self._process.pid))
            self._process.wait()


_server: _Server | None = None
_one_at_a_time = threading.Lock()
_failures: list[tuple] = []


@atexit.register
def _stop() -> None:
    global _server
    if _server is not None:
        _server.stop()
        _server = None


def child(
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    task: Path,
    streams: tuple[BinaryIO, BinaryIO],
    timeout: float,
) -> Child | None:
    """A child at work on the task in a folder, forked by the server that ``command`` starts; None if there is none.

    ``environment`` is the server's; the child has some more ``variables``, and can import what lies in its folder. The
    ``streams`` are its standard output and standard error. The server has ``timeout`` seconds to be ready. Who gets a
    child must wait for it: until then there is no other one.
    """
    if not _one_at_a_time.acquire(blocking=False):
        return None
    made = None
    try:
        if server := _ready_server(command, environment, timeout):
            server.send(json.dumps({"task": str(task), "variables": variables}).encode(), streams)
            answer = server.receive(timeout)
            if not answer:
                _stop()
            elif answer != _REFUSED:
                made = Child(int(answer), server)
    except TimeoutError:
        _stop()
    except BaseException:  # Ctrl-C: nobody knows what it is at
        _stop()
        raise
    finally:
        if made is None:
            _one_at_a_time.release()
    return made


def _ready_server(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> _Server | None:
    """The server that there is, if all is as it was when that was started, else a new one; None if it is not ready."""
    global _server
    limits = Path("/proc/self/limits").read_bytes()
    key = (os.getpid(), command, environment, os.getcwd(), os.sched_getaffinity(0), limits)
    if _server is not None and _server.key == key:
        return _server
    _stop()
    if _failures.count(key) > 1:  # the first time it may have been built, which takes long and is told
        return None
    _server = _Server(key, command, environment)
    _failures.append(key)
    if _server.is_ready(timeout):
        _failures.remove(key)
    else:
        _stop()
    return _server


def serve(prepare: Callable[[], object], work: Callable[[str], int]) -> None:
    """The server: ``prepare``, then fork a child for each task, which does the ``work`` in its folder and ends.

    Standard input is the socket. Returns when its other end is closed, and at once where there are other threads.
    """
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.close(os.pidfd_open(os.getpid()))  # where the system has none it ends here
    prepare()
    if (first := os.fork()) == 0:  # OpenBLAS ends its threads for a fork, and starts them when it is used: others stay
        os._exit(0)
    os.waitpid(first, 0)
    connection.send(_READY)
    while True:
        message, streams, _, _ = socket.recv_fds(connection, MOST_BYTES, 2)
        if not message:
            return
        request = json.loads(message)
        task = Path(request["task"])
        if not _may_fork(task):
            connection.send(_REFUSED)
        elif pid := os.fork():
            _tell_of(pid, connection, task.name)
        else:
            connection.close()
            _work(task, request["variables"], streams, work)
        for stream in streams:
            os.close(stream)


def _may_fork(task: Path) -> bool:
    """Whether a fork is safe, and no module of the task's own would be taken for one that is imported here."""
    return len(os.listdir("/proc/self/task")) == 1 and not any(file.stem in sys.modules for file in task.glob("*.py"))


def _tell_of(pid: int, connection: socket.socket, mark: str) -> None:
    """Say that there is a child, and when somebody waits for it, how it ended; if nobody is there any more, end it."""
    connection.send(b"%d" % pid)
    if connection.recv(MOST_BYTES) == _WAIT:
        ending = os.pidfd_open(pid)
        ready, _, _ = select.select([connection, ending], [], [])
        os.close(ending)
        if connection not in ready:
            connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            return
    kill_family(find_process(pid), mark)
    sys.exit()


def _work(task: Path, variables: Mapping[str, str], streams: Sequence[int], work: Callable[[str], int]) -> NoReturn:
    """The child, which becomes what a fresh interpreter would be, does its work, and never returns."""
    code = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.update(variables)
        sys.argv[1] = str(task)
        if any(task.glob("*.py")):
            sys.path.insert(0, str(task))
        code = work(str(task))
    except BaseException:  # noqa: BLE001  # as at the end of an interpreter
        traceback.print_exc()
    finally:
        with contextlib.suppress(ValueError):  # it may be closed
            sys.stdout.flush()
        os._exit(code)
