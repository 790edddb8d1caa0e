"""Metal Shading Language, preprocessed, to C++ that clang compiles for a CPU.

The headers in runtime/include make most of MSL compile as it stands. What they cannot is rewritten here, as text and
line by line, so that every error and every finding keeps its line: attributes go, `threadgroup` variables become static
memory, unsuffixed literals become float. Code is added behind for calling each kernel with what the run time supplies.

What is not simulated raises SyntaxError with its line and is never passed on.

**Why as text, and not on the syntax tree of libclang:**

1. libclang reads C++. It has no Metal: it stops at ``device float* x`` (*unknown type name 'device'*) and, where the
   words for address spaces are macros, at two member functions that differ in theirs (*class member cannot be
   redeclared*). What is to be rewritten is what the parser does not take, so it would have to be rewritten before there
   is a tree.
2. Shaders need a compiler and nothing else, and one that comes without administrator's rights: the package ziglang is
   a clang, but brings no libclang. The package libclang has none that is as new as the clang that is needed here
   (18.1 against 19, in November 2026), so that the tree would be that of another compiler than the one that compiles.
3. A tree is printed as its own text, with its own lines. Here each line stays where it was, so a compiler's message, a
   race and an index out of range name the line that the author wrote.

**What that costs.** The preprocessor has run, so there are no comments and no macros, but names are known by their
spelling and brackets are counted:

- A brace, a bracket or a semicolon in a text or a character (``'{'``) counts as one of the program. Where that matters,
  a SyntaxError says that something is not closed, or the compiler complains.
- A variable that is called `kernel` or `sampler` is taken for the word. What is not simulated is refused wherever its
  name stands, also in a template that nobody uses.
- Types are not known. A pointer without an address space is noticed if it is one to a number, a vector or a template's
  type, not if it is one to a structure. Which functions meet at a barrier is told by their names
  (`meeting_functions`), which is too often rather than too seldom.

A mistake of these kinds rarely passes silently: text that was cut in the wrong place is no C++ any more and does not
compile, and a barrier that was not expected ends the run with an error. The tests run each kernel for its numbers, so
that a rewriting which changes them is seen.
"""

from __future__ import annotations

import bisect
import difflib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from metalsim.shader.launch import Kernel, Parameter, launch_code

MOST_THREADS = 1024  # in a threadgroup, on every Apple GPU
PROGRAM = "program_source"  # what Metal calls a library's source in its messages

# what appears in the source -> what is not simulated
_NOT_SIMULATED = (
    (
        r"\b(?:texture|depth)(?:1d|2d|3d|cube)(?:_ms)?(?:_array)?\b|\btexture_buffer\b",
        "textures are",
    ),
    (r"(?<!::)\bsampler\b", "samplers are"),
    (r"\bimageblock\b|\bthreadgroup_imageblock\b", "imageblocks are"),
    (r"\b(?:vertex|fragment)\s+[\w:<>]+\s+\w+\s*\(", "vertex and fragment functions are"),
    (r"\[\[\s*(?:visible|mesh|object|intersection|stitchable)\b", "functions of this kind are"),
    (
        r"\b(?:visible|intersection)_function_table\b|\bintersector\b|\braytracing\b",
        "ray tracing and function tables are",
    ),
    (r"\bsimdgroup_async_copy|\bsimdgroup_event\b", "asynchronous copies are"),
    (r"\batomic_thread_fence\b", "fences are"),
    (r"\bcooperative_tensor\b|\bmpp::|\btensor_handle\b", "Metal 4 tensors are"),
    (r"\basm\b", "assembly is"),
)

# what appears in the source -> what torch.mps.compile_shader cannot say of it, and so refuses
_NOT_GIVEN = (
    (
        "constants",
        r"\[\[[^\]]*\bfunction_constant\b",
        "function constants (torch.mps.compile_shader cannot set them: use a template or a buffer; "
        "metalsim.shader.compile_shader takes constants=...) are",
    ),
    (
        "threadgroup",
        r"\[\[\s*threadgroup\s*\(",
        "threadgroup memory as a parameter (torch.mps.compile_shader cannot size it: declare it; "
        "metalsim.shader.compile_shader takes threadgroup=...) is",
    ),
)

