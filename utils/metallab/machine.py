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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
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
_COMMAND_SECONDS = 2.0  # for what is asked each time
_FACT_SECONDS = (
    20.0  # for what is asked once: system_profiler and nvidia-smi may take seconds at first
)
_SYS, _PROC = Path("/sys"), Path("/proc")


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
    power_source: Literal["AC", "battery"] | None
    low_power_mode: bool | None
    cpu_governor: Name | None
    """Linux: the frequency governor of the cores, or several joined by commas."""
    load_average: tuple[Load, Load, Load] | None
    """Runnable processes, mean over the last 1, 5 and 15 minutes."""
    environment: Annotated[Mapping[Variable, Line], Meta(max_length=300)]
    """Those of `VARIABLES` that are set, without folders and names."""

    def to_json(self) -> str:
        """One line of JSON, which `metallab.records` reads."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True, allow_nan=False)

    def rows(self) -> list[tuple[str, str]]:
        """Label and value for display, in reading order."""
        yes_no = {True: "yes", False: "no", None: ""}
        kinds = ("physical", "logical", "performance", "efficiency")
        cores = [(getattr(self, f"cores_{kind}"), kind) for kind in kinds]
        revision = (self.git_revision or "none")[:12] + (", with changes" if self.git_dirty else "")
        rows = {
            "Chip": self.chip,
            "CPU cores": ", ".join(f"{count} {kind}" for count, kind in cores if count is not None),
            "Memory": self.memory_bytes and units.size(self.memory_bytes),
            "GPU": (self.gpu or "none found")
            + (f", {self.gpu_cores} cores" if self.gpu_cores else ""),
            "System": " ".join(filter(None, (self.os_name, self.os_version))),
            "Architecture": self.architecture,
            "Virtual machine": yes_no[self.virtual],
            "Power": self.power_source,
            "Low-power mode": yes_no[self.low_power_mode],
            "CPU governor": self.cpu_governor,
            LOAD_AVERAGE: ", ".join(f"{load:.2f}" for load in self.load_average or ()),
            "Python": self.python,
            "Packages": ", ".join(
                f"{name} {version}" for name, version in self.versions.items() if version
            )
            or "none",
            "Not installed": ", ".join(
                name for name, version in self.versions.items() if not version
            )
            or "none",
            "Environment": ", ".join(
                f"{key}={value}" for key, value in sorted(self.environment.items())
            )
            or "none",
            "Git revision": revision,
        }
        return [(label, value or "unknown") for label, value in rows.items()]

    def table(self) -> Table:
        """Return `rows` as a table."""
        return Table(["what", "value"], self.rows())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def describe() -> Machine:
    """This machine, now.

    Hardware, versions and the git revision are asked once a process; power, load and environment every time. Takes
    some milliseconds on Linux; on a Mac the first call may take seconds, because it starts ``system_profiler``.
    """
    ask_now = {"Darwin": _mac_now, "Linux": _linux_now}.get(platform.system(), dict)
    unknown = dict.fromkeys(field.name for field in fields(Machine))
    facts = unknown | _fixed() | ask_now()
    with contextlib.suppress(OSError):
        facts["load_average"] = os.getloadavg()
    facts["environment"] = {
        name: one_line(scrub(os.environ[name])) for name in VARIABLES if name in os.environ
    }
    facts["versions"] = dict(
        facts["versions"]
    )  # a copy: the caller's to change, the cached one is not
    return Machine(**facts)


@functools.cache
def _fixed() -> dict[str, Any]:
    """What does not change while this process lives."""
    ask = {"Darwin": _mac, "Linux": _linux}.get(platform.system(), dict)
    revision, dirty = git_state(ROOT)
    common = {
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os_name": platform.system() or None,
        "architecture": platform.machine() or None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git_revision": revision,
        "git_dirty": dirty,
    }
    return common | ask()


def _version(package: str) -> str | None:
    """The installed version, from its metadata: importing a framework takes seconds and may start a device."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return (
        one_line(version) if version else None
    )  # a broken installation has metadata without a version


# --- macOS. No line below this one has been checked on a Mac; the tests run each against imitated commands. ---


def _mac() -> dict[str, Any]:
    counts = {
        "memory_bytes": "hw.memsize",
        "cores_physical": "hw.physicalcpu",
        "cores_logical": "hw.logicalcpu",
        "cores_performance": "hw.perflevel0.physicalcpu",
        "cores_efficiency": "hw.perflevel1.physicalcpu",
    }
    settings = _sysctl("machdep.cpu.brand_string", "kern.hv_vmm_present", *counts.values())
    gpu, gpu_cores = _mac_gpu()
    version = _ask("sw_vers", "-productVersion", seconds=_FACT_SECONDS)
    return {
        "chip": settings.get("machdep.cpu.brand_string"),
        **{name: _positive(settings.get(asked)) for name, asked in counts.items()},
        "virtual": {"0": False, "1": True}.get(settings.get("kern.hv_vmm_present", "")),
        "gpu": gpu,
        "gpu_cores": gpu_cores,
        "os_name": "macOS",
        "os_version": _matched(r"^\s*(\d+(?:\.\d+)*)\s*$", version),
    }


