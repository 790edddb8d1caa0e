"""Foundation, as far as MPSGraph needs it: data, URLs, arrays, dictionaries, numbers.

PyObjC hands Python's own list, dict, str, int and float over to Objective-C and back, so that few programs name these
classes; their selectors are not in the contract, and are written down here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote


class NSArray(list):
    """An array that Objective-C returned. On a Mac it cannot be changed."""

    @classmethod
    def arrayWithArray_(cls, values: Iterable[Any]) -> NSArray:
        return cls(values)

    def count(self) -> int:
        return len(self)

    def objectAtIndex_(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"NSRangeException - index {index} beyond bounds [0 .. {len(self) - 1}]")
        return self[index]

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an NSArray cannot be changed: make a list of it")

    append = extend = insert = pop = remove = clear = sort = reverse = _fixed
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _fixed

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return list, (list(self),)  # what leaves the process is Python's own


class NSDictionary(dict):
    """A dictionary that Objective-C returned."""

    @classmethod
    def dictionaryWithDictionary_(cls, values: Mapping[Any, Any]) -> NSDictionary:
        return cls(values)

    def count(self) -> int:
        return len(self)

    def allKeys(self) -> NSArray:
        return NSArray(self)

    def allValues(self) -> NSArray:
        return NSArray(self.values())

    def objectForKey_(self, key: Any) -> Any:
        return self.get(key)


class NSNumber:
    """Makes numbers, which Python sees as its own."""

    @staticmethod
    def numberWithInt_(value: int) -> int:
        return int(value)

    numberWithInteger_ = numberWithUnsignedInteger_ = numberWithLongLong_ = numberWithInt_

    @staticmethod
    def numberWithDouble_(value: float) -> float:
        return float(value)

    numberWithFloat_ = numberWithDouble_

    @staticmethod
    def numberWithBool_(value: bool) -> bool:
        return bool(value)


class NSData:
    """Bytes that do not change."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> NSData:
        view = memoryview(data).cast("B")
        if not 0 <= length <= len(view):
            raise ValueError(f"NSData wants {length} bytes, and was given {len(view)}")
        return cls(bytes(view[:length]))

    @classmethod
    def dataWithData_(cls, data: Any) -> NSData:
        return cls(bytes(data))

    def length(self) -> int:
        return len(self._data)

    def bytes(self) -> memoryview:
        return memoryview(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __bytes__(self) -> bytes:
        return self._data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NSData) and self._data == other._data

    __hash__ = None

    def __repr__(self) -> str:
        return f"<simulated NSData, {len(self._data)} bytes>"


class NSURL:
    """A place in the file system."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def fileURLWithPath_(cls, path: str | os.PathLike[str]) -> NSURL:
        if not isinstance(path, str):
            raise TypeError(f"NSURL takes a str, got '{type(path).__name__}': write str(path)")
        return cls(str(Path(path).absolute()))

    def path(self) -> str:
        return self._path

    def absoluteString(self) -> str:
        return f"file://{quote(self._path)}"

    def isFileURL(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<simulated NSURL {self.absoluteString()}>"


def data_of(value: Any, what: str) -> bytes:
    """The bytes of an NSData, or of what PyObjC hands over as one. TypeError for anything else."""
    if isinstance(value, NSData):
        return value._data
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(
        f"{what} is an NSData, got '{type(value).__name__}': NSData.dataWithBytes_length_(a.tobytes(), a.nbytes)"
    )
