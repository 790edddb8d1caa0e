"""How code reads here, where no linter knows the shape: CONTRIBUTING.md, "How code reads", explains each rule.

style.toml lists what holds all rules, what holds those of tests, and by name what is exempt and why. The list of mypy
is in pyproject.toml, and so are the exceptions of ruff and complexipy.

Run as a program it lists the shapes that stand in some files or folders, whether they are on a list or not:

    python tests/project/test_style.py --only looped_asserts,compared_tuples tests metalsim/tests
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from metallab import paths
from metallab.__main__ import COMMANDS

DONE = tomllib.loads(Path(__file__).with_name("style.toml").read_text("utf-8"))

LONG = 15
"""Lines from which on a function wants paragraphs."""

LONG_TEST = 12
"""And from which on a test does: what is set up, what is done, and what is asserted."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

# ---- shapes: each yields the lines where it stands ---------------------------------------------------------------


def find_long_blocks(source: str) -> Iterator[int]:
    """Yield functions of `LONG` lines or more, tests of `LONG_TEST`, without a blank line, docstring aside.

    One statement is one paragraph, however many fields it names.
    """
    lines = source.splitlines()

    for function in _functions(source):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if not body or (len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr)):
            continue

        written = lines[body[0].lineno - 1 : function.end_lineno]
        limit = LONG_TEST if function.name.startswith("test_") else LONG
        if len(written) >= limit and all(line.strip() for line in written):
            yield function.lineno


def find_multiplied_texts(source: str) -> Iterator[int]:
    """Yield texts and lists that are multiplied by a truth value."""
    for node in _nodes(source, ast.BinOp):
        if not isinstance(node.op, ast.Mult):
            continue

        either = [(node.left, node.right), (node.right, node.left)]
        if any(_is_sequence(one) and _may_be_truth(other) for one, other in either):
            yield node.lineno


def _is_sequence(node: ast.expr) -> bool:
    """Say whether it is a text of two characters or more, or a list; one character is a ruler."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and len(node.value) > 1
    return isinstance(node, ast.JoinedStr | ast.List)


def _may_be_truth(node: ast.expr) -> bool:
    """Say whether it may be a truth value: anything but a number or a calculation with one."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Name | ast.Attribute)


def find_named_lambdas(source: str) -> Iterator[int]:
    """Yield lambdas that get a name; those in a pair, or behind :=, ruff does not see."""
    for node in _nodes(source, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        value = node.value
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(each, ast.Lambda) for each in values):
            yield node.lineno


def find_splatted_dicts(source: str) -> Iterator[int]:
    """Yield calls with ``**name`` where the same function filled a dictionary of that name."""
    for function in _functions(source):
        filled = set(_names_of_dicts(function))
        calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))

        for call in calls:
            splatted = (each.value for each in call.keywords if each.arg is None)
            if any(isinstance(value, ast.Name) and value.id in filled for value in splatted):
                yield call.lineno


def _names_of_dicts(function: Function) -> Iterator[str]:
    """Yield the names to which a dictionary is assigned, or merged with ``|=``."""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            targets = [node.target]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        else:
            continue
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def find_nested_conditions(source: str) -> Iterator[int]:
    """Yield conditional expressions with another one as a branch."""
    for node in _nodes(source, ast.IfExp):
        if isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp):
            yield node.lineno


def find_nested_comprehensions(source: str) -> Iterator[int]:
    """Yield comprehensions that hold another one."""
    for node in _nodes(source, Comprehension):
        inner = (each for each in ast.walk(node) if each is not node)
        if any(isinstance(each, Comprehension) for each in inner):
            yield node.lineno


PARTICIPLE = re.compile(r"(?:ed|wn|ound|ade|ept|aid|old|ung|unk|itten|iven)$")
OTHERS = {
    *("add", "bound", "embed", "feed", "fold", "grade", "hold", "need", "round", "seed", "unfold"),
    "markdown",
}
"""What ends like a participle and is a verb, or a noun."""


