"""The types of a record's fields: a dataclass made of them is its own schema, which msgspec reads and prints.

What a type cannot say (does a speed-up follow from its samples?) is checked in `metallab.records`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

TEXT_LIMIT = 1000
"""Characters that one text of a record may have."""
SENTENCE_LIMIT = 300
_NO_CONTROLS = r"^(?![\s\S]*[\x00-\x1f\x7f-\x9f])"  # no second line, no escape for a terminal

Line = Annotated[str, Meta(max_length=TEXT_LIMIT, pattern=_NO_CONTROLS)]
"""One line of text, which may be empty."""
Name = Annotated[
    str, Meta(min_length=1, max_length=TEXT_LIMIT, pattern=rf"{_NO_CONTROLS}\S(.*\S)?$")
]
"""A line that is not empty and has no space around it."""
Sentence = Annotated[str, Meta(min_length=1, max_length=SENTENCE_LIMIT, pattern=_NO_CONTROLS)]
LESSON_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
LessonName = Annotated[str, Meta(pattern=LESSON_NAME)]
Kind = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9]{0,19}$")]
"""What computes, as PyTorch names its devices."""
Dtype = Literal["float64", "float32", "float16", "bfloat16", "int8", "uint8"]
"""A number format, as PyTorch and NumPy name it."""
Seconds = Annotated[float, Meta(gt=1e-18, lt=1e9)]
"""A duration, between a clock's step over the largest block and a machine's life."""
Samples = Annotated[tuple[Seconds, ...], Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Positive = Annotated[int, Meta(gt=0, lt=2**53)]
Amount = Annotated[float, Meta(ge=0, lt=1e18)]
Cores = Annotated[float, Meta(ge=0, lt=1e6)]
RatioValue = Annotated[float, Meta(ge=0, lt=1e27)]
Drift = Annotated[float, Meta(gt=-1, lt=1e27)]
Load = Annotated[float, Meta(ge=0, lt=1e9)]
