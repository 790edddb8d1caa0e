"""What ``python -m metalsim`` and ``pytest --metalsim`` set up around the GPU: spawned workers, no CUDA."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest

from metalsim import building, preload, surroundings

SOURCES = Path(__file__).resolve().parents[1] / "src"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device is built with g++"),
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != preload.SYSTEM,
        reason="simulated on Linux and x86-64 only",
    ),
]

DATASET = """
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, on_device=False, square=None):
        self.on_device, self.square = on_device, square

    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = torch.full((2,), float(i), device="mps") ** 2
        return x if self.on_device else x.cpu()

"""
GUARDED = DATASET + "\nif __name__ == '__main__':\n    "
SUM = "print(sum(batch.to('mps').sum().item() for batch in DataLoader({}, num_workers=1)))"


def run(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess:
    """Run a program as `python -m metalsim` does."""
    script = folder / "program.py"
    script.write_text(program)
    return run_python("-m", "metalsim", *options, str(script), folder=folder)


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {
        "METALSIM_CACHE": str(building.cache()), **os.environ, "PYTHONPATH": str(SOURCES),
        "PYTORCH_ENABLE_MPS_FALLBACK": "0",
    }  # fmt: skip
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env=environment, cwd=folder, timeout=children.LIMIT,
    )  # fmt: skip


def test_a_worker_has_a_device_of_its_own(tmp_path):
    ended = run(tmp_path, GUARDED + SUM.format("Squares()"))
    assert ended.stdout == "28.0\n", ended.stderr


def test_a_worker_cannot_pass_a_tensor_of_the_device_on(tmp_path):
    ended = run(tmp_path, GUARDED + SUM.format("Squares(on_device=True), batch_size=None"))
    assert ended.returncode != 0
    assert "_share_filename_: only available on CPU" in ended.stderr


def test_a_dataset_with_a_lambda_cannot_be_sent_to_a_worker(tmp_path):
    ended = run(tmp_path, GUARDED + SUM.format("Squares(square=lambda x: x * x)"))
    assert ended.returncode != 0
    assert "ickl" in ended.stderr
    assert "lambda" in ended.stderr


def test_a_script_without_a_guard_cannot_have_workers(tmp_path):
    ended = run(tmp_path, DATASET + SUM.format("Squares()"))
    assert ended.returncode != 0
    assert "bootstrapping phase" in ended.stderr


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_program_may_choose_its_start_method(tmp_path, method):
    code = (
        f"import multiprocessing as m; m.set_start_method({method!r}); print(m.get_start_method())"
    )
    assert run(tmp_path, code).stdout == f"{method}\n"


def test_linuxs_way_to_start_workers_can_be_kept(tmp_path):
    code = DATASET.replace('device="mps"', 'device="cpu"') + SUM.format("Squares()")
    ended = run(tmp_path, code, "--keep", "fork")
    assert ended.stdout == "28.0\n", ended.stderr


CUDA = """
import torch

print(torch.backends.cuda.is_built(), torch.version.cuda, torch.cuda.is_available())
for ask in (torch.cuda.current_device, torch.ones(1).cuda, lambda: torch.ones(1, device="cuda")):
    try:
        ask()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_pytorch_is_one_without_cuda(tmp_path):
    lines = run(tmp_path, CUDA).stdout.splitlines()
    refused = "AssertionError Torch not compiled with CUDA enabled"
    assert lines == ["False None False", *[refused] * 3]


def test_pytorchs_cuda_can_be_kept(tmp_path):
    code = "import torch; print(hasattr(torch._C, '_cuda_getDeviceCount'))"
    plain = run_python("-c", code, folder=tmp_path).stdout
    assert run(tmp_path, code, "--keep", "cuda").stdout == plain


def test_pytest_sets_up_the_same(tmp_path):
    test_file = tmp_path / "test_it.py"
    test_file.write_text(
        DATASET
        + "def test_workers():\n    loader = DataLoader(Squares(), num_workers=1)\n"
        + "    assert sum(batch.sum().item() for batch in loader) == 28\n"
        + "def test_cuda():\n    assert torch.version.cuda is None\n"
    )
    plugin = ("-p", "metalsim.pytest_plugin", "--metalsim", "-p", "no:cacheprovider")
    ended = run_python("-m", "pytest", "-q", *plugin, str(test_file), folder=tmp_path)
    assert "2 passed" in ended.stdout, ended.stdout


def test_what_cannot_be_kept_is_named():
    with pytest.raises(ValueError, match=r"spoon.*fork, cuda"):
        surroundings.set_up(["spoon"])
