"""Which device a run is for, asked in another process: looking for one imports frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from metallab.headless.jobs import UsageError
from metallab.processes import describe_exit

PICK_SECONDS = 300.0
"""A first look compiles what it imports, and the simulated GPU; a driver that hangs takes for ever."""
PICK_MARK = "metallab-device:"
PICK = f"""
import json
from metallab import device
try:
    picked = device.pick(framework=device.first_framework())
except (device.DeviceUnavailable, ValueError) as error:
    answer = dict(error=str(error))
else:
    kind = "sim" if picked.simulated else picked.kind
    answer = dict(device=kind, label=picked.label, simulated=bool(picked.simulated))
print({PICK_MARK!r} + json.dumps(answer))
"""


def resolve_device(name: str) -> dict:
    """``{"device", "label", "simulated"}`` of what ``metallab.device.pick`` finds, asked in a process of its own.

    Frameworks are imported there, not here. UsageError, with its message, if there is no such device, and after
    `PICK_SECONDS`.
    """
    environment = dict(os.environ) if name == "auto" else os.environ | {"METALLAB_DEVICE": name}
    command = [sys.executable, "-P", "-c", PICK]
    try:
        picked = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
            timeout=PICK_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"looking for a device took longer than {PICK_SECONDS:g} s: its driver may hang; "
            "try DEVICE=cpu, or restart this machine"
        ) from None
    answers = [line for line in picked.stdout.splitlines() if line.startswith(PICK_MARK)]
    if not answers:
        lines = picked.stderr.strip().splitlines() or [describe_exit(picked.returncode)]
        raise UsageError(f"looking for a device failed: {lines[-1]}; metallab.device.pick() in Python tells more")
    answer = json.loads(answers[-1].removeprefix(PICK_MARK))
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer
