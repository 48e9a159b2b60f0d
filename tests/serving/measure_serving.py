#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a model server beside its peers, in turns, each as a process of its own.

  bazel build -c opt //tools:model_server //tests/serving:predict_load
  tests/serving/measure_serving.py --half DIR --census DIR --census_request FILE --times DIR
      [--grpc_bench FILE] [--rounds 5] [--seconds 3]

--half, --census, --times: base directories of half_plus_two, of the quickstart's export and of a
model with an input x of any number of floats (half_plus_two again). --census_request: the
bytes of a PredictRequest. --grpc_bench: the echo of ../shared/peers/cpp/grpc. REST needs wrk and
nginx. One line of JSON per run; at the end the medians.
"""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREDICT = "/tensorflow.serving.PredictionService/Predict"
ECHO = "/peer.Transport/Call"
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def await_port(port):
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nobody listens on port {port}")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def encoded(text):
    """The bytes of a PredictRequest in text form."""
    return subprocess.run(
        ["protoc", f"-I{ROOT}", "--encode=tensorflow.serving.PredictRequest",
         os.path.join(ROOT, "proto/serving/predict.proto")],
        input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def floats(name, alias, count):
    content = "\\000\\000\\200\\077" * count
    return encoded(f'model_spec {{ name: "{name}" }} inputs {{ key: "{alias}" value {{ dtype: DT_FLOAT '
                   f'tensor_shape {{ dim {{ size: {count} }} }} tensor_content: "{content}" }} }}')


class Measurement:
    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp()
        self.results = {}
        self.children = []

    def start(self, command, **more):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
        self.children.append(child)
        return child

    def end(self):
        for child in self.children:
            child.send_signal(signal.SIGKILL)

    def note(self, what, **values):
        values["what"] = what
        print(json.dumps(values), flush=True)
        self.results.setdefault(what, []).append(values)

    def load(self, what, pid, port, method, file, clients, echo=None):
        before = cpu_seconds(pid)
        command = [self.args.predict_load, f"127.0.0.1:{port}", method, file, str(clients),
                   str(self.args.seconds)] + ([str(echo)] if echo is not None else [])
        out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        used = cpu_seconds(pid) - before
        # The warm-up of a second costs, too.
        out["server_us"] = 1e6 * used / (out["requests_per_s"] * (self.args.seconds + 1))
        self.note(what, **out)
        return out

    def wrk(self, what, pid, url, connections, lua=None):
        before = cpu_seconds(pid)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{self.args.seconds}s", "--latency"]
        text = subprocess.run(command + (["-s", lua] if lua else []) + [url], text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        used = cpu_seconds(pid) - before
        rate = float(text.split("Requests/sec:")[1].split()[0])
        self.note(what, requests_per_s=rate, p99=text.split("99%")[1].split()[0],
                  server_us=1e6 * used / (rate * self.args.seconds),
                  refused="Non-2xx" in text)

    def run(self):
        args = self.args
        files = {"half": os.path.join(self.dir, "half"), "1MB": os.path.join(self.dir, "1MB"),
                 "census": args.census_request}
        with open(files["half"], "wb") as file:
            file.write(floats("half", "x", 1))
        with open(files["1MB"], "wb") as file:
            file.write(floats("times", "x", 1 << 18))
        config = os.path.join(self.dir, "models")
        with open(config, "w", encoding="utf-8") as file:
            models = "".join(
                f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}\n'
                for name, path in (("half", args.half), ("census", args.census), ("times", args.times)))
            file.write(f"model_config_list {{ {models} }}")
        grpc, rest, echo = free_port(), free_port(), free_port()
        server = self.start([args.model_server, f"--port={grpc}", f"--rest_api_port={rest}",
                             f"--model_config_file={config}", "--trust_new_versions"])
        await_port(grpc)
        await_port(rest)
        peer = None
        if args.grpc_bench:
            peer = self.start([args.grpc_bench, "server", str(echo), "generic"], stdin=subprocess.PIPE)
            await_port(echo)
        lua = os.path.join(self.dir, "post.lua")
        with open(lua, "w", encoding="utf-8") as file:
            file.write('wrk.method = "POST"\nwrk.body = \'{"instances": [1.0]}\'\n')
        nginx_port = free_port()
        nginx_config = os.path.join(self.dir, "nginx.conf")
        with open(nginx_config, "w", encoding="utf-8") as file:
            file.write(f"daemon off; master_process off; worker_processes 1; pid {self.dir}/pid;\n"
                       "error_log /dev/null; events { worker_connections 2048; }\n"
                       "http { access_log off; keepalive_requests 100000000; server { "
                       f"listen 127.0.0.1:{nginx_port}; location / {{ return 200 "
                       "'{\"predictions\": [2.5]}'; } } }\n")
        nginx = self.start(["nginx", "-c", nginx_config])
        await_port(nginx_port)
        url = f"http://127.0.0.1:{rest}/v1/models/half:predict"
        for _ in range(args.rounds):
            for model in ("half", "census", "1MB"):
                for clients in (1, 8, 64) if model != "1MB" else (1, 8):
                    out = self.load(f"grpc {model} {clients}", server.pid, grpc, PREDICT, files[model], clients)
                    if peer is not None:
                        self.load(f"echo {model} {clients}", peer.pid, echo, ECHO, files[model], clients,
                                  out["reply_bytes"])
            self.wrk("rest half 64", server.pid, url, 64, lua)
            self.wrk("nginx constant 64", nginx.pid, f"http://127.0.0.1:{nginx_port}/", 64, lua)
            self.wrk("rest half 8", server.pid, url, 8, lua)
            idle = [socket.create_connection(("127.0.0.1", rest)) for _ in range(1000)]
            for connection in idle:
                connection.sendall(b"GET /v1/models/half HTTP/1.1\r\nHost: a\r\n\r\n")
            for connection in idle:
                connection.recv(65536)
            self.wrk("rest half 8, 1000 idle", server.pid, url, 8, lua)
            for connection in idle:
                connection.close()
        for what, runs in self.results.items():
            rates = sorted(run["requests_per_s"] for run in runs)
            server_us = statistics.median(run["server_us"] for run in runs)
            p99 = runs[len(runs) // 2].get("p99_us", runs[len(runs) // 2].get("p99"))
            print(f"{what:28} {statistics.median(rates):10.0f} requests/s "
                  f"(worst {rates[0]:.0f}), {server_us:.0f} us of the server's CPU, p99 {p99}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model_server", default=os.path.join(ROOT, "bazel-bin/tools/model_server"))
    parser.add_argument("--predict_load", default=os.path.join(ROOT, "bazel-bin/tests/serving/predict_load"))
    for name in ("half", "census", "census_request", "times"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--grpc_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    measurement = Measurement(parser.parse_args())
    try:
        measurement.run()
    finally:
        measurement.end()


if __name__ == "__main__":
    sys.exit(main())
