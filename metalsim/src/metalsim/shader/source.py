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
  (`find_meeting_functions`), which is too often rather than too seldom.

A mistake of these kinds rarely passes silently: text that was cut in the wrong place is no C++ any more and does not
compile, and a barrier that was not expected ends the run with an error. The tests run each kernel for its numbers, so
that a rewriting which changes them is seen.
"""

from __future__ import annotations

import bisect
import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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

MISSING_FUNCTIONS = {
    "faceforward", "determinant", "transpose", "insert_bits", "madsat", "median3",
    "atomic_max_explicit", "atomic_min_explicit", "simd_is_helper_thread", "quad_active_threads_mask", "quad_all",
    "quad_any", "quad_ballot", "quad_broadcast_first", "quad_is_first", "quad_is_helper_thread",
    "quad_prefix_exclusive_product", "quad_prefix_exclusive_sum", "quad_prefix_inclusive_product",
    "quad_prefix_inclusive_sum", "quad_shuffle_and_fill_down", "quad_shuffle_and_fill_up",
    "quad_shuffle_rotate_down", "quad_shuffle_rotate_up", "pack_float_to_snorm2x16", "pack_float_to_snorm4x8",
    "pack_float_to_srgb_unorm4x8", "pack_float_to_unorm10a2", "pack_float_to_unorm2x16", "pack_float_to_unorm4x8",
    "pack_half_to_snorm2x16", "pack_half_to_snorm4x8", "pack_half_to_unorm2x16", "pack_half_to_unorm4x8",
    "unpack_snorm2x16_to_float", "unpack_snorm4x8_to_float", "unpack_unorm10a2_to_float",
    "unpack_unorm2x16_to_float", "unpack_unorm4x8_srgb_to_float", "unpack_unorm4x8_to_float",
    "unpack_snorm4x8_to_half", "unpack_unorm4x8_to_half",
}  # fmt: skip
"""Functions of Metal's standard library that runtime/include lacks: the compiler's complaint is put in other words.

