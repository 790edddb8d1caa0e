"""Metal Lab: measure, check, record and draw machine learning on an Apple GPU, or on whatever machine there is.

Import this package before any framework: a simulated device has to be armed before torch is loaded.
Importing it is instant; the modules below import a framework only inside the functions that need one.
"""

import os

# ONNX Runtime would send usage data and keep a device id in the home folder, from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch's profiler prints its starts and stops

from metallab import interrupts as interrupts
from metallab.mode import by_mode

if os.environ.get("METALLAB_DEVICE") == "sim":
    from metallab import simulation

    simulation.arm()

__all__ = ["by_mode"]
