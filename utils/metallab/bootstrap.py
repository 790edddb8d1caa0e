"""Make ``.venv`` and install what lock.txt names into it: ``make setup``.

Any Python from 3.8 on can run it: only the standard library and the syntax of 3.8. An older one says so, which is why
types are quoted. pip installs uv into ``build/uv``, in the version and with the hashes of lock.txt, and uv does the
rest, with a Python 3.11 or 3.12 that it finds or downloads. ``bootstrap.py uv ARGUMENTS`` runs that uv with the same
settings; ``bootstrap.py stick FOLDER`` copies the checkout there with all files that set-up installs, into ``wheels``,
which set-up uses where it finds it.
"""

import ast
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

OLDEST = (3, 8)  # what uv's wheel is for
UV, PIP, PYTHON = "build/uv/bin/uv", ("build/uv/bin/python", "-I", "-m", "pip"), ".venv/bin/python"
WHEELS, PYTHONS = "wheels", ".venv-python"
COMPLETE = ".venv/complete"
"""Written last: the folder of the checkout, and the hash of what `.venv` was made from."""
OWN = (".", "metalsim", "metalsim/objc")
"""The folders of this checkout that are packages of its own."""
MADE_FROM = (*(os.path.join(folder, "pyproject.toml") for folder in OWN), "lock.txt")
INSTALLED = {"Linux": 9.5, "Darwin": 4.0}
"""GiB on disk. Linux: measured, much of it CUDA. macOS: estimated."""

PARTS = (
    ("cv2", "OpenCV", "60 and 61"),
    ("tensorflow", "TensorFlow", "53 and 54"),
    ("jax", "JAX", "50, 51 and 52"),
    ("onnxruntime", "ONNX Runtime", "40, 41, 43, 44, 60 and 61"),
    ("coremltools", "Core ML Tools", "41 and 44"),
    ("mlx.core", "MLX", "14"),
)
"""What only some pages need: the module, its name, the pages."""
SIMULATED = "from metallab import simulation; simulation.arm(required=True); import torch"

PIP_TO_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "no-index": ("UV_OFFLINE", " "),
}


class SetupError(Exception):
    """Set-up cannot go on; the text says what to do."""


def read(path: str) -> str:
    """Return the text of a file, or an empty one."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file under another name first, so that it is never half there."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def fails(command: "Sequence[str]") -> "str | None":
    """Return why a command does not work: the last line that it prints, or else how it ended; None if it works."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        return str(error)

    printed = done.stdout.decode("utf-8", "replace").strip() or f"it ended with {done.returncode}"
    return printed.splitlines()[-1] if done.returncode else None


# ---------------------------------------------------------------- what is missing


def missing() -> "Iterator[str]":
    """Yield what this machine lacks, each with what to install: all of it, before anything is downloaded.

    What an earlier set-up has downloaded counts as room that is not needed any more.
    """
    if sys.version_info < OLDEST:
        yield f"{sys.executable} is older than Python 3.8: name another one, make setup PYTHON=/path/to/python3."
    yield from _missing_of_system()

    flags = re.search(r"^flags\s*:.*", read("/proc/cpuinfo"), re.MULTILINE)
    if flags and not {"avx2", "fma"} <= set(flags.group().split()):
        yield "A processor with AVX2 and FMA is needed (Intel since Haswell, AMD since Zen)."
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        yield f"{sys.executable} has no module venv: sudo apt-get install python3-venv."

    installed = INSTALLED.get(platform.system())
    if installed is None:  # refused above; Windows does not even tell how much room a file takes
        return
    needed = installed - _measure_what_is_there()
    free = shutil.disk_usage(os.path.realpath(".")).free / 2**30
    if needed > free:
        yield (
            f"There is too little disk space, {needed:.1f} GiB more are needed and {free:.1f} are free: free some, or "
            "make .venv a link to an empty folder on a bigger disk, and set UV_CACHE_DIR to another folder there."
        )


