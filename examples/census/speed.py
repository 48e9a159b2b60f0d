#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast census trains: steps a second of CPU time, of everything that a step needs (files, shuffle, hooks).

    examples/census/speed.py --data DIR [--batches 40,1024] [-- --seed=2]

Each batch size is trained twice, for few steps and for many, in a process each; what starts and ends a run is in
both, so it is their difference that counts: (many - few) / (CPU seconds of many - those of few). The lines that
are printed are those that tools/pairs.py reads, for a comparison in turns with another program:

    tools/pairs.py --pairs 5 --log LOG --names 'census_train_cpu: THEIRS/1=census_train_cpu: b40/1' -- THEIRS -- \\
        examples/census/speed.py --data DIR

The process is held to one core, so it has one thread for computing. What stands behind `--` goes to the program.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

# Steps of the short run and of the long one, by batch size; others are trained as the nearest smaller one.
STEPS = {1: (1000, 6000), 512: (100, 700)}


def steps_for(batch):
    return STEPS[max(size for size in STEPS if size <= batch)]


def batches_of(text):
    batches = [int(one) for one in text.split(",")]
    if min(batches) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers >= 1, got '{text}'")
    return batches


def cpu_seconds(program, data, batch, steps, more):
    """User and system time of a run of `steps` steps on one core, export included."""
    with tempfile.TemporaryDirectory() as directory:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(
            [program, f"--train-files={data}/adult.data.csv", f"--eval-files={data}/adult.test.csv",
             f"--job-dir={directory}/run", f"--train-steps={steps}", f"--train-batch-size={batch}",
             "--eval-steps=1", "--verbosity=WARN", *more], capture_output=True, text=True, check=False,
            env=dict(os.environ, MILLRACE_NUM_THREADS="1"),
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != 0:
        sys.exit(f"speed.py: {program} ended with {ended.returncode}: "
                 f"{ended.stderr.strip().splitlines()[-1:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of adult.data.csv and adult.test.csv")
    parser.add_argument("--batches", type=batches_of, default=[40, 1024], help="40,1024")
    parser.add_argument("--program", default="bazel-bin/examples/census/census")
    parser.add_argument("more", nargs="*", help="-- flags of the program")
    flags = parser.parse_args()
    if not os.path.exists(flags.program):
        parser.error(f"--program: must be built, got '{flags.program}'; bazel build //examples/census")
    for batch in flags.batches:
        few, many = steps_for(batch)
        seconds = [cpu_seconds(flags.program, flags.data, batch, steps, flags.more) for steps in (few, many)]
        if seconds[1] <= seconds[0]:
            sys.exit(f"speed.py: {many} steps must take longer than {few}, got {seconds}")
        print(json.dumps({"bench": "census_train_cpu", "variant": f"b{batch}", "threads": 1, "unit": "steps/cpu-s",
                          "value": (many - few) / (seconds[1] - seconds[0])}), flush=True)


if __name__ == "__main__":
    main()
