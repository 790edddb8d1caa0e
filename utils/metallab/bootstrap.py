"""Make ``.venv`` and install what the lock names into it: ``python3 -I utils/metallab/bootstrap.py``.

Standard library only, because it runs before anything is installed; and with ``-I``, so that neither a module in this
folder nor ``PYTHONPATH`` stands in for the standard library's. Any Python from 3.8 on can start it, such as the 3.9 of
Xcode, so this file keeps to the syntax of 3.8. It brings uv, in ``build/uv``, by pip; uv does the rest, with a Python
3.11 or 3.12 from PATH or one that it downloads. Whoever has told pip of a mirror has told uv: see `uv_settings`.

A stamp inside ``.venv`` says what it was made from. When that is still true, nothing happens and nothing is printed.

``bootstrap.py uv ARGUMENTS`` runs that uv, with the same settings.
"""

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time

OLDEST = (3, 8)  # what uv's wheel, and this file, are for
WANTED = ((3, 11), (3, 12))
EXTRAS = ("lab", "dev")  # of pyproject.toml: what set-up installs, and mlx where it loads
GLIBC = (2, 28)  # what the wheels of torch and scikit-learn are built for
GLIBC_FOR_MLX = (2, 35)  # what the wheel of mlx is built for: older ones set up without it
MACOS = (15, 0)  # what the MPS device of torch 2.15 wants: its wheel installs on 14 and then has no GPU there

# GiB that are installed. uv's cache holds the files, and .venv links to them, or has copies on another disk.
# Linux: measured (9.2), much of it CUDA, which torch carries there. macOS: estimated, without CUDA.
ROOM = {"Linux": 9.5, "Darwin": 4.0}
ROOM_FOR_UPDATE = 2.0
GIB = 2.0**30

STAMP = "metallab-setup.json"
STARTED = "metallab-setup.started"
SHOW_EVERY = 10.0  # seconds between two lines of progress when the output is not a terminal


