#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster learns what one process learns: trains census once for each seed and shape of cluster.

    examples/census/shapes.py --data DIR [--seeds 101-110] [--train-steps 5000] [--shapes local,ps3_master_workers4]

Steps are those of all tasks together. Prints the accuracy of each seed, and the median of each shape; exit code 1 when
a median is not within 0.01 of that of one process. Ports are free ones: launch finds them. Some minutes for each
seed on two busy cores.
"""

import argparse
import os
import statistics
import sys

import seeds

LOCAL = "local"
# By name: flags of launch. Without an evaluator the master evaluates.
SHAPES = {
    LOCAL: [],
    "ps1_chief": ["--ps=1", "--chief", "--evaluator"],
    "ps3_master_workers4": ["--ps=3", "--master", "--workers=4"],
    "ps2_chief_worker": ["--ps=2", "--chief", "--workers=1", "--evaluator"],
}
# Between medians.
TOLERANCE = 0.01


def shapes_of(text):
    """'local,ps1_chief' -> ['local', 'ps1_chief']"""
    names = text.split(",")
    for name in names:
        if name not in SHAPES:
            raise argparse.ArgumentTypeError(f"must be of {','.join(SHAPES)}, got '{name}'")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="directory of adult.data.csv and adult.test.csv")
    parser.add_argument("--seeds", type=seeds.seeds_of, default=seeds.seeds_of("101-110"), help="101-110")
    parser.add_argument("--train-steps", type=int, default=5000, help="5000, of all tasks together")
    parser.add_argument("--shapes", type=shapes_of, default=list(SHAPES), help=",".join(SHAPES))
    parser.add_argument("--program", default="bazel-bin/examples/census/census")
    parser.add_argument("--launch", default="bazel-bin/tools/launch")
    flags = parser.parse_args()
    for name in ("program", "launch"):
        path = getattr(flags, name)
        if not os.path.exists(path):
            parser.error(f"--{name}: must be built, got '{path}'; bazel build //examples/census //tools:launch")

    print("| seed | " + " | ".join(flags.shapes) + " |")
    print("|---|" + "---|" * len(flags.shapes))
    accuracy = {shape: [] for shape in flags.shapes}
    for seed in flags.seeds:
        for shape in flags.shapes:
            launch = [flags.launch, *SHAPES[shape], "--"] if SHAPES[shape] else []
            more = ["--wait-for-evaluator-secs=120"] if launch else []
            measured = seeds.evaluate(flags.program, flags.data, seed, flags.train_steps, more, launch)
            accuracy[shape].append(measured["accuracy"])
        print(f"| {seed} | " + " | ".join(f"{accuracy[s][-1]:.4f}" for s in flags.shapes) + " |", flush=True)
    medians = {shape: statistics.median(values) for shape, values in accuracy.items()}
    print("| median | " + " | ".join(f"{medians[shape]:.4f}" for shape in flags.shapes) + " |")
    if LOCAL not in medians:
        return 0
    apart = {shape: median - medians[LOCAL] for shape, median in medians.items()}
    worst = max(apart, key=lambda shape: abs(apart[shape]))
    print(f"\nfurthest from {LOCAL}: {worst}, by {apart[worst]:+.4f}")
    return 0 if abs(apart[worst]) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
