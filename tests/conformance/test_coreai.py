"""Core AI, Apple's run time for networks; where there is no Mac, its build for Linux"""

from __future__ import annotations

import coreai_page
import pytest

from metallab import needs

pytestmark = [
    pytest.mark.claim(on="cpu", seconds=290, used_in="notebook 42"),
    pytest.mark.skipif(
        not needs.TOOLS["coreai"].is_here(), reason="not installed: make setup COREAI=1"
    ),
]


def answers(tmp_path, *cells, results):
    """The values of some names, after cells of the page."""
    ran = coreai_page.run(tmp_path, *cells, results=results, timeout=280)
    assert ran.ok, f"{ran}\n{ran.detail}"
    return ran["answers"]


TWELVE = ("twelve-networks", "twelve-make", "twelve-run")
"""The cells of the page that convert twelve networks."""


@pytest.mark.claim(slow=True)
def test_twelve_networks_agree(tmp_path, evidence):
    """Twelve networks of the pages convert, and answer as PyTorch within 1e-5 of the root mean square."""
    shown = "{name: float(error) for name, error in errors.items()}"
    (errors,) = answers(tmp_path, *TWELVE, results=[shown])
    for name, error in errors.items():
        evidence(name, f"{error:.1e}")

    assert len(errors) == 12
    assert max(errors.values()) < 1e-5


def test_what_is_refused_and_a_lowering(tmp_path):
    """FFT, sort, grid sampling and RReLU are refused by name; a lowering of sort's own converts, and sorts."""
    refused, same = answers(tmp_path, "refused-code", "lowering-code", results=["refused", "same"])
    assert refused.keys() == {"FFT", "sort", "grid sampling", "RReLU"}
    assert same


@pytest.mark.claim(slow=True)
def test_a_decoder_with_state_writes_pytorch_s_characters(tmp_path):
    """A language model whose cache is state writes the 20 characters that PyTorch writes on the CPU."""
    cells = ("state-code", "state-convert", "state-write", "state-compare")
    imports = "from metallab.language import corpus, decoder"
    equal, count = answers(tmp_path, imports, *cells, results=["equal", "count"])
    assert equal == count == 20


@pytest.mark.claim(on="mac")
def test_gpu_and_neural_engine_answer(tmp_path, evidence):
    """With macOS 27 the file runs on CPU, GPU and Neural Engine, with answers within float16's tolerance."""
    made = (
        "import torchvision\nresnet, x = torchvision.models.resnet18(), torch.randn(1, 3, 64, 64)\n"
    )
    made += 'twelve = {"ResNet-18": (resnet.requires_grad_(False), x)}\nconvert(resnet, (x,), "ResNet-18")'
    shown = "[str(race[unit]) for race in races for unit in ('CPU', 'GPU', 'Neural Engine')]"
    (times,) = answers(tmp_path, made, "units-code", "units-run", results=[shown])
    if not times:
        pytest.skip("SpecializationOptions.is_supported() is False: it needs macOS 27")
    evidence("times", "; ".join(times))
