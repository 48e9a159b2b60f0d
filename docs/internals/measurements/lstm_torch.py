#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of //examples/rnn:rnn_benchmark: PyTorch's nn.LSTM on the same work.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 lstm_torch.py 1 [SECONDS]

32 sequences of 50 steps, 128 inputs, 128 units: what the layer gives (forward), and steps of training (the mean of the
squares of all outputs, gradient descent). Prints lines of JSON as tools/pairs.py reads them, value in steps per second
(the best of slices of a tenth of SECONDS, because others use the machine, too) and, as variant "... cpu", in steps per
second of the process's CPU time.
"""

import json
import sys
import time

import torch


def rates(step, seconds):
    """Steps per second in the best of ten slices, and steps per second of CPU time in all of them."""
    for _ in range(5):
        step()
    best, total, cpu = 0.0, 0, time.process_time()
    for _ in range(10):
        steps, start = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - start < seconds / 10:
            step()
            steps += 1
        best = max(best, steps / (time.perf_counter() - start))
        total += steps
    return best, total / (time.process_time() - cpu)


def main(threads, seconds):
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    lstm = torch.nn.LSTM(128, 128, batch_first=True)
    x = torch.rand(32, 50, 128) * 2 - 1
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)

    def forward():
        with torch.no_grad():
            lstm(x)

    def train():
        optimizer.zero_grad(set_to_none=True)
        outputs, _ = lstm(x)
        (outputs * outputs).mean().backward()
        optimizer.step()

    for variant, step in (("forward", forward), ("train", train)):
        for name, value in zip((variant, f"{variant} cpu"), rates(step, seconds)):
            print(json.dumps({"bench": "nn.LSTM", "variant": name, "threads": threads, "value": value}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3.0)
