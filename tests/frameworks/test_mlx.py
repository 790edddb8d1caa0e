"""MLX: it is timed when it has computed, and its Metal kernels run here from the text that MLX itself writes."""

from __future__ import annotations

import numpy as np
import pytest

from metallab import device, timing

mx = pytest.importorskip("mlx.core", reason="set-up leaves MLX out where glibc is older than 2.35")

BUDGET = timing.Budget(
    min_samples=3, max_samples=3, warmup_calls=2, warmup_seconds=0, block_seconds=0.02
)


# ---------------------------------------------------------------- timing


@pytest.mark.parametrize("question", ["latency", "throughput"])
def test_mlx_results_are_computed_before_the_clock_is_read(question):
    """At each reading MLX's memory holds all results so far: one that is only written down would take none."""
    import time

    x = mx.ones((64, 64))
    mx.eval(x)
    results, missing = [], []
    before = mx.get_active_memory()

    def launch():
        results.append(x @ x)
        return {"nested": [results[-1], None]}

    def clock():
        missing.append(len(results) * x.nbytes - (mx.get_active_memory() - before))
        return time.perf_counter_ns()

    got = timing.measure(
        launch, on=device.cpu(framework="mlx"), question=question, budget=BUDGET, clock=clock
    )
    assert max(missing) <= 0, (
        f"{question}: the clock was read before {max(missing)} bytes were computed"
    )
    assert got.n == 3


def test_a_function_that_returns_no_array_is_refused():
    x = mx.ones(3)

    def forgets():
        x + 1

    with pytest.raises(TypeError, match="returned no MLX array, so MLX computed nothing"):
        timing.measure(forgets, on=device.cpu(framework="mlx"), budget=BUDGET)


def test_work_is_held_to_the_cpu():
    with device.cpu(framework="mlx").active():
        assert mx.default_device() == mx.Device(mx.cpu)


def test_the_device_that_is_picked_for_mlx_says_so():
    lab = device.pick(framework="mlx")
    assert lab.framework == "mlx"
    assert ("by MLX" in str(lab.banner())) == (lab.kind == "cpu")


# ---------------------------------------------------------------- kernels where Metal is not

kernels = pytest.importorskip("metallab.mlx.kernels")
TRANSPOSED = {
    "name": "transposed",
    "input_names": ["a"],
    "output_names": ["out"],
    "source": """
        uint i = thread_position_in_grid.x;
        uint row = i / a_shape[1], column = i % a_shape[1];
        if (i > 0) out[i] = a_ndim * a[row * a_strides[0] + column * a_strides[1]];
    """,
}
MATRIX = mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).T


def run(kernel, a=MATRIX, **more):
    about = {
        "grid": (6, 1, 1),
        "threadgroup": (64, 1, 1),
        "output_shapes": [(3, 2)],
        "output_dtypes": [mx.float32],
    }
    return kernel(inputs=[a], **about | more)[0]


COPIED_OR_NOT = pytest.mark.parametrize(
    "contiguous", [True, False], ids=["a copy in rows", "as it lies in memory"]
)


@COPIED_OR_NOT
def test_a_kernel_reads_by_the_shapes_and_strides_that_it_is_given(contiguous):
    kernel = kernels.SimulatedKernel(**TRANSPOSED, ensure_row_contiguous=contiguous)
    assert np.array(run(kernel, init_value=0)).tolist() == [[0, 8], [4, 10], [6, 12]]


@COPIED_OR_NOT
def test_strides_are_those_of_the_copy_or_of_the_array(contiguous):
    steps = TRANSPOSED | {"source": "out[thread_position_in_grid.x] = a_strides[1];"}
    kernel = kernels.SimulatedKernel(**steps, ensure_row_contiguous=contiguous)
    assert set(np.array(run(kernel)).flat) == {1 if contiguous else 3}


def test_what_a_kernel_does_not_write_is_nan():
    assert np.isnan(np.array(run(kernels.SimulatedKernel(**TRANSPOSED)))[0, 0])


def test_what_a_kernel_does_not_write_is_the_value_that_was_asked_for():
    kernel = kernels.SimulatedKernel(**TRANSPOSED)
    assert np.array(run(kernel, init_value=7))[0, 0] == 7


def test_verbose_prints_as_mlx_does(capfd):
    run(kernels.SimulatedKernel(**TRANSPOSED), verbose=True)
    printed = capfd.readouterr().out
    assert printed.startswith(
        "Generated source code for `transposed`:\n```\n[[kernel]] void custom_kernel_transposed"
    )
    assert "const constant int64_t* a_strides [[buffer(2)]]" in printed
    assert printed.count("```") == 2


@pytest.fixture
def metal_kernel(monkeypatch):
    """MLX's function for kernels, which is there again at the end."""
    monkeypatch.setattr(mx.fast, "metal_kernel", mx.fast.metal_kernel)
    return mx.fast.metal_kernel


def test_metal_is_left_alone_where_it_is(metal_kernel, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert kernels.install() == "Metal runs the kernels of MLX."
    assert mx.fast.metal_kernel is metal_kernel


@pytest.mark.usefixtures("metal_kernel")
def test_where_metal_is_not_kernels_of_mlx_are_simulated(monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert kernels.install().startswith("SIMULATED")
    assert mx.fast.metal_kernel is kernels.SimulatedKernel
