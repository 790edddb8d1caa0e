"""The command ``metallab``: what each subcommand prints, its exit code, and what it says of misuse."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types

import pytest

from metallab import paths
from metallab.__main__ import COMMANDS, Command, main

MEASURED = (
    r"{} a call, latency, on .+ \(quartiles .+, 3 samples, first call .+\) \[.*fast mode.*\]\n"
)


def run_metallab(
    *arguments: str, cwd: os.PathLike | None = None, **environment: str
) -> tuple[int, str, str]:
    """Return the exit code, what was printed and the errors of ``metallab``, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "metallab", *arguments],
        env=os.environ
        | {"PYTHONPATH": str(paths.ROOT / "utils"), "METALLAB_MODE": "fast"}
        | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_closed_pipe_ends_it_without_a_traceback(monkeypatch, capfd):
    def prints(parser, arguments):
        os.close(reader)
        print("line\n" * 10_000)
        return 0

    monkeypatch.setitem(sys.modules, "printing_command", types.SimpleNamespace(command=prints))
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        assert main(["long"], [Command("long", "printing_command", "prints", "long")]) == 1
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------- the list


def test_help_has_every_command_with_its_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])

    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(f"metallab {command.example}\n" in told for command in COMMANDS)


of_each_command = pytest.mark.parametrize(
    "command", COMMANDS, ids=[command.name for command in COMMANDS]
)


@of_each_command
def test_each_command_shows_its_own_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command.name, "--help"])
    assert end.value.code == 0
    assert command.example in " ".join(capsys.readouterr().out.split())


@of_each_command
def test_each_command_takes_its_own_example(command, monkeypatch):
    parsed = []
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", _parsing_alone(parsed))
    with pytest.raises(StopIteration):
        main(shlex.split(command.example))
    assert len(parsed) == 2, "the command, and what it takes"


def _parsing_alone(parsed):
    """Return a `parse_args` that adds what it parsed to a list, and raises StopIteration instead of a second return.

    The first call is that of the parser of ``metallab``, the second that of the command, which would do its work next.
    An argument that a parser does not know is an error here, as it is for argparse's own.
    """
    import argparse

    plain = argparse.ArgumentParser.parse_known_args

    def parse_args(self, arguments=None, namespace=None):
        given, unknown = plain(self, arguments, namespace)
        assert not unknown
        parsed.append(given)
        if len(parsed) == 2:
            raise StopIteration
        return given

    return parse_args


from_an_extra = pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        pytest.param("report", "matplotlib", "notebooks", id="report"),
        pytest.param("doctor", "torch", "pytorch", id="doctor"),
    ],
)


@from_an_extra
def test_a_command_without_its_package_names_the_extra(name, package, extra, capsys, monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda asked: None if asked == package else asked
    )

    assert main([name, "--help"]) == 2
    told = capsys.readouterr().err
    assert package in told
    assert f"metal-lab[{extra}]" in told


@from_an_extra
def test_the_extra_that_is_named_holds_the_package(name, package, extra):
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any(re.match(rf"{package}\b", line) for line in extras[extra])


HEAVY = [
    *("numpy", "torch", "tensorflow", "jax", "pandas", "scipy", "matplotlib"),
    *("metallab.timing", "metalsim"),
]
HELP = f"""
import sys
from metallab.__main__ import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in {HEAVY} if name in sys.modules])
"""


def test_help_imports_no_framework_and_no_command():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_such_command_names_those_there_are(capsys):
    with pytest.raises(SystemExit) as end:
        main(["frobnicate"])
    assert end.value.code == 2
    assert "'doctor'" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "meant"), [("doktor", "doctor"), ("tiem", "time")])
def test_a_mistyped_command_names_the_one_that_is_meant(capsys, given, meant):
    with pytest.raises(SystemExit) as end:
        main([given])
    assert end.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_no_command_prints_what_there_is(capsys):
    assert main([]) == 2
    assert "metallab doctor my_project.model:example" in capsys.readouterr().err


# ---------------------------------------------------------------- time


@pytest.fixture
def no_framework(monkeypatch):
    """As if nothing in this process had imported one."""
    monkeypatch.setattr("metallab.commands.time_expression.TITLES", {})


