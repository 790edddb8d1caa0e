"""Provenance: what is asked, what is never told, and what a stranger's description may hold.

The Mac's commands are imitated by executables on PATH that print what a Mac prints *to the best of our knowledge*:
their formats are not checked on a Mac.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import platform
import socket
import stat
import subprocess

import msgspec
import pytest

from metallab import machine
from metallab.machine import Machine

SYSCTL = """\
machdep.cpu.brand_string: Apple M2 Max
hw.memsize: 103079215104
hw.physicalcpu: 12
hw.logicalcpu: 12
hw.perflevel0.physicalcpu: 8
hw.perflevel1.physicalcpu: 4
kern.hv_vmm_present: 0
"""
PROFILER = json.dumps(
    {
        "SPDisplaysDataType": [
            {
                "_name": "Apple M2 Max",
                "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
                "spdisplays_ndrvs": [
                    {"_name": "Color LCD", "_spdisplays_display-serial-number": "S3R1AL"}
                ],
                "sppci_bus": "spdisplays_builtin",
                "sppci_cores": "38",
                "sppci_model": "Apple M2 Max",
            }
        ]
    }
)
BATTERY = """\
Now drawing from 'Battery Power'
 -InternalBattery-0 (id=23724131)\t71%; discharging; 6:02 remaining present: true
"""
SETTINGS = """\
System-wide power settings:
Currently in use:
 standby              1
 lowpowermode         1
 displaysleep         2
