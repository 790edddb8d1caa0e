"""Objects that behave as PyObjC's: selectors with underscores, ``alloc().init()``, arguments checked by the contract.

A stand-in class derives from `Object` and defines methods under their names in Python. Each must be in the contract,
and gets its checks from there: the macOS that brought it, the number of arguments, and what each may be. A selector
that the contract has and the class has not raises `NotSimulated` when it is called.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

from metalsim.graph import contract
from metalsim.graph.errors import NotSimulated

# Methods of NSObject, which the contract's metadata does not list.
OF_NSOBJECT = {
    ("alloc", True): (),
    ("new", True): (),
    ("init", False): (),
    ("copy", False): (),
    ("description", False): (),
    ("hash", False): (),
    ("isEqual_", False): ("@",),
}
UNSIGNED = {"Q": 2**64, "I": 2**32}
SIGNED = {"q": 2**63, "i": 2**31}
ENCODINGS = {
    "Q": "unsigned long long", "I": "unsigned int", "q": "long long", "i": "int", "d": "double", "f": "float",
}  # fmt: skip


class Selector:
    """A method of a stand-in class: the contract's line and the Python function behind it."""

    def __init__(self, method: contract.Method, function: Callable) -> None:
        self.method, self.function = method, function

    def __get__(self, instance: Any, owner: type) -> Bound:
        if (instance is None) != self.method.of_class or not contract.there(self.method):
            raise AttributeError  # Python asks __getattr__ next, which says why
        if instance is not None and not instance._initialised and not self.method.selector.startswith("init"):
            raise TypeError(
                f"this {owner.__name__} was allocated and not initialised: write {owner.__name__}.alloc().init...()"
            )
        return Bound(self.method, self.function, owner if instance is None else instance)


class Bound:
    """A selector of one object, ready to be called."""

    def __init__(self, method: contract.Method, function: Callable, receiver: Any) -> None:
        self.method, self.function, self.receiver = method, function, receiver

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.receiver, *checked(self.method, arguments))

    def __repr__(self) -> str:
        return f"<simulated selector {self.method}>"


def checked(method: contract.Method, arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments as the selector takes them. TypeError for their number, ValueError for a value, as PyObjC has it.

    Stricter than PyObjC on purpose: a float for a whole number, which PyObjC cuts off, and a negative number where
    there is none are errors here, and BOOL takes only what means true or false.
    """
    if len(arguments) != len(method.arguments):
        raise TypeError(f"Need {len(method.arguments)} arguments, got {len(arguments)}: {method}")
    words = method.selector.split(":")
    return [
        _checked(encoding, value, f"{words[i]}: of {method}")
        for i, (encoding, value) in enumerate(zip(method.arguments, arguments, strict=True))
    ]


def _checked(encoding: str, value: Any, where: str) -> Any:
    if encoding in UNSIGNED or encoding in SIGNED:
        return _whole(encoding, value, where)
    if encoding in ("d", "f"):
        return _float(encoding, value, where)
    if encoding == "Z":
        return _bool(value, where)
    if encoding == "@?" and value is not None and not callable(value):
        raise TypeError(f"{where} is a block: give a function or None, not '{type(value).__name__}'")
    return value


def _whole(encoding: str, value: Any, where: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"depythonifying '{ENCODINGS[encoding]}', got '{type(value).__name__}': {where} is a whole number"
        ) from None
    low, high = (0, UNSIGNED[encoding]) if encoding in UNSIGNED else (-SIGNED[encoding], SIGNED[encoding])
    if not low <= number < high:
        raise ValueError(
            f"depythonifying '{ENCODINGS[encoding]}', got {number}: {where} is at least {low}, below {high}"
        )
    return number


def _float(encoding: str, value: Any, where: str) -> float:
    if not hasattr(value, "__float__"):
        raise ValueError(f"depythonifying '{ENCODINGS[encoding]}', got '{type(value).__name__}': {where} is a number")
    return float(value)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, numbers.Integral) and type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{where} is a BOOL: give True or False, not '{type(value).__name__}'")
    if value not in (0, 1):
        raise ValueError(f"{where} is a BOOL: give True or False, not {value}")
    return bool(value)


class ObjectType(type):
    """The type of stand-in classes: finds their selectors in the contract, and says what is missing."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], contract_name: str = "", **more: Any):
        name_there = contract_name or name
        known = contract.methods(name_there)
        for key, value in list(space.items()):
            function = value.__func__ if isinstance(value, classmethod) else value
            if key.startswith("_") or not isinstance(function, FunctionType):
                continue
            method_key = (key, isinstance(value, classmethod))
            method = known.get(method_key)
            if method is None and method_key in OF_NSOBJECT:
                method = contract.Method(
                    "NSObject", key.replace("_", ":"), method_key[1], OF_NSOBJECT[method_key], "", ()
                )
            if method is None:
                raise TypeError(f"{name_there} has no such selector: {key}")
            space[key] = Selector(method, function)
        space["_contract"] = name_there
        return super().__new__(mcs, name, bases, space, **more)

    def __getattr__(cls, name: str) -> Any:
        return _unknown(cls, name, of_class=True)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise TypeError(f"write {cls.__name__}.alloc().init...() and not {cls.__name__}(): it is an Objective-C class")

    def __repr__(cls) -> str:
        return f"<simulated objective-c class {cls.__name__}>"


def _unknown(cls: ObjectType, name: str, of_class: bool) -> Any:
    method = None if name.startswith("__") else contract.methods(cls._contract).get((name, of_class))
    if method is None or not contract.there(method):
        raise contract.missing(cls._contract, name, of_class)

    def refuse(*arguments: Any) -> None:
        checked(method, arguments)
        raise NotSimulated(f"{method} exists on a Mac and is not simulated")

    return refuse


class Object(metaclass=ObjectType, contract_name="NSObject"):
    """Any object of a stand-in class."""

    _contract: ClassVar[str]
    _initialised = False

    @classmethod
    def alloc(cls) -> Object:
        return object.__new__(cls)

    @classmethod
    def new(cls) -> Object:
        return cls.alloc().init()

    def init(self) -> Object:
        return self._ready()

    def isEqual_(self, other: Any) -> bool:
        return self == other

    def hash(self) -> int:
        return hash(self)

    def description(self) -> str:
        return repr(self)

    @classmethod
    def _made(cls, **fields: Any) -> Any:
        """An object made by another one, with no initialiser for programs to call."""
        return object.__new__(cls)._ready(**fields)

    def _ready(self, **fields: Any) -> Any:
        """The object, initialised, with its fields set."""
        self.__dict__.update({f"_{name}": value for name, value in fields.items()}, _initialised=True)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _unknown(type(self), name, of_class=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        setter = f"set{name[:1].upper()}{name[1:]}_"
        known = (setter, False) in contract.methods(self._contract)
        hint = f": call {setter}(...)" if known else ""
        raise AttributeError(f"'{type(self).__name__}' object attribute '{name}' cannot be set{hint}")

    def __repr__(self) -> str:
        return f"<simulated {type(self).__name__} at {id(self):#x}>"


def expect(value: Any, kind: type, what: str) -> Any:
    """The value, if it is an object of this class. TypeError says what it is instead."""
    if isinstance(value, kind):
        return value
    got = "None" if value is None else f"'{type(value).__name__}'"
    raise TypeError(f"{what} is an {kind.__name__}, got {got}; on a Mac this ends in an exception or in a crash")


def expect_or_none(value: Any, kind: type, what: str) -> Any:
    """The value, if it is None or an object of this class."""
    return None if value is None else expect(value, kind, what)
