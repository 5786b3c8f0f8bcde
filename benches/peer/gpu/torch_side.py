"""Run the workloads of benches/gpu.rs in PyTorch: same shapes, optimizers and precision, with the data on the GPU.

    python torch_side.py mlp              # eager
    python torch_side.py --compile mlp    # torch.compile with CUDA graphs
    python torch_side.py --cpu            # all workloads in small sizes on a CPU, as a functional check

Each workload prints a line RESULT with a step's median time in microseconds, or megabytes per second. float32 is computed
with TF32 factors and images are channels last, like in benches/gpu.rs.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM_UP, WINDOWS, WINDOW_S = 10, 15, 0.2
COPIED = 256 << 20
WORKLOADS = {}


def workload(make):
    WORKLOADS[make.__name__] = make
    return make


class Place:
    """The device on which workloads run, and whether they have small sizes there."""

    def __init__(self, cpu):
        self.device = "cpu" if cpu else "cuda"
        self.small = cpu

    def size(self, full, small):
        return small if self.small else full

    def wait(self):
        if not self.small:
            torch.cuda.synchronize()


def step_time(place, step):
    """Returns the median time of a step over windows of steps, in which only the last step is waited for."""

    def run(steps):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        place.wait()
        return (time.perf_counter() - start) / steps

    if place.small:
        return run(1)
    run(WARM_UP)
    steps = max(1, int(WINDOW_S / run(WARM_UP)))
    return statistics.median(run(steps) for _ in range(WINDOWS))


def figure_of_step(seconds):
    return {"step_us": 1e6 * seconds}


def figure_of_copy(count, seconds):
    return {"MBps": 4 * count / 1e6 / seconds}


def compiled(function):
    return torch.compile(function, mode="reduce-overhead")


@workload
def product(place, compile):
    n = place.size(8192, 64)
    a, b = (torch.randn(n, n, device=place.device, dtype=torch.bfloat16) for _ in range(2))

    def multiply(a, b):
        return a @ b

    multiply = compiled(multiply) if compile else multiply
    return figure_of_step(step_time(place, lambda: multiply(a, b)))


def training(place, compile, model, x, classes, optimizer):
    """Measures a training step of a model: loss, gradients, update."""
    examples = x.shape[0]
    x = x.to(place.device)
    labels = torch.randint(classes, (examples,), device=place.device)
    model = model.to(place.device).train()
    if x.dim() == 4:
        x, model = (v.to(memory_format=torch.channels_last) for v in (x, model))
    optimizer = optimizer(model.parameters(), fused=not place.small)

    def loss_of(x, labels):
        return F.cross_entropy(model(x), labels)

    loss = compiled(loss_of) if compile else loss_of

    def step():
        if compile:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss(x, labels).backward()
        optimizer.step()

    return figure_of_step(step_time(place, step))


def sgd(rate, momentum=0.0):
    return lambda parameters, **how: torch.optim.SGD(parameters, lr=rate, momentum=momentum, **how)


def adam(rate):
    return lambda parameters, **how: torch.optim.Adam(parameters, lr=rate, **how)


@workload
def mlp(place, compile):
    n, hidden = place.size(128, 8), place.size(4096, 16)
    model = nn.Sequential(
        nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )
    return training(place, compile, model, torch.randn(n, 784), 10, sgd(0.01))


@workload
def cnn(place, compile):
    n, filters = place.size(64, 4), place.size(32, 2)
    model = nn.Sequential(
        nn.Conv2d(1, filters, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(filters, 2 * filters, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(49 * 2 * filters, 16 * filters), nn.ReLU(), nn.Linear(16 * filters, 10),
    )
    return training(place, compile, model, torch.randn(n, 1, 28, 28), 10, adam(0.001))


def normal_conv(inputs, filters, size, stride=1):
    conv = nn.Conv2d(inputs, filters, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


class Bottleneck(nn.Module):
    def __init__(self, inputs, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            normal_conv(inputs, filters, 1), nn.ReLU(),
            normal_conv(filters, filters, 3, stride), nn.ReLU(),
            normal_conv(filters, 4 * filters, 1),
        )
        is_same = stride == 1 and inputs == 4 * filters
        self.project = nn.Identity() if is_same else normal_conv(inputs, 4 * filters, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.project(x))


def resnet(blocks, width, classes):
    layers = [normal_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            filters = width << stage
            layers.append(Bottleneck(channels, filters, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


@workload
def resnet50(place, compile):
    n, side = place.size(64, 2), place.size(224, 32)
    classes = place.size(1000, 10)
    model = resnet([1] * 4, 4, classes) if place.small else resnet([3, 4, 6, 3], 64, classes)
    if not place.small:
        assert sum(p.numel() for p in model.parameters()) == 25_557_032
    return training(place, compile, model, torch.randn(n, 3, side, side), classes, sgd(0.1, 0.9))


class Last(nn.Module):
    """The scores of a recurrent layer's last output; the first axis is that of examples."""

    def __init__(self, units, classes):
        super().__init__()
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.scores = nn.Linear(units, classes)

    def forward(self, x):
        return self.scores(self.lstm(x)[0][:, -1])


@workload
def lstm(place, compile):
    turns, n, units = place.size(32, 3), place.size(64, 4), place.size(512, 8)
    return training(place, compile, Last(units, 10), torch.randn(n, turns, units), 10, sgd(0.1))


def copies(place, make):
    count = place.size(COPIED, 4096) // 4
    to, source = make(count)
    return figure_of_copy(count, step_time(place, lambda: to.copy_(source, non_blocking=True)))


@workload
def copy_on_device(place, compile):
    return copies(place, lambda n: [torch.ones(n, device=place.device) for _ in range(2)])


@workload
def copy_to_device(place, compile):
    pinned = dict(pin_memory=not place.small)
    return copies(place, lambda n: (torch.ones(n, device=place.device), torch.ones(n, **pinned)))


@workload
def copy_pageable_to_device(place, compile):
    return copies(place, lambda n: (torch.ones(n, device=place.device), torch.ones(n)))


@workload
def copy_from_device(place, compile):
    pinned = dict(pin_memory=not place.small)
    return copies(place, lambda n: (torch.ones(n, **pinned), torch.ones(n, device=place.device)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--cpu", action="store_true")
    ap.add_argument("workloads", nargs="*", metavar="workload")
    a = ap.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    for name in a.workloads or WORKLOADS:
        print("RESULT " + json.dumps({"workload": name, **WORKLOADS[name](Place(a.cpu), a.compile)}), flush=True)


if __name__ == "__main__":
    main()
