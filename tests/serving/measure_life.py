#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the life of a model server's process: start, latency at 70 % load, a swap of a large
version under that load, memory after loads and unloads, memory of idle connections.

  bazel build -c opt //tools:model_server //tests/serving:predict_load //tests/serving:export_scaling
  tests/serving/measure_life.py [--only NAME,...] [--rounds 5] [--minutes 5] [--loads 100]

NAMES: start, load, swap, memory, idle. One line of JSON per figure.
"""
import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREDICT = "/tensorflow.serving.PredictionService/Predict"
BODY = json.dumps({"instances": [{"x": [1, 2], "w": "a"}]})
REQUEST = """model_spec { name: "m" }
inputs { key: "x" value { dtype: DT_FLOAT tensor_shape { dim { size: 1 } dim { size: 2 } } float_val: [1, 2] } }
inputs { key: "w" value { dtype: DT_STRING tensor_shape { dim { size: 1 } } string_val: "a" } }"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def memory(pid, key):
    """VmRSS or VmHWM, in MiB."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    return 0


def note(what, **values):
    print(json.dumps({"what": what, **values}), flush=True)


class Life:
    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp()
        self.servers = []
        self.request = os.path.join(self.dir, "request")
        with open(self.request, "wb") as file:
            file.write(subprocess.run(
                ["protoc", f"-I{ROOT}", "--encode=tensorflow.serving.PredictRequest",
                 os.path.join(ROOT, "proto/serving/predict.proto")],
                input=REQUEST.encode(), stdout=subprocess.PIPE, check=True).stdout)

    def close(self):
        for server in self.servers:
            server.send_signal(signal.SIGKILL)
            server.wait()
        shutil.rmtree(self.dir)

    def export(self, path, scale, *more):
        subprocess.run([self.args.export_scaling, path, str(scale), *more], check=True)
        return path

    def serve(self, base, *more):
        """The server and its ports, when it has answered, and how long that took."""
        grpc, rest = free_port(), free_port()
        began = time.monotonic()
        server = subprocess.Popen(
            [self.args.model_server, f"--port={grpc}", f"--rest_api_port={rest}", "--model_name=m",
             f"--model_base_path={base}", "--trust_new_versions", *more],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.servers.append(server)
        while not self.ask(rest):
            if server.poll() is not None:
                raise SystemExit("the server has ended")
            time.sleep(0.001)
        return server, grpc, rest, time.monotonic() - began

    def ask(self, rest):
        """What the model gives; None: no answer yet."""
        connection = http.client.HTTPConnection("127.0.0.1", rest, timeout=60)
        try:
            connection.request("POST", "/v1/models/m:predict", BODY)
            reply = connection.getresponse()
            text = reply.read()
            return json.loads(text)["predictions"][0]["y"] if reply.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()

    def end(self, server):
        server.send_signal(signal.SIGTERM)
        server.wait()
        self.servers.remove(server)

    def load(self, grpc, clients, seconds, *flags):
        run = subprocess.run(
            [self.args.predict_load, *flags, f"127.0.0.1:{grpc}", PREDICT, self.request,
             str(clients), str(seconds)], stdout=subprocess.PIPE, check=False)
        return json.loads(run.stdout)

    def start(self):
        for name, more in (("10 MB of variables", ["10"]), ("10 MB, frozen", ["10", "frozen"]),
                           ("400 MB of variables", ["400"]), ("400 MB, frozen", ["400", "frozen"])):
            base = os.path.join(self.dir, name.replace(" ", "_"))
            self.export(os.path.join(base, "1"), 1, *more)
            seconds, peaks = [], []
            for _ in range(self.args.rounds):
                server, _, _, took = self.serve(base)
                seconds.append(took)
                peaks.append(memory(server.pid, "VmHWM"))
                rss = memory(server.pid, "VmRSS")
                self.end(server)
            note(f"start to first answer, {name}", ms=round(1000 * statistics.median(seconds)),
                 all_ms=[round(1000 * s) for s in seconds], peak_mib=round(statistics.median(peaks)),
                 rss_mib=round(rss))
            shutil.rmtree(base)

    def peak(self, grpc):
        return statistics.median(self.load(grpc, 8, 2)["requests_per_s"] for _ in range(3))

    def p99_at_70(self):
        base = os.path.join(self.dir, "load")
        self.export(os.path.join(base, "1"), 1)
        server, grpc, _, _ = self.serve(base)
        peak = self.peak(grpc)
        out = self.load(grpc, 8, 60 * self.args.minutes, f"--rate={0.7 * peak}", "--slice_seconds=10")
        slices = out.pop("p99_us_by_slice")
        note("8 clients at 70 % of their peak", peak=peak, minutes=self.args.minutes,
             worst_slice_p99_us=max(slices), **out)
        self.end(server)

    def swap(self):
        base = os.path.join(self.dir, "swap")
        self.export(os.path.join(base, "1"), 1, "400")
        self.export(os.path.join(self.dir, "next"), 2, "400")
        server, grpc, rest, _ = self.serve(base, "--file_system_poll_wait_seconds=1")
        rate = 0.7 * self.peak(grpc)
        seconds = 30
        load = subprocess.Popen(
            [self.args.predict_load, f"--rate={rate}", "--slice_seconds=1", f"127.0.0.1:{grpc}",
             PREDICT, self.request, "8", str(seconds)], stdout=subprocess.PIPE)
        time.sleep(1 + seconds / 2)
        os.rename(os.path.join(self.dir, "next"), os.path.join(base, "2"))
        while self.ask(rest) != [2.0, 4.0]:
            time.sleep(0.2)
        out = json.loads(load.communicate()[0])
        slices = out.pop("p99_us_by_slice")
        half = seconds // 2
        note("swap of 400 MB under 70 % load", rate=round(rate), failed=out["failed"],
             p99_before_us=statistics.median(slices[:half]),
             p99_during_us=statistics.median(slices[half:half + 5]),
             worst_us=max(slices[half:]), slices=[round(s) for s in slices])
        self.end(server)
        shutil.rmtree(base)

    def memory(self):
        base = os.path.join(self.dir, "memory")
        self.export(os.path.join(base, "1"), 1)
        large = self.export(os.path.join(self.dir, "large"), 2, "400")
        server, _, rest, _ = self.serve(base, "--file_system_poll_wait_seconds=0.1")
        before = memory(server.pid, "VmRSS")
        for _ in range(self.args.loads):
            for source, target, y in ((large, os.path.join(base, "2"), [2.0, 4.0]),
                                      (os.path.join(base, "2"), large, [1.0, 2.0])):
                os.rename(source, target)
                while self.ask(rest) != y:
                    time.sleep(0.02)
        time.sleep(3)
        note("load and unload of 400 MB", loads=self.args.loads, before_mib=round(before, 1),
             after_mib=round(memory(server.pid, "VmRSS"), 1),
             peak_mib=round(memory(server.pid, "VmHWM")))
        self.end(server)
        shutil.rmtree(base)

    def idle(self):
        base = os.path.join(self.dir, "idle")
        self.export(os.path.join(base, "1"), 1)
        server, _, rest, _ = self.serve(base)
        before = memory(server.pid, "VmRSS")
        sockets = [socket.create_connection(("127.0.0.1", rest)) for _ in range(1000)]
        for one in sockets:
            one.sendall(b"GET /v1/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
        for one in sockets:
            one.recv(65536)
        note("idle connections", number=1000,
             kib_each=round((memory(server.pid, "VmRSS") - before) * 1024 / 1000, 1))
        for one in sockets:
            one.close()
        self.end(server)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, folder in (("model_server", "tools"), ("predict_load", "tests/serving"),
                         ("export_scaling", "tests/serving")):
        parser.add_argument(f"--{name}", default=os.path.join(ROOT, "bazel-bin", folder, name))
    parser.add_argument("--only", default="start,load,swap,memory,idle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--loads", type=int, default=100)
    args = parser.parse_args()
    life = Life(args)
    figures = {"start": life.start, "load": life.p99_at_70, "swap": life.swap,
               "memory": life.memory, "idle": life.idle}
    try:
        for name in args.only.split(","):
            if name not in figures:
                raise SystemExit(f"measure_life.py: --only must name some of {list(figures)}, got {name}")
            figures[name]()
    finally:
        life.close()


if __name__ == "__main__":
    sys.exit(main())