_ATTRIBUTE = r"(?:\[\[[^\]]*\]\]\s*)"
_LINE_MARKER = re.compile(r'^# (\d+) "([^"]*)".*$', re.M)
_MEETING = re.compile(
    r"\b(?:threadgroup_barrier|simdgroup_(?:barrier|load|store|multiply\w*|matrix|[a-z]+8x8)|make_filled_simdgroup_matrix"
    r"|(?:__metal_)?(?:simd|quad)_[a-z]\w*)\b"
)


@dataclass(frozen=True)
class Given:
    """What a Metal host sets beside the source. None stands for a host that cannot."""

    constants: Mapping[str | int, object] | None = None
    """Values of function constants, by name or by index: bool, int, float, or a sequence of them for a vector."""
    threadgroup: Mapping[int, int] | None = None
    """Bytes of the threadgroup memory that is a parameter, by its index."""
    kernels: Collection[str] | None = None
    """Names of the kernels to compile; None stands for all."""

    def key(self) -> str:
        """What of it goes into the name of a result."""
        chosen = None if self.kernels is None else sorted(self.kernels)
        return repr(
            [
                *(
                    sorted(map(repr, (each or {}).items()))
                    for each in (self.constants, self.threadgroup)
                ),
                chosen,
            ]
        )


@dataclass(frozen=True)
class Translation:
    """C++ that stands for a Metal library, and its kernels in the order of their numbers."""

    code: str
    kernels: tuple[Kernel, ...]


def translate(preprocessed: str, given: Given) -> Translation:
    """C++ for a preprocessed Metal source (with `# line "file"` markers). SyntaxError for what is not simulated.

    ValueError for a function constant or a kernel that the source does not have.
    """
    refuse_what_is_not_simulated(preprocessed, given)
    check_address_spaces(preprocessed)
    text = set_constants(preprocessed, given.constants or {})
    if given.kernels is not None:
        text = choose_kernels(text, given.kernels)
    text = single_precision_literals(text)
    text = drop_equal_specialisations(drop_equal_overloads(drop_address_space_twins(text)))
    text = define_constants_of_classes(text)
    kernels = find_kernels(text)
    text = mark_threadgroup_variables(strip_attributes(text))
    launch = launch_code(kernels, given.threadgroup or {})
    return Translation(f'#include <metalsim/metal.h>\n{text}\n# 1 "launch"\n{launch}', kernels)


# ---- errors with a line ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _line_markers(text: str) -> list[re.Match]:
    return list(_LINE_MARKER.finditer(text))


def where(text: str, position: int) -> tuple[str, int]:
    """File and line of a position in preprocessed text."""
    markers = _line_markers(text)
    before = bisect.bisect_left(markers, position, key=re.Match.start)
    if not before:
        return PROGRAM, text.count("\n", 0, position) + 1
    last = markers[before - 1]
    return last[2], int(last[1]) + text.count("\n", last.end(), position) - 1


def error(text: str, position: int, message: str) -> SyntaxError:
    """A SyntaxError that names file and line of a position in preprocessed text."""
    file, line = where(text, position)
    begin = text.rfind("\n", 0, position) + 1
    code = text[begin : text.find("\n", position)]
    shown = f"{file}:{line}:{position - begin + 1}: error: {message}\n{code}"
    return SyntaxError(shown, (file, line, position - begin + 1, code))


def refuse_what_is_not_simulated(text: str, given: Given) -> None:
    """SyntaxError for the parts of Metal that have no counterpart here."""
    not_given = [
        (pattern, what) for name, pattern, what in _NOT_GIVEN if getattr(given, name) is None
    ]
    for pattern, what in (*_NOT_SIMULATED, *not_given):
        if match := re.search(pattern, text):
            raise error(text, match.start(), f"{what} not simulated")
    if "metalsim_standard_library" in text:
        return
    if match := re.search(r"\busing\s+namespace\s+metal\b|\bmetal\s*::", text):
        raise error(
            text,
            match.start(),
            "use of undeclared identifier 'metal': #include <metal_stdlib> is missing",
        )


_SCALAR = (
    r"(?:bool|char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float|size_t|u?int(?:8|16|32|64)_t|void"
    r"|atomic_(?:int|uint|float|bool|ulong)|atomic\s*<\s*\w+\s*>)(?:[234](?:x[234])?)?"
)
_SPACES = r"\b(?:device|constant|threadgroup|thread|ray_data|object_data)\b"


def check_address_spaces(text: str) -> None:
    """SyntaxError where a pointer or reference names no address space, as Apple's compiler wants."""
    types = sorted(set(re.findall(r"\b(?:typename|class)\s+(\w+)", text)), key=len, reverse=True)
    declarator = re.compile(
        rf"(?<![\w.])(?:{'|'.join([_SCALAR, *types])})\s*(?:const\s*)?[*&](?![&=])"
    )
    for match in declarator.finditer(text):
        begin = max(text.rfind(c, 0, match.start()) for c in ";{}(,<") + 1
        if re.search(_SPACES, text[begin : match.end()]) or re.match(
            rf"\s*{_SPACES}", text[match.end() :][:20]
        ):
            continue
        raise error(
            text,
            match.start(),
            f"pointer or reference type must have explicit address space qualifier: '{match[0]}'",
        )


# ---- rewriting -------------------------------------------------------------------------------------------------------

_CONSTANT = re.compile(
    r"(?:\bstatic\s+)?\bconstant\s+(?:(?:constexpr|const)\s+)*([\w:]+)\s+(\w+)\s*"
    r"\[\[\s*function_constant\s*\(\s*(\d+)\s*\)\s*\]\]\s*;"
)


def set_constants(text: str, constants: Mapping[str | int, object]) -> str:
    """Function constants become constants of the program, by name or by index.

    One without a value is 0 if the source asks whether it is defined, and else a SyntaxError: Metal makes no kernel
    that uses one. ValueError for a name or an index that the source does not have.
    """
    declared = {match[2]: match for match in _CONSTANT.finditer(text)}
    known = set(declared) | {int(match[3]) for match in declared.values()}
    if unknown := [key for key in constants if key not in known]:
        there = ", ".join(f"{name} ({match[3]})" for name, match in declared.items()) or "none"
        raise ValueError(f"the source has no function constant {unknown[0]!r}; it has {there}")
    for name, match in declared.items():
        value = constants.get(name, constants.get(int(match[3])))
        asked = rf"\bis_function_constant_defined\s*\(\s*{name}\s*\)"
        if value is None and not re.search(asked, text):
            message = (
                f"function constant {name} has no value: constants={{{name!r}: ...}} gives one"
            )
            raise error(text, text.index(match[0]), message)
        text = re.sub(asked, "true" if value is not None else "false", text)
        set_to = f"static constexpr constant {match[1]} {name} = {match[1]}({_literal(value)});"
        text = text.replace(match[0], set_to + "\n" * match[0].count("\n"), 1)
    return text


