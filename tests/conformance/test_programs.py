"""what a PyTorch program meets on the GPU: views, memory, storages, files, random numbers, streams, errors' words

The checks of the simulated device that should be as true of a Mac. metalsim/tests/test_metalsim_device.py runs them in
``make test``, and the breaks of each; here are not those that say what the simulation alone does: that memory which
nobody wrote is NaN, that results are the CPU's to the last bit, what it counts.
"""

from __future__ import annotations

import pytest
import test_metalsim_device as simulated

CHECKS = """
tensors_are_made_moved_and_viewed views_share_memory_and_writing_through_them_shows shapes_that_depend_on_data
training_curves_are_close_under_autocast optimisers_take_their_steps autocast_keeps_pytorchs_lists
a_gradient_scaler_skips_what_overflowed models_are_saved_loaded_and_copied
what_leaves_a_storage_and_comes_back_is_what_it_was strides_offsets_and_shared_storages_come_back
dlpack_and_storages_share_memory what_cannot_leave_the_device_raises torchscript_indexes_with_masks_and_lists
a_data_loader_with_workers_feeds_the_device each_side_draws_its_own_random_numbers detection_operators_run
memory_is_counted the_cpu_s_random_numbers_stay_its_own too_much_memory_is_refused_in_torchs_words events
another_stream_than_the_default_one_is_refused
float64_raises_as_on_a_mac mixed_devices_raise_as_on_a_mac an_operator_without_a_metal_kernel_raises_as_on_a_mac
attention_dropout_only_where_gradients_are_wanted metal_computes_where_the_cpu_has_no_kernel
"""


PROGRAMS = {name: simulated.plain.checks[f"test_{name}"] for name in CHECKS.split()}
"""A name that is none is an error when the tests are collected."""


@pytest.mark.claim(on="gpu", used_in="metalsim/README.md", slow=True)
@pytest.mark.parametrize("check", PROGRAMS)
def test_program(check: str) -> None:
    PROGRAMS[check]()
