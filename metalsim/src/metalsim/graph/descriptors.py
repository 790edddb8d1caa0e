"""Descriptors: bags of properties with setters, getters and factories, made from the contract alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metalsim.graph import contract
from metalsim.graph.bridge import Object, ObjectType
from metalsim.graph.operations.registry import Properties

# how the properties begin that are 1 by default
ONES = ("groups", "strideIn", "dilationRateIn", "kernel")
DEFAULTS = {
    "MPSGraphConvolution2DOpDescriptor": {"weightsLayout": contract.constants()["MPSGraphTensorNamedDataLayoutOIHW"]},
    "MPSGraphConvolution3DOpDescriptor": {
        "dataLayout": contract.constants()["MPSGraphTensorNamedDataLayoutNCDHW"],
        "weightsLayout": contract.constants()["MPSGraphTensorNamedDataLayoutOIDHW"],
    },
    "MPSGraphPooling2DOpDescriptor": {"returnIndicesDataType": contract.constants()["MPSDataTypeInt32"]},
    "MPSGraphCompilationDescriptor": {"optimizationLevel": contract.constants()["MPSGraphOptimizationLevel1"]},
}


def descriptor_class(name: str) -> ObjectType:
    """A stand-in for a descriptor class that the contract knows."""
    methods = contract.methods(name)
    properties = {_property(method.name): method for method in methods.values() if _is_setter(method)}
    space: dict[str, Any] = {
        "__doc__": f"{name}: {', '.join(properties)}.",
        "__module__": __name__,
        "_defaults": {key: DEFAULTS.get(name, {}).get(key, _default(key, m)) for key, m in properties.items()},
        "init": _init,
        "copy": _copy,
        "_properties": lambda self: Properties(**self._values),
    }
    for (key, of_class), method in methods.items():
        if of_class and key.startswith("descriptor"):
            space[key] = classmethod(_named(key, _factory(_words(method, "descriptorWith", properties))))
        elif _is_setter(method):
            space[key] = _named(key, _setter(_property(key)))
        elif key.startswith("setExplicitPaddingWith"):
            space[key] = _named(key, _pad(_words(method, "setExplicitPaddingWith", properties)))
        elif key in properties:
            space[key] = _named(key, _getter(key))
    return ObjectType(name, (Object,), space)


def _is_setter(method: contract.Method) -> bool:
    return method.selector.startswith("set") and len(method.arguments) == 1 and method.selector.count(":") == 1


def _property(setter: str) -> str:
    """``strideInX`` for ``setStrideInX_``."""
    return setter[3].lower() + setter[4:-1]


def _default(key: str, setter: contract.Method) -> Any:
    if key.startswith(ONES):
        return 1
    return {"Z": False, "f": 0.0, "d": 0.0, "@": None, "@?": None}.get(setter.arguments[0], 0)


def _words(method: contract.Method, prefix: str, properties: dict[str, Any]) -> list[str]:
    """The properties that a selector's words name, in order."""
    words = method.selector.removeprefix(prefix).split(":")[:-1]
    names = [word[:1].lower() + word[1:] for word in words]
    if unknown := set(names) - set(properties):
        raise TypeError(f"{method} names no property: {', '.join(sorted(unknown))}")
    return names


def _named(name: str, function: Callable) -> Callable:
    function.__name__ = name
    return function


def _init(self: Any) -> Any:
    return self._ready(values=dict(self._defaults))


def _copy(self: Any) -> Any:
    return type(self)._made(values=dict(self._values))


def _factory(names: list[str]) -> Callable:
    def make(cls: type, *values: Any) -> Any:
        return cls._made(values={**cls._defaults, **dict(zip(names, values, strict=True))})

    return make


def _setter(name: str) -> Callable:
    def assign(self: Any, value: Any) -> None:
        self._values[name] = value

    return assign


def _pad(names: list[str]) -> Callable:
    """Sets explicit paddings, and with them the padding style (0)."""

    def assign(self: Any, *values: Any) -> None:
        self._values.update(zip(names, values, strict=True), paddingStyle=0)

    return assign


def _getter(name: str) -> Callable:
    return lambda self: self._values[name]


SIMULATED = (
    "MPSGraphCompilationDescriptor",
    "MPSGraphConvolution2DOpDescriptor",
    "MPSGraphConvolution3DOpDescriptor",
    "MPSGraphExecutableExecutionDescriptor",
    "MPSGraphExecutableSerializationDescriptor",
    "MPSGraphExecutionDescriptor",
    "MPSGraphFFTDescriptor",
    "MPSGraphPooling2DOpDescriptor",
)
CLASSES = {name: descriptor_class(name) for name in SIMULATED}
