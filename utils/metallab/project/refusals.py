"""Why a step refuses what it was given."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from metallab.project import wording


class Refusal(StrEnum):
    """The kinds of refusals; the words of each are in `metallab.project.wording`."""

    # between steps
    NO_FACTORY = "no factory"
    STEP_MISSING = "step missing"
    FILE_CHANGED = "file changed"
    LIBRARY_CHANGED = "library changed"
    # 2: what was changed
    NO_MOVE = "no move"
    NO_CHANGE = "no change"
    CHANGE_CLAIMS_SPEED = "change claims speed"
    DOES_NOT_RUN = "does not run"
    # 3: does it compute the same
    NO_DTYPE = "no dtype"
    LOOSE_DTYPE = "loose dtype"
    RANDOM_OUTPUTS = "random outputs"
    OUTPUTS_DIFFER = "outputs differ"
    WRONG_OPERATOR = "wrong operator"
    # 4: is it finite
    NO_FUNCTION = "no function"
    NO_TENSORS = "no tensors"
    SAME_INPUTS = "same inputs"
    NOT_FINITE = "not finite"
    # 5: what takes the time
    NO_OPERATOR = "no operator"
    UNKNOWN_OPERATOR = "unknown operator"
    NO_OPERATORS_KNOWN = "no operators known"
    # 6: is it faster
    NO_TASK = "no task"
    NOTHING_TO_TRAIN = "nothing to train"
    TIMES_NOT_COMPARED = "times not compared"
    TIMES_OF_RANDOM_OUTPUTS = "times of random outputs"
    # 7: which number format
    NO_FORMAT = "no format"
    UNKNOWN_FORMAT = "unknown format"
    NO_FORMATS_KNOWN = "no formats known"
    NO_ERROR = "no error"
    UNSOUND_FORMAT = "unsound format"
    LARGE_ERROR = "large error"
    # 8: does it fit
    NO_MEMORY = "no memory"
    MEMORY_NOT_COUNTED = "memory not counted"
    DOES_NOT_FIT = "does not fit"
    # 9: what was found
    NO_SENTENCE = "no sentence"
    UNKNOWN_NUMBER = "unknown number"
    SPEED_NOT_ESTABLISHED = "speed not established"
    NO_MAC = "no Mac"


class Refused(ValueError):
    """What a step was given is not supported by what the tools report; the message says by what."""

    reason: Refusal | None = None
    """None where the reader's own code raised."""

    @classmethod
    def because(cls, reason: Refusal, **values: Any) -> Refused:
        """Return a refusal of a kind; ``values`` are what its words name."""
        refused = cls(wording.refusal(reason, values))
        refused.reason = reason
        return refused
