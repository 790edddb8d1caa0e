"""Settings of every test process, made before any framework is imported."""

import math
import os
import random
import sys

import pytest

# Tests run beside each other. PyTorch's threads spin while they wait, each on a core that another test wants: with two
# tests on two cores one network took ten times as long. Nothing in a test asserts on a time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="shuffle the files, and the tests of each: no test needs another",
    )


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Whatever ran before."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory):
    """What the workers of one run have in common: a child whose checks two of them look at runs once."""
    import children

    if "PYTEST_XDIST_WORKER" in os.environ:
        children.shared = tmp_path_factory.getbasetemp().parent


@pytest.hookimpl(trylast=True)  # what is not chosen is no longer there
def pytest_collection_modifyitems(config, items):
    """Put pages first, dealt out among the workers: the tests left at the end are short, and no core waits long.

    With ``--shuffle`` files come in a random order in place of that, and so do the tests of each file. Without workers
    the order stays.
    """
    if seed := config.getoption("--shuffle"):

        def draw_place(name):
            return random.Random(f"{seed} {name}").random()

        items.sort(key=lambda item: (draw_place(item.path), draw_place(item.nodeid)))
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    pages = [item for item in items if item.path.name == "test_notebooks.py"]
    others = [item for item in items if item.path.name != "test_notebooks.py"]
    # xdist cuts the list into as many parts as there are workers, and each worker begins with one of them
    share = math.ceil(len(others) / workers)
    hands = ((*pages[n::workers], *others[n * share : (n + 1) * share]) for n in range(workers))
    items[:] = [item for hand in hands for item in hand]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file of tests that holds none is an error, whichever of the tests are chosen."""
    report = yield
    if isinstance(collector, pytest.Module) and report.passed and not report.result:
        report.outcome, report.longrepr = "failed", f"{collector.path.name} holds no test"
    return report
