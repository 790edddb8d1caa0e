"""Settings of every test process, made before any framework is imported."""

import math
import os

import pytest

# Tests run beside each other. PyTorch's threads spin while they wait, each on a core that another test wants: with two
# tests on two cores one network took ten times as long. Nothing in a test asserts on a time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(trylast=True)  # what is not chosen is no longer there
def pytest_collection_modifyitems(items):
    """Pages first, dealt out among the workers: the tests left at the end are short, and no core waits long."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    pages = [item for item in items if item.path.name == "test_notebooks.py"]
    others = [item for item in items if item.path.name != "test_notebooks.py"]
    share = math.ceil(len(others) / workers)  # each worker begins with such a part of the list
    hands = ((*pages[n::workers], *others[n * share : (n + 1) * share]) for n in range(workers))
    items[:] = [item for hand in hands for item in hand]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file of tests that holds none is an error, whichever of the tests are chosen."""
    report = yield
    if isinstance(collector, pytest.Module) and report.passed and not report.result:
        report.outcome, report.longrepr = "failed", f"{collector.path.name} holds no test"
    return report
