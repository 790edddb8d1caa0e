"""Provenance: what is asked, what is never told, and what a stranger's description may hold.

The Mac's commands are imitated by executables on PATH that print what a Mac prints *to the best of our knowledge*:
their formats are not checked on a Mac.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from metallab import machine, paths
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
MAC = {
    "chip": "Apple M2 Max",
    "memory_bytes": 96 * 2**30,
    "cores_physical": 12,
    "cores_logical": 12,
    "cores_performance": 8,
    "cores_efficiency": 4,
    "virtual": False,
    "gpu": "Apple M2 Max",
    "gpu_cores": 38,
    "os_version": "15.5",
    "power_source": "battery",
    "low_power_mode": True,
}
"""What these commands tell."""
LINUX_FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz \nflags\t\t: fpu sse hypervisor\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
    "sys/class/power_supply/AC/type": "Mains\n",
    "sys/class/power_supply/AC/online": "0\n",
}
"""A portable computer off the mains, which runs in a virtual machine."""


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
    """Put imitated commands on PATH, and nothing else: ``commands(sysctl="text it prints")``, or a whole script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for limit in ("_COMMAND_SECONDS", "_FACT_SECONDS"):
        monkeypatch.setattr(machine, limit, 300.0)  # a busy machine does not start a shell at once

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
    """Pretend that this is Linux with `LINUX_FILES`."""
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_SYS", tmp_path / "sys")

    for path, text in LINUX_FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)


def pmset(batteries: str, settings: str) -> str:
    """A pmset that answers ``-g batt`` and ``-g``."""
    return f'#!/bin/sh\nif [ "$2" = batt ]; then\n{printing(batteries)}\nelse\n{printing(settings)}\nfi\n'


def read(text: str) -> Machine:
    """A description as `metallab.records` reads it."""
    return msgspec.json.decode(text, type=Machine)


def example(**changes) -> Machine:
    """A Mac, described as far as comparisons of machines go: all other fields are None."""
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(Machine))
    known = {
        "chip": "Apple M2 Max",
        "cores_logical": 12,
        "gpu": "Apple M2 Max",
        "gpu_cores": 38,
        "os_name": "macOS",
        "os_version": "15.5",
        "python": "3.11.9",
        "versions": {"torch": "2.15.0", "jax": None},
        "environment": {},
        "power_source": "AC",
        "load_average": (1.5, 1.25, 1.0),
    }

    return Machine(**unknown | known | changes)


# --- a Mac, whose formats were not checked on one ---


@pytest.fixture
def described_mac(commands, mac):
    commands(
        sysctl=SYSCTL, sw_vers="15.5", system_profiler=PROFILER, pmset=pmset(BATTERY, SETTINGS)
    )
    return machine.describe()


def test_a_mac_is_described_by_its_own_commands(described_mac):
    assert {name: getattr(described_mac, name) for name in MAC} == MAC


def test_a_mac_s_system_is_named_as_its_maker_does(described_mac):
    assert described_mac.os_name == "macOS"
    assert described_mac.architecture == "arm64"
    assert dict(described_mac.rows())["System"] == "macOS 15.5"


def test_no_serial_number_is_told(described_mac):
    assert "S3R1AL" not in described_mac.to_json()


@pytest.mark.parametrize(
    ("batteries", "source"),
    [
        pytest.param("Now drawing from 'AC Power'", "AC", id="mains"),
        pytest.param("Now drawing from 'Battery Power'", "battery", id="battery"),
        pytest.param("No power source", None, id="unknown"),
    ],
)
def test_a_mac_s_source_of_power_is_told(commands, mac, batteries, source):
    commands(pmset=pmset(batteries, SETTINGS))
    assert machine.describe().power_source == source


@pytest.mark.parametrize(
    ("settings", "is_low"),
    [
        pytest.param(" lowpowermode         0", False, id="off"),
        pytest.param(" lowpowermode         1", True, id="on"),
        pytest.param(" lowpowermodes        1", None, id="another setting"),
    ],
)
def test_a_mac_s_low_power_mode_is_told(commands, mac, settings, is_low):
    commands(pmset=pmset(BATTERY, settings))
    assert machine.describe().low_power_mode is is_low


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
    assert {name: getattr(described, name) for name in MAC} == dict.fromkeys(MAC)
    assert read(described.to_json()) == described


# --- Linux ---


@pytest.fixture
def described_linux(commands, linux):
    commands(**{"nvidia-smi": "NVIDIA H200\nNVIDIA H200\n"})
    return machine.describe()


def test_linux_tells_its_processor(described_linux):
    assert described_linux.chip == "Some CPU @ 3 GHz"


