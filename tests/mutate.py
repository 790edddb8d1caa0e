"""Rules of a module, each a check that must pass on the module and fail on copies of it that are broken on purpose.

A check is given the module under its own name, and fixtures by theirs::

    rules = Rules(units)

    @rules.rule(("1e-3", "1e-2"))          # with this replaced the check must fail
    def milliseconds_are_thousandths(units): ...

    test_rule_holds, test_broken_rule_goes_red = rules.tests()
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from metallab import needs

Break = tuple[str, str]
_number = itertools.count()


@dataclass(frozen=True)
class Rule:
    """A check, and changes of its module (old text, new text) each of which must make it fail."""

    check: Callable[..., None]
    breaks: tuple[Break, ...]


class Rules:
    """The rules of one module."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.rules: list[Rule] = []

    def rule(self, *breaks: Break) -> Callable[[Callable], Callable]:
        """Add a check. Without breaks it is a test like any other. Its marks, such as ``processor``, are its test's.

        The broken copies are not marked: that each goes red need be seen once, not on each kind of machine.
        """

        def add(check: Callable) -> Callable:
            self.rules.append(Rule(check, breaks))
            return check

        return add

    def tests(self) -> tuple[Callable, Callable]:
        """The two functions for pytest to collect."""
        kept = [pytest.param(rule, marks=getattr(rule.check, "pytestmark", ())) for rule in self.rules]
        broken_rules = [(rule, *change) for rule in self.rules for change in rule.breaks]

        @pytest.mark.parametrize("rule", kept, ids=lambda rule: rule.check.__name__)
        def holds(rule: Rule, request: pytest.FixtureRequest) -> None:
            _run(rule, self.module, request)

        @pytest.mark.filterwarnings("ignore")  # what a broken copy does on its way is of no interest
        @pytest.mark.parametrize(
            ("rule", "old", "new"),
            broken_rules,
            ids=[f"{rule.check.__name__}-{rule.breaks.index((old, new))}" for rule, old, new in broken_rules],
        )
        def goes_red(rule: Rule, old: str, new: str, request: pytest.FixtureRequest, monkeypatch) -> None:
            monkeypatch.setattr(needs, "TOOLS", dict(needs.TOOLS))  # where a copy may enter itself
            module = broken(self.module, old, new)
            with pytest.raises((Exception, pytest.fail.Exception)):
                _run(rule, module, request)

        return holds, goes_red


def broken(module: ModuleType, old: str, new: str) -> ModuleType:
    """A copy of a module, or of a package of modules, with a piece of its text replaced."""
    if hasattr(module, "__path__"):
        return _broken_package(module, old, new)
    text = source(module)
    assert text.count(old) == 1, f"{module.__name__} has {old!r} {text.count(old)} times: adapt the rule's break"
    # a name of its own for each: dataclasses look their module up
    spec = importlib.util.spec_from_loader(f"broken_{next(_number)}_{module.__name__.rpartition('.')[2]}", loader=None)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    copy.__file__ = getattr(module, "__file__", None)
    copy.__dict__["__source__"] = text.replace(old, new)
    exec(compile(source(copy), f"{spec.name}.py", "exec"), copy.__dict__)
    return copy


def _broken_package(package: ModuleType, old: str, new: str) -> ModuleType:
    """A copy in whose modules what they import of the package is the copy's."""
    folder = Path(package.__file__).parent
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))}
    there = [name for name, text in texts.items() if old in text]
    count = sum(text.count(old) for text in texts.values())
    assert count == 1, f"{package.__name__} has {old!r} {count} times: adapt the rule's break"
    texts[there[0]] = texts[there[0]].replace(old, new)
    name = f"broken_{next(_number)}_{package.__name__.rpartition('.')[2]}"
    with tempfile.TemporaryDirectory() as copies:
        for file, text in texts.items():
            Path(copies, file).write_text(text.replace(package.__name__, name), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(
            name, Path(copies, "__init__.py"), submodule_search_locations=[copies]
        )
        sys.modules[name] = copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
    return copy


def source(module: ModuleType) -> str:
    """The text of a module, also of a broken one."""
    return getattr(module, "__source__", None) or Path(module.__file__).read_text(encoding="utf-8")


def _run(rule: Rule, module: ModuleType, request: pytest.FixtureRequest) -> None:
    first, *fixtures = inspect.signature(rule.check).parameters
    rule.check(**{first: module}, **{name: request.getfixturevalue(name) for name in fixtures})
