#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two programs that print figures by running them in turns, in one run.

Machines differ and drift, so a figure of yesterday or of elsewhere is no comparison. This runs A, B, A, B, ...
and takes the ratio of each pair:

    tools/pairs.py --pairs 6 --log after.log -- OLD/bin/executor_benchmark -- NEW/bin/executor_benchmark
    tools/pairs.py --names 'dispatch: tbb flow_graph chain/1=BM_Chain/1:nodes' -- out/bin/tbb_dispatch 100000 -- bin/executor_benchmark

Figures are rates, more is better: of Google Benchmark (asked for JSON; items per second, or runs per second
where it counts no items), and of lines {"bench": ..., "variant": ..., "threads": ..., "value": ...}, printed or
written to the file $PEERS_OUT; these are named "bench: variant/threads". A counter "nodes" of benchmark X is X:nodes. A figure is compared with the one
of the same name, or with that of --names A=B[,A=B...]. Printed, and written to
--log with every single run: name, medians of A and B, median of B / A, worst pair.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

import program

GOOGLE_BENCHMARK = "--benchmark_format=json"
SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
# What Google Benchmark writes of each run; the rest are counters of the benchmark itself.
STANDARD_KEYS = {
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions",
    "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit", "label",
}


def figures_of(text):
    """Rates by name, from the output of one run."""
    start = text.find("{")
    try:
        rows = json.loads(text[start:])["benchmarks"]
    except (ValueError, KeyError, TypeError):
        rows = None
    if rows is not None:
        figures = {}
        for row in rows:
            if row.get("run_type") == "aggregate" or "error_occurred" in row:
                continue
            name = row["name"].replace("/real_time", "")
            per_second = SECOND[row["time_unit"]] / row["real_time"]
            figures[name] = row.get("items_per_second") or per_second
            for key in row.keys() - STANDARD_KEYS:
                figures[f"{name}:{key}"] = row[key]
        return figures
    figures = {}
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            bench = f"{row['bench']}: " if "bench" in row else ""
            figures[f"{bench}{row['variant']}/{row['threads']}"] = float(row["value"])
    return figures


def compare(runs, names):
    """(name, median of A, median of B, median of B / A, worst B / A) for each of `names`, [(a, b)].

    `runs` are pairs of figures; a name that a run lacks is an error. What is 0 in A is left out: it is no rate.
    """
    rows = []
    for a_name, b_name in names:
        pairs = [(a[a_name], b[b_name]) for a, b in runs]
        if any(a == 0 for a, _ in pairs):
            continue
        ratios = [b / a for a, b in pairs]
        rows.append((
            b_name if a_name == b_name else f"{a_name} -> {b_name}",
            statistics.median(a for a, _ in pairs),
            statistics.median(b for _, b in pairs),
            statistics.median(ratios),
            min(ratios),
        ))
    return rows


def run(command):
    """The figures of one run."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".jsonl") as out:
        done = subprocess.run(command, capture_output=True, text=True,
                              env=dict(os.environ, PEERS_OUT=out.name))
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return figures_of(out.read() or done.stdout)


def split_commands(argv):
    """Options, command A, command B: what stands before, between and behind the two '--'."""
    first = argv.index("--")
    second = argv.index("--", first + 1)
    return argv[:first], argv[first + 1:second], argv[second + 1:]


def main(argv):
    parser = program.Parser(__doc__)
    parser.usage = "%(prog)s [FLAG ...] -- COMMAND ... -- COMMAND ..."
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--names", default="", help="A=B,...: figures that have different names")
    parser.add_argument("--log", help="file that every figure is appended to")
    # Flags first: --help needs no commands.
    args = parser.parse_args(argv[:argv.index("--")] if "--" in argv else argv)
    try:
        _, a_command, b_command = split_commands(argv)
    except ValueError:
        parser.error("two commands must be given, each after a --")
    if args.pairs < 1:
        parser.error(f"argument --pairs: must be at least 1, got {args.pairs}")
    commands = [c + [GOOGLE_BENCHMARK] if any("benchmark" in word for word in c) else c
                for c in (a_command, b_command)]
    runs = []
    for number in range(args.pairs):
        runs.append(tuple(run(command) for command in commands))
        if args.log:
            with open(args.log, "a", encoding="utf-8") as log:
                for side, figures in zip("AB", runs[-1]):
                    log.write(json.dumps({"pair": number, "side": side, "figures": figures}) + "\n")
    if args.names:
        names = [tuple(pair.split("=", 1)) for pair in args.names.split(",")]
    else:
        names = [(name, name) for name in runs[0][1] if name in runs[0][0]]
    for name, a, b, ratio, worst in compare(runs, names):
        print(f"{name:<60} {a:>12.4g} {b:>12.4g}  {ratio:6.2f} (worst {worst:.2f})")


if __name__ == "__main__":
    main(sys.argv[1:])