"""
MAC_FIELDS = (
    *(
        "chip",
        "memory_bytes",
        "cores_physical",
        "cores_logical",
        "cores_performance",
        "cores_efficiency",
        "virtual",
    ),
    *("gpu", "gpu_cores", "os_version", "power_source", "low_power_mode"),
)


def printing(text: str) -> str:
    """A line of shell that prints a text."""
    return f"/bin/cat <<'END'\n{text}\nEND"


@pytest.fixture(autouse=True)
def fresh():
    """Each test asks anew: the facts are otherwise kept for the process."""
    machine._ask_once.cache_clear()
    yield
    machine._ask_once.cache_clear()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Put imitated commands on PATH, and nothing else: ``commands(sysctl="text it prints")``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for limit in ("_COMMAND_SECONDS", "_FACT_SECONDS"):
        monkeypatch.setattr(machine, limit, 300.0)

    def put(**scripts):
        for name, script in scripts.items():
            (folder / name).write_text(
                script if script.startswith("#!") else f"#!/bin/sh\n{printing(script)}\n"
            )
            (folder / name).chmod(stat.S_IRWXU)

    return put


@pytest.fixture
def mac(monkeypatch):
    """Pretend that this is macOS."""
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm64")


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """Pretend that this is Linux with the /proc and /sys files given by path and content."""
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_SYS", tmp_path / "sys")

    def put(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    return put


def pmset(batteries: str, settings: str) -> str:
    """A pmset that answers ``-g batt`` and ``-g``."""
    return f'#!/bin/sh\nif [ "$2" = batt ]; then\n{printing(batteries)}\nelse\n{printing(settings)}\nfi\n'


def read(text: str) -> Machine:
    """A description as `metallab.records` reads it."""
    return msgspec.json.decode(text, type=Machine)


def example(**changes) -> Machine:
    """A Mac, described as far as comparisons of machines go."""
    told = dict.fromkeys(field.name for field in dataclasses.fields(Machine))
    told |= {
        "chip": "Apple M2 Max",
        "cores_logical": 12,
        "gpu": "Apple M2 Max",
        "gpu_cores": 38,
        "os_name": "macOS",
    }
    told |= {
        "os_version": "15.5",
        "python": "3.11.9",
        "versions": {"torch": "2.15.0", "jax": None},
        "environment": {},
    }
    return Machine(**told | {"power_source": "AC", "load_average": (1.5, 1.25, 1.0)} | changes)


def test_a_mac_is_described_by_its_own_commands(commands, mac):
    """Formats not checked on a Mac."""
    commands(
        sysctl=SYSCTL, sw_vers="15.5", system_profiler=PROFILER, pmset=pmset(BATTERY, SETTINGS)
    )
    described = machine.describe()
    told = [
        "Apple M2 Max",
        96 * 2**30,
        12,
        12,
        8,
        4,
        False,
        "Apple M2 Max",
        38,
        "15.5",
        "battery",
        True,
    ]
    assert [getattr(described, name) for name in MAC_FIELDS] == told
    assert (described.os_name, described.architecture) == ("macOS", "arm64")
    assert "S3R1AL" not in described.to_json()
    assert dict(described.rows())["System"] == "macOS 15.5"


@pytest.mark.parametrize(
    ("batteries", "settings", "source", "low"),
    [
        ("Now drawing from 'AC Power'", " lowpowermode         0", "AC", False),
        ("Now drawing from 'Battery Power'", " lowpowermode         1", "battery", True),
        ("No power source", " lowpowermodes        1", None, None),
    ],
)
def test_power_on_a_mac(commands, mac, batteries, settings, source, low):
    """Formats not checked on a Mac."""
    commands(pmset=pmset(batteries, settings))
    described = machine.describe()
    assert (described.power_source, described.low_power_mode) == (source, low)


GARBAGE = "\x00\x1b[31mnot: what: a Mac says ½ -1 0 99999999999999999999999\n: \n"


@pytest.mark.parametrize(
    "script",
    [
        None,
        GARBAGE,
        "#!/bin/sh\nprintf '\\377\\376'",
        "#!/no/such/interpreter",
        "#!/bin/sh\nexec /bin/sleep 600",
    ],
    ids=["missing", "garbage", "bytes", "broken", "hanging"],
)
def test_a_silent_mac_is_unknown(commands, mac, monkeypatch, script):
    """Whatever the commands do, nothing is raised and nothing invented. Not checked on a Mac."""
    for name in ("_COMMAND_SECONDS", "_FACT_SECONDS"):
        monkeypatch.setattr(machine, name, 0.05 if script and "sleep" in script else 300.0)
    if script is not None:
        commands(sysctl=script, sw_vers=script, pmset=script, system_profiler=script)
    described = machine.describe()
    assert {name: getattr(described, name) for name in MAC_FIELDS} == dict.fromkeys(MAC_FIELDS)
    assert read(described.to_json()) == described


def test_linux_is_described_from_its_files(commands, linux):
    linux(
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz \nflags\t\t: fpu sse hypervisor\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
            "sys/class/power_supply/BAT0/type": "Battery\n",
            "sys/class/power_supply/BAT0/status": "Discharging\n",
            "sys/class/power_supply/AC/type": "Mains\n",
            "sys/class/power_supply/AC/online": "0\n",
        }
    )
    commands(**{"nvidia-smi": "NVIDIA H200\nNVIDIA H200\n"})
    described = machine.describe()
    assert (described.chip, described.virtual) == ("Some CPU @ 3 GHz", True)
    assert described.gpu == "2 × NVIDIA H200"
    assert described.cpu_governor == "performance, powersave"
    assert described.power_source == "battery"
    assert described.low_power_mode is None


def test_only_listed_variables_are_recorded(monkeypatch, tmp_path):
    for name in (name for name in os.environ if name in machine.VARIABLES):
        monkeypatch.delenv(name)
    home = tmp_path / "home" / "alice"
    recorded = {
        "PYTORCH_ENABLE_MPS_FALLBACK": ("1", "1"),
        "XLA_FLAGS": (
            f"--xla_dump_to={home}/dump --x=/Users/bob/y:/home/carol",
            "--xla_dump_to=~/dump --x=~/y:~",
        ),
        "OMP_NUM_THREADS": ("2\n3", "2 3"),
        "CUDA_VISIBLE_DEVICES": ("", ""),
    }
    for name, (value, _) in recorded.items():
        monkeypatch.setenv(name, value)
    for name in (
        "HOME",
        "METALLAB_OUT",
        "TF_CONFIG",
        "JAX_COORDINATOR_ADDRESS",
        "METALLAB_TOKEN",
        "OMP_SECRET",
    ):
        monkeypatch.setenv(name, str(home))
    described = machine.describe()
    assert described.environment == {name: value for name, (_, value) in recorded.items()}
    assert "alice" not in str(described.environment)
    assert read(described.to_json()) == described


def test_git_tells_the_revision_and_what_is_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "ROOT", tmp_path)

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True)

    def state():
        machine._ask_once.cache_clear()
        described = machine.describe()
        return described.git_revision, described.git_dirty

    assert state() == (None, None)
    git("init")
    assert state() == (None, False)
    (tmp_path / "file").write_text("1")
    assert state() == (None, True)
    git("add", ".")
    git("commit", "-m", "one", "--no-verify")
    revision, dirty = state()
    assert len(revision) == 40
    assert not dirty
    git("config", "status.showUntrackedFiles", "no")
    (tmp_path / "new").write_text("2")
    assert state() == (revision, True), "a user's settings hide new files"
    nested = tmp_path / "unpacked"
    nested.mkdir()
    monkeypatch.setattr(machine, "ROOT", nested)
    assert state() == (None, None), "the repository further up is not ours"
    subprocess.run(["git", "init", nested], check=True, capture_output=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))  # as a hook of git has it
    assert state() == (None, False), "the repository of a variable is not ours"


def test_a_description_names_nobody(monkeypatch):
    """Ask whom one may, the host and the user go by a name that occurs nowhere else."""
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, "zaphod42")
    for module, name in (
        (platform, "node"),
        (socket, "gethostname"),
        (getpass, "getuser"),
        (os, "getlogin"),
    ):
        monkeypatch.setattr(module, name, lambda: "zaphod42")
    assert "zaphod42" not in machine.describe().to_json()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chip", "a\nb"),
        ("git_revision", "not hexadecimal"),
        ("power_source", "nuclear"),
        ("load_average", [1, 2, -1]),
        ("environment", {"<script>": "1"}),
        ("environment", {"OMP_NUM_THREADS": 1}),
    ],
)
def test_a_hostile_field_is_refused_by_name(field, value):
    given = json.loads(example().to_json()) | {field: value}
    with pytest.raises(ValueError, match=field):
        read(json.dumps(given))


def test_the_table_shows_unknown_as_unknown():
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(Machine))
    rows = dict(
        Machine(**unknown | {"python": "3.11", "versions": {"jax": None}, "environment": {}}).rows()
    )
    labels = {label for label, value in rows.items() if value == "unknown"}
    assert labels == set(rows) - {
        "Python",
        "Packages",
        "Not installed",
        "Environment",
        "Git revision",
        "GPU",
    }
    assert rows["Not installed"] == "jax"
    assert rows["GPU"] == "none found"