def test_time_prints_one_line_with_the_machine(no_framework, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    assert main(["time", "sorted(a)", "--setup", "a = [3, 1, 2]", "--setup", "a = a * 1000"]) == 0
    printed = capsys.readouterr().out
    assert re.fullmatch(r"sorted\(a\): " + MEASURED.format(r"[\d.]+ \S+"), printed), printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["1) + (2"], "SyntaxError", id="no expression"),
        pytest.param(["b"], "NameError", id="no such name"),
        pytest.param(["1", "--setup", "1 / 0"], "ZeroDivisionError", id="set-up"),
        pytest.param(["1", "--device", "tpu"], "'tpu'", id="unknown device"),
        pytest.param(["1", "--device", "cuda"], "cuda", id="missing device"),
    ],
)
def test_time_says_what_is_wrong_with_what_it_was_given(
    arguments, words, no_framework, capsys, monkeypatch
):
    """In one line, or in argparse's own words below the usage; the exit code is 2, and no time is printed."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    try:
        status = main(["time", *arguments])
    except SystemExit as end:  # argparse ends the process over an argument that it refuses
        status = end.code

    told = capsys.readouterr()
    assert status == 2
    assert words in told.err
    assert told.err.count("\n") == 1 or "usage" in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("variable", "value"), [("METALLAB_DEVICE", "tpu"), ("METALLAB_MODE", "quick")]
)
def test_time_names_a_variable_that_is_wrong(variable, value, no_framework, capsys, monkeypatch):
    monkeypatch.setenv(variable, value)

    assert main(["time", "1"]) == 2
    told = capsys.readouterr().err
    assert variable in told
    assert repr(value) in told


def test_for_time_an_empty_variable_is_none(no_framework, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setenv("METALLAB_DEVICE", "")
    assert main(["time", "1"]) == 0


def test_time_asks_which_framework_the_device_is_of(capsys, monkeypatch):
    for name in ("torch", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or types.ModuleType(name))
    for name in ("jax", "mlx"):  # whoever was imported before
        monkeypatch.delitem(sys.modules, name, raising=False)

    assert main(["time", "1"]) == 2
    told = capsys.readouterr().err
    assert "imports torch and tensorflow: name whose device it is, --framework torch" in told


ON_TORCH = "import torch; x = torch.ones(8, 8{})"


def test_time_of_pytorch_on_the_cpu_names_the_cpu(capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.delenv("METALLAB_DEVICE", raising=False)

    options = ["--throughput", "--framework", "torch", "--setup", ON_TORCH.format("")]
    assert main(["time", "x @ x", *options]) == 0
    assert re.search(r"a call, throughput, on .* CPU, \d+ threads? \(", capsys.readouterr().out)


ON_SIMULATION = "import metalsim; metalsim.install_with_torch(required=True); " + ON_TORCH


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
def test_time_waits_for_the_device_that_is_used():
    set_up = ON_SIMULATION.format(", device='mps'")
    _, printed, errors = run_metallab("time", "x @ x", "--setup", set_up)
    assert re.search(r"on simulated Apple GPU \(on .*simulated\]", printed), errors


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
def test_time_shows_no_time_of_a_device_that_nobody_waited_for():
    code, printed, errors = run_metallab(
        "time", "x.to('mps') @ x.to('mps')", "--setup", ON_SIMULATION.format("")
    )
    assert code == 2
    assert printed == ""
    assert "computes on mps, which nobody waited for: add --device mps" in errors


# ---------------------------------------------------------------- trace

SCRIPT = """
import sys
import helper
import torch
x = torch.ones(4, 4, device=sys.argv[1])
print(helper.twice(x @ x).sum().item(), __name__, sys.argv[2:])
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("def twice(x):\n    return x * 2\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run_trace(*arguments) -> tuple[int, str, str]:
    return run_metallab("trace", *map(str, arguments))


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
def test_trace_runs_a_script_as_python_does(script, tmp_path):
    """As ``__main__``, with its own arguments and the modules beside it; then as many rows as asked for, and a file."""
    chrome = tmp_path / "trace.json"
    code, printed, errors = run_trace(
        "--device", "sim", "--rows", 2, "--chrome", chrome, script, "mps", "--more"
    )

    assert code == 0, errors
    first, sentence, *rest = printed.splitlines()
    assert first == "128.0 __main__ ['--more']"
    assert sentence.startswith("SIMULATED, simulated Apple GPU")
    # an empty line, the script's lines that copy, an empty line, the table, and two lines below it
    header, *rows, _, _ = rest[rest.index("", 1) + 1 :]
    assert header.split()[:2] == ["kind", "operator"]
    assert len(rows) == 2
    assert "aten::mm" in {event["name"] for event in json.loads(chrome.read_text())["traceEvents"]}


def test_trace_tells_what_ran_before_a_script_failed(script, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "")  # so that it is as before at the end
    script.write_text("import torch\ntorch.ones(3).cos()\n1 / 0\n")
    assert main(["trace", "--device", "cpu", str(script)]) == 1
    told = capsys.readouterr()
    assert "aten::cos" in told.out
    assert "ZeroDivisionError" in told.err


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        pytest.param("1 / 0", "ZeroDivisionError", id="an exception"),
        pytest.param("raise SystemExit(7)", "7", id="an exit code"),
    ],
)
def test_that_a_script_failed_is_told_before_its_trace(ending, words, script, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "")  # so that it is as before at the end
    script.write_text(f"import torch\ntorch.ones(3).cos()\n{ending}\n")
    main(["trace", "--device", "cpu", str(script)])

    first = capsys.readouterr().out.splitlines()[0]
    assert "script.py" in first
    assert words in first


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        pytest.param("sys.exit()", 0, "", id="nothing"),
        pytest.param("sys.exit(7)", 7, "", id="a number"),
        pytest.param("sys.exit('words')", 1, "words\n", id="words"),
    ],
)
def test_a_script_s_exit_code_is_that_of_trace(script, ending, code, words, capsys):
    from metallab.pytorch import trace_script

    script.write_text(f"import sys\n{ending}\n")
    status, _ = trace_script._run(script, [])
    assert status == code
    assert capsys.readouterr().err == words


@pytest.mark.parametrize("rows", ["-1", "0", "many"])
def test_a_trace_of_no_rows_is_refused(script, rows, capsys):
    with pytest.raises(SystemExit) as end:
        main(["trace", f"--rows={rows}", str(script)])

    assert end.value.code == 2
    assert "1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "out"),
    [
        pytest.param("--chrome", "script.py/x.json", id="in a file"),
        pytest.param("--picture", ".", id="a folder"),
        pytest.param("--picture", "script.xyz", id="no format of pictures"),
    ],
)
def test_where_a_trace_cannot_be_written_nothing_runs(option, out, script, capsys):
    script.write_text("print('it ran')\n")
    assert main(["trace", "--device", "cpu", option, str(script.parent / out), str(script)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_trace_of_no_file_says_so(capsys):
    assert main(["trace", "no_such.py"]) == 2
    assert "no_such.py: there is no such file" in capsys.readouterr().err
