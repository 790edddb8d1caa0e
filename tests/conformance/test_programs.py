"""what a PyTorch program meets on the GPU: views, memory, storages, files, random numbers, streams, errors' words

The checks of the simulated device that should be as true of a Mac. metalsim/tests/test_metalsim_device.py runs them in
``make test``, and the breaks of each; here are not those that say what the simulation alone does: that memory which
nobody wrote is NaN, that results are the CPU's to the last bit, what it counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import test_metalsim_device as simulated

CHECKS = """
a_tensor_is_made_on_the_device a_view_is_that_of_the_cpu_with_its_strides_and_its_offset
writing_through_a_view_shows_in_the_tensor a_tensor_that_grows_keeps_its_values
writing_where_memory_overlaps_is_refused values_and_shapes_that_depend_on_data
a_spectrum_is_complex_and_on_the_device values_with_one_index_add_up
a_training_curve_is_close_under_autocast an_optimiser_takes_its_steps
under_autocast_products_are_in_half_precision_and_exponentials_in_float32 autocast_is_available_on_the_device
a_gradient_scaler_skips_what_overflowed_and_halves_its_scale
a_gradient_scaler_takes_a_step_that_does_not_depend_on_its_scale
a_model_is_loaded_where_that_is_asked_for tensors_that_share_a_storage_share_one_when_they_are_loaded
the_copy_of_a_model_has_weights_of_its_own
what_leaves_a_storage_and_comes_back_is_what_it_was strides_and_offsets_come_back
a_storage_that_is_shared_comes_back_as_one a_weight_of_two_layers_comes_back_as_one
a_generator_that_comes_back_draws_the_same_numbers
dlpack_and_storages_share_memory the_beginning_of_a_storage_is_shared_and_does_not_grow
memory_lives_as_long_as_who_shares_it
what_cannot_leave_the_device_raises a_storage_that_is_shared_stays_on_the_device
a_tensor_of_the_cpu_leaves_for_another_process
masks_and_lists_index_as_on_the_cpu torchscript_indexes_with_masks_and_lists
a_data_loader_with_workers_feeds_the_device
the_device_draws_no_random_numbers_of_the_cpu the_cpu_draws_no_random_numbers_of_the_device
a_seed_gives_the_same_dropout dropout_drops_in_its_gradient_and_draws_no_random_numbers_of_the_cpu
a_state_of_the_device_that_is_set_gives_the_same_numbers a_generator_of_the_device_has_a_seed_of_its_own
a_generator_of_the_device_is_refused_for_the_cpu a_generator_of_the_cpu_is_refused_in_the_words_of_the_function[rand]
overlapping_boxes_are_left_out_on_the_device regions_of_a_picture_have_a_gradient_on_the_device
memory_is_counted_as_long_as_a_view_holds_it the_two_modules_of_torch_count_the_same_memory
the_peak_of_memory_stays_until_it_is_reset what_was_freed_stays_reserved_until_the_cache_is_emptied
the_device_recommends_more_than_8_gib
the_cpu_s_random_numbers_stay_its_own_while_a_thread_draws_on_the_device
a_share_of_memory_has_to_be_a_float a_share_of_memory_beyond_2_is_refused
too_much_memory_is_refused_with_its_size
a_result_that_needs_too_much_memory_is_refused_with_a_plain_runtime_error
without_a_share_there_is_no_limit_but_that_of_a_buffer
an_event_has_not_happened_before_it_was_recorded an_event_that_was_waited_for_has_happened
time_goes_by_between_two_events time_between_events_is_not_told_backwards
events_without_timing_have_no_time_between_them time_goes_by_between_two_events_of_torch_itself
another_stream_than_the_default_one_is_refused
float64_raises_as_on_a_mac mixed_devices_raise_as_on_a_mac one_number_may_be_on_the_cpu
a_linear_layer_names_its_argument_that_is_on_the_cpu an_lstm_with_an_argument_on_the_cpu_raises_as_on_a_mac
a_convolution_with_weights_on_the_cpu_names_both_types
an_operator_without_a_metal_kernel_raises_as_on_a_mac softshrink_which_had_no_kernel_computes
attention_drops_where_gradients_are_wanted attention_refuses_dropout_where_no_gradients_are_wanted
a_product_of_truth_values_is_one_on_the_device_alone silu_of_truth_values_is_one
truth_values_are_reflected_at_their_ends a_histogram_of_whole_numbers_has_whole_counts
"""


def find_checks(name: str) -> dict[str, Callable[[], None]]:
    """Return a check of the simulated device, or each of its cases, by name.

    Raises
    ------
    LookupError
        If there is none.
    """
    named = {
        each.removeprefix("test_"): check
        for each, check in simulated.plain.checks.items()
        if f"test_{name}" in (each, each.partition("[")[0])
    }
    if not named:
        raise LookupError(f"the simulated device has no check {name}: correct its name in CHECKS")
    return named


PROGRAMS = {each: check for name in CHECKS.split() for each, check in find_checks(name).items()}
"""A name that is none is an error when the tests are collected."""


@pytest.mark.claim(on="gpu", used_in="metalsim/README.md", slow=True)
@pytest.mark.parametrize("check", PROGRAMS)
def test_program(check: str) -> None:
    PROGRAMS[check]()
