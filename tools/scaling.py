#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts the steps per second of asynchronous training on a cluster, and how many parameter
servers (ps) it can use.

    tools/scaling.py --workers=1000 --ps=100
    tools/scaling.py --workers=64 --step_us=20000 --variable_bytes=1e8 --tensors=40 --max_ps=64
    tools/scaling.py --shared_cores=2 --workers=3 --max_ps=2      # all tasks on this machine

The model and its assumptions are on docs/scaling.md, with what was checked and what was not. The
defaults are a census step over links: measured parts, on hosts that are assumed.

Printed: a row for some numbers of ps, then the job that was asked for, the number of ps that makes
most steps, and the fewest that come within 5 % of it. Columns: steps and examples per second of all
workers; what bounds them (workers, ps, network, or the one host); how busy the fullest ps is, or
the host; CPU of a step in all tasks; the time of a worker's step when it is alone, and its parts:
compute, the worker's messages, the ps, the network.
"""

import argparse
import dataclasses
import json
import math
import sys

import program

# Of what messages, tensors and bytes cost; the rest is the worker's.
PS_SHARE = 0.5
ENOUGH = 0.95
# Nearer than this to its bound, a rate does not change with more workers.
NEAR = 1 - 1e-6


@dataclasses.dataclass
class Flag:
    """A number: its default, its least and most, and what --help says."""
    default: float
    least: float
    most: float
    help: str


FLAGS = {
    "batch": Flag(40, 1, 1e9, "examples in a worker's step"),
    "step_us": Flag(133, 0.001, 1e12, "time of a step in one process, without its examples"),
    "example_us": Flag(1.3, 0, 1e9, "time of each example, likewise"),
    "threads": Flag(1, 1, 1024, "threads that share this time: its CPU is so many times as much"),
    "ps_part": Flag(0.1, 0, 1, "share of this time that is the ps': updates, look-ups"),
    "variable_bytes": Flag(75500, 0, 1e15, "variables that a step reads; as many bytes of gradients"),
    "example_bytes": Flag(140, 0, 1e9, "ids, rows and their gradients of an example, each way"),
    "tensors": Flag(27, 0, 1e6, "tensors of a step, both ways"),
    "largest": Flag(0, 0, 1, "share of the largest variable, or of its largest part, in all bytes"),
    "workers": Flag(1, 1, 10000, "workers, and the chief"),
    "ps": Flag(1, 1, 1000, "parameter servers"),
    "max_ps": Flag(100, 1, 1000, "the most parameter servers to look at"),
    "cores": Flag(8, 1, 1024, "cores of each ps"),
    "gbits": Flag(10, 0.001, 1e6, "network of each host, Gbit/s each way"),
    "latency_us": Flag(50, 0, 1e9, "one way between two hosts"),
    "shared_cores": Flag(0, 0, 1024, "cores that all tasks share on one host; 0: own hosts"),
    "messages": Flag(4, 0, 1e6, "messages between a worker and each ps in a step, both ways"),
    "trips": Flag(4, 0, 1e6, "messages in a row, each of which waits for the one before"),
    "message_us": Flag(230, 0, 1e9, "CPU of a message, both ends"),
    "tensor_us": Flag(4, 0, 1e9, "CPU of a tensor, both ends"),
    "byte_ns": Flag(0.7, 0, 1e6, "CPU of a byte, both ends"),
    "waited": Flag(0.77, 0, 1, "share of the CPU of messages that the step waits for"),
}
# Columns of times.
PRINTED_US = {"cpu us": "cpu_us", "step us": "step_us", "compute": "compute_us",
              "messages": "messages_us", "on ps": "ps_us", "network": "network_us"}
WHOLE = ("batch", "threads", "tensors", "workers", "ps", "max_ps", "cores", "shared_cores")


@dataclasses.dataclass
class Step:
    """A worker's step when it is alone, with some number of ps."""
    cpu_us: float  # of all tasks
    compute_us: float
    messages_us: float
    ps_us: float
    network_us: float
    # What it takes of each thing that workers share: name -> us.
    shared_us: dict

    @property
    def time_us(self):
        return self.compute_us + self.messages_us + self.ps_us + self.network_us


def step_of(job, ps):
    """The Step of a job, whose members are FLAGS."""
    share = max(1 / ps, job.largest)
    compute_us = job.step_us + job.batch * job.example_us
    bytes_each_way = job.variable_bytes + job.batch * job.example_bytes
    each_ps_us = job.messages * job.message_us
    moved_us = job.tensors * job.tensor_us + 2 * bytes_each_way * job.byte_ns / 1e3
    on_ps_us = job.ps_part * compute_us
    cpu_us = compute_us * job.threads + ps * each_ps_us + moved_us
    if job.shared_cores:
        return Step(cpu_us=cpu_us, compute_us=compute_us - on_ps_us,
                    messages_us=job.waited * (1 - PS_SHARE) * (ps * each_ps_us + moved_us),
                    ps_us=on_ps_us + job.waited * PS_SHARE * (ps * each_ps_us + moved_us),
                    network_us=0,
                    shared_us={"host": cpu_us / job.shared_cores})
    messages_of_ps_us = PS_SHARE * (each_ps_us + share * moved_us)
    way_us = bytes_each_way * 8 / (job.gbits * 1e3)
    return Step(cpu_us=cpu_us, compute_us=compute_us - on_ps_us,
                messages_us=job.waited * (1 - PS_SHARE) * (ps * each_ps_us + moved_us),
                ps_us=share * on_ps_us + job.waited * messages_of_ps_us,
                network_us=job.trips * job.latency_us + 2 * way_us,
                shared_us={"ps": (messages_of_ps_us + share * on_ps_us) / job.cores,
                           "network out": share * way_us, "network in": share * way_us})