def test_linux_tells_that_its_machine_is_virtual(described_linux):
    assert described_linux.virtual is True


def test_linux_tells_how_many_gpus_it_has(described_linux):
    assert described_linux.gpu == "2 × NVIDIA H200"


def test_linux_tells_the_governors_of_all_cores(described_linux):
    assert described_linux.cpu_governor == "performance, powersave"


def test_linux_tells_its_source_of_power_and_has_no_low_power_mode(described_linux):
    assert described_linux.power_source == "battery"
    assert described_linux.low_power_mode is None


# --- the environment ---


@pytest.fixture(scope="module")
def facts():
    """What is known of this machine, asked once for all tests that are about something else."""
    return machine._ask_once()


@pytest.fixture
def no_variables(facts, monkeypatch):
    """None of the variables that are recorded is set."""
    monkeypatch.setattr(machine, "_ask_once", lambda: facts)
    for name in os.environ.keys() & set(machine.VARIABLES):
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value", "recorded"),
    [
        pytest.param("PYTORCH_ENABLE_MPS_FALLBACK", "1", "1", id="as it is"),
        pytest.param("XLA_FLAGS", "--a=/Users/bob/y:/home/carol", "--a=~/y:~", id="without names"),
        pytest.param("OMP_NUM_THREADS", "2\n3", "2 3", id="on one line"),
        pytest.param("CUDA_VISIBLE_DEVICES", "", "", id="empty"),
    ],
)
def test_a_listed_variable_is_recorded(no_variables, monkeypatch, name, value, recorded):
    monkeypatch.setenv(name, value)
    described = machine.describe()
    assert described.environment == {name: recorded}
    assert read(described.to_json()) == described


def test_the_home_folder_is_not_named_wherever_it_lies(no_variables, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/alice/dump")
    assert machine.describe().environment == {"XLA_FLAGS": "--xla_dump_to=~/dump"}


PRIVATE = [
    *("HOME", "METALLAB_OUT", "TF_CONFIG"),
    *("JAX_COORDINATOR_ADDRESS", "METALLAB_TOKEN", "OMP_SECRET"),
]


def test_other_variables_are_not_recorded(no_variables, monkeypatch, tmp_path):
    for name in PRIVATE:
        monkeypatch.setenv(name, str(tmp_path))
    assert machine.describe().environment == {}


# --- the revision ---


def run_git(folder: Path, *words: str) -> str:
    """Run git as somebody with a name; return what it prints."""
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Where the project lies: a folder that is in no repository."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def new_repository(here):
    run_git(here, "init")
    return here


@pytest.fixture
def repository(new_repository):
    """One commit, and nothing changed since."""
    (new_repository / "file").write_text("1")
    run_git(new_repository, "add", ".")
    run_git(new_repository, "commit", "-m", "one", "--no-verify")
    return new_repository


def test_without_a_repository_there_is_no_revision(here):
    described = machine.describe()
    assert described.git_revision is None
    assert described.git_dirty is None


def test_a_repository_without_a_commit_has_no_revision(new_repository):
    described = machine.describe()
    assert described.git_revision is None
    assert described.git_dirty is False


def test_the_last_commit_is_the_revision(repository):
    described = machine.describe()
    assert described.git_revision == run_git(repository, "rev-parse", "HEAD")
    assert described.git_dirty is False


def test_a_new_file_is_a_change_of_that_revision(repository):
    (repository / "new").write_text("2")
    described = machine.describe()
    assert described.git_revision == run_git(repository, "rev-parse", "HEAD")
    assert described.git_dirty is True


def test_a_new_file_is_a_change_before_the_first_commit(new_repository):
    (new_repository / "file").write_text("1")
    assert machine.describe().git_dirty is True


def test_a_new_file_is_a_change_where_a_user_s_settings_hide_it(repository):
    run_git(repository, "config", "status.showUntrackedFiles", "no")
    (repository / "new").write_text("2")
    assert machine.describe().git_dirty is True


@pytest.fixture
def unpacked(repository, monkeypatch):
    """A copy of the project in somebody's repository, without one of its own."""
    folder = repository / "unpacked"
    folder.mkdir()
    monkeypatch.setattr(machine, "ROOT", folder)
    return folder


def test_a_repository_further_up_is_not_ours(unpacked):
    described = machine.describe()
    assert described.git_revision is None
    assert described.git_dirty is None


def test_the_repository_of_a_variable_is_not_ours(repository, unpacked, monkeypatch):
    run_git(unpacked, "init")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as a hook of git has it

    described = machine.describe()
    assert described.git_revision is None
    assert described.git_dirty is False


# --- what changes, and is marked so in the class ---


def test_what_is_asked_anew_each_time_is_marked_as_momentary_or_a_setting(commands):
    """A bench that was interrupted goes on where nothing but momentary fields differ."""
    asked_once = {*machine._ask_once(), *machine._ask_mac(), *machine._ask_linux()}
    fields = dataclasses.fields(Machine)

    unmarked = [each.name for each in fields if each.name not in asked_once and not each.metadata]
    assert unmarked == [], "give each field(metadata=momentary(...)) or field(metadata=SETTING)"


KNOWN = (True, 7, 7.5, "AC", "a" * 40, {"OMP_NUM_THREADS": "7"}, (7.0, 7.0, 7.0))
"""Values, of which each field takes at least one."""


def find_known(name):
    """A value that the field of a description may have."""
    for value in KNOWN:
        given = json.loads(example().to_json()) | {name: value}
        try:
            return getattr(read(json.dumps(given)), name)
        except msgspec.ValidationError:
            continue
    raise LookupError(f"give KNOWN a value that {name} may have")


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Machine)])
def test_each_field_is_shown_by_a_row(unknown, name):
    """A report lists the values of a setting, and none that has no row."""
    known = dataclasses.replace(unknown, **{name: find_known(name)})

    assert known.rows() != unknown.rows(), f"give {name} a line in Machine.rows"


