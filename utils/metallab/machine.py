"""Where a number comes from: the machine, its settings and the versions that a measurement was made with.

`describe` asks the system by its own commands and by package metadata, and imports no framework, so it costs little
and never disturbs what is being measured. What cannot be found out is ``None``. A description holds no host name, user
name or serial number, and of the environment only `VARIABLES`, because results files are meant to be shared.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from msgspec import Meta

from metallab import units
from metallab.fields import TEXT_LIMIT, Line, Load, Name
from metallab.paths import ROOT
from metallab.redact import scrub
from metallab.tables import Table

SCHEMA = 1
"""The number of the JSON form; it grows when an older reader would misunderstand a newer file."""

PACKAGES = (
    "torch", "torchvision", "tensorflow", "tensorflow-metal", "keras", "jax", "jaxlib", "jax-metal", "jax-mps", "mlx",
    "numpy", "onnxruntime", "coremltools", "ultralytics", "pyobjc-core",
)  # fmt: skip
"""Packages whose version decides what is computed and how fast."""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "METALLAB_DEVICE", "METALLAB_MODE", "MKL_NUM_THREADS", "MLX_ENABLE_TF32",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_FAST_MATH",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_PREFER_METAL", "TF_ENABLE_ONEDNN_OPTS", "VECLIB_MAXIMUM_THREADS",
    "XLA_FLAGS",
)  # fmt: skip
"""The environment variables that are recorded: those that decide what is computed and how fast. No other one is."""
OLDER_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TF_CPP_MIN_LOG_LEVEL")
"""Those that files of earlier revisions name as well."""

Variable = Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]{0,60}$")]
Package = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,60}$")]
Revision = Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}$")]
CoreCount = Annotated[int, Meta(gt=0, le=10_000)]
Bytes = Annotated[int, Meta(gt=0, le=2**50)]

LOAD_AVERAGE = "Load average (1, 5, 15 minutes)"
_COMMAND_SECONDS = 2.0
"""For what is asked each time."""
_FACT_SECONDS = 20.0
"""For what is asked once: system_profiler and nvidia-smi may take seconds at first."""
_SYS, _PROC = Path("/sys"), Path("/proc")


def momentary(row: str) -> dict[str, str]:
    """Return what marks a field of `Machine` that changes from moment to moment, such as a load or a temperature.

    ``row`` is the label that it has in `Machine.rows`. Two descriptions of a machine that differ only in such fields
    are of the same machine in the same state: `make bench` goes on, and a report does not list each value.
    """
    return {"momentary row": row}


SETTING = {"setting": ""}
"""What marks a field that is asked anew each time, but stays as long as nobody changes the machine's settings.