def find_participles(source: str) -> Iterator[int]:
    """Yield functions whose name begins with a past participle; a property is named like a value."""
    for function in _functions(source):
        first, *_ = function.name.strip("_").split("_")
        if function.name.startswith("__") or first in OTHERS or not PARTICIPLE.search(first):
            continue

        decorators = " ".join(map(ast.unparse, function.decorator_list))
        if "property" not in decorators and "fixture" not in decorators:
            yield function.lineno


def find_looped_asserts(source: str) -> Iterator[int]:
    """Yield loops of tests in which something is asserted; a comprehension is none, nor is a helper's loop."""
    for test in _tests(source):
        for node in _walk_own(test):
            if isinstance(node, ast.For | ast.AsyncFor | ast.While) and any(
                map(_is_assertion, _walk_own(node))
            ):
                yield node.lineno


def _is_assertion(node: ast.AST) -> bool:
    """Say whether it is an assert, or a block that wants an error or a warning."""
    if isinstance(node, ast.With):
        wanted = [ast.unparse(item.context_expr) for item in node.items]
        return any(text.startswith(("pytest.raises", "pytest.warns")) for text in wanted)
    return isinstance(node, ast.Assert)


def find_compared_tuples(source: str) -> Iterator[int]:
    """Yield assertions of tests that compare several unlike things at once, as the elements of two tuples."""
    for test in _tests(source):
        assertions = (node for node in _walk_own(test) if isinstance(node, ast.Assert))

        for assertion in assertions:
            comparisons = (node for node in ast.walk(assertion) if isinstance(node, ast.Compare))
            if any(map(_compares_unlike_things, comparisons)):
                yield assertion.lineno


def _compares_unlike_things(comparison: ast.Compare) -> bool:
    """Say whether two tuples are compared with ==, and one of them holds unlike things.

    Unlike are things that are read by different names (``a.value``, ``b.name``, ``len(c)``) and constants of different
    types. Alike are ``(first.status, second.status) == ("passed", "failed")`` and ``(low, high) == (1, 2.5)``.
    """
    sides = [comparison.left, *comparison.comparators]
    if not all(isinstance(operator, ast.Eq) for operator in comparison.ops):
        return False
    if not all(isinstance(side, ast.Tuple) for side in sides):
        return False

    ways = [{_way_of_reading(each) for each in side.elts} - {None} for side in sides]
    types = [{_type_of_constant(each) for each in side.elts} - {None} for side in sides]
    return any(len(several) > 1 for several in (*ways, *types))


