"""Plausible wrong answers to the exercises of the pages: none may pass its check."""

from __future__ import annotations

import re
from collections import defaultdict

ANSWERS = r'''
== 00_check_your_machine 1
import numpy as np
def agree(result, expected, tolerance):
    return not bool((np.abs(result - expected) > tolerance).any())
== 00_check_your_machine 1
def agree(result, expected, tolerance):
    return bool(np.abs(result - expected).mean() <= tolerance)
== 00_check_your_machine 1
def agree(result, expected, tolerance):
    return bool((np.abs(result - expected) <= tolerance * np.abs(expected)).all())
== 00_check_your_machine 1
def agree(result, expected, tolerance):
    high = abs(result.max() - expected.max()) <= tolerance
    return bool(high and abs(result.min() - expected.min()) <= tolerance)
== 00_check_your_machine 1
def agree(result, expected, tolerance):
    return bool(np.linalg.norm(result - expected) <= tolerance)
== 00_check_your_machine 2
def at_least(version, wanted):
    return version >= wanted
== 00_check_your_machine 2
def at_least(version, wanted):
    def number(text):
        major, minor = text.split(".")[:2]
        return 100 * int(major) + int(minor)
    return number(version) >= number(wanted)
== 00_check_your_machine 2
def at_least(version, wanted):
    import re
    return list(map(int, re.findall(r"\d+", version))) >= list(map(int, re.findall(r"\d+", wanted)))
== 01_time_it_right 1
def honest_latency(launch, synchronize):
    start = time.perf_counter()
    launch()
    return time.perf_counter() - start
== 01_time_it_right 1
def honest_latency(launch, synchronize):
    synchronize()
    start = time.perf_counter()
    for _ in range(10):
        launch()
    synchronize()
    return time.perf_counter() - start
== 01_time_it_right 2
def speed_up(baseline, variant):
    return statistics.median(baseline) / statistics.median(variant)
== 01_time_it_right 2
def speed_up(baseline, variant):
    return baseline[0] / variant[0]
== 02_run_pytorch_on_mps 1
def to_device(array):
    return torch.from_numpy(array).float().to(device)
== 02_run_pytorch_on_mps 1
def to_device(array):
    tensor = torch.from_numpy(array)
    return tensor.float() if tensor.is_floating_point() else tensor.to(device)
== 02_run_pytorch_on_mps 1
def to_device(array):
    dtype = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.zeros(array.shape, dtype=dtype, device=device)
== 02_run_pytorch_on_mps 1
def to_device(array):
    return torch.tensor(array.tolist(), device=device)
== 02_run_pytorch_on_mps 1
def to_device(array):
    tensor = torch.from_numpy(array).flatten()
    if tensor.is_floating_point():
        tensor = tensor.half().float()
    return tensor.to(device)
== 02_run_pytorch_on_mps 2
class Numbered(nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[1]).float()
== 02_run_pytorch_on_mps 2
class Numbered(nn.Module):
    def forward(self, x):
        return x.cumsum(1)
== 02_run_pytorch_on_mps 2
class Numbered(nn.Module):
    def forward(self, x):
        return x + torch.arange(3, device=x.device)
== 02b_compare_cpu_and_gpu 1
def first_win(verdicts):
    return next((size for size, verdict in verdicts if verdict == 'faster'), None)
== 02b_compare_cpu_and_gpu 1
def first_win(verdicts):
    smallest = None
    for size, verdict in reversed(verdicts):
        if verdict == "slower":
            break
        smallest = size
    return smallest
== 02b_compare_cpu_and_gpu 1
def first_win(verdicts):
    smallest = None
    while verdicts and verdicts[-1][1] == "faster":
        smallest = verdicts.pop()[0]
    return smallest
== 02b_compare_cpu_and_gpu 2
def whole_speed_up(stages):
    return sum(ratio for _, ratio in stages) / len(stages)
== 02b_compare_cpu_and_gpu 2
def whole_speed_up(stages):
    (first, one), (second, two) = stages
    return (first + second) / (first / one + second / two)
== 02c_check_your_model 1
def repaired(model):
    return model
== 02c_check_your_model 1
def repaired(model):
    model[1] = nn.AvgPool3d(3, stride=1)
    return model
== 02c_check_your_model 2
def pools(before, after):
    return before % after == 0
== 02c_check_your_model 2
import math
def pools(before, after):
    return math.gcd(before, after) > 1
== 02c_check_your_model 2
def pools(before, after):
    return max(before, after) >= 3 * min(before, after) or before == after
== 02c_check_your_model 2
def pools(before, after):
    return before % after == 0 or after == 3 * before
== 03_profile_and_find_fallbacks 1
def culprit(events):
    waiting = [event for event in events if event.lane in ('copies', 'CPU')]
    return max(waiting, key=lambda event: event.duration).name
== 03_profile_and_find_fallbacks 1
def culprit(events):
    return next((event.name for event in events if event.lane == "copies"), None)
== 03_profile_and_find_fallbacks 1
from collections import Counter
def culprit(events):
    return Counter(e.name for e in events if e.lane in ("copies", "CPU")).most_common(1)[0][0]
== 03_profile_and_find_fallbacks 1
def culprit(events):
    waited = {}
    for event in events:
        if event.lane in ("copies", "CPU"):
            waited[event.name] = waited.get(event.name, 0) + int(event.duration)
    return max(waited, key=waited.get)
== 03_profile_and_find_fallbacks 2
def log_setting():
    return 1 + 2 + 128
== 03_profile_and_find_fallbacks 2
def log_setting():
    return 134.0
== 04_write_a_custom_kernel 1
hardshrink = """
#include <metal_stdlib>
using namespace metal;
kernel void hardshrink(device float* out, device const float* x, constant float& lambd,
                       uint i [[thread_position_in_grid]]) {
  out[i] = abs(x[i]) > lambd ? x[i] : 0.0f;
}"""
== 04_write_a_custom_kernel 1
hardshrink = """
kernel void hardshrink(device float* out, device const float* x,
                       constant float& lambd,
                       uint i [[thread_position_in_grid]]) {
  out[i] = x[i] >= -0.5f && x[i] <= 0.5f ? 0.0f : x[i];
}"""
== 04_write_a_custom_kernel 1
hardshrink = """
kernel void hardshrink(device float* out, device const float* x,
                       constant float& lambd,
                       uint i [[thread_position_in_grid]]) {
  out[i] = x[i] > -lambd && x[i] < lambd ? 0.0f : x[i];
}"""
== 04_write_a_custom_kernel 1
hardshrink = """
kernel void hardshrink(device float* out, device const float* x,
                       constant float& lambd,
                       uint i [[thread_position_in_grid]]) {
  out[i] = x[i] < -lambd || x[i] > lambd ? x[i] : 0.0f;
}"""
== 04_write_a_custom_kernel 1
hardshrink = """
kernel void hardshrink(device float* out, device const float* x,
                       constant float& lambd,
                       uint i [[thread_position_in_grid]]) {
  if (i >= 1024) return;
  out[i] = x[i] >= -lambd && x[i] <= lambd ? 0.0f : x[i];
}"""
== 04_write_a_custom_kernel 2
def share_of_roof(n, bytes_each, seconds, copy_rate):
    return n * bytes_each / seconds / copy_rate
== 04_write_a_custom_kernel 2
def share_of_roof(n, bytes_each, seconds, copy_rate):
    moved = 3 * n * 2
    return moved / seconds / copy_rate
== 04b_make_it_an_operator 1
def hardshrink_gradient(grad, x, lambd):
    return torch.where(x <= lambd, 0, grad)
== 04b_make_it_an_operator 1
def hardshrink_gradient(grad, x, lambd):
    return torch.where(x.abs() < lambd, 0, grad)
== 04b_make_it_an_operator 1
def hardshrink_gradient(grad, x, lambd):
    grad[x.abs() <= lambd] = 0
    return grad
== 04b_make_it_an_operator 2
def softmax_fake(x):
    return torch.empty_like(x, dtype=torch.float32)
== 04b_make_it_an_operator 2
def softmax_fake(x):
    return torch.empty_strided(x.shape, (4, 1), dtype=torch.float32, device=x.device)
== 04b_make_it_an_operator 2
def softmax_fake(x):
    return torch.empty(x.shape, dtype=torch.float32, device="meta")
== 05_train_with_autocast 1
def clipped_step(model, images, labels, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05_train_with_autocast 1
def clipped_step(model, images, labels, optimizer, scaler):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05_train_with_autocast 1
def clipped_step(model, images, labels, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return scaler.scale(loss).detach()
== 05_train_with_autocast 1
def clipped_step(model, images, labels, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return None
== 05_train_with_autocast 1
def clipped_step(model, images, labels, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for weight in model.parameters():
        nn.utils.clip_grad_norm_([weight], 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05_train_with_autocast 2
def accumulated_step(model, parts, optimizer, scaler):
    optimizer.zero_grad()
    for images, labels in parts:
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05_train_with_autocast 2
def accumulated_step(model, parts, optimizer, scaler):
    optimizer.zero_grad()
    for images, labels in parts:
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels) / len(parts)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05_train_with_autocast 2
def accumulated_step(model, parts, optimizer, scaler):
    optimizer.zero_grad()
    for images, labels in parts:
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels) / len(parts)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach() * len(parts)
== 05_train_with_autocast 2
def accumulated_step(model, parts, optimizer, scaler):
    images = torch.cat([part[0] for part in parts])
    labels = torch.cat([part[1] for part in parts])
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
== 05b_choose_a_number_format 1
def predicted():
    return [65504.0, 4100.0, 2e-8, 258.0]
== 05b_choose_a_number_format 1
def predicted():
    return [float("inf"), 4096.0, -0.0, 260.0]
== 05b_choose_a_number_format 2
def training_bytes(model):
    return sum(weight.numel() for weight in model.parameters()) * (2 + 2 + 8)
== 05b_choose_a_number_format 2
def training_bytes(model):
    return 16 * sum(tensor.numel() for tensor in model.state_dict().values())
== 05b_choose_a_number_format 2
def training_bytes(model):
    total = 0
    for weight in model.parameters():
        total += weight.nbytes + weight.grad.nbytes + 2 * weight.nbytes
    return total
== 06_train_tensorflow_with_mixed_precision 1
def train_step(model, images, classes):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=classes, y_pred=model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return loss
== 06_train_tensorflow_with_mixed_precision 1
def train_step(model, images, classes):
    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = model.compute_loss(y=classes, y_pred=outputs)
        scaled = model.optimizer.scale_loss(loss)
    variables = model.layers[0].trainable_variables
    gradients = tape.gradient(scaled, variables)
    model.optimizer.apply(gradients, variables)
    return loss
== 06_train_tensorflow_with_mixed_precision 2
def ready():
    hidden = keras.layers.Dense(64, activation='relu')
    output = keras.layers.Dense(10, activation='softmax', dtype='float32')
    return keras.Sequential([keras.Input((64,)), hidden, output])
== 06_train_tensorflow_with_mixed_precision 2
def ready():
    output = keras.layers.Activation("softmax", dtype="float32")
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(10), output])
== 06_train_tensorflow_with_mixed_precision 2
def ready():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(11),
            keras.layers.Activation("softmax", dtype="float32"),
        ]
    )
== 06b_look_into_tensorflow_graphs 1
def agrees(fn, *inputs):
    eager = fn(*inputs).numpy()
    graph = tf.function(fn, jit_compile=False)(*inputs).numpy()
    return not np.any(np.abs(graph - eager) > 0.001 * np.abs(eager).max())
== 06b_look_into_tensorflow_graphs 1
def agrees(fn, *inputs):
    eager = fn(*inputs).numpy()
    graph = tf.function(fn, jit_compile=False)(*inputs).numpy()
    return bool(np.abs(graph - eager).mean() <= 0.001 * np.abs(eager).max())
== 06b_look_into_tensorflow_graphs 2
def wholly_fused(nodes):
    return any(node.parts for node in nodes)
== 06b_look_into_tensorflow_graphs 2
def wholly_fused(nodes):
    return all(node.parts for node in nodes if node.op not in ("_Arg", "_Retval"))
== 07_transform_with_jax 1
def clipped_mean(weights, images, labels, limit):
    mean = per_example(weights, images, labels).mean(axis=0)
    return mean * jnp.minimum(1.0, limit / jnp.linalg.norm(mean))
== 07_transform_with_jax 2
def losses_of_all(stacked, images, labels):
    over_models = jax.vmap(loss, in_axes=(0, None, None))
    return jax.vmap(over_models, in_axes=(None, 0, 0))(stacked, images, labels)
== 07b_compile_with_jit 1
def decayed(fn, x, rates):
    for rate in rates:
        x = jax.jit(lambda x: fn(x, rate))(x)
    return x
== 07b_compile_with_jit 2
def in_one_shape(fn, rows):
    padded = np.pad(rows, ((0, 64 - len(rows)), (0, 0)))
    return fn(padded)[: len(rows)]
== 08_detect_with_yolov5 1
def iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    return width * height / (area(a) + area(b) - width * height)
== 08_detect_with_yolov5 1
def iou(a, b):
    if (a[2] <= b[0] or b[2] <= a[0]) and (a[3] <= b[1] or b[3] <= a[1]):
        return 0
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    return width * height / (area(a) + area(b) - width * height)
== 08_detect_with_yolov5 2
def frame_rate(seconds):
    return sum(1 / s for s in seconds) / len(seconds)
== 08b_find_the_slow_stage 1
def frame_speedup(seconds, factor):
    share = seconds['infer'] / sum(seconds.values())
    return 1 + share * (factor - 1)
== 08b_find_the_slow_stage 2
def best_batch(seconds, limit):
    return max(seconds, key=lambda n: n / seconds[n])
== 08b_find_the_slow_stage 2
def best_batch(seconds, limit):
    best = max(seconds, key=lambda n: n / seconds[n])
    return best if seconds[best] <= limit else None
== 08b_find_the_slow_stage 2
def best_batch(seconds, limit):
    return max((n for n in seconds if seconds[n] <= limit), default=None)
== 09_load_models_faster 1
def split(stages, clock):
    start, seconds = clock(), {}
    for name, stage in stages.items():
        stage()
        seconds[name] = clock() - start
    return seconds
== 09_load_models_faster 2
def pays_after(early, quick):
    behind, gain = quick[0] - early[0], early[1] - quick[1]
    return max(0, -int(-behind // gain)) if gain > 0 else None
== 09_load_models_faster 2
def pays_after(early, quick):
    behind, gain = quick[0] - early[0], early[1] - quick[1]
    if gain <= 0:
        return None
    return 0 if behind < 0 else int(round(behind / gain, 6)) + 1
== 09b_compile_for_apple_chips 1
def assert_provider(session, wanted):
    if wanted not in session.get_providers():
        raise RuntimeError(wanted)
    return True
== 09b_compile_for_apple_chips 2
def converted(run, package):
    return not run.code and package.exists()
== 10_quantize_to_int8 1
def first_convolution(path):
    return onnx.load(path).graph.node[0].op_type
== 10_quantize_to_int8 1
def first_convolution(path):
    return onnx.load(path).graph.node[0].name
== 10_quantize_to_int8 2
def ship(kept, int8, rival):
    if kept.points >= -1 and int8.median > 1:
        return 'int8' if int8.median > rival.median else '16 bits'
    return 'float32'
== 10_quantize_to_int8 2
def ship(kept, int8, rival):
    if kept.points >= -1 and int8.low > 1 and rival.low <= int8.high:
        return "int8"
    return "16 bits" if rival.median > 1 else "float32"
== 10b_take_int8_apart 1
def scale_and_zero(low, high):
    scale = (high - low) / 255
    return scale, round(-128 - low / scale)
== 10b_take_int8_apart 1
def scale_and_zero(low, high):
    low, high = min(low, 0), max(high, 0)
    scale = (high - low) / 255
    return scale, -128 - low / scale
== 10b_take_int8_apart 2
def saturated(x, affine):
    q = np.rint(x / affine.scale)
    return np.mean((q < affine.low) | (q > affine.high))
== 11_filter_with_fft 1
def two_passes(picture, line):
    across = direct(picture, line[None, :])
    return direct(across, line[None, :])
== 11_filter_with_fft 2
def moved_by(first, second):
    product = torch.fft.rfft2(first) * torch.fft.rfft2(second).conj()
    match = torch.fft.irfft2(product, s=first.shape)
    return divmod(match.argmax().item(), first.shape[1])
== 11_filter_with_fft 2
def moved_by(first, second):
    match = torch.fft.irfft2(torch.fft.rfft2(first).conj() * torch.fft.rfft2(second))
    return divmod(match.argmax().item(), match.shape[1])
== 11b_check_edge_cases 1
def rfft_shape(shape, axes):
    last = max(axis % len(shape) for axis in axes)
    return tuple(n // 2 + 1 if axis == last else n for axis, n in enumerate(shape))
== 11b_check_edge_cases 2
def running_mean(x, n):
    sums = x.cumsum(0)
    return (sums[n:] - sums[:-n]) / n
== 12_compare_machines 1
def gains_more(a, b):
    middle = [sum(interval) / 2 for interval in (a, b)]
    return 'first' if middle[0] > middle[1] else 'second'
== 12_compare_machines 1
def gains_more(a, b):
    return "first" if a[0] >= b[1] else "second" if b[0] >= a[1] else "unsure"
== 12_compare_machines 2
def may_divide(a, b):
    return a == b
== 12_compare_machines 2
def may_divide(a, b):
    return all(a.get(key) is not None and a.get(key) == b.get(key) for key in ("chip", "torch"))
== 13_find_the_layer 1
def layer_error(exact, given):
    size = exact[exact.isfinite()].square().mean().sqrt()
    return ((given - exact).nan_to_num().abs().max() / size).item()
== 13_find_the_layer 1
def layer_error(exact, given):
    finite = exact.isfinite()
    if not given[finite].isfinite().all():
        return float("inf")
    return ((given - exact)[finite].abs().max() / exact[finite].square().mean().sqrt()).item()
== 13_find_the_layer 2
def in_parts(f, x, most):
    return torch.cat([f(part) for part in x.split(most)])
== 13_find_the_layer 2
def in_parts(f, x, most):
    return torch.stack([f(row) for row in x])
== 14_compare_with_mlx 1
def seconds(step, model, clock):
    began = clock()
    mx.eval(step())
    return clock() - began
== 14_compare_with_mlx 2
def standardize(x):
    centred = x - x.mean(axis=0)
    return centred / x.std(axis=0)
== 15_run_a_language_model 1
def together():
    return sum(needs(4.5, 32768, **llama | {'parameters': 8.03e9})[:2])
== 15_run_a_language_model 2
def most_tokens(weights, cache, bandwidth):
    return bandwidth / weights
== 15b_shrink_a_language_model 1
def bits_a_weight(group):
    return 4 + 16 / group
== 15b_shrink_a_language_model 2
def padded(length):
    size = 128
    while size <= length:
        size *= 2
    return size
'''
"""Each below a line with its page and the number of the exercise."""

WRONG_ANSWERS: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
"""The answers by page and by the cell with the solution."""

for _page, _number, _answer in re.findall(r"^== (\w+) (\d)\n(.*?\n)(?=== |\Z)", ANSWERS, re.MULTILINE | re.DOTALL):
    WRONG_ANSWERS[_page][f"solution-{_number}"].append(_answer)