A bench of another setting is another one, and a report lists both values.
"""


@dataclass(frozen=True)
class Machine:
    """One machine at one moment. ``None`` stands for unknown throughout."""

    chip: Name | None
    """The processor's name, such as ``Apple M2 Max``."""
    cores_physical: CoreCount | None
    cores_logical: CoreCount | None
    cores_performance: CoreCount | None
    """On a Mac, cores of the fastest kind (``hw.perflevel0``)."""
    cores_efficiency: CoreCount | None
    """On a Mac, cores of the second kind (``hw.perflevel1``)."""
    memory_bytes: Bytes | None
    gpu: Name | None
    gpu_cores: Annotated[int, Meta(gt=0, le=1_000_000)] | None
    os_name: Name | None
    os_version: Name | None
    architecture: Name | None
    """What this Python was built for."""
    virtual: bool | None
    """True inside a virtual machine."""
    python: Name
    versions: Annotated[Mapping[Package, Name | None], Meta(max_length=100)]
    """Version of each of `PACKAGES`; ``None`` if it is not installed."""
    git_revision: Revision | None
    git_dirty: bool | None
    """True if the checkout differs from its revision, new files included."""
    power_source: Literal["AC", "battery"] | None = field(metadata=SETTING)
    low_power_mode: bool | None = field(metadata=SETTING)
    cpu_governor: Name | None = field(metadata=SETTING)
    """Linux: the frequency governor of the cores, or several joined by commas."""
    load_average: tuple[Load, Load, Load] | None = field(metadata=momentary(LOAD_AVERAGE))
    """Runnable processes, mean over the last 1, 5 and 15 minutes."""
    environment: Annotated[Mapping[Variable, Line], Meta(max_length=300)] = field(metadata=SETTING)
    """Those of `VARIABLES` that are set, without folders and names."""

    def without_momentary(self) -> Machine:
        """Return this machine without what changes from moment to moment (`momentary`)."""
        unknown: dict[str, Any] = dict.fromkeys(find_momentary())
        return replace(self, **unknown)

    def to_json(self) -> str:
        """Return one line of JSON, which `metallab.records` reads."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True, allow_nan=False)

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value for display, in reading order."""
        yes_no = {True: "yes", False: "no", None: ""}

        rows = {
            "Chip": self.chip,
            "CPU cores": self._describe_cores(),
            "Memory": units.size(self.memory_bytes) if self.memory_bytes else None,
            "GPU": self._describe_gpu(),
            "System": " ".join(filter(None, (self.os_name, self.os_version))),
            "Architecture": self.architecture,
            "Virtual machine": yes_no[self.virtual],
            "Power": self.power_source,
            "Low-power mode": yes_no[self.low_power_mode],
            "CPU governor": self.cpu_governor,
            LOAD_AVERAGE: ", ".join(f"{load:.2f}" for load in self.load_average or ()),
            "Python": self.python,
            "Packages": _list(
                f"{name} {version}" for name, version in self.versions.items() if version
            ),
            "Not installed": _list(name for name, version in self.versions.items() if not version),
            "Environment": _list(
                f"{key}={value}" for key, value in sorted(self.environment.items())
            ),
            "Git revision": self._describe_revision(),
        }
        return [(label, value or "unknown") for label, value in rows.items()]

    def _describe_cores(self) -> str:
        """Return how many cores there are of each kind that is known."""
        counts = {
            "physical": self.cores_physical,
            "logical": self.cores_logical,
            "performance": self.cores_performance,
            "efficiency": self.cores_efficiency,
        }
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count is not None)

    def _describe_gpu(self) -> str:
        name = self.gpu or "none found"
        return f"{name}, {self.gpu_cores} cores" if self.gpu_cores else name

    def _describe_revision(self) -> str:
        revision = (self.git_revision or "none")[:12]
        return f"{revision}, with changes" if self.git_dirty else revision

    def table(self) -> Table:
        """Return `rows` as a table."""
        return Table(["what", "value"], self.rows())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def find_momentary() -> dict[str, str]:
    """Return the fields of `Machine` that change from moment to moment, each with the label of its row."""
    marked = {each.name: each.metadata.get("momentary row") for each in fields(Machine)}
    return {name: row for name, row in marked.items() if row is not None}


def _list(names: Iterable[str]) -> str:
    """Return names in a line, or that there are none."""
    return ", ".join(names) or "none"


def describe() -> Machine:
    """Return what this machine is now.

    Hardware, versions and the git revision are asked once a process; power, load and environment every time. Takes
    some milliseconds on Linux; on a Mac the first call may take seconds, because it starts ``system_profiler``.
    """
    ask_now: Callable[[], dict[str, Any]]
    ask_now = {"Darwin": _ask_mac_now, "Linux": _ask_linux_now}.get(platform.system(), dict)
    facts = _ask_once() | ask_now()
    environment = {
        name: one_line(scrub(os.environ[name])) for name in VARIABLES if name in os.environ
    }
    load_average = None
    with contextlib.suppress(OSError):
        load_average = os.getloadavg()

    return Machine(
        chip=facts.get("chip"),
        cores_physical=facts.get("cores_physical"),
        cores_logical=facts.get("cores_logical"),
        cores_performance=facts.get("cores_performance"),
        cores_efficiency=facts.get("cores_efficiency"),
        memory_bytes=facts.get("memory_bytes"),
        gpu=facts.get("gpu"),
        gpu_cores=facts.get("gpu_cores"),
        os_name=facts.get("os_name"),
        os_version=facts.get("os_version"),
        architecture=facts.get("architecture"),
        virtual=facts.get("virtual"),
        python=facts["python"],
        versions=dict(facts["versions"]),  # the caller's to change, which the kept one is not
        git_revision=facts.get("git_revision"),
        git_dirty=facts.get("git_dirty"),
        power_source=facts.get("power_source"),
        low_power_mode=facts.get("low_power_mode"),
        cpu_governor=facts.get("cpu_governor"),
        load_average=load_average,
        environment=environment,
    )