def _literal(value: object) -> str:
    """A value of Python in Metal; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_literal, value))
    raise ValueError(
        f"a function constant is a bool, an int, a float or a sequence of them, not {value!r}"
    )


def single_precision_literals(text: str) -> str:
    """`1.5` becomes `1.5f`: Metal has no double. (clang's own option for it is lost inside templates.)"""
    decimal = r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+"
    hexadecimal = r"0[xX][\da-fA-F]*\.?[\da-fA-F]*[pP][+-]?\d+"
    literal = rf'("(?:[^"\\\n]|\\.)*")|(?<![\w.])({decimal}|{hexadecimal})(?![\w.])'
    return re.sub(literal, lambda match: match[1] or match[2] + "f", text)


def drop_address_space_twins(text: str) -> str:
    """Drop all but one of member functions that differ only in the address space of *this: keep the thread's if any.

    The words expand to nothing here, and the twins would be one function defined twice.
    """
    twin = re.compile(r"\)\s*(?:const\s+)?(threadgroup|device|constant)\b(?:\s+const)?\s*(?=[:{=])")
    kept, position, seen, ends = [], 0, set(), {}
    for match in twin.finditer(text):
        if match.start() < position:
            continue
        begin = _declaration(text, match.start())
        block = _block_around(text, begin)
        if block not in ends:
            ends[block] = _closing(text, block, "{", "}") if block >= 0 else len(text)
        head = r"\s*".join(
            map(re.escape, re.findall(r"\w+|[^\w\s]", text[begin : match.start() + 1]))
        )
        const = r"\s*const" if re.search(r"\bconst\b", match[0]) else ""
        of_thread = re.compile(rf"{head}(?:\s*thread)?{const}(?:\s*thread)?\s*[:{{=]")
        if (block, head, const) in seen or of_thread.search(text, max(block, 0), ends[block]):
            end = (
                text.find(";", match.end()) + 1
                if text[match.end()] == "="
                else _end_of_body(text, match.end())
            )
            kept += [text[position:begin], _lines_only(text[begin:end])]
        else:
            seen.add((block, head, const))
            kept.append(text[position : match.start(1)])
            end = match.end(1)
        position = end
    return "".join(kept) + text[position:]


def _block_around(text: str, position: int) -> int:
    """Position of the brace that opens the block that a position is in; -1 outside of all."""
    depth = 1
    while depth:
        opening, closing = text.rfind("{", 0, position), text.rfind("}", 0, position)
        position = max(opening, closing)
        if position < 0:
            return -1
        depth += 1 if closing > opening else -1
    return position


def define_constants_of_classes(text: str) -> str:
    """`static constexpr` members become inline: C++14 wants their definition where one is bound to a reference."""
    member = re.compile(
        r"\bstatic\s+(?=(?:(?:const|constant)\s+)*constexpr\b[^;(){}=]*?(\w+)\s*(?:\[[^;{}=]*\]\s*)*=)"
    )
    defined = set(re.findall(r"\bconstexpr\b[^;(){}=]*::\s*(\w+)\s*(?:\[[^;{}=]*\]\s*)*;", text))

    def define(match: re.Match) -> str:
        block = _block_around(text, match.start())
        if match[1] in defined:
            return match[0]
        head = text[_declaration(text, block) : block] if block >= 0 else ""
        of_class = re.search(
            r"\b(?:struct|class|union)\b[^()]*$", head
        )  # not template <class T> of a function
        return f"{match[0]}inline " if of_class else match[0]

    return member.sub(define, text)


def _end_of_body(text: str, position: int) -> int:
    """Position behind the body of a function whose head ends at a position."""
    brace = text.find("{", position)
    while True:  # past member initialisers such as a{0}
        end = _closing(text, brace, "{", "}") + 1
        if not re.compile(r"\s*[,{]").match(text, end):
            return end
        brace = text.find("{", end)


def drop_equal_overloads(text: str) -> str:
    """Drop all but the first of functions that are equal but for address spaces (`constant T*`, `device const T*`).

    Where their bodies differ they stay, and the compiler refuses them.
    """
    seen, spans = set(), []
    for function in _functions(text):
        words = re.sub(
            r"\bconstant\b", "const", _LINE_MARKER.sub("", text[function.begin : function.end])
        )
        words = re.sub(r"\b(?:device|threadgroup|thread)\b", "", words)
        key = (
            function.scope,
            re.sub(r"\s+", "", re.sub(r"\bconst(?:\s+const)+\b", "const", words)),
        )
        if key in seen and not re.search(r"\bkernel\b", words):
            spans.append((function.begin, function.end))
        seen.add(key)
    return _without(text, spans)


def drop_equal_specialisations(text: str) -> str:
    """Drop all but the first of specialisations that are equal but for address spaces (`pointer<device T*>`)."""
    head = re.compile(r"\btemplate\s*<[^<>;{}]*>\s*(?:struct|class)\s+\w+\s*<[^;{}]*>\s*(?=\{)")
    seen, spans = set(), []
    for match in head.finditer(text):
        end = _closing(text, match.end(), "{", "}") + 1
        words = re.sub(
            r"\b(?:device|threadgroup|thread)\b",
            "",
            _LINE_MARKER.sub("", text[match.start() : end]),
        )
        key = re.sub(r"\s+", "", words)
        if key in seen:
            spans.append((match.start(), end))
        seen.add(key)
    return _without(text, spans)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Blank parts of a text, keeping their lines; a part inside another one is skipped."""
    kept, position = [], 0
    for begin, end in spans:
        if begin >= position:
            kept += [text[position:begin], _lines_only(text[begin:end])]
            position = end
    return "".join(kept) + text[position:]


def _lines_only(text: str) -> str:
    """Return the line ends and line markers of a text."""
    return re.sub(r"^(?!# \d)[^\n]*", "", text, flags=re.M)


def strip_attributes(text: str) -> str:
    """Remove `[[...]]`, keeping the lines."""
    attribute = re.compile(
        r"(?<=[\s;{}\w)>*&,])\[\[(?!\s*\])(?:[^\[\]]|\[(?!\[)[^\]]*\])*?\]\]|^\s*\[\[(?:[^\[\]])*?\]\]",
        re.M,
    )
    return attribute.sub(lambda match: " " + "\n" * match[0].count("\n"), text)


def mark_threadgroup_variables(text: str) -> str:
    """`threadgroup float sums[32];` inside a function becomes static memory in a section of its own."""
    declaration = re.compile(
        r"((?:^|[;{}])\s*(?:#[^\n]*\n\s*)*(?:alignas\s*\([^)]*\)\s*)?)"
        r"\bthreadgroup\s+([^;{}]*?)(?:=\s*\{((?:[^;{}]|\{[^;{}]*\})*)\}\s*)?;",
        re.S,
    )

    def mark(match: re.Match) -> str:
        name = match[2].split("[")[0].split("=")[0]
        pointer_or_function = re.search(r"[*&(]", name)
        lines = "\n" * (match[3] or "").count("\n")  # first values are dropped
        return match[0] if pointer_or_function else f"{match[1]}METALSIM_SHARED {match[2]}{lines};"

    for _ in range(2):  # neighbours share the semicolon between them
        text = declaration.sub(mark, text)
    return text


# ---- kernels ---------------------------------------------------------------------------------------------------------


# the word, or the attribute, which may say more: [[kernel, max_total_threads_per_threadgroup(64)]]
_KERNEL = re.compile(r'\[\[[^\[\]"]*\bkernel\b[^\[\]"]*\]\]|\bkernel\b')


def choose_kernels(text: str, names: Collection[str]) -> str:
    """Make all other kernels plain functions, which are not compiled. ValueError for unknown names.

    An instantiation of a template is named by its host_name.
    """
    kept, position, known = [], 0, set()
    for word in _KERNEL.finditer(text):
        begin = _declaration(text, word.start())
        head = _LINE_MARKER.sub("", text[begin : word.end()])
        expression = _decltype_instantiation(text, word.end())
        declared = None if expression else _declared(text, word.end())
        if re.search(r"\btemplate\s*<", head) or not (expression or declared):
            continue
        between, name = (
            (declared.between, declared.name) if declared else ("", expression.split("<")[0])
        )
        name = _host_name(head + between) or name
        known.add(name)
        if name in names:
            continue
        if re.search(r"\btemplate\b", head):
            begin += re.search(r"\btemplate\b", text[begin : word.end()]).start()
            end = text.find(";", word.end()) + 1
            kept += [text[position:begin], _lines_only(text[begin:end])]
        else:  # may be called by others; nothing is made of it if not
            end = word.end()
            kept += [text[position : word.start()], "static"]
        position = end
    if unknown := [name for name in names if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 3) or sorted(known)[:3]
        raise ValueError(
            f"the source has no kernel {unknown[0]!r}; of its {len(known)} the nearest: {', '.join(near)}"
        )
    return "".join(kept) + text[position:]


def find_kernels(text: str) -> tuple[Kernel, ...]:
    """Kernels that the host can call: functions, and explicit instantiations of templates."""
    patterns: dict[str, tuple[tuple[Parameter, ...], int]] = {}  # what is written at the definition
    found_kernels = []
    for word in _KERNEL.finditer(text):
        head = _head(text, word.start()) + word[0]
        if expression := _decltype_instantiation(text, word.end()):
            base = expression.split("<")[0]
            found_kernels.append(
                (word.start(), _host_name(head), base, expression, None, _most_threads(head))
            )
            continue
        declared = _declared(text, word.end())
        if declared is None:
            continue
        name, parameters = declared.name, declared.parameters
        host, most = _host_name(head + declared.between), _most_threads(head + declared.between)
        if re.search(r"\btemplate\b(?!\s*<)", head):
            found_kernels.append(
                (word.start(), host, name, declared.instantiation(), parameters, most)
            )
        else:
            patterns[_last(name)] = parameters, most
            if not re.search(r"\btemplate\s*<", head):
                found_kernels.append((word.start(), host, name, name, parameters, most))
    meeting = meeting_functions(text)
    kernels = []
    for position, host, base, expression, parameters, most in found_kernels:
        pattern, most_of_all = patterns.get(_last(base), (None, MOST_THREADS))
        written_at_definition = parameters is None or not any(p.attribute for p in parameters)
        parameters = pattern if pattern is not None and written_at_definition else parameters
        most = min(most, most_of_all)
        if parameters is not None:
            meets = _last(base) in meeting
            kernels.append(
                Kernel(host or base, expression, parameters, meets, most, *where(text, position))
            )
    return tuple(kernels)


def _head(text: str, position: int) -> str:
    """The declaration's text before a position, without line markers."""
    return _LINE_MARKER.sub("", text[_declaration(text, position) : position])


def _declaration(text: str, position: int) -> int:
    """Where the declaration begins that a position is in."""
    begin = text.rfind(";", 0, position) + 1
    return max(begin, *(text.rfind(brace, begin, position) + 1 for brace in "{}"))


def _last(name: str) -> str:
    return name.split("::")[-1].strip()


def _host_name(head: str) -> str | None:
    names = re.findall(r'host_name\s*\(\s*((?:"[^"]*"\s*)+)\)', head)
    return "".join(re.findall(r'"([^"]*)"', names[-1])) if names else None


def _most_threads(head: str) -> int:
    match = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)", head)
    return min(int(match[1]), MOST_THREADS) if match else MOST_THREADS


