"""Settings of every test process, made before any framework is imported."""

import os

# Tests run beside each other. PyTorch's threads spin while they wait, each on a core that another test wants: with two
# tests on two cores one network took ten times as long. Nothing in a test asserts on a time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