class SetupError(Exception):
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
        self.versions = os.path.join(self.root, "lock.txt")
        self.package = os.path.join(self.root, "utils", "metallab", "__init__.py")
        self.venv = os.path.join(self.root, ".venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.stamp = os.path.join(self.venv, STAMP)
        self.started = os.path.join(self.venv, STARTED)
        self.build = os.path.join(self.root, "build")
        self.log = os.path.join(self.build, "setup.log")
        self.shown_log = "build/setup.log"
        self.lock = os.path.join(self.build, "setup.lock")
        self.uv_venv = os.path.join(self.build, "uv")
        self.uv = os.path.join(self.uv_venv, "bin", "uv")
        self.own_python = os.path.join(self.root, ".venv-python")


def say(text):
    print(text, flush=True)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


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
    digest.update(dependency_text(read(project.pyproject)).encode())
    digest.update(read(project.versions).encode())
    return {"checkout": project.root, "dependencies": digest.hexdigest()}


def read_stamp(project):
    """The stamp as a dictionary, or None when there is none that can be read."""
    try:
        stamp = json.loads(read(project.stamp))
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


def diagnose(project, force=False):
    """What ``.venv`` needs: ("current" | "update" | "build" | "rebuild", why)."""
    if not os.path.isdir(project.venv):
        return "build", ""
    if not os.listdir(project.venv):
        return "build", ""  # an empty folder, or a link to one on a bigger disk
    stamp = read_stamp(project)
    started = os.path.exists(project.started)
    if stamp is None and not started and not os.path.exists(os.path.join(project.venv, "pyvenv.cfg")):
        raise SetupError(".venv exists and is no virtual environment. Move it away, then try again.")
    if force:
        return "rebuild", "FORCE=1 asks for it"
    if stamp is None or started:
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
        return "update", "pyproject.toml or lock.txt has changed"
    return "current", ""


# ---------------------------------------------------------------- the right Python


def running_python():
    """The interpreter that runs this, outside of any virtual environment: ``.venv``'s cannot remove itself."""
    return sys.executable if sys.prefix == sys.base_prefix else sys._base_executable


def find_python(running, path):
    """(the first Python of a wanted version that will do, or None; why others of them will not).

    It has to start, which a version manager's stand-in may not; to be for this processor, not for Rosetta; and to have
    header files, since pages build C++ extensions. One in a virtual environment comes into question as its base only.
    """
    folders = [at for at in path.split(os.pathsep) if not os.path.exists(os.path.join(at, os.pardir, "pyvenv.cfg"))]
    names = ["python{}.{}".format(*version) for version in WANTED]
    lacking = []
    for candidate in [running, *(os.path.join(folder, name) for name in names for folder in folders)]:
        version = python_version(candidate) if os.access(candidate, os.X_OK) else None
        if version is None or tuple(version) not in WANTED:
            continue
        reason = why_not(candidate)
        if reason is None:
            return candidate, lacking
        lacking.append(f"{candidate} {reason}")
    return None, lacking


def why_not(python):
    """What a Python of a wanted version lacks, or None."""
    import platform

    asks = "import os, platform as p, sysconfig as s\n"
    asks += "print(p.machine(), os.path.isfile(s.get_path('include') + '/Python.h'))"
    done = subprocess.run([python, "-I", "-c", asks], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if done.stdout.split()[:1] != [platform.machine()]:
        return "is for another kind of processor"
    if done.stdout.split()[1:] != ["True"]:
        return f"has no header files (Debian, Ubuntu: {apt(python_version(python), 'dev')})"
    return None


def apt(version, suffix):
    return "sudo apt-get install python{}.{}-{}".format(*version, suffix)


def python_help(lacking, uv_output):
    return (
        "Python 3.11 or 3.12 with header files is needed; none on PATH will do, and none could be downloaded.\n"
        + "".join(f"  {line}\n" for line in lacking)
        + f"{uv_output}\n"
        "Connect to the network, or install one:\n"
        "  macOS:         brew install python@3.11, or the installer from python.org\n"
        "  Debian 12:     sudo apt-get install python3.11 python3.11-dev\n"
        "  Ubuntu 24.04:  sudo apt-get install python3.12 python3.12-dev\n"
        "  elsewhere:     pyenv install 3.11, or conda env create -f environment.yml\n"
        "Then try again. (UV_PYTHON_INSTALL_MIRROR names a mirror of the downloads.)"
    )


# ---------------------------------------------------------------- checks before anything is made


def check_platform():
    """Only where wheels of every framework exist."""
    import platform

    system, machine = platform.system(), platform.machine()
    supported = f"Supported are Linux on x86-64 and macOS {MACOS[0]} or newer on Apple silicon"
    if (system, machine) == ("Darwin", "x86_64"):
        raise SetupError(
            supported + "; this is an Intel Python. On a Mac with an Apple chip, install the arm64 Python:\n"
            "  brew install python@3.11 (from /opt/homebrew), or the universal installer from python.org"
        )
    if (system, machine) not in (("Linux", "x86_64"), ("Darwin", "arm64")):
        hint = "\nOn Windows, use WSL 2 with Ubuntu." if system == "Windows" else ""
        raise SetupError(f"{supported}; this is {system} on {machine}.{hint}")
    if system == "Darwin" and numbers(platform.mac_ver()[0]) < MACOS:
        raise SetupError(
            f"macOS {MACOS[0]} or newer is needed by the MPS device of torch 2.15; this is {platform.mac_ver()[0]}. "
            "Update macOS."
        )
    if system == "Linux":
        name, version = platform.libc_ver()
        if name != "glibc" or numbers(version) < GLIBC:
            library = f"{name} {version}" if name else "another C library"
            raise SetupError(
                f"A Linux with glibc {GLIBC[0]}.{GLIBC[1]} or newer is needed by torch; this has {library}. "
                "Use Debian 12, Ubuntu 22.04 or newer."
            )


def loads_mlx():
    """Is this system's C library new enough for the wheel of mlx? No marker of a requirement can ask that."""
    import platform

    return platform.system() == "Darwin" or numbers(platform.libc_ver()[1]) >= GLIBC_FOR_MLX


def numbers(version):
    """'15.1.2' as (15, 1); what is not a number counts as 0."""
    parts = ([*version.split("."), "0", "0"])[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def check_python():
    """What runs this has to make a small virtual environment, for uv. Debian ships that in a package of its own."""
    import importlib.util

    lacking = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if lacking:
        raise SetupError(
            f"{sys.executable} has no module {' and no '.join(lacking)}.\n"
            f"  Debian, Ubuntu: {apt(sys.version_info[:2], 'venv')}\n"
            "  elsewhere:      install a complete Python (python.org, brew, pyenv)"
        )


def check_compiler():
    """A C++ compiler that compiles: being there is not enough (no standard library, macOS's stub).

    What CXX names, else what PyTorch calls: g++ on Linux, where clang++ alone will not do for its AOTInductor.
    """
    import platform
    import shlex

    mac = platform.system() == "Darwin"
    install = "xcode-select --install" if mac else "sudo apt-get install g++"
    named = shlex.split(os.environ.get("CXX", ""))
    command = named or ["clang++" if mac else "g++"]
    # macOS's stub would open a window
    stub = mac and subprocess.call(["xcode-select", "-p"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) != 0
    if stub or not (named or shutil.which(command[0])):
        raise SetupError(f"There is no C++ compiler ({command[0]}).\n  Run: {install}")
    try:
        done = subprocess.run(
            [*command, "-x", "c++", "-fsyntax-only", "-"],
            input="#include <vector>\nint main() { return 0; }\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        works, output = done.returncode == 0, done.stdout
    except OSError as error:
        works, output = False, str(error)
    if not works:
        reason = (output.strip().splitlines() or ["it says nothing"])[-1]
        source, unset = (" (from CXX)", ", or unset CXX") if named else ("", "")
        raise SetupError(
            f"The C++ compiler {' '.join(command)}{source} does not work: {reason}\n  Run: {install}{unset}"
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


def uv_cache(project):
    """Where uv keeps what it downloaded: the user's place, or one of ours where that cannot be written."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uv")
    cache = os.environ.get("UV_CACHE_DIR") or usual
    return cache if os.access(existing(cache), os.W_OK) else os.path.join(project.build, "uv-cache")


def existing(folder):
    """The folder, or the nearest one above it that exists."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def disk_free(folder):
    return shutil.disk_usage(folder).free


def check_disk(project, action):
    """Room, in GiB, for .venv and for uv's cache, whose files it links to where both are on one disk."""
    import platform

    rooms = {project.venv: 0.0 if action == "current" else ROOM_FOR_UPDATE}
    if action in ("build", "rebuild"):
        installed, cache = ROOM.get(platform.system(), ROOM["Linux"]), uv_cache(project)
        cached = folder_size(cache) / GIB  # is not fetched again
        freed = folder_size(project.venv) / GIB if action == "rebuild" else 0.0  # goes first
        one_disk = os.stat(existing(cache)).st_dev == os.stat(existing(project.venv)).st_dev
        rooms[project.venv] = max(ROOM_FOR_UPDATE, installed - (max(cached, freed) if one_disk else freed))
        if not one_disk:
            rooms[cache] = installed - cached
    for folder, gib in rooms.items():
        folder = existing(folder)
        free = disk_free(folder) / GIB
        if free < gib:
            raise SetupError(
                f"There is too little disk space: set-up needs {gib:.1f} GiB more, {folder} has {free:.1f} GiB.\n"
                "  Free some. Or make .venv a link to an empty folder on a bigger disk, with uv's cache beside it:\n"
                "  UV_CACHE_DIR=/folder/on/that/disk make setup"
            )


def run_checks(project, action, verbose):
    """Every check, so that all that is missing can be installed in one go. Raises one SetupError with all of them."""
    checks = (
        ("platform", check_platform),
        ("Python", check_python),
        ("C++ compiler", check_compiler),
        ("disk space", lambda: check_disk(project, action)),
    )
    problems = []
    for name, one in checks:
        try:
            one()
            result = "ok"
        except SetupError as error:
            problems.append(str(error))
            result = "not yet"
        if verbose:
            say(f"{name:<24}{result}")
    if problems:
        raise SetupError("\n".join([*problems, "Nothing was changed. Mend this, then try again."]))


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
        seconds = int(now - self.start)
        line = f"[{seconds // 60}:{seconds % 60:02d}] {text}"
        if self.terminal:
            self.stream.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        elif self.shown_at is None or now - self.shown_at >= SHOW_EVERY:
            self.shown_at = now
            self.stream.write(line + "\n")
        self.stream.flush()

    def again(self):
        """Nothing new: only the time goes on."""
        self.update(self.text)

    def clear(self):
        """Leave the terminal's line to whoever prints next."""
        if self.terminal:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


# ---------------------------------------------------------------- making .venv


def empty_folder(folder):
    """Remove what is in a folder, keeping the folder: it may be a link to another disk."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


class Child:
    """A command that runs in the checkout, in a session of its own, so that we decide when it ends.

    It inherits the lock: should we be killed, a set-up that comes next still waits for it to end.
    """

    def __init__(self, project, command, lock=None, environment=None):
        self.process = subprocess.Popen(
            command,
            cwd=project.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=() if lock is None else (lock.fileno(),),
        )

    def follow(self, take, idle=lambda: None):
        """To its end: ``take`` gets each line as it comes, ``idle`` is called each second without. Its exit status."""
        import select

        pipe, rest = self.process.stdout, b""
        try:
            while True:
                if not select.select([pipe], [], [], 1.0)[0]:
                    idle()
                    continue
                chunk = os.read(pipe.fileno(), 65536)
                *complete, rest = (rest + chunk).split(b"\n") if chunk else [rest, b""]
                for line in complete:
                    take(line.decode("utf-8", "replace"))
                if not chunk:
                    return self.process.wait()
        finally:
            self.stop()
            pipe.close()

    def stop(self):
        """End it, with what it started, if it still runs."""
        for number in (signal.SIGINT, signal.SIGKILL) if self.process.poll() is None else ():
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                continue


class Installer:
    """One set-up under way: runs commands, with their output in the log and their progress on the screen."""

    def __init__(self, project, lock, log, progress):
        self.project, self.lock, self.log, self.progress = project, lock, log, progress
        self.environment, self.options = dict(os.environ), []

    def run(self, command, doing):
        """Run a command to its end; returns its exit status and the lines that it printed.

        What it says in sentences is shown as progress.
        """
        lines = []

        def take(line):
            self.log.write(line.encode() + b"\n")
            self.log.flush()
            lines.append(line.strip())
            if lines[-1][:1].isupper():
                self.progress.update(lines[-1])

        self.progress.update(doing)
        child = Child(self.project, command, self.lock, self.environment)
        return child.follow(take, self.progress.again), lines

    def must(self, command, doing):
        """Run a command that has to succeed."""
        status, lines = self.run(command, doing)
        if status != 0:
            raise SetupError(explain(lines, self.project)[0])

    def bring_uv(self):
        """Have the uv that the lock names in ``build/uv``, and the user's settings for it."""
        folder = self.project.uv_venv
        python, made_from = os.path.join(folder, "bin", "python"), os.path.join(folder, "uv.txt")
        wanted = uv_requirement(self.project)
        if not (os.path.exists(self.project.uv) and os.path.exists(made_from) and read(made_from) == wanted):
            self.environment = pip_environment()
            self.must([running_python(), "-I", "-m", "venv", "--clear", folder], "getting uv")
            with open(made_from + ".new", "w", encoding="utf-8") as file:
                file.write(wanted)
            quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
            pip = [python, "-I", "-m", "pip", "install", *quiet, "--require-hashes", "-r", made_from + ".new"]
            self.must(pip, "getting uv")
            os.replace(made_from + ".new", made_from)
        self.environment, self.options = uv_settings(self.project)

    def bring_python(self):
        """What tells uv which Python to use: one from PATH, or one that it downloads."""
        python, lacking = find_python(running_python(), os.environ.get("PATH", os.defpath))
        if python:
            return ["--python", python]
        status, lines = self.run([self.project.uv, "python", "install", "3.12"], "downloading Python 3.12")
        if status != 0:
            raise SetupError(python_help(lacking, tail(lines)))
        return ["--managed-python", "--python", "3.12"]

    def make_venv(self, which):
        """An empty environment."""
        venv = os.path.realpath(self.project.venv)  # uv refuses a link
        self.must([self.project.uv, "venv", "--no-project", "--allow-existing", *which, venv], "making .venv")

    def install(self, action):
        """Everything. After a failure before anything was changed, an update can be tried again as it is."""
        for command in install_commands(self.project, self.options):
            status, lines = self.run(command, "looking up packages")
            if status != 0:
                text, untouched = explain(lines, self.project)
                if untouched and action == "update":
                    os.remove(self.project.started)
                raise SetupError(text)


def uv_requirement(project):
    """The lines of the lock that name uv: its version, and the hashes of its files."""
    import re

    match = re.search(r"^uv==.*\n(?: .*\n)+", read(project.versions), re.MULTILINE)
    if not match:
        raise SetupError("lock.txt names no version of uv, with its hashes: git checkout lock.txt, or make lock.")
    return match.group()


def pip_environment():
    """The user's settings, less those that send files elsewhere."""
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
    return {name: value for name, value in os.environ.items() if name not in elsewhere}


def pip_settings(project):
    """What the user has told pip, in its files or in variables: {"index-url": ..., "cert": ...}."""
    python = os.path.join(project.uv_venv, "bin", "python")
    listed = subprocess.run(
        [python, "-I", "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    settings = {}
    for section in ("global.", "install.", ":env:."):  # the later ones win
        for line in listed.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(section):
                settings[name[len(section) :]] = str(ast.literal_eval(value))
    return settings


def uv_settings(project):
    """(environment, options) for uv: what the user has set for uv, and else what they have set for pip.

    uv reads none of pip's settings. Where pip has several indexes it takes the best file of all, and so shall uv: what
    may come is settled by the lock's hashes.
    """
    pip, environment, options = pip_settings(project), dict(os.environ), []
    of_uv = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")
    if not any(name in environment for name in of_uv):
        for key, name in (("index-url", "UV_DEFAULT_INDEX"), ("extra-index-url", "UV_INDEX")):
            if pip.get(key):
                environment[name] = " ".join(pip[key].split())
        environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    others = (
        ("UV_FIND_LINKS", ",".join(pip.get("find-links", "").split())),
        ("UV_INSECURE_HOST", " ".join(pip.get("trusted-host", "").split())),
        ("SSL_CERT_FILE", pip.get("cert", "")),
        ("SSL_CLIENT_CERT", pip.get("client-cert", "")),
        ("HTTPS_PROXY", pip.get("proxy", "")),
        ("UV_HTTP_TIMEOUT", pip.get("timeout", pip.get("default-timeout", ""))),
    )
    for name, value in others:
        if value:
            environment.setdefault(name, value)
    if pip.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    environment["UV_CACHE_DIR"] = uv_cache(project)
    environment["UV_PYTHON_INSTALL_DIR"] = project.own_python
    return environment, options


def install_commands(project, options):
    """What others made, each file held against its hash; then this project, of which only a link is installed."""
    install = [project.uv, "pip", "install", "--python", project.python]
    wanted = (*EXTRAS, "mlx") if loads_mlx() else EXTRAS
    extras = [word for extra in wanted for word in ("--extra", extra)]
    return [
        [*install, *options, "--require-hashes", "-r", "pyproject.toml", *extras, "-c", "lock.txt"],
        [*install, "--offline", "--no-deps", "--no-build-isolation", "--editable", ".", "--editable", "metalsim"],
    ]


def mark_started(project):
    """What is interrupted from here on is made anew by the next try."""
    os.makedirs(os.path.realpath(project.venv), exist_ok=True)
    with open(project.started, "w", encoding="utf-8") as file:
        file.write("Set-up has not finished. The next try removes this folder and makes it again.\n")


def tail(lines, count=20):
    return "\n".join("  | " + line for line in [line for line in lines if line][-count:])


NETWORK = ("Failed to fetch", "Failed to download", "error sending request", "NewConnectionError", "timed out")
NETWORK += ("NameResolutionError", "ConnectTimeoutError", "Max retries exceeded", "ProxyError")

# What uv prints, or the pip that fetches it; what it means and what to do. The first one counts: uv calls a wrong hash
# a failed download, too; and without a network pip says that no version exists. Of these only a full disk may leave
# .venv half-changed.
FAILURES = (
    (
        ("No space left on device", "os error 28", "Disk quota exceeded"),
        "The disk is full. Free some space, then try again.",
    ),
    (
        ("Hash mismatch for", "DO NOT MATCH THE HASHES"),
        "A file that came is not the one that lock.txt names (its hash differs), and was not installed: undo a change "
        "of lock.txt\n(git checkout lock.txt), or ask whoever runs the mirror that pip is told to use.",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "SSLCertVerificationError", "invalid peer certificate"),
        "The certificate of the package server is not trusted. Behind a company's proxy, name its certificate:\n"
        "PIP_CERT=/path/to/company.pem make setup",
    ),
    (
        NETWORK,
        "The package server could not be reached. Check the network (a proxy goes into HTTPS_PROXY, a mirror into "
        "PIP_INDEX_URL),\nthen try again; what was downloaded is kept in uv's cache. If all of it is there: "
        "UV_OFFLINE=1 make setup",
    ),
    (
        ("No solution found", "no trusted hash was provided", "No matching distribution found"),
        "pyproject.toml and lock.txt do not agree, or the package server lacks something.\n"
        "Run make lock after a change to pyproject.toml, or undo it (git checkout pyproject.toml lock.txt).",
    ),
)
UNKNOWN = "Installing failed. The last lines:"
LACKING = (
    "PIP_NO_INDEX keeps set-up to the wheels in PIP_FIND_LINKS, and there it lacks one.\n"
    "Fill that folder on a machine with the same system and the same version of Python, or unset both."
)


def explain(lines, project):
    """(what went wrong and what to do, with the lines that say so; whether ``.venv`` is as it was before)"""
    meanings = [text for phrases, text in FAILURES if any(phrase in line for line in lines for phrase in phrases)]
    text = meanings[0] if meanings else UNKNOWN
    untouched = text not in (UNKNOWN, FAILURES[0][1])
    if text == FAILURES[-1][1] and os.environ.get("PIP_NO_INDEX"):
        text = LACKING
    errors = [number for number, line in enumerate(lines) if line.lower().startswith("error")]
    shown = lines[errors[0] :][:8] if errors and meanings else lines
    return f"{text}\n{tail(shown)}\nThe full log: {project.shown_log}", untouched


# ---------------------------------------------------------------- does it work?


# What only some pages need: the module, the name that people know, the pages.
PARTS = (
    ("cv2", "OpenCV", "08 and 08b"),
    ("tensorflow", "TensorFlow", "06 and 06b"),
    ("jax", "JAX", "07, 07b and 14"),
    ("onnxruntime", "ONNX Runtime", "08, 08b, 09, 09b, 10 and 10b"),
    ("coremltools", "Core ML Tools", "09b and 10b"),
    ("mlx.core", "MLX", "14"),
)
SIMULATED = "from metallab import simulation; simulation.arm(required=True); import torch"


def python_child(project, code, lock=None):
    """A line of Python that runs in ``.venv``."""
    return Child(project, [project.python, "-I", "-c", code], lock)


def outcome(child, idle=lambda: None):
    """(whether a child ends well, the last line that it printed, or the signal that killed it)"""
    lines = []
    status = child.follow(lambda line: lines.append(line.strip()), idle)
    if status < 0:
        return False, f"it was killed by signal {-status}"
    return status == 0, ([line for line in lines if line] or [f"it ended with {status}"])[-1]


def check_installed(project, lock, progress):
    """Import what has to work, and build the simulated Apple GPU, so that no page has to wait for that.

    Returns what does not import, and why, of the `PARTS` and of the simulated GPU: none of it keeps all pages from
    working.
    """
    import platform

    def works(code):
        return outcome(python_child(project, code, lock), progress.again)

    progress.update("trying the installation")
    _, origin = works("import importlib.util as u; s = u.find_spec('metallab'); print(s.origin if s else 'nowhere')")
    if os.path.realpath(origin) != os.path.realpath(project.package):
        raise SetupError(f"metallab should be imported from {project.package}, but comes from {origin}.")
    progress.update("importing torch")
    well, reason = works("import torch")
    if not well:
        raise SetupError(f"torch is installed and does not import: {reason}")
    # beside the imports, since one core has time for it
    simulated = python_child(project, SIMULATED, lock) if platform.system() == "Linux" else None
    try:
        outcomes = {}
        for module, _, _ in PARTS:
            progress.update("importing " + module)
            outcomes[module] = works("import " + module)
        if simulated:
            progress.update("building the simulated Apple GPU")
            outcomes["simulation"] = outcome(simulated, progress.again)
    finally:
        if simulated:
            simulated.stop()
    return {name: reason for name, (well, reason) in outcomes.items() if not well}


def warn(broken):
    """Not an error: some pages work without, or all of them."""
    for module, name, pages in PARTS:
        if module in broken:
            say(f"Warning: {name} does not import. Only {pages} of the pages need it; all else works.")
            say("  " + broken[module])
    if "cannot open shared object file" in broken.get("cv2", ""):
        say("  Debian, Ubuntu: sudo apt-get install libgl1 libglib2.0-0")
    if "mlx.core" in broken and not loads_mlx():
        say("  It was left out: its wheel needs glibc {}.{} or newer.".format(*GLIBC_FOR_MLX))
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
    try:
        with open(project.log, "wb") as log:
            if action == "update":
                say(f"Updating .venv: {reason}.")
            else:
                say(f"Setting up .venv. This takes a minute or two; the log is {project.shown_log}.")
            installer = Installer(project, lock, log, progress)
            installer.bring_uv()
            which = [] if action == "update" else installer.bring_python()
            if action == "rebuild":
                say(f"Removing .venv to make it again: {reason}.")
                progress.update("removing .venv")
                empty_folder(project.venv)
            mark_started(project)
            if which:
                installer.make_venv(which)
            installer.install(action)
        broken = check_installed(project, lock, progress)
        write_stamp(project, broken)
        os.remove(project.started)
    finally:
        progress.clear()
    warn(broken)
    seconds = int(progress.clock() - progress.start)
    say(f"Set-up is complete ({seconds // 60} min {seconds % 60} s).")


def set_up(project, verbose=False, force=False):
    """Make .venv current, whatever state it is in; with force, make it anew even so."""
    if diagnose(project, force)[0] == "current":
        if verbose:
            say(".venv is current.")
        return
    check_platform()  # before the lock, which Windows has no way to take
    with take_lock(project) as lock:
        action, reason = diagnose(project, force)  # again: only now can nobody change it
        if action == "current":
            say("The other set-up has finished: .venv is current.")
            return
        run_checks(project, action, verbose)
        carry_out(project, action, reason, lock)


def check(project):
    """--check: the checks and the state of .venv, changing nothing."""
    action, reason = diagnose(project)
    run_checks(project, action, verbose=True)
    say({"current": ".venv is current.", "build": ".venv is not made yet: make setup"}.get(action, ".venv: " + reason))
    if action == "current":
        outcomes = {module: outcome(python_child(project, "import " + module)) for module, _, _ in PARTS}
        warn({module: reason for module, (well, reason) in outcomes.items() if not well})


def run_uv(project, arguments):
    """uv, from ``build/uv``, with the settings that set-up uses. It takes this process's place."""
    with take_lock(project) as lock, open(project.log, "ab") as log:
        installer = Installer(project, lock, log, Progress())
        installer.bring_uv()
    os.execve(project.uv, [project.uv, *arguments, *installer.options], installer.environment)


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
    here = os.path.dirname(os.path.abspath(__file__))
    project = project or Project(os.path.join(here, os.pardir, os.pardir))
    try:
        if sys.version_info < OLDEST:
            version = "{}.{}".format(*sys.version_info)
            raise SetupError(
                f"Set-up starts with Python 3.8 or newer, this is {version}: make setup PYTHON=/path/to/python3"
            )
        if arguments[:1] == ["uv"]:
            run_uv(project, arguments[1:])
        options = parser.parse_args(arguments)
        if options.check:
            check(project)
        else:
            set_up(project, options.verbose, options.force)
        return 0
    except SetupError as error:
        print(f"\nSet-up stopped.\n{error}", file=sys.stderr, flush=True)
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