def _way_of_reading(node: ast.expr) -> str | None:
    """Return the name by which something is read: an attribute's, a function's, a key; None of a constant."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _way_of_reading(node.func)
    if isinstance(node, ast.Subscript):
        key = node.slice
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
    if isinstance(node, ast.Compare):
        return "a comparison"
    return "a variable" if isinstance(node, ast.Name) else None


def _type_of_constant(node: ast.expr) -> str | None:
    """Return the type of what is written out; None of what is not, and of None, which stands for any value."""
    if isinstance(node, ast.UnaryOp):
        return _type_of_constant(node.operand)
    if isinstance(node, ast.JoinedStr):
        return "str"
    if isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set):
        return type(node).__name__
    if not isinstance(node, ast.Constant) or node.value is None:
        return None
    return "number" if type(node.value) in {int, float} else type(node.value).__name__


def _tests(source: str) -> Iterator[Function]:
    return (function for function in _functions(source) if function.name.startswith("test_"))


def _walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a node, without what is in functions that are defined there."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda):
            yield from _walk_own(child)


def _functions(source: str) -> Iterator[Function]:
    return _nodes(source, Function)


def _nodes(source: str, kinds: type) -> Iterator:
    """Yield the nodes of some kinds, in the order of a walk through the tree."""
    return (node for node in ast.walk(_parse(source)) if isinstance(node, kinds))


@functools.cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


# ---- documentation of what others call ---------------------------------------------------------------------------


SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+$|\Z)", re.MULTILINE | re.DOTALL)


def find_undocumented(path: Path) -> Iterator[str]:
    """Yield public functions of two parameters or more whose docstring leaves one of them out, with what is left out.

    A parameter is documented if its name stands at the margin of the section Parameters. Asked are the functions that a
    page calls, those that a package exports, and those behind ``metallab NAME``.
    """
    module = _module_name(path)
    asked = _called_by_pages() | _exported_by_packages() | _behind_commands()

    for node in _parse(path.read_text("utf-8")).body:
        is_public = isinstance(node, Function) and not node.name.startswith("_")
        if not is_public or _is_overload(node) or f"{module}.{node.name}" not in asked:
            continue

        names = _parameters(node)
        if len(names) < 2:
            continue
        section = SECTION.search(ast.get_docstring(node) or "")
        documented = set(re.findall(r"\w+", _unindented(section[1]))) if section else set()
        if missing := [name for name in names if name not in documented]:
            yield f"{node.name}: {', '.join(missing)}"


def _is_overload(function: Function) -> bool:
    """Return whether it says only how the types of a function that follows depend on each other."""
    return any(ast.unparse(each) == "overload" for each in function.decorator_list)


def _parameters(function: Function) -> list[str]:
    """Return the names of all parameters."""
    given = function.args
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)]


def _unindented(text: str) -> str:
    """Return the lines that begin at the margin, which name parameters."""
    return "\n".join(line for line in text.splitlines() if line[:1].strip())


def _module_name(path: Path) -> str:
    """Return the dotted name of a module of metallab: ``metallab.pytorch.trace``."""
    parts = path.relative_to(paths.ROOT).with_suffix("").parts
    return ".".join(parts[1:]).removesuffix(".__init__")


@functools.cache
def _called_by_pages() -> frozenset[str]:
    """Return the dotted names of all that cells of pages call."""
    return frozenset(
        name
        for page in sorted(paths.NOTEBOOKS.glob("*.ipynb"))
        for name in _calls(_code(page), package="")
    )


@functools.cache
def _exported_by_packages() -> frozenset[str]:
    """Return the dotted names of what the ``__init__`` of a package imports from its modules, or defines."""
    exported: set[str] = set()
    for path in sorted((paths.ROOT / "utils" / "metallab").rglob("__init__.py")):
        tree, package = _parse(path.read_text("utf-8")), _module_name(path)
        exported |= set(_imports(tree, package).values())
        exported |= {f"{package}.{each.name}" for each in tree.body if isinstance(each, Function)}
    return frozenset(exported)


def _behind_commands() -> frozenset[str]:
    """Return the dotted names of the functions that ``metallab NAME`` calls, as far as no package exports them."""
    return frozenset(f"{command.module}.command" for command in COMMANDS)


def _code(page: Path) -> ast.Module:
    """Return the code of a notebook; a cell that another program reads is left out."""
    module = ast.Module([], [])
    for cell in json.loads(page.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if text.startswith("%%isolated"):
            text = text.partition("\n")[2]
        with contextlib.suppress(SyntaxError):  # other magic
            module.body += ast.parse(text).body
    return module


def _calls(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the dotted names of what is called, by the names under which it was imported."""
    imported = _imports(tree, package)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, _, rest = ast.unparse(node.func).partition(".")
            if first in imported:
                yield f"{imported[first]}.{rest}".rstrip(".")