They are not refused by their names as `_NOT_SIMULATED` is, because a program may have a function of its own with such a
name. One that is written leaves this list and LIMITS.md; tests hold all three equal.
"""

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
        """Return what of it goes into the name of a result."""
        constants = sorted(map(repr, (self.constants or {}).items()))
        threadgroup = sorted(map(repr, (self.threadgroup or {}).items()))
        kernels = None if self.kernels is None else sorted(self.kernels)
        return repr([constants, threadgroup, kernels])


@dataclass(frozen=True)
class Translation:
    """C++ that stands for a Metal library, and its kernels in the order of their numbers."""

    code: str
    kernels: tuple[Kernel, ...]


def translate(preprocessed: str, given: Given) -> Translation:
    """Return C++ for a preprocessed Metal source.

    Parameters
    ----------
    preprocessed
        The source with ``# line "file"`` markers.
    given
        What a Metal host sets beside it.

    Raises
    ------
    SyntaxError
        For what is not simulated, for pointers without an address space, and for a function constant or threadgroup
        memory without a value or a length; with its line.
    ValueError
        For a function constant or a kernel that the source does not have.
    """
    refuse_what_is_not_simulated(preprocessed, given)
    check_address_spaces(preprocessed)

    text = set_constants(preprocessed, given.constants or {})
    if given.kernels is not None:
        text = choose_kernels(text, given.kernels)
    text = make_literals_single(text)
    text = drop_equal_specialisations(drop_equal_overloads(drop_address_space_twins(text)))
    text = define_constants_of_classes(text)

    kernels = find_kernels(text)  # before their attributes go
    text = mark_threadgroup_variables(strip_attributes(text))
    launch = launch_code(kernels, given.threadgroup or {})
    return Translation(f'#include <metalsim/metal.h>\n{text}\n# 1 "launch"\n{launch}', kernels)


# ---- errors with a line ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _line_markers(text: str) -> list[re.Match[str]]:
    """Return the lines that say which line of which file follows."""
    return list(_LINE_MARKER.finditer(text))


def locate(text: str, position: int) -> tuple[str, int]:
    """Return file and line of a position in preprocessed text."""
    markers = _line_markers(text)
    before = bisect.bisect_left(markers, position, key=re.Match.start)
    if not before:
        return PROGRAM, text.count("\n", 0, position) + 1

    last = markers[before - 1]
    return last[2], int(last[1]) + text.count("\n", last.end(), position) - 1


def make_error(text: str, position: int, message: str) -> SyntaxError:
    """Return a SyntaxError that names file and line of a position in preprocessed text."""
    file, line = locate(text, position)

    begin = text.rfind("\n", 0, position) + 1
    code = text[begin : text.find("\n", position)]
    shown = f"{file}:{line}:{position - begin + 1}: error: {message}\n{code}"
    return SyntaxError(shown, (file, line, position - begin + 1, code))


def refuse_what_is_not_simulated(text: str, given: Given) -> None:
    """Raise SyntaxError for the parts of Metal that have no counterpart here, with the line of the first.

    What a Metal host would set is among them where `given` has None for it. So is a source that names the namespace
    ``metal`` and does not include its header: there is no such namespace then.
    """
    not_given = [
        (pattern, what) for name, pattern, what in _NOT_GIVEN if getattr(given, name) is None
    ]
    for pattern, what in (*_NOT_SIMULATED, *not_given):
        if match := re.search(pattern, text):
            raise make_error(text, match.start(), f"{what} not simulated")

    # the headers of Metal declare this name (metalsim/mark.h)
    if "metalsim_standard_library" in text:
        return
    if match := re.search(r"\busing\s+namespace\s+metal\b|\bmetal\s*::", text):
        raise make_error(
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
    """Raise SyntaxError where a pointer or reference names no address space, as Apple's compiler wants.

    The word may stand in front of the type, or right behind the ``*`` or ``&``. Looked at are numbers, vectors and the
    type parameters of templates, whose names are longest first, so that of two the longer one is found.
    """
    of_templates = set(re.findall(r"\b(?:typename|class)\s+(\w+)", text))
    types = "|".join([_SCALAR, *sorted(of_templates, key=len, reverse=True)])
    declarator = re.compile(rf"(?<![\w.])(?:{types})\s*(?:const\s*)?[*&](?![&=])")

    for match in declarator.finditer(text):
        begin = max(text.rfind(character, 0, match.start()) for character in ";{}(,<") + 1
        is_before = re.search(_SPACES, text[begin : match.end()])
        is_behind = re.match(rf"\s*{_SPACES}", text[match.end() :][:20])
        if not is_before and not is_behind:
            raise make_error(
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
    """Make function constants constants of the program: Metal sets them later, when it makes a kernel of it.

    ``constant int n [[function_constant(0)]];`` becomes ``static constexpr constant int n = int(3);``.

    Parameters
    ----------
    text
        Metal.
    constants
        Values by the name of a constant, or by its index.

    Raises
    ------
    SyntaxError
        For a constant without a value, unless the source asks whether it is defined: then it is 0. Metal makes no
        kernel that uses one either.
    ValueError
        For a name or an index that the source does not have, and for a value that is no constant.
    """
    declarations = {match[2]: match for match in _CONSTANT.finditer(text)}
    _check_constants_exist(constants, declarations)

    for name, declaration in declarations.items():
        kind, index = declaration[1], declaration[3]
        value = constants.get(name, constants.get(int(index)))
        has_value = value is not None

        question = rf"\bis_function_constant_defined\s*\(\s*{name}\s*\)"
        if not has_value and not re.search(question, text):
            message = (
                f"function constant {name} has no value: constants={{{name!r}: ...}} gives one"
            )
            raise make_error(text, text.index(declaration[0]), message)
        text = re.sub(question, "true" if has_value else "false", text)

        definition = f"static constexpr constant {kind} {name} = {kind}({_literal(value)});"
        line_ends = "\n" * declaration[0].count("\n")  # messages go on to name the right lines
        text = text.replace(declaration[0], definition + line_ends, 1)
    return text


def _check_constants_exist(
    constants: Mapping[str | int, object], declarations: Mapping[str, re.Match[str]]
) -> None:
    """Raise ValueError for the first constant whose name or index no declaration has."""
    indices = {name: int(match[3]) for name, match in declarations.items()}

    for key in constants:
        if key not in indices and key not in indices.values():
            there = ", ".join(f"{name} ({index})" for name, index in indices.items()) or "none"
            raise ValueError(f"the source has no function constant {key!r}; it has {there}")


def _literal(value: object) -> str:
    """Return a value of Python in Metal; nothing for None."""
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


def make_literals_single(text: str) -> str:
    """Make `1.5` `1.5f`: Metal has no double, and clang's own option for that is lost inside templates."""
    decimal = r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+"
    hexadecimal = r"0[xX][\da-fA-F]*\.?[\da-fA-F]*[pP][+-]?\d+"
    literal = rf'("(?:[^"\\\n]|\\.)*")|(?<![\w.])({decimal}|{hexadecimal})(?![\w.])'
    return re.sub(literal, lambda match: match[1] or match[2] + "f", text)


