#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one machine for tests: sbatch, srun, scancel, squeue and scontrol, by the name it has.

A job is a folder <FAKE_SLURM>/<id> with `state` (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED) and
`tasks`, the process groups of its step. sbatch refuses every job while <FAKE_SLURM>/refuse is there;
a job stays PENDING while <FAKE_SLURM>/hold is there. Only the options are known that the script of
tools/slurm_job.cc uses.
"""

import os
import signal
import subprocess
import sys
import time

ROOT = os.environ["FAKE_SLURM"]


def place(job, name):
    return os.path.join(ROOT, str(job), name)


def read(job, name, otherwise=""):
    try:
        with open(place(job, name), encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return otherwise


def write(job, name, text):
    with open(place(job, name) + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(place(job, name) + ".new", place(job, name))


def options(script):
    """{"ntasks": "8"} of the lines of #SBATCH."""
    with open(script, encoding="utf-8") as file:
        lines = [line[8:].strip() for line in file if line.startswith("#SBATCH --")]
    return dict((line[2:].split("=", 1) + [""])[:2] for line in lines)


def run_job(job, script):
    """The life of a job in a process of its own: runs, and again when it is requeued."""
    while os.path.exists(os.path.join(ROOT, "hold")):
        if read(job, "state") == "CANCELLED":
            return
        time.sleep(0.02)
    given = options(script)
    restarts = 0
    while True:
        write(job, "state", "RUNNING")
        env = dict(os.environ, SLURM_JOB_ID=str(job), FAKE_NTASKS=given["ntasks"])
        if restarts:
            env["SLURM_RESTART_COUNT"] = str(restarts)
        with open(given["output"].strip('"'), "ab") as out:
            child = subprocess.Popen(["bash", script], env=env, stdout=out,
                                     stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        write(job, "batch", str(child.pid))
        code = child.wait()
        if read(job, "requeue"):
            os.remove(place(job, "requeue"))
            restarts += 1
            continue
        if read(job, "state") != "CANCELLED":
            write(job, "state", "FAILED" if code else "COMPLETED")
        return


def sbatch(args):
    script = args[-1]
    if os.path.exists(os.path.join(ROOT, "refuse")):
        sys.exit("sbatch: error: invalid partition specified: none")
    job = 1
    while True:
        try:
            os.mkdir(os.path.join(ROOT, str(job)))
            break
        except FileExistsError:
            job += 1
    write(job, "state", "PENDING")
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        run_job(job, script)
        os._exit(0)
    print(job)


def srun(args):
    job = os.environ["SLURM_JOB_ID"]
    ntasks = int(os.environ["FAKE_NTASKS"])
    output = None
    while args[0].startswith("--"):
        if args[0].startswith("--output="):
            output = args[0][9:]
        args = args[1:]
    children = []
    for rank in range(ntasks):
        env = dict(os.environ, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), SLURM_NODEID="0",
                   SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS=str(ntasks), SLURM_NTASKS=str(ntasks),
                   SLURM_STEP_NODELIST="localhost", SLURM_STEP_TASKS_PER_NODE=str(ntasks),
                   SLURM_JOB_NODELIST="localhost", SLURM_TASKS_PER_NODE=str(ntasks))
        with open(output.replace("%t", str(rank)), "ab") as out:
            children.append(subprocess.Popen(args, env=env, stdout=out, stderr=subprocess.STDOUT,
                                             stdin=subprocess.DEVNULL, start_new_session=True))
    write(job, "tasks", " ".join(str(child.pid) for child in children))
    codes = [child.wait() for child in children]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))


def kill_tasks(job, number):
    for pid in read(job, "tasks").split():
        try:
            os.killpg(int(pid), number)
        except ProcessLookupError:
            pass


def scancel(args):
    number = None
    full = False
    for arg in args[:-1]:
        if arg.startswith("--signal="):
            number = signal.Signals["SIG" + arg[9:]]
        full = full or arg == "--full"
    job = args[-1].split(".")[0]
    if not read(job, "state"):
        sys.exit("scancel: error: Invalid job id " + job)
    if number is None or full:
        write(job, "state", "CANCELLED")
        if read(job, "batch"):
            os.kill(int(read(job, "batch")), number or signal.SIGTERM)
    kill_tasks(job, number or signal.SIGTERM)


def squeue(args):
    job = args[args.index("--jobs") + 1]
    state = read(job, "state")
    if not state:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(state)


def scontrol(args):
    write(args[1], "requeue", "1")


if __name__ == "__main__":
    {"sbatch": sbatch, "srun": srun, "scancel": scancel, "squeue": squeue,
     "scontrol": scontrol}[os.path.basename(sys.argv[0])](sys.argv[1:])
