"""MPSGraphExecutable: a compiled graph, run with arrays in a fixed order, stored as a package and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metalsim.graph import coreml, datatypes, descriptors, package
from metalsim.graph.bridge import Object, expect, expect_or_none
from metalsim.graph.errors import InvalidGraph, NotSimulated
from metalsim.graph.foundation import NSURL, NSArray
from metalsim.graph.metal import MTLCommandQueue
from metalsim.graph.tensors import MPSGraphDevice, MPSGraphShapedType, MPSGraphTensorData, fill

COMPILATION = descriptors.CLASSES["MPSGraphCompilationDescriptor"]
EXECUTION = descriptors.CLASSES["MPSGraphExecutableExecutionDescriptor"]
SERIALIZATION = descriptors.CLASSES["MPSGraphExecutableSerializationDescriptor"]


class MPSGraphExecutable(Object):
    """A program with its inputs and outputs in order."""

    def init(self) -> None:
        raise TypeError("an MPSGraphExecutable is compiled by MPSGraph, or read with initWithMPSGraphPackageAtURL_...")

    def initWithMPSGraphPackageAtURL_compilationDescriptor_(self, url: Any, descriptor: Any) -> MPSGraphExecutable:
        expect(url, NSURL, "the URL")
        expect_or_none(descriptor, COMPILATION, "the compilation descriptor")
        made = package.read(Path(url.path()))
        return self._ready(program=made, feeds=None, targets=None, options=1)

    def initWithCoreMLPackageAtURL_compilationDescriptor_(self, url: Any, descriptor: Any) -> MPSGraphExecutable:
        expect(url, NSURL, "the URL")
        expect_or_none(descriptor, COMPILATION, "the compilation descriptor")
        return self._ready(program=coreml.read(Path(url.path())), feeds=None, targets=None, options=1)

    def options(self) -> int:
        return self._options

    def setOptions_(self, options: int) -> None:
        self._options = options

    def feedTensors(self) -> NSArray | None:
        """The order of the inputs; None for a package, as Apple's header promises it only for a compiled graph."""
        return None if self._feeds is None else NSArray(self._feeds)

    def targetTensors(self) -> NSArray | None:
        """The order of the outputs; None for a package."""
        return None if self._targets is None else NSArray(self._targets)

    def specializeWithDevice_inputTypes_compilationDescriptor_(self, device: Any, types: Any, descriptor: Any) -> None:
        expect_or_none(device, MPSGraphDevice, "the device")
        expect_or_none(descriptor, COMPILATION, "the compilation descriptor")
        given = [expect(each, MPSGraphShapedType, "each input type") for each in types]
        self._count(given, "input types")
        for position, each in enumerate(given):
            self._program.check(position, each._shape, each._dtype)

    def getOutputTypesWithDevice_inputTypes_compilationDescriptor_(
        self, device: Any, types: Any, descriptor: Any
    ) -> NSArray:
        self.specializeWithDevice_inputTypes_compilationDescriptor_(device, types, descriptor)
        outputs = self._program.blank_outputs()
        return NSArray(
            MPSGraphShapedType.alloc().initWithShape_dataType_(each.shape, datatypes.MPS[each.dtype])
            for each in outputs
        )

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self, queue: Any, inputs: Any, results: Any, descriptor: Any
    ) -> NSArray:
        expect(queue, MTLCommandQueue, "the queue")
        expect_or_none(descriptor, EXECUTION, "the execution descriptor")
        given = [expect(each, MPSGraphTensorData, "each input") for each in inputs]
        self._count(given, "inputs")
        for position, each in enumerate(given):
            self._program.check(position, each._values.shape, each._values.dtype)
        outputs = self._program.run([each._values for each in given])
        data = _written(results, outputs)
        handler = descriptor and descriptor.completionHandler()
        if handler:
            handler(data, None)
        return data

    def serializeToMPSGraphPackageAtURL_descriptor_(self, url: Any, descriptor: Any) -> None:
        expect(url, NSURL, "the URL")
        expect_or_none(descriptor, SERIALIZATION, "the serialization descriptor")
        if descriptor is not None and descriptor.append():
            raise NotSimulated("appending to a package is not simulated: setAppend_(False)")
        target = (descriptor is not None and descriptor.minimumDeploymentTarget()) or ""
        package.write(self._program, Path(url.path()), expect(target, str, "the minimum deployment target"))

    def _count(self, given: list[Any], what: str) -> None:
        wanted = len(self._program.inputs)
        if len(given) != wanted:
            raise InvalidGraph(f"{len(given)} {what} for a program of {wanted}")


def _written(results: Any, outputs: list[Any]) -> NSArray:
    """The results in memory of their own, or in that of the given ones."""
    if results is None:
        return NSArray(MPSGraphTensorData._result(value) for value in outputs)
    given = [expect(each, MPSGraphTensorData, "each result") for each in results]
    if len(given) != len(outputs):
        raise InvalidGraph(f"{len(given)} results for a program of {len(outputs)}")
    for position, (data, value) in enumerate(zip(given, outputs, strict=True)):
        fill(data, value, f"output {position}")
    return NSArray(given)
