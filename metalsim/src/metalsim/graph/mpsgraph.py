"""MPSGraph: compiling and running what was built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metalsim.graph import descriptors
from metalsim.graph.bridge import expect, expect_or_none
from metalsim.graph.construction import Construction, listed, own
from metalsim.graph.errors import NotSimulated
from metalsim.graph.executable import MPSGraphExecutable
from metalsim.graph.foundation import NSDictionary
from metalsim.graph.metal import MTLCommandQueue
from metalsim.graph.tensors import MPSGraphDevice, MPSGraphShapedType, MPSGraphTensor, MPSGraphTensorData, fill


class MPSGraph(Construction):
    """A graph that can be built and run."""

    def runWithFeeds_targetTensors_targetOperations_(self, feeds: Any, targets: Any, operations: Any) -> NSDictionary:
        _no_operations(operations)
        wanted = [own(self, expect(each, MPSGraphTensor, "each target")) for each in listed(targets, "targetTensors")]
        given = _feeds(feeds, MPSGraphTensorData)
        made, order = self._program(list(given), wanted)
        for position, tensor in enumerate(order):
            values = given[tensor]._values
            made.check(position, values.shape, values.dtype)
        outputs = made.run([given[tensor]._values for tensor in order])
        data = [MPSGraphTensorData._result(value) for value in outputs]
        return NSDictionary(zip(wanted, data, strict=True))

    def runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(
        self, queue: Any, feeds: Any, targets: Any, operations: Any
    ) -> NSDictionary:
        expect(queue, MTLCommandQueue, "the queue")
        return self.runWithFeeds_targetTensors_targetOperations_(feeds, targets, operations)

    def runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        self, queue: Any, feeds: Any, operations: Any, results: Any
    ) -> None:
        expect(queue, MTLCommandQueue, "the queue")
        given = _feeds(results, MPSGraphTensorData)
        made = self.runWithFeeds_targetTensors_targetOperations_(feeds, list(given), operations)
        for tensor, data in given.items():
            fill(data, made[tensor]._values, str(tensor))

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self, device: Any, feeds: Any, targets: Any, operations: Any, descriptor: Any
    ) -> MPSGraphExecutable:
        expect_or_none(device, MPSGraphDevice, "the device")
        expect_or_none(descriptor, descriptors.CLASSES["MPSGraphCompilationDescriptor"], "the compilation descriptor")
        _no_operations(operations)
        wanted = [own(self, expect(each, MPSGraphTensor, "each target")) for each in listed(targets, "targetTensors")]
        given = _feeds(feeds, MPSGraphShapedType)
        made, order = self._program(list(given), wanted)
        for position, tensor in enumerate(order):
            made.check(position, given[tensor]._shape, given[tensor]._dtype)
        executable = MPSGraphExecutable._made(program=made, feeds=order, targets=wanted, options=self._options)
        handler = descriptor and descriptor.compilationCompletionHandler()
        if handler:
            handler(executable, None)
        return executable


def _feeds(feeds: Any, kind: type) -> dict[MPSGraphTensor, Any]:
    if not isinstance(feeds, Mapping):
        raise TypeError(f"feeds are a dictionary of tensors, got '{type(feeds).__name__}'")
    return {
        expect(tensor, MPSGraphTensor, "each key of the feeds"): expect(value, kind, "each value of the feeds")
        for tensor, value in feeds.items()
    }


def _no_operations(operations: Any) -> None:
    if operations is not None and listed(operations, "targetOperations"):
        raise NotSimulated("target operations are not simulated: give None, and name target tensors")