def steps_per_second(workers, step):
    """Of all workers. What they share serves one at a time, who comes first; times of service
    differ as those of a Poisson process do (mean value analysis of a closed network)."""
    served_us = list(step.shared_us.values())
    own_us = max(0.0, step.time_us - sum(served_us))
    bound = 1 / max(served_us) if max(served_us) > 0 else math.inf
    waiting = [0.0] * len(served_us)  # how many, on average
    rate = 0.0
    for n in range(1, workers + 1):
        times_us = [us * (1 + others) for us, others in zip(served_us, waiting)]
        rate = n / (own_us + sum(times_us))
        waiting = [rate * us for us in times_us]
        if rate > NEAR * bound:
            break
    return rate * 1e6


def bounds(workers, step):
    """Name -> the steps per second that it would allow if nothing else were in the way."""
    found = {"workers": workers * 1e6 / step.time_us}
    for name, us in step.shared_us.items():
        name = name.split()[0]
        found[name] = 1e6 / us if us > 0 else math.inf
    return found


def row_of(job, ps):
    """What is printed of a number of ps."""
    step = step_of(job, ps)
    rate = steps_per_second(job.workers, step)
    limits = bounds(job.workers, step)
    shared = "host" if job.shared_cores else "ps"
    return {"ps": ps, "steps_per_second": rate, "examples_per_second": rate * job.batch,
            "bound_by": min(limits, key=limits.get), "busy": rate / limits[shared],
            "cpu_us": step.cpu_us,
            "step_us": step.time_us, "compute_us": step.compute_us,
            "messages_us": step.messages_us, "ps_us": step.ps_us, "network_us": step.network_us}


def best_of(rows):
    """The number of ps with most steps per second, and the fewest that come near to it."""
    best = max(rows, key=lambda row: (row["steps_per_second"], -row["ps"]))
    enough = next(row for row in rows
                  if row["steps_per_second"] >= ENOUGH * best["steps_per_second"])
    return best["ps"], enough["ps"]


def table(job, rows, shown):
    """Lines, of the numbers of ps in `shown`."""
    yield (f"{'ps':>4} {'steps/s':>10} {'examples/s':>12}  {'bound by':<8} {'busy':>4}"
           + "".join(f" {name:>9}" for name in PRINTED_US))
    for row in rows:
        if row["ps"] in shown:
            yield (f"{row['ps']:>4} {row['steps_per_second']:>10,.1f} "
                   f"{row['examples_per_second']:>12,.0f}  {row['bound_by']:<8} "
                   f"{row['busy']:>4.0%}"
                   + "".join(f" {row[key]:>9,.0f}" for key in PRINTED_US.values()))
    best, enough = best_of(rows)
    asked = rows[job.ps - 1]
    yield (f"{job.workers:,} workers, {job.ps} ps: {asked['steps_per_second']:,.1f} steps/s, "
           f"bound by {asked['bound_by']}")
    yield (f"best of 1 to {job.max_ps} ps: {best} "
           f"({rows[best - 1]['steps_per_second']:,.1f} steps/s); within 5 % of it: {enough} "
           f"({rows[enough - 1]['steps_per_second']:,.1f} steps/s)")


def number(name):
    """The reader of a flag's value."""
    flag = FLAGS[name]

    def read(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        is_legal = flag.least <= value <= flag.most  # which nan is not
        if not is_legal or (name in WHOLE and value != int(value)):
            what = "a whole number" if name in WHOLE else "a number"
            raise argparse.ArgumentTypeError(
                f"must be {what} from {flag.least:,g} to {flag.most:,g}, got '{text}'")
        return int(value) if name in WHOLE else value

    return read


def main():
    flags = program.Parser(__doc__)
    for name, flag in FLAGS.items():
        flags.add_argument(f"--{name}", metavar="N", type=number(name), default=flag.default,
                           help=f"{flag.help} ({flag.default:,g})")
    flags.add_argument("--json", action="store_true", help="print one object")
    job = flags.parse_args()
    if job.ps > job.max_ps:
        flags.error(f"argument --ps: must be at most --max_ps, {job.max_ps}, got {job.ps}")
    rows = [row_of(job, ps) for ps in range(1, job.max_ps + 1)]
    best, enough = best_of(rows)
    if job.json:
        print(json.dumps({**rows[job.ps - 1], "workers": job.workers, "best_ps": best,
                          "enough_ps": enough, "rows": rows}))
        return 0
    shown = {job.ps, best, enough, job.max_ps}
    shown |= {digit * 10**power for digit in (1, 2, 5) for power in range(4)}
    for line in table(job, rows, shown):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
