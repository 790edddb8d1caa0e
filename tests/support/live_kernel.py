"""A notebook's kernel for tests: cells are run one after the other, and what they show comes back as text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

LIMIT = 1800
"""Seconds for a cell: the first one that uses the simulated GPU may build it."""


class LiveKernel:
    """A running kernel of this interpreter."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, cell: str) -> str:
        """Run a cell, and return its texts: what it printed, what it showed, and its error."""
        texts: list[str] = []

        def hear(message: Mapping) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])
            elif message["msg_type"] in ("display_data", "execute_result"):
                texts.append(content["data"].get("text/plain", ""))
            elif message["msg_type"] == "error":
                texts.append(f"{content['ename']}: {content['evalue']}")

        self._client.execute_interactive(cell, allow_stdin=False, timeout=LIMIT, output_hook=hear)
        return "".join(texts)


@contextmanager
def start(**variables: str) -> Iterator[LiveKernel]:
    """Yield a kernel whose environment is this process's and some variables, and end it with the block."""
    with TemporaryDirectory(prefix="metallab-test-") as folder:
        manager = KernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # this interpreter
            connection_file=str(Path(folder, "connection.json")),
            transport="ipc",  # by files in this folder: no port that another program may take
            ip=str(Path(folder, "ipc")),
        )
        manager.start_kernel(env={**os.environ, **variables})
        client = manager.blocking_client()
        client.start_channels()

        try:
            client.wait_for_ready(timeout=LIMIT)
            yield LiveKernel(client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