def _decltype_instantiation(text: str, position: int) -> str | None:
    """template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>; gives f<A>."""
    match = re.compile(r"\s*decltype\s*\(").match(text, position)
    if not match:
        return None
    return re.sub(r"\s+", " ", text[match.end() : _closing(text, match.end() - 1)]).strip()


@dataclass(frozen=True)
class _Declared:
    """A function's declaration; `between` is the text before its name, `inside` that between its parentheses."""

    name: str
    template_arguments: str
    inside: str
    between: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(_parameter(one) for one in _split(self.inside))

    def instantiation(self) -> str:
        """C++ for what an explicit instantiation makes: its types say which, where it has no template arguments."""
        if self.template_arguments:
            return self.name + self.template_arguments
        plain = re.sub(
            r"\s+", " ", re.sub(r"\[\[.*?\]\]", "", _LINE_MARKER.sub("", self.inside), flags=re.S)
        )
        return f"(*static_cast<void (*)({plain})>(&{self.name}))"


def _declared(text: str, position: int) -> _Declared | None:
    """The kernel that is declared at a position."""
    start = re.compile(
        rf"\s*{_ATTRIBUTE}*(?:static\s+|inline\s+)*void\s+{_ATTRIBUTE}*([\w:\s]+?)\s*([<(])"
    )
    match = start.match(text, position)
    if not match:
        return None
    opening, template_arguments = match.end() - 1, ""
    if match[2] == "<":
        end = _closing(text, opening, "<", ">") + 1
        template_arguments = text[opening:end]
        opening = text.find("(", end)
        if opening < 0 or text[end:opening].strip():
            return None
    inside = text[opening + 1 : _closing(text, opening)]
    return _Declared(
        re.sub(r"\s+", "", match[1]), template_arguments, inside, text[position : match.start(1)]
    )


