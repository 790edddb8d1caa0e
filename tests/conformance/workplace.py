"""A folder for all that a run with a report writes besides it, deleted at the end: the machine is left as it was."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """The folder; processes' own temporary files go there as well."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="metallab-verify-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for part in ("home", "tmp"):
            (folder / part).mkdir()
        tempfile.tempdir = str(folder / "tmp")
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def environment(work: Path) -> dict[str, str]:
    """Variables that keep what a test writes inside that folder."""
    home, cache = work / "home", work / "home" / "cache"
    inside = {
        "HOME": home,
        "CFFIXED_USER_HOME": home,  # where Apple's frameworks look for the home folder
        "TMPDIR": work / "tmp",
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": home / "config",
        "MPLCONFIGDIR": cache / "matplotlib",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TORCH_EXTENSIONS_DIR": cache / "extensions",
        "TORCH_HOME": cache / "torch",
        "KERAS_HOME": cache / "keras",
        "YOLO_CONFIG_DIR": cache / "ultralytics",
        "METALLAB_OUT": work / "out",
        "METALLAB_BUILD": work / "build",
    }
    return {name: str(path) for name, path in inside.items()}


QUIET = {
    "PYTORCH_ENABLE_MPS_FALLBACK": "0",  # a claim that is about it says so
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TQDM_DISABLE": "1",
    "YOLO_OFFLINE": "1",
    "YOLO_AUTOINSTALL": "false",
    "ENABLE_PJRT_COMPATIBILITY": "1",  # jax-metal does not start without it
}
"""Variables for every process."""
