"""Make ``.venv`` and install the project into it: ``python3 -I utils/metallab/bootstrap.py``.

Standard library only, because it runs before anything is installed; and with ``-I``, so that neither a module in this
folder nor ``PYTHONPATH`` stands in for the standard library's.

Any Python from 3.6 on can start it: one that is too old gets a message, or the work is handed to a newer one on
PATH. So this file keeps to the syntax and the library calls of 3.6: no annotations, ``universal_newlines``.

A stamp inside ``.venv`` says what it was made from. When that is still true, nothing happens and nothing is printed.
"""

# ruff: noqa: UP021  (they ask for what Python 3.6 does not have)

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

WANTED = ((3, 11), (3, 12))
GLIBC = (2, 28)  # what the wheels of torch and scikit-learn are built for
MACOS = (15, 0)  # what the MPS device of torch 2.15 wants: its wheel installs on 14 and then has no GPU there

# GiB (installed, wheels): pip holds all wheels in a temporary folder until it has finished, and keeps a copy in its
# cache. Linux: measured (8.3 and 3.8), much of it CUDA, which torch carries there. macOS: estimated, without CUDA.
ROOM = {"Linux": (9.0, 4.0), "Darwin": (4.0, 1.0)}
ROOM_FOR_UPDATE = 2.0
GIB = 2.0**30

STAMP = "metallab-setup.json"
STARTED = "metallab-setup.started"
SHOW_EVERY = 10.0  # seconds between two lines of progress when the output is not a terminal


class Problem(Exception):
    """Something the user has to mend; the text says how."""


class Stopped(Exception):
    """A signal asked us to stop."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class Project:
    """The files of one checkout that set-up reads and writes."""

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.pyproject = os.path.join(self.root, "pyproject.toml")
        self.constraints = os.path.join(self.root, "constraints.txt")
        self.package = os.path.join(self.root, "utils", "metallab", "__init__.py")
        self.venv = os.path.join(self.root, ".venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.stamp = os.path.join(self.venv, STAMP)
        self.old_stamp = self.stamp + ".old"
        self.started = os.path.join(self.venv, STARTED)
        self.build = os.path.join(self.root, "build")
        self.log = os.path.join(self.build, "setup.log")
        self.lock = os.path.join(self.build, "setup.lock")
        self.scratch = os.path.join(self.build, "setup-tmp")


def say(text):
    print(text, flush=True)


# ---------------------------------------------------------------- is there anything to do?


def dependency_text(pyproject):
    """The parts of pyproject.toml that decide what gets installed.

    Cut out by their headings, since Python before 3.11 cannot parse TOML: a change to the linter's settings must not
    cost an installation.
    """
    kept, keep = [], False
    for line in pyproject.splitlines():
        if line.startswith("["):
            heading = line.strip("[] ").split("]")[0]
            keep = heading.split(".")[0] in ("project", "build-system") or heading.startswith("tool.setuptools")
        if keep:
            kept.append(line.rstrip())
    return "\n".join(kept)


def fingerprint(project):
    """What ``.venv`` has to be made from: the checkout's path (scripts in it name it) and the dependencies."""
    import hashlib

    digest = hashlib.sha256()
    with open(project.pyproject, encoding="utf-8") as file:
        digest.update(dependency_text(file.read()).encode())
    with open(project.constraints, encoding="utf-8") as file:
        digest.update(file.read().encode())
    return {"checkout": project.root, "dependencies": digest.hexdigest()}


