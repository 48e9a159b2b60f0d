#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How good census is, seed by seed: trains once for each seed on the Census Income files and prints a table.

    examples/census/seeds.py --data DIR [--seeds 101-110] [--train-steps 1000] [-- --capital-gain-scale=0.0001]

What stands behind `--` goes to the program. A seed has collapsed when its auc is below 0.80 on the 4,000 people
that census evaluates by default.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

COLLAPSED = 0.80
COLUMNS = ["accuracy", "auc", "auc_precision_recall", "average_loss"]


def seeds_of(text):
    """'3-5,9' -> [3, 4, 5, 9]"""
    seeds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds or min(seeds) < 1:
        raise argparse.ArgumentTypeError(f"must name seeds >= 1, got '{text}'")
    return seeds


def evaluate(program, data, seed, steps, more=(), launch=()):
    """The metrics of a job: of the program alone, or of the tasks that a command, `launch`, starts of it."""
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run(
            [*launch, program, f"--train-files={data}/adult.data.csv", f"--eval-files={data}/adult.test.csv",
             f"--job-dir={directory}/run", f"--train-steps={steps}", f"--seed={seed}",
             "--verbosity=WARN", *more], capture_output=True, text=True, check=False)
    found = re.findall(r"^(?:\[\w+ \d+\] )?Evaluation: (.*)$", ended.stdout, re.M)
    if ended.returncode != 0 or len(found) != 1:
        sys.exit(f"{os.path.basename(sys.argv[0])}: seed {seed}: {' '.join([*launch, program])} ended with "
                 f"{ended.returncode} and {len(found)} evaluations: {(ended.stderr or ended.stdout).strip().splitlines()[-1:]}")
    metrics = dict(one.split(" = ") for one in found[0].split(", "))
    return {column: float(metrics[column]) for column in COLUMNS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="directory of adult.data.csv and adult.test.csv")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("101-110"), help="101-110")
    parser.add_argument("--train-steps", type=int, default=1000, help="1000")
    parser.add_argument("--program", default="bazel-bin/examples/census/census")
    parser.add_argument("more", nargs="*", help="-- flags of the program")
    flags = parser.parse_args()
    if not os.path.exists(flags.program):
        parser.error(f"--program: must be built, got '{flags.program}'; bazel build //examples/census")

    print("| seed | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    rows = []
    for seed in flags.seeds:
        row = evaluate(flags.program, flags.data, seed, flags.train_steps, flags.more)
        rows.append(row)
        mark = " (collapsed)" if row["auc"] < COLLAPSED else ""
        print(f"| {seed}{mark} | " + " | ".join(f"{row[c]:.4f}" for c in COLUMNS) + " |", flush=True)
    for name, of in [("mean", statistics.mean), ("median", statistics.median), ("worst", None)]:
        values = {c: [row[c] for row in rows] for c in COLUMNS}
        if of is None:
            shown = [(max if c == "average_loss" else min)(values[c]) for c in COLUMNS]
        else:
            shown = [of(values[c]) for c in COLUMNS]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in shown) + " |")
    collapsed = [seed for seed, row in zip(flags.seeds, rows) if row["auc"] < COLLAPSED]
    print(f"\n{len(collapsed)} of {len(rows)} seeds collapsed: {collapsed}")


if __name__ == "__main__":
    main()