def _parameter(text: str) -> Parameter:
    attributes = {}
    for inside in re.findall(r"\[\[(.*?)\]\]", text, re.S):
        for attribute in _split(inside):
            if match := re.match(r"\s*(\w+)\s*(?:\((.*)\))?\s*$", attribute, re.S):
                attributes.setdefault(match[1], match[2])
    condition = attributes.pop("function_constant", "")
    return Parameter(*next(iter(attributes.items()), (None, None)), condition)


def _split(text: str) -> list[str]:
    """Parts between the commas that stand in no bracket."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current] if current.strip() else parts


def _closing(text: str, opening: int, left: str = "(", right: str = ")") -> int:
    """Position of the bracket that closes the one at a position."""
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == left) - (text[position] == right)
        if depth == 0:
            return position
    raise error(text, opening, f"no '{right}' closes this '{left}'")


def meeting_functions(text: str) -> set[str]:
    """Names of functions whose threads may meet: they reach a barrier or a SIMD-group function, by name.

    By name is too often rather than too seldom: any word in the body counts as a call. The price of a name too many is
    speed; one too few is an error at run time, not a wrong result.
    """
    bodies = [
        (function.names, text[function.brace : function.end]) for function in _functions(text)
    ]
    words = [
        (names, set(re.findall(r"\w+", body)), bool(_MEETING.search(body)))
        for names, body in bodies
    ]
    reached: set[str] = set()
    before = -1
    while before != len(reached):
        before = len(reached)
        for names, called, meets in words:
            if meets or called & reached:
                reached |= names
    if any(name.startswith("operator") for name in reached):  # called without its name
        reached |= {name for names, _, _ in words for name in names}
    return reached


@dataclass(frozen=True)
class _Function:
    """A block with a parameter list before it: positions of its head, its brace and its end; the block around it."""

    names: frozenset[str]
    begin: int
    brace: int
    end: int
    scope: int


def _functions(text: str) -> list[_Function]:
    """Functions and member functions; what is inside a function is not looked at."""
    found_functions, start, position, scope, scopes = [], 0, 0, 0, [0]
    while match := _BREAK.search(text, position):
        position = match.end()
        head = _LINE_MARKER.sub("", text[start : match.start()]) if match[0] == "{" else ""
        names = (
            frozenset(re.findall(r"(\w+|operator\s*\S{1,2})\s*(?:<[^<>()]*>\s*)?\(", head))
            - _NOT_NAMES
        )
        if names and not re.match(r"\s*(?:namespace|extern)\b", head):
            position = _closing(text, match.start(), "{", "}") + 1
            found_functions.append(_Function(names, start, match.start(), position, scopes[-1]))
        elif match[0] == "{":
            scope += 1
            scopes.append(scope)
        elif match[0] == "}" and len(scopes) > 1:
            scopes.pop()
        start = position
    return found_functions


_BREAK = re.compile(r"[;{}]")
_NOT_NAMES = frozenset(
    ("if", "for", "while", "switch", "enable_if_t", "decltype", "alignas", "sizeof", "host_name")
)