@functools.cache
def _ask_once() -> dict[str, Any]:
    """Return what does not change while this process lives."""
    ask: Callable[[], dict[str, Any]]
    ask = {"Darwin": _ask_mac, "Linux": _ask_linux}.get(platform.system(), dict)
    revision, is_dirty = git_state(ROOT)

    common = {
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os_name": platform.system() or None,
        "architecture": platform.machine() or None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git_revision": revision,
        "git_dirty": is_dirty,
    }
    return common | ask()


def _version(package: str) -> str | None:
    """Return the installed version, from its metadata: importing a framework takes seconds and may start a device."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    # a broken installation has metadata without a version
    return one_line(version) if version else None


# --- macOS. No line below this one has been checked on a Mac; the tests run each against imitated commands. ---


def _ask_mac() -> dict[str, Any]:
    """Return what a Mac tells of itself once."""
    counts = {
        "memory_bytes": "hw.memsize",
        "cores_physical": "hw.physicalcpu",
        "cores_logical": "hw.logicalcpu",
        "cores_performance": "hw.perflevel0.physicalcpu",
        "cores_efficiency": "hw.perflevel1.physicalcpu",
    }
    settings = _ask_sysctl("machdep.cpu.brand_string", "kern.hv_vmm_present", *counts.values())
    gpu, gpu_cores = _ask_mac_gpu()
    version = _ask("sw_vers", "-productVersion", seconds=_FACT_SECONDS)

    return {
        "chip": settings.get("machdep.cpu.brand_string"),
        **{name: _read_positive(settings.get(asked)) for name, asked in counts.items()},
        "virtual": {"0": False, "1": True}.get(settings.get("kern.hv_vmm_present", "")),
        "gpu": gpu,
        "gpu_cores": gpu_cores,
        "os_name": "macOS",
        "os_version": _find(r"^\s*(\d+(?:\.\d+)*)\s*$", version),
    }


def _ask_sysctl(*names: str) -> dict[str, str]:
    """Return values by name. One process for all, with names printed: one that this Mac does not know is left out."""
    lines = (_ask("sysctl", *names, may_fail=True, seconds=_FACT_SECONDS) or "").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {
        name: one_line(value.strip()) for name, _, value in pairs if name in names and value.strip()
    }


def _ask_mac_gpu() -> tuple[str | None, int | None]:
    """Return name and core count. The report lists displays with serial numbers, too: only two values are taken."""
    report = _ask("system_profiler", "SPDisplaysDataType", "-json", seconds=_FACT_SECONDS)
    try:
        cards = json.loads(report or "{}")["SPDisplaysDataType"]
        names = [card["sppci_model"] for card in cards]
        cores = [card.get("sppci_cores") for card in cards]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, None  # not the report that we know

    only_cores = _read_positive(cores[0]) if len(cores) == 1 else None
    return _join([name for name in names if isinstance(name, str)]), only_cores


def _ask_mac_now() -> dict[str, Any]:
    """Return a Mac's power."""
    source = _find(r"Now drawing from '(AC|Battery) Power'", _ask("pmset", "-g", "batt"))
    low_power = _find(r"^\s*lowpowermode\s+([01])\s*$", _ask("pmset", "-g"))
    return {
        "power_source": "battery" if source == "Battery" else source,
        "low_power_mode": None if low_power is None else low_power == "1",
    }


