"""The exercises of page 52."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metallab.exercises.judging import exercise, expect, expect_that

COMPILED = "/jax/core/compile/backend_compile_duration"


class _Counting:
    """A formula that notes how often it runs in Python."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        self.formula = formula
        self.runs = 0

    def __call__(self, x: Any, rate: Any) -> Any:
        self.runs += 1
        return self.formula(x, rate)


@exercise(
    "52.1",
    hint="jit fn once, with the rate an argument; every rate, in order",
)
def judge_decayed(decayed: Callable[..., Any]) -> bool:
    """Apply three formulas, each with a list of rates in turn, and count how often each runs in Python.

    A formula that is compiled once runs there once, while it is traced. The list of rates and x have to stay usable.
    """
    import jax.numpy as jnp

    cases: list[tuple[Callable[..., Any], list[float]]] = [
        (lambda x, rate: rate * x + 1, [0.5, 0.2, 0.5, 0.1, 0.9]),
        (lambda x, rate: x * x - rate, [0.3, 0.0, 0.7]),
        (lambda x, rate: x / rate, []),
    ]

    for formula, given in cases:
        function, x, rates = _Counting(formula), jnp.arange(3.0), list(given)
        got, wanted = decayed(function, x, rates), np.arange(3.0)
        for rate in given:
            wanted = formula(wanted, rate)

        assert rates == given, f"the list of rates, {given}, is {rates} afterwards"
        assert not x.is_deleted(), "x cannot be used any more: it was donated"
        assert function.runs <= 1, f"fn ran in Python {function.runs} times, expected once"
        is_right = np.shape(got) == (3,) and np.allclose(got, wanted)
        expect(f"decayed(fn, x, {given})", got, wanted, holds=is_right)
    return True


class _Programs:
    """Counts the programs that JAX compiles, and the shapes with which a function is called."""

    def __init__(self) -> None:
        import jax.monitoring

        self.compiled = 0
        self.shapes: set[tuple[int, ...]] = set()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, *_: Any, **__: Any) -> None:
        if event == COMPILED:
            self.compiled += 1

    def note(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes the shape of its rows."""

        def call(rows: Any) -> Any:
            self.shapes.add(np.shape(rows))
            return function(rows)

        return call

    def forget(self) -> None:
        """Begin anew: nothing is compiled."""
        import jax

        jax.clear_caches()
        self.compiled = 0
        self.shapes.clear()


def _make_cases() -> list[tuple[str, Any, list[np.ndarray], Callable[..., Any]]]:
    """Return the cases of the second exercise, in which tables are padded to 64 rows so that JAX compiles one program.

    Returns
    -------
    list of tuple
        The name of a function; the function, compiled, which gives one number for each row; tables of 1 to 64 rows that
        it is asked about; and the same function in NumPy, which is right.
    """
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(0)
    points = [draw.normal(size=(n, 3)).astype(np.float32) for n in (1, 5, 64)]
    points[1][2] = 0  # a row of the table, and not of the padding
    # the longest first, so that padding left from it would be seen in the shorter ones
    atoms = [draw.integers(0, 999, (n, 3), np.int32) for n in (64, 2, 33)]

    return [
        (
            "norms",
            jax.jit(lambda rows: jnp.sqrt((rows**2).sum(axis=1))),
            points,
            lambda rows: np.linalg.norm(rows, axis=1),
        ),
        (
            "means",  # of whole numbers, not whole: the result has another dtype than the rows
            jax.jit(lambda atoms: atoms.mean(axis=1)),
            atoms,
            lambda rows: rows.mean(1).astype(np.float32),
        ),
        (
            "largest",  # only whole numbers are indices: rows padded as floats raise
            jax.jit(lambda atoms: jnp.arange(1, 1000)[atoms].max(axis=1)),
            atoms,
            lambda rows: (rows + 1).max(axis=1),
        ),
    ]


@exercise(
    "52.2",
    hint="pad with zeros of the same dtype, use what fn returns, and cut in NumPy",
)
def judge_in_one_shape(in_one_shape: Callable[..., Any]) -> bool:
    """Give it tables of many lengths, and count the programs that are compiled for all of them: one.

    The function has to be called with 64 rows each time, the results to be those of NumPy, and the tables stay as they
    are.
    """
    cases, programs = _make_cases(), _Programs()

    for name, function, tables, by_numpy in cases:
        programs.forget()
        # copies: an answer may add rows in place, and the originals are compared below
        given = [rows.copy() for rows in tables]
        answers = [in_one_shape(programs.note(function), rows) for rows in given]
        compiled, shapes = programs.compiled, programs.shapes
        assert compiled == 1, f"{name}: {compiled} programs were compiled, expected 1"
        assert shapes == {(64, 3)}, f"{name}: fn is called with rows of {shapes}, expected (64, 3)"

        for rows, kept, got in zip(tables, given, answers, strict=True):
            case, wanted = f"in_one_shape({name}) of {len(rows)} rows", by_numpy(rows)
            assert np.array_equal(kept, rows), f"{case} changes the rows that it is given"
            expect_that(isinstance(got, np.ndarray), case, type(got), "an array of NumPy")
            expect(f"{case}, as shape,", got.shape, wanted.shape)
            expect(f"{case}, as dtype,", got.dtype, wanted.dtype)
            is_right = np.allclose(got, wanted)
            expect(case, got[:5], wanted[:5], holds=is_right)  # a message has room for some
    return True
