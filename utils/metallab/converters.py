"""From PyTorch to ONNX."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

File = TypeVar("File", Path, io.BytesIO)


def export_onnx(network: nn.Module, example: Tensor, file: File, *, any_batch: bool = False) -> File:
    """Write a PyTorch network as ONNX, as it computes in evaluation mode, to a path or into memory; returns ``file``.

    Its input is named ``input``, its first output ``output``. It takes inputs of the shape of ``example``; with
    ``any_batch`` their first size may be another one. By PyTorch's older exporter, which is deprecated: the newer one
    needs onnxscript, which wants a newer onnx. RuntimeError for an operation that it does not know.
    """
    import torch

    axes = {"input": {0: "batch"}, "output": {0: "batch"}} if any_batch else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is the older one, and that shapes are fixed
        torch.onnx.export(
            network, (example,), file, dynamo=False, opset_version=17,
            input_names=["input"], output_names=["output"], dynamic_axes=axes,
        )  # fmt: skip
    return file