def _missing_of_system() -> "Iterator[str]":
    """Yield what is wrong with the operating system, or its version."""
    system, machine = platform.system(), platform.machine()

    if (system, machine) == ("Darwin", "x86_64"):
        yield "This is an Intel Python: on a Mac with an Apple chip, brew install python@3.11 from /opt/homebrew."
    elif (system, machine) not in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")):
        yield f"Linux (Windows: WSL 2) or macOS on Apple silicon is needed; this is {system} on {machine}."
    elif system == "Darwin" and numbers(platform.mac_ver()[0]) < (14, 0):
        yield f"macOS 14 or newer is needed, for an Apple GPU macOS 15; this is {platform.mac_ver()[0]}."

    if system == "Linux" and numbers(platform.libc_ver()[1]) < (2, 28):
        yield "glibc 2.28 or newer is needed by PyTorch: use Debian 12, Ubuntu 22.04 or newer."


def _measure_what_is_there() -> float:
    """Return how many GiB an earlier set-up has left in .venv, or in uv's cache if that is more."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    of_uv = os.environ.get("UV_CACHE_DIR") or os.path.join(caches, "uv")
    return max(size(of_uv), size(".venv"))


def find_compiler() -> "list[str]":
    """Return the command of the C++ compiler that pages use, be it here or not.

    It is what ``CXX`` names, else the first of these that is on PATH. PyTorch itself has two rules where ``CXX`` is not
    set, ``c++`` for extensions and ``g++`` for torch.compile, so `needs.use_compiler` sets it.
    """
    command = shlex.split(os.environ.get("CXX", ""))
    if command:
        return command
    names = ["clang++"] if platform.system() == "Darwin" else ["g++", "c++", "clang++"]
    return [next((name for name in names if shutil.which(name)), names[0])]


def limits() -> "Iterator[str]":
    """Yield what pages will lack on this machine, though set-up is complete."""
    system = platform.system()
    if not _compiles():
        install, lost = (
            "make packages, or your system's g++",
            ", and there is no simulated Apple GPU",
        )
        if system == "Darwin":
            install, lost = "xcode-select --install", ""
        yield f"no C++ compiler: no 23 and 24, a shorter 40{lost}. At any time: {install}."

    if platform.machine() == "aarch64":
        yield "Linux on ARM: no simulated Apple GPU, and no Core ML Tools (41, 44)."
    if system == "Darwin" and numbers(platform.mac_ver()[0]) < (15, 0):
        yield "macOS 14: PyTorch sees no Apple GPU before macOS 15, so the pages compute on the CPU."


def _compiles() -> bool:
    """Return whether there is a C++ compiler that works."""
    # macOS's stand-in for a compiler would open a window
    if platform.system() == "Darwin" and fails(["xcode-select", "-p"]):
        return False
    program = 'echo "#include <vector>" | "$@" -x c++ -fsyntax-only -'
    return not fails(["sh", "-c", program, "sh", *find_compiler()])


def numbers(version: str) -> "tuple[int, ...]":
    """Return '15.1.2' as (15, 1); what is not a number counts as 0."""
    parts = [*version.split("."), "0", "0"]
    return tuple(int(part) if part.isdigit() else 0 for part in parts[:2])


def size(folder: str) -> float:
    """Return the GiB below a folder."""
    files = (
        os.path.join(here, name)
        for here, _, names in os.walk(os.path.realpath(folder))
        for name in names
    )
    return sum(os.lstat(file).st_blocks * 512 for file in files if os.path.lexists(file)) / 2**30


# ---------------------------------------------------------------- uv


def bring_uv() -> "dict[str, str]":
    """Install the uv of lock.txt into build/uv, unless it is there. Returns the environment to run it in.

    uv is told what pip was told of indexes and certificates, where its own variables do not say. SetupError if pip
    cannot install it.
    """
    if os.path.isdir(WHEELS):  # a copy from a stick
        os.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=WHEELS)

    wanted = "".join(re.findall(r"^uv==.*\n(?: .*\n)*", read("lock.txt"), re.MULTILINE))
    if not (os.path.exists(UV) and read("build/uv/uv.txt") == wanted):
        must([this_python(), "-I", "-m", "venv", "--clear", "build/uv"])
        write("build/uv/wanted.txt", wanted)
        quiet = ("--quiet", "--disable-pip-version-check", "--require-hashes")
        must([*PIP, "install", *quiet, "-r", "build/uv/wanted.txt"])
        # only now has it the name that is asked for above: what was interrupted begins again
        os.replace("build/uv/wanted.txt", "build/uv/uv.txt")

    environment = {**_settings_of_pip(), **os.environ}
    # as pip does; the hashes decide
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    environment.setdefault("UV_HTTP_TIMEOUT", "180")
    environment["UV_PYTHON_INSTALL_DIR"] = os.path.abspath(PYTHONS)
    return environment


def _settings_of_pip() -> "dict[str, str]":
    """Return what pip was told of indexes and certificates, as uv's variables."""
    listed = subprocess.run([*PIP, "config", "list"], stdout=subprocess.PIPE, text=True).stdout
    lines = re.findall(r"^(global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE)

    settings: dict[str, str] = {}
    for _, name, value in sorted(lines, key=lambda line: line[0] != ":env:"):  # variables win
        if name in PIP_TO_UV:
            variable, separator = PIP_TO_UV[name]
            settings.setdefault(variable, separator.join(ast.literal_eval(value).split()))
    return settings


def this_python() -> str:
    """Return the interpreter that runs this, outside of any virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


def must(command: "Sequence[str]", environment: "dict[str, str] | None" = None) -> None:
    """Run a command that has to succeed and says itself what is wrong."""
    if subprocess.call(command, env=environment):
        raise SetupError(
            "The message above says why. If it finds no version of a package at all, there is no network, or "
            "a proxy is wanted: docs/setup.md, Without a network. What was downloaded is kept: make setup goes on from "
            "there."
        )


# ---------------------------------------------------------------- .venv


def state() -> str:
    """Return what `COMPLETE` holds if `.venv` is current: the checkout's folder, and a hash of what it is made from."""
    made_from = "".join(map(read, MADE_FROM)).encode()
    return f"{os.getcwd()}\n{hashlib.sha256(made_from).hexdigest()}\n"


def make_empty(environment: "dict[str, str]") -> None:
    """Make an empty .venv with a Python 3.11 or 3.12 for this processor that has its header files.

    The one that runs this is tried first, then the one that uv takes of this system's, last one of uv's own, which it
    downloads. SetupError if none of them serves; what was in .venv is gone then as well.
    """
    choices = [["--python", ">=3.11,<3.13"], ["--managed-python", "--python", ">=3.11,<3.13"]]
    if (3, 11) <= sys.version_info < (3, 13):
        choices.insert(0, ["--python", this_python()])

    for choice in choices:
        _empty_folder()
        # .venv may be a link to a folder on another disk, which is there and is to stay
        options = ["--quiet", "--no-project", "--allow-existing", *choice]
        command = [UV, "venv", *options, os.path.realpath(".venv")]
        if not subprocess.call(command, env=environment) and _has_headers():
            return

    raise SetupError(
        "Python 3.11 or 3.12 with its header files is needed, and could not be downloaded: "
        "sudo apt-get install python3.11 python3.11-dev, or brew install python@3.11, or python.org."
    )


def _empty_folder() -> None:
    """Empty the folder of .venv, which may be a link, and mark it as an environment."""
    os.makedirs(os.path.realpath(".venv"), exist_ok=True)
    # pyvenv.cfg goes last, as it says that this is an environment
    for name in sorted(os.listdir(".venv"), key="pyvenv.cfg".__eq__):
        path = os.path.join(".venv", name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    write(".venv/pyvenv.cfg", "")


def _has_headers() -> bool:
    """Return whether the Python of .venv is for this processor and has its header files."""
    code = (
        "import os, platform, sysconfig as s; print('no header files'); raise SystemExit(platform.machine() != "
        f"{platform.machine()!r} or not os.path.isfile(s.get_path('include') + '/Python.h'))"
    )
    return not fails([PYTHON, "-I", "-c", code])


def try_out() -> None:
    """Import what has to work and, on Linux, build the simulated Apple GPU; print what some pages will miss.

    SetupError if PyTorch, metallab or metalsim does not import. Whatever else fails is told alone.
    """
    reason = fails([PYTHON, "-I", "-c", "import metallab, metalsim, torch"])
    if reason:
        raise SetupError("PyTorch is installed and does not import: " + reason)

    codes = ["import " + module for module, _, _ in PARTS]
    if platform.system() == "Linux":
        codes.append(SIMULATED)
    with ThreadPoolExecutor(2) as pool:
        reasons = list(pool.map(lambda code: fails([PYTHON, "-I", "-c", code]), codes))

    for (_, name, pages), reason in zip(PARTS, reasons):  # noqa: B905  (no strict= in Python 3.8)
        if reason:
            print(f"Warning: {name} does not import ({reason}). Only pages {pages} need it.")
            if "cannot open shared object file" in reason:
                print("  Debian, Ubuntu: make packages")

    lacking = list(limits())
    has_tried_simulation = len(reasons) > len(PARTS)
    if has_tried_simulation and reasons[-1] and not lacking:  # else that is why it does not work
        lacking = [f"no simulated Apple GPU ({reasons[-1]})."]
    for each in lacking:
        print(f"Not everything runs here, and pages say what does not: {each}")


def extras() -> "list[str]":
    """Return the options that name what is installed; mlx where its wheel loads."""
    wanted = ["lab", "dev"]
    if loads_mlx():
        wanted.append("mlx")
    return [word for extra in wanted for word in ("--extra", extra)]


def loads_mlx() -> bool:
    """Return whether MLX's wheel loads on this system, by its C library; then set-up installs it."""
    return platform.system() == "Darwin" or numbers(platform.libc_ver()[1]) >= (2, 35)


def loads_core_ai() -> bool:
    """Return whether there is a wheel of Core AI for this system: macOS 26, or Linux on x86-64, by its C library."""
    if platform.system() == "Darwin":
        return platform.machine() == "arm64" and numbers(platform.mac_ver()[0]) >= (26, 0)
    return platform.machine() == "x86_64" and numbers(platform.libc_ver()[1]) >= (2, 34)


def stick(folder: str) -> None:
    """Copy the checkout into a folder, with what set-up installs on machines like this one, for Python 3.11 and 3.12.

    Of the checkout the files that git knows, as they are now. uv's own Python 3.12 comes with it, if uv has one for
    this system; else a line says what each machine needs. SetupError if something cannot be downloaded.
    """
    environment = bring_uv()
    listing = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, check=True).stdout
    for name in filter(os.path.isfile, listing.decode().split("\0")):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copy(name, os.path.join(folder, name))

    wheels = os.path.join(folder, WHEELS)
    for python in ("3.11", "3.12"):
        _download(python, wheels, environment)

    if subprocess.call([UV, "python", "install", "--no-bin", "3.12"], env=environment) == 0:
        must(["tar", "-C", PYTHONS, "-cf", os.path.join(wheels, archive()), "."])
    else:
        print(
            "There is no Python on it: each machine needs a Python 3.11 or 3.12 with header files of its own."
        )
    print(f"Copy {folder} to a stick and from there into each home folder; there: make lab")


def _download(python: str, wheels: str, environment: "dict[str, str]") -> None:
    """Download what set-up installs with a version of Python."""
    listed = f"build/stick-{python}.txt"
    options = ["--python-version", python, "--generate-hashes", "--quiet", "-o", listed]
    project = ["pyproject.toml", *extras(), "-c", "lock.txt"]
    must([UV, "pip", "compile", *project, *options], environment)

    quiet = ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    chosen = ["--require-hashes", "--python-version", python, "-r", listed, "--dest", wheels]
    must([*PIP, "download", *quiet, *chosen])


def archive() -> str:
    """Return the name of the file that holds a stick's Python."""
    return f"python-{platform.system()}-{platform.machine()}.tar"


def set_up(force: bool) -> None:
    """Make .venv current: bring it up to date, or make it anew if that is forced or it does not start.

    Nothing is done if it is current. SetupError, before anything is changed, for what this machine lacks, and for a
    .venv that is no environment.
    """
    if not force and _is_current():
        return
    lacking = list(missing())
    if os.path.isdir(".venv") and os.listdir(".venv") and not os.path.exists(".venv/pyvenv.cfg"):
        lacking.append(".venv exists and is no virtual environment: move it away.")
    if lacking:
        raise SetupError("\n".join([*lacking, "Nothing was changed."]))

    import fcntl  # not at the top: Windows has none, and is refused above with words

    os.makedirs("build", exist_ok=True)
    with open("build/setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until another set-up of this checkout has finished
        if force or not _is_current():
            _install(force)


def _is_current() -> bool:
    """Return whether `.venv` is complete, and its Python starts."""
    return read(COMPLETE) == state() and _starts()


def _starts() -> bool:
    """Return whether the Python of `.venv` starts."""
    return not fails([PYTHON, "-I", "-S", "-c", ""])


def _install(force: bool) -> None:
    """Make `.venv` anew, or bring it up to date, and try it.

    It is brought up to date if it is this checkout's and its Python starts, unless it is forced. SetupError if it is a
    link to another checkout's, which stays as it is, or if something cannot be installed. `COMPLETE` is written last,
    and is there meanwhile only where the environment is still what it says.
    """
    source = "on Linux downloads 4 GB the first time"
    if os.path.isdir(WHEELS):
        source = "needs no network"
    print(f"Setting up .venv. This takes a minute or two, and {source}.", flush=True)
    environment = bring_uv()

    before = read(COMPLETE)
    owner = before.partition("\n")[0]
    if os.path.islink(".venv") and owner not in ("", os.getcwd()) and os.path.isdir(owner):
        raise SetupError(
            f".venv is a link to the environment of {owner}: remove the link, then make one here."
        )
    is_update = not force and owner == os.getcwd() and _starts()
    if before:
        os.remove(COMPLETE)  # an interrupted set-up begins anew, from uv's cache
    if not is_update:
        _unpack_python()
        make_empty(environment)

    install = [UV, "pip", "install", "--python", PYTHON]
    project = ["-r", "pyproject.toml", *extras(), "-c", "lock.txt"]
    try:
        must([*install, "--require-hashes", *project], environment)
    except SetupError:
        if is_update:
            write(COMPLETE, before)  # uv installs nothing before it has everything
        raise
    offline = ["--offline", "--no-deps", "--no-build-isolation"]
    own = [word for folder in OWN for word in ("--editable", folder)]
    must([*install, *offline, *own], environment)

    print("Trying the installation.", flush=True)
    try_out()
    write(COMPLETE, state())
    print("Set-up is complete.")


def _unpack_python() -> None:
    """Unpack the Python that a stick brings, whole or not at all."""
    file = os.path.join(WHEELS, archive())
    if not os.path.exists(file) or os.path.exists(PYTHONS):
        return
    new = PYTHONS + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    must(["tar", "-C", new, "-xf", file])
    os.rename(new, PYTHONS)


def main(arguments: "Sequence[str]") -> int:
    """Return the exit status: 0, 1 after a message, 130 after Ctrl-C."""
    os.chdir(os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir, os.pardir))

    try:
        if arguments[:1] == ["uv"]:
            environment = bring_uv()
            os.execve(UV, [UV, *arguments[1:]], environment)
        if arguments[:1] == ["stick"]:
            stick(*arguments[1:])
        else:
            set_up(force=arguments == ["--force"])
    except (SetupError, OSError, subprocess.CalledProcessError) as error:
        print(f"\nSet-up stopped.\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up was interrupted: make setup goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