def drop_address_space_twins(text: str) -> str:
    """Drop all but one of member functions that differ only in the address space of *this: keep the thread's if any.

    ``int get() const { ... }`` and ``int get() const device { ... }`` are two functions in Metal. Address spaces expand
    to nothing here, so that the twins would be one function defined twice. Of the one that stays the word is dropped.
    """
    kept: list[str] = []
    position = 0  # up to which the text is kept or dropped
    seen: set[tuple[int, str, str]] = set()
    ends_of_blocks: dict[int, int] = {}

    for match in _TWIN.finditer(text):
        if match.start() < position:  # in the body of a function that was dropped
            continue

        begin = _declaration(text, match.start())
        block = _block_around(text, begin)
        if block not in ends_of_blocks:
            end_of_block = _closing(text, block, "{", "}") if block >= 0 else len(text)
            ends_of_blocks[block] = end_of_block

        # the same head, however it is spaced
        words = re.findall(r"\w+|[^\w\s]", text[begin : match.start() + 1])
        head = r"\s*".join(map(re.escape, words))
        const = r"\s*const" if re.search(r"\bconst\b", match[0]) else ""
        of_thread = re.compile(rf"{head}(?:\s*thread)?{const}(?:\s*thread)?\s*[:{{=]")
        has_twin_of_thread = of_thread.search(text, max(block, 0), ends_of_blocks[block])

        if has_twin_of_thread or (block, head, const) in seen:
            end_of_function = _end_of_function(text, match.end())
            kept += [text[position:begin], _lines_only(text[begin:end_of_function])]
            position = end_of_function
        else:
            seen.add((block, head, const))
            kept.append(text[position : match.start(1)])
            position = match.end(1)

    return "".join(kept) + text[position:]


_TWIN = re.compile(r"\)\s*(?:const\s+)?(threadgroup|device|constant)\b(?:\s+const)?\s*(?=[:{=])")
"""The end of a member function's head that names the address space of *this."""


def _end_of_function(text: str, position: int) -> int:
    """Return the position behind a function whose head ends at a position: ``= default;``, or a body."""
    if text[position] == "=":
        return text.find(";", position) + 1
    return _end_of_body(text, position)


def _block_around(text: str, position: int) -> int:
    """Return the position of the brace that opens the block that a position is in; -1 outside of all."""
    depth = 1
    while depth:
        opening, closing = text.rfind("{", 0, position), text.rfind("}", 0, position)
        position = max(opening, closing)
        if position < 0:
            return -1
        depth += 1 if closing > opening else -1
    return position


def define_constants_of_classes(text: str) -> str:
    """Make `static constexpr` members inline: C++14 wants their definition where one is bound to a reference.

    Members that the source defines behind their class stay as they are, since they would be defined twice. So does what
    stands outside of a class: a constant of the program, or of a function.
    """
    member = re.compile(
        r"\bstatic\s+(?=(?:(?:const|constant)\s+)*constexpr\b[^;(){}=]*?(\w+)\s*(?:\[[^;{}=]*\]\s*)*=)"
    )
    defined = set(re.findall(r"\bconstexpr\b[^;(){}=]*::\s*(\w+)\s*(?:\[[^;{}=]*\]\s*)*;", text))

    def define(match: re.Match[str]) -> str:
        block = _block_around(text, match.start())
        if match[1] in defined or block < 0:
            return match[0]

        head = text[_declaration(text, block) : block]
        # not template <class T> of a function
        is_class = re.search(r"\b(?:struct|class|union)\b[^()]*$", head)
        return f"{match[0]}inline " if is_class else match[0]

    return member.sub(define, text)


