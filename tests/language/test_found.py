"""The writer as found is right on a CPU; an Apple GPU names its four faults one by one; mended, it is right there."""

from __future__ import annotations

import linecache

import pytest
import torch

from metallab import isolated
from metallab.language import corpus, decoder, found, repaired
from metallab.pytorch import coverage

PROMPT = "   For certain sensitive attribute deletions, ra"
COUNT = 17
"""Of a text that the writer has learned well: nine drafts with dropout hardly ever miss it."""


@torch.no_grad()
def write_by_decoder(count):
    """What the decoder writes of which the writer is a copy: always the likeliest character."""
    model, tokens = decoder.load(), corpus.encode(PROMPT)[None]
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens, last=True).argmax(-1)], 1)
    return corpus.decode(tokens[0])


@pytest.fixture(scope="module")
def wanted():
    return write_by_decoder(COUNT)


def test_the_found_writer_writes_what_the_decoder_writes(wanted):
    assert found.load().write(PROMPT, COUNT) == wanted


def test_the_repaired_writer_writes_what_the_decoder_writes(wanted):
    assert repaired.load().write(PROMPT, COUNT) == wanted


def test_without_its_dropout_it_scores_as_the_decoder(monkeypatch):
    monkeypatch.setattr(found.Block, "attend", repaired.Block.attend)
    tokens = corpus.encode(PROMPT)[None]
    with torch.no_grad():
        torch.testing.assert_close(found.load()(tokens), decoder.load()(tokens))


def drafts_of(seed: int) -> torch.Tensor:
    return torch.randint(4, (9,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("module", [found, repaired], ids=["found", "repaired"])
def test_a_vote_is_for_a_character_that_most_drafts_have(module, seed):
    drafts = drafts_of(seed)
    chosen = module.Writer(layers=0).vote(drafts)
    assert chosen.shape == (1,)
    assert (drafts == chosen).sum() == drafts.bincount().max()


MOVES = f"""
import torch
from metallab.language import found, repaired

told = []

def move():
    try:
        told.append(found.load().to("mps").write({PROMPT!r}, {COUNT}))
    except (TypeError, RuntimeError) as error:
        told.append(f"{{type(error).__name__}}: {{error}}")

move()
for kind, fault in (("Block", "make_angles"), ("Block", "turn"), ("Block", "attend"), ("Writer", "vote")):
    setattr(getattr(found, kind), fault, getattr(repaired, kind).__dict__[fault])
    move()

text = repaired.load().to("mps").write({PROMPT!r}, {COUNT})

learner = repaired.load().to("mps").train()
tokens = torch.arange(40, device="mps").reshape(2, 20)
learner(tokens).sum().backward()
learned = all(weight.grad is not None for weight in learner.parameters())
"""


@pytest.fixture(scope="module")
def moved():
    """The found writer on an Apple GPU, mended by one line after each error."""
    return isolated.run(MOVES, results=["told", "text", "learned"], device="mps", timeout=600)


@pytest.mark.parametrize(
    ("mended", "error", "word"),
    [
        pytest.param(0, "TypeError", "float64", id="a table of NumPy's"),
        pytest.param(1, "RuntimeError", "same device", id="positions on the CPU"),
        pytest.param(2, "NotImplementedError", "dropout", id="attention refuses dropout"),
        pytest.param(3, "NotImplementedError", "aten::mode", id="mode is missing"),
    ],
)
def test_each_fault_has_an_error_of_its_own(moved, mended, error, word):
    kind, _, message = moved["told"][mended].partition(": ")
    assert kind == error
    assert word in message


def test_it_writes_the_same_on_an_apple_gpu_once_all_are_mended(moved, wanted):
    assert moved["told"][4:] == [wanted]
    assert moved["text"] == wanted


def test_the_repaired_writer_learns_on_an_apple_gpu(moved):
    assert moved["learned"] is True


TELLS_APART = pytest.mark.parametrize(
    ("module", "runs"),
    [pytest.param(found, False, id="found"), pytest.param(repaired, True, id="repaired")],
)


@TELLS_APART
def test_coverage_tells_the_two_writers_apart(module, runs):
    tokens = corpus.encode(PROMPT)[None]
    assert coverage.mps_coverage(module.load(), tokens).runs is runs


@TELLS_APART
def test_coverage_tells_their_votes_apart(module, runs):
    assert coverage.mps_coverage(module.Writer(layers=0).vote, torch.zeros(5).long()).runs is runs


def test_coverage_names_the_line_of_the_script_that_meets_a_tensor_on_the_cpu():
    """The script lies in this package, and is read on pages like a script of the reader's."""
    answer = coverage.mps_coverage(found.load(), corpus.encode(PROMPT)[None])

    [problem] = [each for each in answer.problems if each.kind == "on the CPU"]
    file, _, number = problem.line.rpartition(":")
    assert file.endswith("found.py")
    assert "turns = " in linecache.getline(file, int(number))