@pytest.mark.parametrize("name", machine.find_momentary())
def test_what_is_momentary_may_be_unknown_and_is_left_out_by_name(name):
    described = dataclasses.replace(machine.describe(), **{name: (1.0, 1.0, 1.0)})
    lasting = described.without_momentary()

    assert getattr(lasting, name) is None
    assert msgspec.json.decode(lasting.to_json(), type=Machine) == lasting


def test_each_momentary_field_names_its_row():
    rows = dict(machine.describe().rows())

    assert set(machine.find_momentary().values()) <= set(rows)


def test_readers_are_told_each_field_that_a_file_of_results_holds():
    guide = (paths.ROOT / "data" / "results" / "README.md").read_text("utf-8")
    told = guide.partition("## What it tells of you")[2].partition("\n## ")[0]

    untold = [each.name for each in dataclasses.fields(Machine) if f"`{each.name}`" not in told]
    assert untold == [], "name each in data/results/README.md, What it tells of you"


# --- what a description holds ---


def test_a_description_names_nobody(monkeypatch):
    """Ask whom one may, the host and the user go by a name that occurs nowhere else."""
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, "zaphod42")
    for asked in ("platform.node", "socket.gethostname", "getpass.getuser", "os.getlogin"):
        monkeypatch.setattr(asked, lambda: "zaphod42")

    assert "zaphod42" not in machine.describe().to_json()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("chip", "a\nb", id="two lines"),
        pytest.param("git_revision", "not hexadecimal", id="no revision"),
        pytest.param("power_source", "nuclear", id="no source of power"),
        pytest.param("load_average", [1, 2, -1], id="a negative load"),
        pytest.param("environment", {"<script>": "1"}, id="no name of a variable"),
        pytest.param("environment", {"OMP_NUM_THREADS": 1}, id="a variable that is a number"),
    ],
)
def test_a_hostile_field_is_refused_by_name(field, value):
    given = json.loads(example().to_json()) | {field: value}
    with pytest.raises(ValueError, match=field):
        read(json.dumps(given))


@pytest.fixture
def unknown():
    """A machine of which nothing is known but its Python."""
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Machine))
    known = {"python": "3.11", "versions": {"jax": None}, "environment": {}}
    return Machine(**nothing | known)


@pytest.fixture
def rows_of_unknown(unknown):
    return dict(unknown.rows())


def test_the_table_shows_unknown_as_unknown(rows_of_unknown):
    known = {"Python", "Packages", "Not installed", "Environment", "Git revision", "GPU"}
    labels = {label for label, value in rows_of_unknown.items() if value == "unknown"}
    assert labels == rows_of_unknown.keys() - known


def test_the_table_lists_what_is_not_installed(rows_of_unknown):
    assert rows_of_unknown["Not installed"] == "jax"


def test_the_table_shows_that_no_gpu_was_found(rows_of_unknown):
    assert rows_of_unknown["GPU"] == "none found"


def test_each_field_is_asked_for(monkeypatch):
    told = {}

    def note(**given):
        told.update(given)

    monkeypatch.setattr(machine, "Machine", note)
    machine.describe()
    assert set(told) == {field.name for field in dataclasses.fields(Machine)}