def _end_of_body(text: str, position: int) -> int:
    """Return the position behind the body of a function whose head ends at a position."""
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
    seen: set[tuple[int, str]] = set()
    spans: list[tuple[int, int]] = []

    for function in _functions(text):
        written = _LINE_MARKER.sub("", text[function.begin : function.end])
        words = re.sub(r"\bconstant\b", "const", written)
        words = _without_spaces(words)
        words = re.sub(r"\bconst(?:\s+const)+\b", "const", words)

        key = (function.scope, re.sub(r"\s+", "", words))
        if key in seen and not re.search(r"\bkernel\b", words):
            spans.append((function.begin, function.end))
        seen.add(key)
    return _without(text, spans)


def drop_equal_specialisations(text: str) -> str:
    """Drop all but the first of specialisations that are equal but for address spaces (`pointer<device T*>`)."""
    head = re.compile(r"\btemplate\s*<[^<>;{}]*>\s*(?:struct|class)\s+\w+\s*<[^;{}]*>\s*(?=\{)")
    seen: set[str] = set()
    spans: list[tuple[int, int]] = []

    for match in head.finditer(text):
        end = _closing(text, match.end(), "{", "}") + 1
        words = _without_spaces(_LINE_MARKER.sub("", text[match.start() : end]))
        key = re.sub(r"\s+", "", words)

        if key in seen:
            spans.append((match.start(), end))
        seen.add(key)
    return _without(text, spans)


def _without_spaces(text: str) -> str:
    """Return a text without the words for the address spaces that can be written."""
    return re.sub(r"\b(?:device|threadgroup|thread)\b", "", text)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Blank parts of a text, keeping their lines; a part inside another one is skipped."""
    kept: list[str] = []
    position = 0
    for begin, end in spans:
        if begin < position:
            continue
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
    """Make `threadgroup float sums[32];` inside a function static memory in a section of its own."""
    declaration = re.compile(
        r"((?:^|[;{}])\s*(?:#[^\n]*\n\s*)*(?:alignas\s*\([^)]*\)\s*)?)"
        r"\bthreadgroup\s+([^;{}]*?)(?:=\s*\{((?:[^;{}]|\{[^;{}]*\})*)\}\s*)?;",
        re.S,
    )

    def mark(match: re.Match[str]) -> str:
        name = match[2].split("[")[0].split("=")[0]
        is_pointer_or_function = re.search(r"[*&(]", name)
        if is_pointer_or_function:
            return match[0]
        # values between braces are dropped, and what they leave are their lines
        lines = "\n" * (match[3] or "").count("\n")
        return f"{match[1]}METALSIM_SHARED {match[2]}{lines};"

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
    kept: list[str] = []
    position = 0
    known: set[str] = set()

    for written in _find_written(text):
        if written.is_template:  # no kernel by itself: those that are made of it are named
            continue
        name = written.host_name or written.name
        known.add(name)
        if name in names:
            continue

        if written.template is not None:
            begin = written.template
            end = text.find(";", written.end) + 1
            kept += [text[position:begin], _lines_only(text[begin:end])]
        else:  # may be called by others; nothing is made of it if not
            end = written.end
            kept += [text[position : written.begin], "static"]
        position = end

    if unknown := [name for name in names if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 3) or sorted(known)[:3]
        raise ValueError(
            f"the source has no kernel {unknown[0]!r}; of its {len(known)} the nearest: {', '.join(near)}"
        )
    return "".join(kept) + text[position:]


def find_kernels(text: str) -> tuple[Kernel, ...]:
    """Return the kernels that the host can call: functions, and explicit instantiations of templates."""
    written = list(_find_written(text))
    definitions = {_last(each.name): each for each in written if not each.is_instantiation}
    meeting = find_meeting_functions(text)

    kernels = []
    for each in written:
        if each.is_template and not each.is_instantiation:
            continue

        definition = definitions.get(_last(each.name))
        parameters = each.parameters
        if definition is not None and not any(one.attribute for one in parameters or ()):
            parameters = definition.parameters  # an instantiation need not repeat the attributes
        if parameters is None:  # an instantiation of what is defined nowhere
            continue

        most_threads = each.most_threads
        if definition is not None:
            most_threads = min(most_threads, definition.most_threads)

        file, line = locate(text, each.begin)
        kernel = Kernel(
            name=each.host_name or each.name,
            expression=each.expression,
            parameters=parameters,
            meets=_last(each.name) in meeting,
            most_threads=most_threads,
            file=file,
            line=line,
        )
        kernels.append(kernel)
    return tuple(kernels)


@dataclass(frozen=True)
class _Written:
    """One place where the word ``kernel`` declares something: a function, a template, or what is made of one."""

    begin: int
    """Of the word, and where it ends."""
    end: int
    name: str
    """Of the function, without template arguments."""
    host_name: str | None
    expression: str
    """C++ for the function that is meant."""
    parameters: tuple[Parameter, ...] | None
    """None where only the function's name is written: ``decltype(f<A>) f<A>``."""
    most_threads: int
    is_template: bool
    """Whether ``template <...>`` stands in front of it."""
    is_instantiation: bool
    """Whether it makes a kernel of a template that is written elsewhere."""
    template: int | None
    """Where the word ``template`` stands in front of it, if it does."""