def _imports(tree: ast.Module, package: str) -> dict[str, str]:
    """Return what each imported name stands for: ``{"timing": "metallab.timing"}``.

    ``package`` is what an import with one dot begins with; with two dots, which no module here has, it is not right.
    """
    meant = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for (
                each
            ) in node.names:  # `import a.b` binds the name a, and `import a.b as c` the module a.b
                whole = each.name if each.asname else each.name.partition(".")[0]
                meant[each.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(filter(None, [package if node.level else "", node.module]))
            for each in node.names:
                meant[each.asname or each.name] = f"{origin}.{each.name}"
    return meant


# ---- what is done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A shape that is not written any more."""

    find: Callable[[str], Iterator[int]]
    wrong: str
    right: str
    advice: str


RULES = {
    "long_blocks": Rule(
        find_long_blocks,
        wrong="def load():\n" + "    step()\n" * LONG,
        right="def load():\n" + "    step()\n" * (LONG - 2) + "\n    step()\n",
        advice="put a blank line between what comes in, what is computed and what goes out",
    ),
    "multiplied_texts": Rule(
        find_multiplied_texts,
        wrong="text = summary + ' see below' * (left > 0)",
        right="line = '-' * width + 'ab' * 3",
        advice="write an if that adds the text",
    ),
    "named_lambdas": Rule(
        find_named_lambdas,
        wrong="first, second = lambda: 1, lambda: 2",
        right="rows.sort(key=lambda row: row.name)",
        advice="write a function with a name",
    ),
    "splatted_dicts": Rule(
        find_splatted_dicts,
        wrong="def save():\n    about = {'role': 1}\n    return Record(**about)",
        right="def save(about):\n    return Record(**about)",
        advice="name each field in the call",
    ),
    "nested_conditions": Rule(
        find_nested_conditions,
        wrong="status = 'a' if x else 'b' if y else 'c'",
        right="status = 'a' if x else 'b'",
        advice="write a function with early returns, or a table",
    ),
    "nested_comprehensions": Rule(
        find_nested_comprehensions,
        wrong="rows = [[f(x) for x in row] for row in table]",
        right="rows = [f(x) for row in table for x in row]",
        advice="write a loop, or a function for the inner one",
    ),
    "participles": Rule(
        find_participles,
        wrong="def loaded(path): ...",
        right="def load(path): ...\n@property\ndef loaded(self): ...",
        advice="name a function by its verb",
    ),
    "looped_asserts": Rule(
        find_looped_asserts,
        wrong="def test_sizes():\n    for size in SIZES:\n        assert size > 0\n",
        right="""
def test_sizes():
    def check(sizes):
        for size in sizes:
            assert size > 0

    made = {}
    for size in SIZES:
        made[size] = make(size)
    check(made)
    assert all(size > 0 for size in made)

def check_sizes():
    for size in SIZES:
        assert size > 0
""",
        advice="parametrize the test with ids, or gather what is wrong and assert that it is nothing",
    ),
    "compared_tuples": Rule(
        find_compared_tuples,
        wrong="def test_it(): assert (a.value, b.name, len(c)) == (1, 'x', 3)",
        right="""
def test_it():
    assert (first.status, second.status) == ("passed", "failed")
    assert (low, high) == (1, -2.5)
    assert picture.shape == (3, 4)
    assert {(row.name, row.size) for row in rows} == {("a", 1)}

def is_first(row): return (row.name, row.size) == ("a", 1)
""",
        advice="write an assert for each, and a test for each behaviour",
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_finds_its_shape_and_nothing_else(rule):
    assert len(list(rule.find(rule.wrong))) == 1
    assert list(rule.find(rule.right)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "while busy():\n        assert not failed()",
        "for case in CASES:\n        if case:\n            assert case.ok",
        "for text in TEXTS:\n        with pytest.raises(ValueError):\n            read(text)",
        "with folder():\n        for text in TEXTS: assert text",
    ],
    ids=["while", "under a condition", "errors", "in a with"],
)
def test_a_loop_with_an_assertion_is_found_wherever_a_test_has_it(statement):
    source = f"def test_all():\n    {statement}\n"

    assert len(list(find_looped_asserts(source))) == 1


@pytest.mark.parametrize(
    "comparison",
    [
        "(a.value, b.name) == (wanted, other)",
        "(a['value'], b['name']) == (1, 2)",
        "(code, 'x' in text) == (2, True)",
        "(code, calls) == (1, [])",
        "not done or (a.x, b.y) == (1, 2)",
    ],
    ids=["attributes", "keys", "a comparison", "constants", "behind a condition"],
)
def test_unlike_things_are_read_by_other_names_or_of_other_types(comparison):
    source = f"def test_it():\n    assert {comparison}\n"

    assert list(find_compared_tuples(source)) == [2]


def test_a_test_wants_paragraphs_earlier_than_a_function():
    body = "    step()\n" * LONG_TEST

    assert list(find_long_blocks("def test_it():\n" + body)) == [1]
    assert list(find_long_blocks("def load():\n" + body)) == []


@pytest.mark.parametrize("name", RULES)
def test_what_is_done_has_no_such_shape(name):
    rule = RULES[name]

    wrong = [
        f"{path.relative_to(paths.ROOT)}:{line}"
        for path in sorted(held(name))
        for line in rule.find(path.read_text("utf-8"))
    ]
    assert not wrong, f"{rule.advice} (CONTRIBUTING.md, How code reads)"


def test_what_pages_and_commands_call_and_packages_export_has_its_parameters_explained():
    missing = {
        str(path.relative_to(paths.ROOT)): listed
        for path in sorted(held("undocumented"))
        if "metallab" in path.parts and (listed := list(find_undocumented(path)))
    }
    assert missing == {}, "give them a numpydoc section Parameters, with shapes, dtypes and units"


def test_a_parameter_that_a_docstring_leaves_out_is_found(tmp_path, monkeypatch):
    (tmp_path / "utils" / "metallab").mkdir(parents=True)
    module = tmp_path / "utils" / "metallab" / "plots.py"
    docstring = '"""Draw.\n\n    Parameters\n    ----------\n    figure\n        Of words.\n    """'
    text = f"def {{}}(figure, words):\n    {docstring}\n"
    module.write_text(text.format("losses") + text.format("_private") + text.format("uncalled"))

    called = _called_by_pages()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert "metallab.plots.losses" in called
    assert list(find_undocumented(module)) == ["losses: words"]


def test_what_holds_every_rule_has_its_types_and_complexity_checked():
    tools = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["tool"]

    assert modules(DONE["every"]) == modules(tools["mypy"]["files"])
    assert modules(DONE["every"]) == modules(tools["complexipy"]["paths"])


def test_nothing_but_what_is_exempt_is_left_out_by_mypy_and_complexipy():
    tools = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["tool"]

    assert tools["complexipy"]["exclude"] == list(DONE["exempt"])
    assert tools["mypy"]["exclude"] == [f"^{re.escape(name)}$" for name in DONE["exempt"]]


def test_an_unknown_rule_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        show_shapes(["tests/project", "--only", "long_blocks,loops"])

    told = capsys.readouterr().err
    assert "'loops' is no rule" in told
    assert "looped_asserts" in told


def held(rule: str) -> set[Path]:
    """Return the modules that hold a rule."""
    exempt = [name for name, about in DONE["exempt"].items() if rule in about["rules"]]
    holders = modules(DONE["every"]) - modules(exempt)
    if rule in DONE["tests"]["rules"]:
        holders |= modules(DONE["tests"]["folders"])
    return holders


def modules(listed: Sequence[str]) -> set[Path]:
    """Return the modules of files and folders."""
    found: set[Path] = set()
    for each in listed:
        path = paths.ROOT / each
        assert path.exists(), f"{each} is listed and not there: take it out, or name its heir"
        found |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return found


# ---- what is left ------------------------------------------------------------------------------------------------


def show_shapes(given: Sequence[str] | None = None) -> None:
    """Print each place of a shape in files or folders of this checkout, and how many of each shape a folder has.

    Shapes are the ways of writing that the `RULES` find. SystemExit with 2 for the name of a rule that is none.
    """
    parser = argparse.ArgumentParser(description="list shapes that are not written any more")
    parser.add_argument("paths", nargs="+", help="files or folders of this checkout")
    parser.add_argument("--only", default=",".join(RULES), help="names of rules, with commas")
    arguments = parser.parse_args(given)
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in RULES]:
        parser.error(f"--only: {unknown[0]!r} is no rule: rules are {', '.join(RULES)}")

    counts: Counter[tuple[str, str]] = Counter()
    for path in sorted(modules(arguments.paths)):
        place = path.relative_to(paths.ROOT)
        for name in names:
            for line in RULES[name].find(path.read_text("utf-8")):
                counts[str(place.parent), name] += 1
                print(f"{place}:{line} {name}")

    print()
    for (folder, name), count in sorted(counts.items()):
        print(f"{folder}: {count} {name}")


if __name__ == "__main__":
    show_shapes()
