"""``make test SUITE=cpu`` runs on the processor that was asked for, child processes too."""

import os
import subprocess
import sys

import pytest

SEES = "import torch; print(torch.backends.cpu.get_cpu_capability())"


NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEES!r}], check=True)"


@pytest.mark.processor
@pytest.mark.skipif(
    os.environ.get("METALLAB_TEST_CPU") != "Haswell", reason="make test SUITE=cpu asks for Haswell"
)
@pytest.mark.parametrize("code", [SEES, NESTED], ids=["child", "grandchild"])
def test_a_child_process_has_no_avx512(code):
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "AVX2\n"