def _find_written(text: str) -> Iterator[_Written]:
    """Yield what the word ``kernel``, or the attribute, declares, in the order of the text.

    What comes in front of the word, up to the declaration before, and between it and the name is the head, in which
    `host_name`, the number of threads and ``template`` stand. Where the word declares no function it is passed by.
    """
    for word in _KERNEL.finditer(text):
        begin = _declaration(text, word.start())
        head = _LINE_MARKER.sub("", text[begin : word.end()])
        template = re.search(r"\btemplate\b", text[begin : word.end()])

        # `template kernel void f<A>(...)`; with a `<` behind the word it is the template itself
        is_instantiation = re.search(r"\btemplate\b(?!\s*<)", head) is not None
        parameters = None
        if expression := _decltype_instantiation(text, word.end()):
            name = expression.split("<")[0]
            is_instantiation = True
        elif declared := _read_declaration(text, word.end()):
            head += declared.between
            name = declared.name
            parameters = declared.parameters
            expression = declared.instantiation() if is_instantiation else name
        else:
            continue

        yield _Written(
            begin=word.start(),
            end=word.end(),
            name=name,
            host_name=_host_name(head),
            expression=expression,
            parameters=parameters,
            most_threads=_most_threads(head),
            is_template=re.search(r"\btemplate\s*<", head) is not None,
            is_instantiation=is_instantiation,
            template=begin + template.start() if template else None,
        )


def _declaration(text: str, position: int) -> int:
    """Return where the declaration begins that a position is in."""
    begin = text.rfind(";", 0, position) + 1
    return max(begin, *(text.rfind(brace, begin, position) + 1 for brace in "{}"))


def _last(name: str) -> str:
    """Return a name without its namespaces."""
    return name.split("::")[-1].strip()


def _host_name(head: str) -> str | None:
    """Return the name that a declaration has for the host, if it gives one; texts behind each other are one text."""
    names = re.findall(r'host_name\s*\(\s*((?:"[^"]*"\s*)+)\)', head)
    if not names:
        return None
    return "".join(re.findall(r'"([^"]*)"', names[-1]))


def _most_threads(head: str) -> int:
    """Return how many threads a declaration allows in a group."""
    match = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)", head)
    return min(int(match[1]), MOST_THREADS) if match else MOST_THREADS


def _decltype_instantiation(text: str, position: int) -> str | None:
    """Return f<A> of ``template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>;``, None for another one."""
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
        """What stands between the parentheses, one by one."""
        return tuple(_parameter(one) for one in _split(self.inside))

    def instantiation(self) -> str:
        """Return C++ for what an explicit instantiation makes.

        Where it has no template arguments, the types of its parameters say which it is.
        """
        if self.template_arguments:
            return self.name + self.template_arguments

        types = _LINE_MARKER.sub("", self.inside)
        types = re.sub(r"\[\[.*?\]\]", "", types, flags=re.S)
        types = re.sub(r"\s+", " ", types)
        return f"(*static_cast<void (*)({types})>(&{self.name}))"


