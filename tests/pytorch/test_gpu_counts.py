"""Lines, turns and divergence of kernels whose numbers can be told by looking at them."""

from __future__ import annotations

import sys

import pytest
import torch

from metallab.pytorch import gpu_counts

shader = pytest.importorskip("metalsim.shader")
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="only the simulated GPU records")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def record(body, *arguments, **launch):
    """Compile a kernel, and run it once."""
    kernel = shader.compile_shader(HEAD + body).k
    return kernel.accesses(*arguments, **launch)


STRIDED = """kernel void k(device float* out, device const float* a, constant long& stride,
    uint i [[thread_position_in_grid]]) { out[i] = a[i * stride]; }"""


@pytest.mark.parametrize("stride", [1, 2, 4, 32])
def test_a_stride_touches_as_many_lines(stride):
    one = record(
        STRIDED, torch.empty(64), torch.ones(64 * stride), stride, threads=64, group_size=32
    )
    assert gpu_counts.lines_a_read(one, 1) == stride
    assert gpu_counts.lines_a_write(one, 0) == 1


@pytest.fixture
def reads_of_two():
    """A kernel that reads one buffer in a row, and of another each thread a line of its own."""
    both = """kernel void k(device float* out, device const float* a, device const float* b,
        uint i [[thread_position_in_grid]]) { out[i] = a[i] + b[i * 32]; }"""
    buffers = torch.empty(32), torch.ones(32), torch.ones(1024)
    return record(both, *buffers, threads=32, group_size=32)


def test_reads_of_two_buffers_are_counted_together(reads_of_two):
    assert gpu_counts.lines_a_read(reads_of_two, 1) == 1
    assert gpu_counts.lines_a_read(reads_of_two, 1, 2) == (1 + 32) / 2


def test_which_buffers_are_read_is_known(reads_of_two):
    assert gpu_counts.has_reads(reads_of_two, 2)
    assert not gpu_counts.has_reads(reads_of_two, 0)


def test_reads_in_a_loop_are_counted_one_by_one():
    rows = """kernel void k(device float* out, device const float* a, uint i [[thread_position_in_grid]]) {
        float sum = 0; for (int j = 0; j < 32; j++) sum += a[i * 32 + j]; out[i] = sum; }"""
    one = record(rows, torch.empty(32), torch.ones(32, 32), threads=32, group_size=32)
    assert gpu_counts.lines_a_read(one, 1) == 32


@pytest.mark.parametrize(
    ("condition", "instructions", "busy"),
    [
        pytest.param("(i / 32) % 2", 2, 32, id="all of a SIMD-group alike"),
        pytest.param("i % 2", 4, 16, id="every other thread"),
    ],
)
def test_a_branch_that_splits_a_simd_group_is_walked_twice(condition, instructions, busy):
    branch = f"""kernel void k(device float* out, device const float* a, device const float* b,
        uint i [[thread_position_in_grid]]) {{
        if ({condition}) {{ out[i] = a[i]; }} else {{ out[i] = 2 * b[i]; }} }}"""
    one = record(
        branch, torch.empty(128), torch.ones(128), torch.ones(128), threads=128, group_size=32
    )
    walked = gpu_counts.walk(one)
    assert walked.instructions <= instructions
    assert walked.busy_lanes >= busy
    assert (walked.busy_lanes == 32) == (condition != "i % 2")


@pytest.mark.parametrize(("width", "turns"), [(32, 32), (33, 1)])
def test_a_padded_tile_has_no_bank_conflicts(width, turns):
    tile = f"""kernel void k(device float* out, device const float* a, uint t [[thread_position_in_threadgroup]]) {{
        threadgroup float tile[32][{width}];
        for (uint y = 0; y < 32; y++) tile[y][t] = a[y * 32 + t];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint x = 0; x < 32; x++) out[x * 32 + t] = tile[t][x]; }}"""
    one = record(tile, torch.empty(32, 32), torch.ones(32, 32), threads=32, group_size=32)
    assert gpu_counts.turns_a_read(one) == turns


@pytest.mark.parametrize(
    ("count", "words"),
    [
        pytest.param(lambda one: gpu_counts.lines_a_read(one, 0), "count another", id="not read"),
        pytest.param(lambda one: gpu_counts.lines_a_read(one, 9), "no buffer 9", id="not there"),
        pytest.param(gpu_counts.turns_a_read, "no banks", id="no threadgroup memory"),
    ],
)
def test_what_was_not_touched_is_not_counted(count, words):
    one = record(STRIDED, torch.empty(32), torch.ones(32), 1, threads=32, group_size=32)
    with pytest.raises(ValueError, match=words):
        count(one)


def test_a_kernel_that_touches_no_memory_is_not_walked():
    idle = "kernel void k(device float* out, uint i [[thread_position_in_grid]]) {}"
    one = record(idle, torch.empty(32), threads=32, group_size=32)
    with pytest.raises(ValueError, match="no memory"):
        gpu_counts.walk(one)


@pytest.mark.parametrize(
    ("kernel", "threads", "limit"),
    [
        pytest.param((256, 16), 3072, "threads", id="few registers"),
        pytest.param((256, 64), 768, "registers", id="4 x 4 results a thread"),
        pytest.param((256, 32, 32 * 1024), 256, "threadgroup memory", id="half of a core's memory"),
    ],
)
def test_occupancy_is_what_is_used_up_first(kernel, threads, limit):
    held = gpu_counts.occupancy(*kernel)
    assert held.threads == threads
    assert held.limit == limit


@pytest.mark.parametrize("kernel", [(0, 16), (256, 16, -1), (1024, 128)])
def test_a_group_that_fits_nowhere_is_told(kernel):
    with pytest.raises(ValueError, match=r"give numbers above 0|does not fit"):
        gpu_counts.occupancy(*kernel)
