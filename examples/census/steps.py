#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast census trains on one thread, for tools/pairs.py: steps per second of CPU time, by batch.

    examples/census/steps.py --data DIR [--program bazel-bin/examples/census/census]
    tools/pairs.py --names 'census_train_cpu: libtorch C++ eager b40/1=census_train_cpu: census b40/1' -- PEER -- examples/census/steps.py --data DIR

The whole program is measured, with its files, shuffle and hooks: (CPU time of many steps - CPU time of few) over
the steps between, so that its start, evaluation and export count in neither.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

# Batch -> few steps, many steps.
STEPS = {40: (1000, 6000), 1024: (100, 700)}


def cpu_seconds(program, data, batch, steps):
    """Of one run of the program, all its threads."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
    before = used()
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run(
            [program, f"--train-files={data}/adult.data.csv", f"--eval-files={data}/adult.test.csv",
             f"--job-dir={directory}/run", f"--train-steps={steps}", f"--train-batch-size={batch}",
             "--eval-steps=1", "--seed=1", "--verbosity=WARN"],
            env=dict(os.environ, MILLRACE_NUM_THREADS="1"), capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"steps.py: {program} ended with {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}")
    return used() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="directory of adult.data.csv and adult.test.csv")
    parser.add_argument("--program", default="bazel-bin/examples/census/census")
    flags = parser.parse_args()
    if not os.path.exists(flags.program):
        parser.error(f"--program: must be built, got '{flags.program}'; bazel build //examples/census")
    for batch, (few, many) in STEPS.items():
        seconds = cpu_seconds(flags.program, flags.data, batch, many) - cpu_seconds(
            flags.program, flags.data, batch, few)
        print(json.dumps({"bench": "census_train_cpu", "variant": f"census b{batch}", "threads": 1,
                          "unit": "steps/cpu-s", "value": round((many - few) / seconds, 1)}))


if __name__ == "__main__":
    main()