def read_stamp(project):
    """The stamp as a dictionary, or None when there is none that can be read."""
    try:
        with open(project.stamp, encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(project, broken):
    """Say that ``.venv`` is complete. Written last, and renamed into place, so that it is never half there."""
    stamp = fingerprint(project)
    stamp["python"] = python_version(project.python)
    stamp["broken"] = broken  # what does not import, and why
    with open(project.stamp + ".new", "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
    os.replace(project.stamp + ".new", project.stamp)


def python_version(python):
    """(major, minor) as a list, of an interpreter that really starts; None of one that does not."""
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        return [int(part) for part in done.stdout.split()] if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def diagnose(project):
    """What ``.venv`` needs: ("current" | "update" | "build" | "rebuild", why)."""
    if not os.path.isdir(project.venv):
        return "build", ""
    if not os.listdir(project.venv):
        return "build", ""  # an empty folder, or a link to one on a bigger disk
    stamp = read_stamp(project)
    if stamp is None:
        if not any(os.path.exists(os.path.join(project.venv, name)) for name in ("pyvenv.cfg", STARTED)):
            raise Problem(".venv exists and is no virtual environment. Move it away, then try again.")
        return "rebuild", "it is not complete, an earlier set-up may have been interrupted"
    wanted = fingerprint(project)
    if stamp.get("checkout") != wanted["checkout"]:
        return "rebuild", "it was made in another folder, {}".format(stamp.get("checkout"))
    version = python_version(project.python)
    if version is None:
        return "rebuild", "its Python no longer starts"
    if version != stamp.get("python") or tuple(version) not in WANTED:
        return "rebuild", "its Python has changed to {}.{}".format(*version)
    if stamp.get("dependencies") != wanted["dependencies"]:
        return "update", "pyproject.toml or constraints.txt has changed"
    return "current", ""


# ---------------------------------------------------------------- the right Python


def running_version():
    return tuple(sys.version_info[:2])


def find_python(path, but_not=None):
    """The first Python of a wanted version on PATH that really starts (shims of version managers may not)."""
    for version in WANTED:
        for folder in path.split(os.pathsep):
            candidate = os.path.join(folder, "python{}.{}".format(*version))
            usable = os.access(candidate, os.X_OK) and os.path.realpath(folder) != but_not
            if usable and python_version(candidate) == list(version):
                return candidate
    return None


def python_help(running):
    return (
        "Python 3.11 or 3.12 is needed; this is {}.{}, and no python3.11 or python3.12 on PATH starts.\n"
        "  macOS:         brew install python@3.11, or the installer from python.org\n"
        "  Debian 12:     sudo apt-get install python3.11 python3.11-venv python3.11-dev\n"
        "  Ubuntu 24.04:  sudo apt-get install python3.12 python3.12-venv python3.12-dev\n"
        "  elsewhere:     pyenv install 3.11, or conda env create -f environment.yml\n"
        "Then try again."
    ).format(*running)


def use_wanted_python(project, arguments):
    """Return when this Python will do; else replace this process by one that will.

    A Python inside ``.venv`` (somebody activated it) will not do: it would have to remove itself.
    """
    running = running_version()
    inside = os.path.realpath(sys.prefix) == os.path.realpath(project.venv)
    if running in WANTED and not inside:
        return
    base = find_python(os.environ.get("PATH", os.defpath), but_not=os.path.realpath(os.path.dirname(project.python)))
    if inside and python_version(sys._base_executable) == list(running) and running in WANTED:
        base = sys._base_executable
    if base is None:
        raise Problem(python_help(running))
    if not inside:
        say(f"This is Python {running[0]}.{running[1]}: going on with {base}.")
    os.execv(base, [base, "-I", os.path.abspath(__file__), *arguments])


# ---------------------------------------------------------------- checks before anything is made


def check_platform():
    """Only where wheels of every framework exist."""
    import platform

    system, machine = platform.system(), platform.machine()
    supported = f"Supported are Linux on x86-64 and macOS {MACOS[0]} or newer on Apple silicon"
    if (system, machine) == ("Darwin", "x86_64"):
        raise Problem(
            supported + "; this is an Intel Python. On a Mac with an Apple chip, install the arm64 Python:\n"
            "  brew install python@3.11 (from /opt/homebrew), or the universal installer from python.org"
        )
    if (system, machine) not in (("Linux", "x86_64"), ("Darwin", "arm64")):
        hint = "\nOn Windows, use WSL 2 with Ubuntu." if system == "Windows" else ""
        raise Problem(f"{supported}; this is {system} on {machine}.{hint}")
    if system == "Darwin" and numbers(platform.mac_ver()[0]) < MACOS:
        found = platform.mac_ver()[0]
        raise Problem(
            f"macOS {MACOS[0]} or newer is needed by the MPS device of torch 2.15; this is {found}. Update macOS."
        )
    if system == "Linux":
        name, version = platform.libc_ver()
        if name != "glibc" or numbers(version) < GLIBC:
            found = f"{name} {version}" if name else "another C library"
            raise Problem(
                f"A Linux with glibc {GLIBC[0]}.{GLIBC[1]} or newer is needed by torch; this has {found}. "
                "Use Debian 12, Ubuntu 22.04 or newer."
            )


def numbers(version):
    """'15.1.2' as (15, 1); what is not a number counts as 0."""
    parts = ([*version.split("."), "0", "0"])[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def apt_package(suffix):
    return f"python{sys.version_info[0]}.{sys.version_info[1]}-{suffix}"


def check_venv():
    """Debian ships both modules in a package of their own."""
    import importlib.util

    lacking = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if lacking:
        raise Problem(
            "{} has no module {}.\n"
            "  Debian, Ubuntu: sudo apt-get install {}\n"
            "  elsewhere:      install a complete Python (python.org, brew, pyenv)".format(
                sys.executable, " and no ".join(lacking), apt_package("venv")
            )
        )


def check_headers():
    """C++ extensions are built in the notebooks, and they include Python.h."""
    import sysconfig

    folder = sysconfig.get_paths()["include"]
    if not os.path.isfile(os.path.join(folder, "Python.h")):
        raise Problem(
            "{} has no header files (no Python.h in {}).\n"
            "  Debian, Ubuntu: sudo apt-get install {}\n"
            "  elsewhere:      install a complete Python (python.org, brew, pyenv)".format(
                sys.executable, folder, apt_package("dev")
            )
        )


def check_compiler():
    """A C++ compiler that compiles: being there is not enough (clang without a standard library, macOS's stub)."""
    import platform
    import shlex

    mac = platform.system() == "Darwin"
    install = "xcode-select --install" if mac else "sudo apt-get install g++"
    if mac and subprocess.call(["xcode-select", "-p"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) != 0:
        raise Problem("There is no C++ compiler.\n  Run: " + install)
    named = shlex.split(os.environ.get("CXX", ""))
    found = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    if not named and not found:
        raise Problem("There is no C++ compiler.\n  Run: " + install)
    command = named or found[:1]
    try:
        done = subprocess.run(
            [*command, "-x", "c++", "-fsyntax-only", "-"],
            input="#include <vector>\nint main() { return 0; }\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        failed, output = done.returncode != 0, done.stdout
    except OSError as error:
        failed, output = True, str(error)
    if failed:
        reason = output.strip().splitlines()[-1] if output.strip() else "it says nothing"
        raise Problem(
            "The C++ compiler {}{} does not work: {}\n  Run: {}{}".format(
                " ".join(command),
                " (from CXX)" if named else "",
                reason,
                install,
                ", or unset CXX" if named else "",
            )
        )


def folder_size(folder):
    """Bytes on disk of everything under a folder."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total


def pip_cache():
    """Where pip keeps what it downloaded, or None when it keeps nothing."""
    import platform

    if os.environ.get("PIP_NO_CACHE_DIR"):
        return None
    mac = platform.system() == "Darwin"
    caches = os.path.expanduser("~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return os.environ.get("PIP_CACHE_DIR") or os.path.join(caches, "pip")


def existing(folder):
    """The folder, or the nearest one above it that exists."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def disk_free(folder):
    return shutil.disk_usage(folder).free


def check_disk(project, action):
    """Room for .venv, for the wheels that pip holds meanwhile (we send those to build/) and for pip's cache."""
    import platform

    if action == "current":
        return
    if action == "update":
        require_room({project.venv: ROOM_FOR_UPDATE})
        return
    installed, wheels = ROOM.get(platform.system(), ROOM["Linux"])
    if action == "rebuild":
        installed -= folder_size(project.venv) / GIB  # which goes first
    rooms = {project.venv: installed, project.build: wheels}
    cache = pip_cache()
    if cache is not None:
        rooms[cache] = max(0.0, wheels - folder_size(cache) / GIB)  # what is there is not fetched again
    require_room(rooms)


def require_room(rooms):
    """Raise Problem unless each disk has the room, in GiB, that the folders on it need together."""
    disks = {}
    for folder, gib in rooms.items():
        folder = existing(folder)
        first, before = disks.get(os.stat(folder).st_dev, (folder, 0.0))
        disks[os.stat(folder).st_dev] = first, before + gib
    for folder, gib in disks.values():
        free = disk_free(folder) / GIB
        if free < gib:
            raise Problem(
                f"There is too little disk space: set-up needs {gib:.1f} GiB more, {folder} has {free:.1f} GiB.\n"
                "  Free some. Or make .venv a link to an empty folder on a bigger disk. Or do without pip's cache:\n"
                "  PIP_NO_CACHE_DIR=1 make setup"
            )


def run_checks(project, action, verbose):
    """Every check, so that all that is missing can be installed in one go. Raises one Problem with all of them."""
    checks = (
        ("platform", check_platform),
        ("venv and ensurepip", check_venv),
        ("Python's header files", check_headers),
        ("C++ compiler", check_compiler),
        ("disk space", lambda: check_disk(project, action)),
    )
    problems = []
    for name, one in checks:
        try:
            one()
            result = "ok"
        except Problem as problem:
            problems.append(str(problem))
            result = "not yet"
        if verbose:
            say(f"{name:<24}{result}")
    if problems:
        raise Problem("\n".join([*problems, "Nothing was changed. Mend this, then try again."]))


# ---------------------------------------------------------------- progress


class Progress:
    """What is being done and for how long: one line that changes on a terminal, else a line now and then."""

    def __init__(self, stream=None, clock=time.monotonic):
        self.stream = stream or sys.stdout
        self.clock = clock
        self.terminal = self.stream.isatty()
        self.start = clock()
        self.shown_at = None
        self.text = ""

    def update(self, text):
        """Tell what is being done now; call it often, also with the same text."""
        self.text = text
        now = self.clock()
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write("\r\x1b[K" + self.line(now)[:width])
            self.stream.flush()
        elif self.shown_at is None or now - self.shown_at >= SHOW_EVERY:
            self.shown_at = now
            self.stream.write(self.line(now) + "\n")
            self.stream.flush()

    def line(self, now):
        seconds = int(now - self.start)
        return f"[{seconds // 60}:{seconds % 60:02d}] {self.text}"

    def clear(self):
        """Leave the terminal's line to whoever prints next."""
        if self.terminal:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def phase(line):
    """The line of progress for a line that pip printed, or None."""
    words = line.split()
    if len(words) < 2:
        return None
    name = os.path.basename(words[1])
    if words[0] in ("Collecting", "Obtaining"):
        return "looking up " + name
    if words[0] == "Processing":
        return "unpacking " + name.split("-")[0]
    if words[0] == "Downloading":
        return "downloading {} {}".format(name.split("-")[0], " ".join(words[2:]))
    if "Retrying (Retry(" in line:
        return "the network fails, pip tries again"
    if line.startswith("Installing collected packages"):
        return "installing"
    return None


# ---------------------------------------------------------------- making .venv


def empty_folder(folder):
    """Remove what is in a folder, keeping the folder: it may be a link to another disk."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


def venv_command(project):
    return [sys.executable, "-I", "-m", "venv", os.path.realpath(project.venv)]  # it refuses a link


def pip_command(project):
    """--no-compile saves a fifth of the time and 0.4 GB: Python compiles what gets imported when it is imported."""
    options = ["--no-user", "--no-input", "--no-compile", "--progress-bar", "off", "--disable-pip-version-check"]
    return [project.python, "-I", "-u", "-m", "pip", "install", *options, "-c", "constraints.txt", "-e", ".[dev]"]


def pip_environment(project):
    """The user's settings, less those that send files elsewhere; large temporary files stay on this disk."""
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}
    environment["TMPDIR"] = project.scratch
    return environment


def stop(process):
    """End a child and what it started. It has a session of its own, so that we decide."""
    for number, patience in ((signal.SIGINT, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=patience)
        except (OSError, subprocess.TimeoutExpired):
            continue


def run_logged(command, project, log, lock, on_line, on_idle):
    """Run a command, its output going to the log and line by line to on_line; returns the exit status.

    The child inherits the lock: should we be killed, a set-up that comes next still waits for it to end.
    """
    import select

    process = subprocess.Popen(
        command,
        cwd=project.root,
        env=pip_environment(project),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=() if lock is None else (lock.fileno(),),
    )
    rest = b""
    try:
        while True:
            if not select.select([process.stdout], [], [], 1.0)[0]:
                on_idle()
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                on_line(rest.decode("utf-8", "replace").strip())
                return process.wait()
            log.write(chunk)
            log.flush()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                on_line(line.decode("utf-8", "replace").strip())
    finally:
        if process.poll() is None:
            stop(process)
        process.stdout.close()


def make_venv(project, log, lock, progress):
    """An empty virtual environment, in a folder that says from the start whose it is."""
    os.makedirs(os.path.realpath(project.venv), exist_ok=True)
    with open(project.started, "w", encoding="utf-8") as file:
        file.write("Set-up has not finished. The next try removes this folder and makes it again.\n")
    progress.update("making .venv")
    lines = []
    status = run_logged(venv_command(project), project, log, lock, lines.append, lambda: progress.update(progress.text))
    if status != 0:
        raise Problem(f"Making .venv failed:\n{tail(lines)}\nThe full log: {shown(project, project.log)}")


def install(project, log, lock, progress):
    """Run pip. On a failure before it changed anything the old stamp comes back, so that the next try is as quick."""
    if os.path.exists(project.stamp):
        os.replace(project.stamp, project.old_stamp)
    lines, expected = [], []

    def on_line(line):
        lines.append(line)
        if line.startswith("Installing collected packages:"):
            expected.append(line.count(",") + 1)
        progress.update(phase(line) or progress.text)

    def on_idle():  # pip installs without a word: look at what has appeared
        text = progress.text
        if expected:
            there = count_installed(project)
            text = f"installing {min(there, expected[0])} of {expected[0]}"
        progress.update(text)

    progress.update("starting pip")
    status = run_logged(pip_command(project), project, log, lock, on_line, on_idle)
    if status != 0:
        if os.path.exists(project.old_stamp) and not expected:
            os.replace(project.old_stamp, project.stamp)
        raise Problem(explain_pip(lines, shown(project, project.log)))


def count_installed(project):
    """Packages in .venv. Beside Python's folder lib may hold node_modules, of `make hub`, and a Finder's .DS_Store."""
    import glob

    folder = os.path.join(glob.escape(project.venv), "lib", "python*", "site-packages")
    return len(glob.glob(os.path.join(folder, "*-info")))


def shown(project, path):
    return os.path.relpath(path, project.root)


def tail(lines, count=20):
    return "\n".join("  | " + line for line in [line for line in lines if line][-count:])


CONFLICT = ("ResolutionImpossible", "conflicting dependencies")
FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded")
CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "SSLCertVerificationError")
NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname",
    "Network is unreachable",
    "Connection refused",
    "Connection reset",
    "ConnectTimeoutError",
    "Connection timed out",
    "ReadTimeoutError",
    "Read timed out",
    "Max retries exceeded",
    "RemoteDisconnected",
    "ProxyError",
    "IncompleteRead",
)
NOT_FOUND = ("No matching distribution found", "Could not find a version that satisfies")


def explain_pip(lines, log):
    """What pip's output means and what to do about it.

    A conflict comes first: a look-up that was tried again with success leaves a network warning behind. The network
    comes before "not found": without one, pip says that no version exists.
    """

    def has(phrases):
        return any(phrase in line for line in lines for phrase in phrases)

    end = f"\nThe full log: {log}"
    errors = [number for number, line in enumerate(lines) if line.startswith("ERROR")]
    said = tail(lines[errors[0] :] if errors else lines)
    if has(FULL):
        return f"The disk is full. Free some space, then try again.{end}"
    if has(CONFLICT):
        return (
            f"The dependencies contradict each other: pyproject.toml and constraints.txt do not agree.\n{said}\n"
            "Run make lock after a change to pyproject.toml, or undo it (git checkout pyproject.toml constraints.txt)."
            f"{end}"
        )
    if has(CERTIFICATE):
        return (
            "pip does not trust the certificate of the package server. Behind a company's proxy, name its\n"
            f"certificate: PIP_CERT=/path/to/company.pem make setup{end}"
        )
    if has(NETWORK):
        return (
            "pip could not reach the package server. Check the network (a proxy goes into HTTPS_PROXY), then try "
            f"again;\nwhat was downloaded is kept in pip's cache.{end}"
        )
    if has(NOT_FOUND) and os.environ.get("PIP_NO_INDEX"):
        return (
            f"PIP_NO_INDEX keeps pip to the wheels in PIP_FIND_LINKS, and there it lacks one:\n{said}\n"
            "Fill that folder on a machine with the same system and the same Python, to its last digit, or unset "
            f"both.{end}"
        )
    if has(NOT_FOUND):
        return (
            f"A package that pyproject.toml or constraints.txt asks for cannot be found:\n{said}\n"
            f"Undo your change to them, or run make lock.{end}"
        )
    return f"pip failed. Its last lines:\n{tail(lines)}{end}"


# ---------------------------------------------------------------- does it work?


# What only some pages need: the module, the name that people know, the pages.
PARTS = (
    ("cv2", "OpenCV", "08"),
    ("tensorflow", "TensorFlow", "06"),
    ("jax", "JAX", "07"),
    ("onnxruntime", "ONNX Runtime", "08, 09 and 10"),
    ("coremltools", "Core ML Tools", "09 and 10"),
)
SIMULATED = "from metallab import simulation; simulation.arm(required=True); import torch"


class Probe:
    """A line of Python that runs in .venv. It inherits the lock, as pip does: see `run_logged`."""

    def __init__(self, project, code, lock=None):
        self.process = subprocess.Popen(
            [project.python, "-I", "-c", code],
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            start_new_session=True,
            pass_fds=() if lock is None else (lock.fileno(),),
        )

    def result(self, on_idle=lambda: None):
        """(True, what it printed) or (False, the signal that killed it, or the last line of what went wrong)."""
        try:
            while True:
                try:
                    printed, errors = self.process.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    on_idle()
        finally:
            self.stop()
        if self.process.returncode == 0:
            return True, printed.strip()
        if self.process.returncode < 0:
            return False, f"it was killed by signal {-self.process.returncode}"
        return False, (errors.strip().splitlines() or [f"it ended with {self.process.returncode}"])[-1]

    def stop(self):
        """End it, with what it started, if it still runs."""
        if self.process.poll() is None:
            stop(self.process)


def check_installed(project, lock, progress):
    """Import what has to work, and build the simulated Apple GPU, so that no page has to wait for that.

    Returns what does not import, and why, of the `PARTS` and of the simulated GPU: none of it keeps all pages from
    working.
    """
    import platform

    def works(code):
        return Probe(project, code, lock).result(lambda: progress.update(progress.text))

    progress.update("trying the installation")
    _, found = works("import importlib.util as u; s = u.find_spec('metallab'); print(s.origin if s else 'nowhere')")
    if os.path.realpath(found) != os.path.realpath(project.package):
        raise Problem(f"metallab should be imported from {project.package}, but comes from {found}.")
    progress.update("importing torch")
    well, said = works("import torch")
    if not well:
        raise Problem(f"torch is installed and does not import: {said}")
    simulated = Probe(project, SIMULATED, lock) if platform.system() == "Linux" else None  # one core has time for it
    try:
        outcomes = {}
        for module, _, _ in PARTS:
            progress.update("importing " + module)
            outcomes[module] = works("import " + module)
        if simulated:
            progress.update("building the simulated Apple GPU")
            outcomes["simulation"] = simulated.result(lambda: progress.update(progress.text))
    finally:
        if simulated:
            simulated.stop()
    return {name: said for name, (well, said) in outcomes.items() if not well}


def warn(broken):
    """Not an error: some pages work without, or all of them."""
    for module, name, pages in PARTS:
        if module in broken:
            say(f"Warning: {name} does not import. Only {pages} of the pages need it; all else works.")
            say("  " + broken[module])
    if "cannot open shared object file" in broken.get("cv2", ""):
        say("  Debian, Ubuntu: sudo apt-get install libgl1 libglib2.0-0")
    if "simulation" in broken:
        say("Warning: the simulated Apple GPU cannot be had. Cells that need it will say so; all else works.")
        say("  " + broken["simulation"])


# ---------------------------------------------------------------- putting it together


def take_lock(project):
    """Hold build/setup.lock until this process ends; wait when another set-up holds it. Returns the file."""
    import fcntl

    os.makedirs(project.build, exist_ok=True)
    lock = open(project.lock, "w")  # noqa: SIM115  (held open: closing it gives the lock away)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Another set-up of this checkout is running: waiting for it to finish.")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:  # a file system without locks
        say(f"Set-up goes on without a lock ({error.strerror}): do not start another one meanwhile.")
    return lock


def carry_out(project, action, reason, lock):
    """Build or update .venv, check it, stamp it."""
    progress = Progress()
    shutil.rmtree(project.scratch, ignore_errors=True)
    os.makedirs(project.scratch)
    try:
        with open(project.log, "wb") as log:
            if action == "rebuild":
                say(f"Removing .venv to make it again: {reason}.")
                empty_folder(project.venv)
            if action in ("build", "rebuild"):
                say(f"Setting up .venv. This takes a few minutes; the log is {shown(project, project.log)}.")
                make_venv(project, log, lock, progress)
            else:
                say(f"Updating .venv: {reason}.")
            install(project, log, lock, progress)
        broken = check_installed(project, lock, progress)
        write_stamp(project, broken)
        for left in (project.started, project.old_stamp):
            if os.path.exists(left):
                os.remove(left)
    finally:
        progress.clear()
        shutil.rmtree(project.scratch, ignore_errors=True)
    warn(broken)
    seconds = int(progress.clock() - progress.start)
    say(f"Set-up is complete ({seconds // 60} min {seconds % 60} s).")


def set_up(project, arguments, verbose=False, force=False):
    """Make .venv current, whatever state it is in; with force, make it anew even so."""
    if force and os.path.exists(project.stamp):
        os.remove(project.stamp)
    action, reason = diagnose(project)
    if action == "current":
        if verbose:
            say(".venv is current.")
        return
    use_wanted_python(project, arguments)
    check_platform()  # before the lock, which Windows has no way to take
    lock = take_lock(project)
    with lock:
        action, reason = diagnose(project)  # again: only now can nobody change it
        if action == "current":
            say("The other set-up has finished: .venv is current.")
            return
        run_checks(project, action, verbose)
        carry_out(project, action, reason, lock)


def check(project, arguments):
    """--check: the checks and the state of .venv, changing nothing."""
    use_wanted_python(project, arguments)
    action, reason = diagnose(project)
    run_checks(project, action, verbose=True)
    say({"current": ".venv is current.", "build": ".venv is not made yet: make setup"}.get(action, ".venv: " + reason))
    if action == "current":
        outcomes = {module: Probe(project, "import " + module).result() for module, _, _ in PARTS}
        warn({module: said for module, (well, said) in outcomes.items() if not well})


def on_signal(number, _frame):
    """Once: what is running is then stopped and cleaned up undisturbed."""
    for either in (signal.SIGINT, signal.SIGTERM):
        signal.signal(either, signal.SIG_IGN)
    raise Stopped(number)


def catch_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def main(arguments=None, project=None):
    """Returns the exit status: 0, 1 after a message, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Make .venv and install the project into it.")
    parser.add_argument("--check", action="store_true", help="only run the checks, change nothing")
    parser.add_argument("--force", action="store_true", help="make .venv anew even if it is current")
    parser.add_argument("--verbose", action="store_true", help="say what was checked, and that all is current")
    options = parser.parse_args(arguments)
    here = os.path.dirname(os.path.abspath(__file__))
    project = project or Project(os.path.join(here, os.pardir, os.pardir))
    try:
        if options.check:
            check(project, arguments)
        else:
            set_up(project, arguments, options.verbose, options.force)
        return 0
    except Problem as problem:
        print(f"\nSet-up stopped.\n{problem}", file=sys.stderr, flush=True)
        return 1
    except Stopped as stopped:
        print("\nSet-up was interrupted. The next try starts afresh by itself.", file=sys.stderr, flush=True)
        return 128 + stopped.number
    except OSError as error:
        print(
            f"\nSet-up stopped: {error}\nMake that place writable, or move it away, then try again.",
            file=sys.stderr,
            flush=True,
        )
        return 1


if __name__ == "__main__":
    catch_signals()
    sys.exit(main())
