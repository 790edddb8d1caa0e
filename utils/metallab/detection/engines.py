"""Other ways to run a network that PyTorch holds: as a graph in ONNX Runtime, or as one recorded launch on CUDA.

Both are made for one shape of input, and give what the network gives.
"""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn

from metallab import converters


class OnnxNetwork:
    """A network in ONNX Runtime on the CPU: float32 tensors on the CPU in, a float32 tensor out.

    Its threads sleep between calls: by default they spin for a while, and slow down whatever runs next.

    ``threads`` is how many it computes with; 0 leaves that to ONNX Runtime, one for each core. RuntimeError if the
    network has an operation that the export does not know. Called with another shape than ``example``'s, it raises
    what ONNX Runtime raises.
    """

    def __init__(self, network: nn.Module, example: Tensor, threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = converters.export_onnx(network, example, io.BytesIO()).getvalue()
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {"input": x.contiguous().numpy()})[0])


class CudaGraph:
    """A network on an NVIDIA GPU whose launches are recorded once and then sent to the GPU as one.

    The result lies in memory that the next call overwrites. ValueError for an input of another shape or dtype.
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        self.input = example.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(aside):
            for _ in range(3):  # libraries choose and allocate in the first calls, which must not be recorded
                network(self.input)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.output = network(self.input)

    def __call__(self, x: Tensor):
        if x.shape != self.input.shape or x.dtype != self.input.dtype:
            made, got = (f"{tuple(tensor.shape)} in {tensor.dtype}" for tensor in (self.input, x))
            raise ValueError(f"recorded for {made}, called with {got}: record another graph for that")
        self.input.copy_(x)
        self.graph.replay()
        return self.output
