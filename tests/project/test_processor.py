"""``make test SUITE=cpu`` runs on the processor that was asked for, child processes too."""

import os
import subprocess
import sys

import pytest

SEES = "import torch; print(torch.backends.cpu.get_cpu_capability())"


@pytest.mark.processor
@pytest.mark.skipif(
    os.environ.get("METALLAB_TEST_CPU") != "Haswell", reason="make test SUITE=cpu asks for Haswell"
)
def test_children_and_theirs_have_no_avx512():
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEES!r}], check=True)"
    for code in (SEES, nested):
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "AVX2\n"