def _sysctl(*names: str) -> dict[str, str]:
    """Values by name. One process for all, with names printed: a name this Mac does not know is only left out."""
    lines = (_ask("sysctl", *names, may_fail=True, seconds=_FACT_SECONDS) or "").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {
        name: one_line(value.strip()) for name, _, value in pairs if name in names and value.strip()
    }


def _mac_gpu() -> tuple[str | None, int | None]:
    """Name and core count. The report also lists displays with their serial numbers: only two values are taken."""
    report = _ask("system_profiler", "SPDisplaysDataType", "-json", seconds=_FACT_SECONDS)
    try:
        cards = json.loads(report or "{}")["SPDisplaysDataType"]
        names = [card["sppci_model"] for card in cards]
        cores = [card.get("sppci_cores") for card in cards]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, None  # not the report that we know
    only_cores = _positive(cores[0]) if len(cores) == 1 else None
    return _joined([name for name in names if isinstance(name, str)]), only_cores


def _mac_now() -> dict[str, Any]:
    source = _matched(r"Now drawing from '(AC|Battery) Power'", _ask("pmset", "-g", "batt"))
    low_power = _matched(r"^\s*lowpowermode\s+([01])\s*$", _ask("pmset", "-g"))
    return {
        "power_source": "battery" if source == "Battery" else source,
        "low_power_mode": low_power and low_power == "1",
    }


# --- Linux ---


def _linux() -> dict[str, Any]:
    cpuinfo = _read(_PROC / "cpuinfo") or ""
    flags = _matched(r"^flags\s*:(.*)$", cpuinfo)
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    gpus = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", seconds=_FACT_SECONDS)
    return {
        "chip": _matched(r"^model name\s*:\s*(.+?)\s*$", cpuinfo),
        "gpu": _joined((gpus or "").splitlines()),
        "virtual": "hypervisor" in flags.split()
        if flags
        else None,  # x86 says so, other processors do not
        "os_name": one_line(release.get("NAME", "")).strip() or "Linux",
        "os_version": one_line(release.get("VERSION_ID", "")).strip() or None,
    }


def _linux_now() -> dict[str, Any]:
    pattern = "devices/system/cpu/cpu*/cpufreq/scaling_governor"
    governors = sorted(
        {text for path in _SYS.glob(pattern) if (text := one_line(_read(path) or "").strip())}
    )
    supplies = [(_read(path / "type"), path) for path in sorted(_SYS.glob("class/power_supply/*"))]
    plugged = any(kind == "Mains" and _read(path / "online") == "1" for kind, path in supplies)
    drained = any(
        kind == "Battery" and _read(path / "status") == "Discharging" for kind, path in supplies
    )
    source = "AC" if plugged else "battery" if drained else None
    return {"power_source": source, "cpu_governor": ", ".join(governors) or None}


# --- everywhere ---


_GIT_STATUS = (
    "--porcelain=v2",
    "--branch",
    "--untracked-files=normal",
)  # a user's settings may leave new files out


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Revision of the checkout, and whether it differs from it; (None, None) if this is no checkout."""
    if not (folder / ".git").exists():  # else git would answer for a repository further up
        return None, None
    status = _ask(
        "git",
        "--no-optional-locks",
        "-C",
        str(folder),
        "status",
        *_GIT_STATUS,
        seconds=_FACT_SECONDS,
    )
    if status is None:
        return None, None
    revision = _matched(r"^# branch\.oid ([0-9a-f]{40,64})$", status)
    return revision, any(not line.startswith("#") for line in status.splitlines())


def _ask(*command: str, may_fail: bool = False, seconds: float | None = None) -> str | None:
    """What a command prints; None if there is no such command, it fails or it takes too long.

    It does not see GIT_DIR and its like, which hooks of git set, and which would name another repository.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS if seconds is None else seconds,
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
            | {"LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if may_fail or done.returncode == 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _matched(pattern: str, text: str | None) -> str | None:
    """The first group of a pattern, lines being lines; None if it is not there."""
    match = re.search(pattern, text or "", re.MULTILINE)
    return one_line(match[1]) if match else None


def _positive(text: Any) -> int | None:
    """A positive whole number written in ASCII digits, or None."""
    return (
        int(text)
        if isinstance(text, str) and re.fullmatch(r"0*[1-9][0-9]{0,17}", text, re.ASCII)
        else None
    )


def _joined(names: list[str]) -> str | None:
    """Names with how often each occurs: ``2 × NVIDIA H200``."""
    names = [name.strip() for name in names if name.strip()]
    counts = {name: names.count(name) for name in names}
    return (
        one_line(
            ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())
        )
        or None
    )


def one_line(text: str) -> str:
    """One line of printable text of at most `TEXT_LIMIT` characters: what `metallab.records` accepts."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= TEXT_LIMIT else shown[: TEXT_LIMIT - 1] + "…"