def _read_declaration(text: str, position: int) -> _Declared | None:
    """Return the kernel that is declared at a position; None if none is."""
    start = re.compile(
        rf"\s*{_ATTRIBUTE}*(?:static\s+|inline\s+)*void\s+{_ATTRIBUTE}*([\w:\s]+?)\s*([<(])"
    )
    match = start.match(text, position)
    if not match:
        return None

    opening = match.end() - 1
    template_arguments = ""
    if match[2] == "<":
        end = _closing(text, opening, "<", ">") + 1
        template_arguments = text[opening:end]
        opening = text.find("(", end)
        if opening < 0 or text[end:opening].strip():
            return None

    return _Declared(
        name=re.sub(r"\s+", "", match[1]),
        template_arguments=template_arguments,
        inside=text[opening + 1 : _closing(text, opening)],
        between=text[position : match.start(1)],
    )


def _parameter(text: str) -> Parameter:
    """Return the parameter of a declaration, by its first attribute."""
    attributes: dict[str, str | None] = {}
    for inside in re.findall(r"\[\[(.*?)\]\]", text, re.S):
        for attribute in _split(inside):
            if match := re.match(r"\s*(\w+)\s*(?:\((.*)\))?\s*$", attribute, re.S):
                attributes.setdefault(match[1], match[2])

    condition = attributes.pop("function_constant", None) or ""
    first, argument = next(iter(attributes.items()), (None, None))
    return Parameter(first, argument, condition)


def _split(text: str) -> list[str]:
    """Return the parts between the commas that stand in no bracket."""
    parts: list[str] = []
    depth = 0
    current = ""

    for character in text:
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character

    return [*parts, current] if current.strip() else parts


def _closing(text: str, opening: int, left: str = "(", right: str = ")") -> int:
    """Return the position of the bracket that closes the one at a position. SyntaxError without one."""
    depth = 0
    for position in range(opening, len(text)):
        character = text[position]
        if character == left:
            depth += 1
        elif character == right:
            depth -= 1
        if depth == 0:
            return position

    raise make_error(text, opening, f"no '{right}' closes this '{left}'")


def find_meeting_functions(text: str) -> set[str]:
    """Return the names of functions whose threads may meet: they reach a barrier or a SIMD-group function, by name.

    By name is too often rather than too seldom: any word in the body counts as a call. The price of a name too many is
    speed; one too few is an error at run time, not a wrong result.
    """
    reached: set[str] = set()
    others: list[tuple[frozenset[str], set[str]]] = []  # names, and the words in the body
    for function in _functions(text):
        body = text[function.brace : function.end]
        if _MEETING.search(body):
            reached |= function.names
        else:
            others.append((function.names, set(re.findall(r"\w+", body))))

    before = -1
    while before != len(reached):  # who calls one of these is one as well
        before = len(reached)
        for names, called in others:
            if called & reached:
                reached |= names

    if any(name.startswith("operator") for name in reached):  # called without its name
        reached = reached.union(*(names for names, _ in others))
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
    """Return functions and member functions; what is inside a function is not looked at."""
    functions: list[_Function] = []
    start = 0  # of what stands in front of a brace
    position = 0
    scopes = [0]  # numbers of the blocks that are open
    scope = 0

    while match := _BREAK.search(text, position):
        position = match.end()
        names = frozenset[str]()
        if match[0] == "{":
            names = _names_in_head(_LINE_MARKER.sub("", text[start : match.start()]))

        if names:
            position = _closing(text, match.start(), "{", "}") + 1
            functions.append(_Function(names, start, match.start(), position, scopes[-1]))
        elif match[0] == "{":
            scope += 1
            scopes.append(scope)
        elif match[0] == "}" and len(scopes) > 1:
            scopes.pop()
        start = position
    return functions


def _names_in_head(head: str) -> frozenset[str]:
    """Return the names in front of parentheses, of which one is the function's; none for another block."""
    if re.match(r"\s*(?:namespace|extern)\b", head):
        return frozenset()
    names = re.findall(r"(\w+|operator\s*\S{1,2})\s*(?:<[^<>()]*>\s*)?\(", head)
    return frozenset(names) - _NOT_NAMES


_BREAK = re.compile(r"[;{}]")
_NOT_NAMES = frozenset(
    ("if", "for", "while", "switch", "enable_if_t", "decltype", "alignas", "sizeof", "host_name")
)