# --- Linux ---


def _ask_linux() -> dict[str, Any]:
    """Return what Linux tells once."""
    cpuinfo = _read(_PROC / "cpuinfo") or ""
    flags = _find(r"^flags\s*:(.*)$", cpuinfo)
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    gpus = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", seconds=_FACT_SECONDS)

    return {
        "chip": _find(r"^model name\s*:\s*(.+?)\s*$", cpuinfo),
        "gpu": _join((gpus or "").splitlines()),
        # x86 says so, other processors do not
        "virtual": "hypervisor" in flags.split() if flags else None,
        "os_name": one_line(release.get("NAME", "")).strip() or "Linux",
        "os_version": one_line(release.get("VERSION_ID", "")).strip() or None,
    }


def _ask_linux_now() -> dict[str, Any]:
    """Return power and frequency governors of Linux."""
    pattern = "devices/system/cpu/cpu*/cpufreq/scaling_governor"
    told = (one_line(_read(path) or "").strip() for path in _SYS.glob(pattern))
    governors = sorted({text for text in told if text})
    return {"power_source": _ask_power_source(), "cpu_governor": ", ".join(governors) or None}


def _ask_power_source() -> str | None:
    """Return ``AC`` if a power supply is plugged in, ``battery`` if one is being drained, else None."""
    supplies = [(_read(path / "type"), path) for path in sorted(_SYS.glob("class/power_supply/*"))]

    if any(kind == "Mains" and _read(path / "online") == "1" for kind, path in supplies):
        return "AC"
    for kind, path in supplies:
        if kind == "Battery" and _read(path / "status") == "Discharging":
            return "battery"
    return None


# --- everywhere ---


# new files are asked for, since a user's settings may leave them out
_GIT_STATUS = ("--porcelain=v2", "--branch", "--untracked-files=normal")


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the revision of a checkout, and whether it differs from it; (None, None) if the folder is none."""
    if not (folder / ".git").exists():  # else git would answer for a repository further up
        return None, None

    command = ("git", "--no-optional-locks", "-C", str(folder), "status", *_GIT_STATUS)
    status = _ask(*command, seconds=_FACT_SECONDS)
    if status is None:
        return None, None
    revision = _find(r"^# branch\.oid ([0-9a-f]{40,64})$", status)
    return revision, any(not line.startswith("#") for line in status.splitlines())


def _ask(*command: str, may_fail: bool = False, seconds: float | None = None) -> str | None:
    """Return what a command prints; None if there is no such command, it fails or it takes too long.

    It does not see GIT_DIR and its like, which hooks of git set, and which would name another repository.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["LC_ALL"] = "C"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS if seconds is None else seconds,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None

    if done.returncode != 0 and not may_fail:
        return None
    return done.stdout.decode(errors="replace")


def _read(path: Path) -> str | None:
    """Return the text of a file of the system; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _find(pattern: str, text: str | None) -> str | None:
    """Return the first group of a pattern, lines being lines; None if it is not there."""
    match = re.search(pattern, text or "", re.MULTILINE)
    return one_line(match[1]) if match else None


def _read_positive(text: Any) -> int | None:
    """Return a positive whole number that is written in ASCII digits, or None."""
    if isinstance(text, str) and re.fullmatch(r"0*[1-9][0-9]{0,17}", text, re.ASCII):
        return int(text)
    return None


def _join(names: list[str]) -> str | None:
    """Return names with how often each occurs: ``2 × NVIDIA H200``; None if there are none."""
    counts = Counter(name.strip() for name in names if name.strip())
    shown = (f"{count} × {name}" if count > 1 else name for name, count in counts.items())
    return one_line(", ".join(shown)) or None


def one_line(text: str) -> str:
    """Return one line of printable text of at most `TEXT_LIMIT` characters: what `metallab.records` accepts."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= TEXT_LIMIT else shown[: TEXT_LIMIT - 1] + "…"
