#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that are not ours in front of a model server: curl, Python's gRPC, nginx, haproxy,
promtool. Each test is skipped, with the reason, where its program is absent; with OUTSIDE_ALL=1 it
fails there."""

# covers: serving: clients and proxies that are not ours ask a server: curl (JSON, gzip both ways,
#   Expect, HEAD, TLS), Python's gRPC with messages by protoc, nginx and haproxy with keep-alive,
#   promtool; each is skipped where its program is absent

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TMP = os.environ["TEST_TMPDIR"]
SERVER = os.path.join("tools", "model_server")
EXPORTER = os.path.join("tests", "serving", "export_scaling")
SCALE = 3
HANG = 120  # seconds
BODY = {"instances": [{"x": [1, 2], "w": "a"}, {"x": [3, 4], "w": "b"}]}
REPLY = {"predictions": [{"y": [3.0, 6.0], "s": "a"}, {"y": [9.0, 12.0], "s": "b"}]}
METRICS = "/monitoring/prometheus/metrics"


def missing(what):
    if os.environ.get("OUTSIDE_ALL") == "1":
        raise AssertionError(what)
    raise unittest.SkipTest(what)


def program(name):
    """The path of a program of the system; the test is skipped without it."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return path or missing(f"this machine has no {name}")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def with_imports(proto):
    """A .proto of ours and all that it needs of ours."""
    found, to_read = set(), [proto]
    while to_read:
        name = to_read.pop()
        if name in found:
            continue
        found.add(name)
        with open(name, encoding="utf-8") as file:
            to_read += re.findall(r'^import "(proto/[^"]*)"', file.read(), re.MULTILINE)
    return sorted(found)


class Running:
    """A program that is ended at the end, and its output."""

    def __init__(self, command):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.ended = False
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def await_line(self, text):
        """False when the program ends without it."""
        end = time.monotonic() + HANG
        with self.changed:
            while not any(text in line for line in self.lines):
                if self.ended or time.monotonic() > end:
                    return False
                self.changed.wait(1)
        return True

    def output(self):
        with self.changed:
            return "".join(self.lines)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def serve(*flags):
    """A server of the model "m", and its ports: another process may take one of them meanwhile."""
    for _ in range(5):
        grpc, rest = free_port(), free_port()
        server = Running([SERVER, "--model_name=m", "--model_base_path=" + os.path.join(TMP, "m"),
                          f"--port={grpc}", f"--rest_api_port={rest}", *flags])
        if server.await_line("Serves REST on port"):
            server.grpc, server.rest = grpc, rest
            return server
        server.stop()
        if "in use" not in server.output():
            break
    raise AssertionError(server.output())


def setUpModule():
    subprocess.run([EXPORTER, os.path.join(TMP, "m", "1"), str(SCALE)], check=True)


class Outside(unittest.TestCase):
    FLAGS = []

    @classmethod
    def setUpClass(cls):
        cls.server = serve(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def curl(self, *args):
        done = subprocess.run([program("curl"), "--silent", "--show-error", "--max-time", str(HANG),
                               *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def url(self, path="/v1/models/m:predict", scheme="http"):
        return f"{scheme}://localhost:{self.server.rest}{path}"


class Curl(Outside):

    def test_json(self):
        self.assertEqual(json.loads(self.curl("-d", json.dumps(BODY), self.url())), REPLY)

    def test_version_and_status(self):
        reply = self.curl("-d", json.dumps(BODY), self.url("/v1/models/m/versions/1:predict"))
        self.assertEqual(json.loads(reply), REPLY)
        status = json.loads(self.curl(self.url("/v1/models/m")))
        self.assertEqual(status["model_version_status"][0]["state"], "AVAILABLE")

    def test_gzip_both_ways(self):
        rows = {"instances": BODY["instances"] * 500}  # large enough for a reply by gzip
        path = os.path.join(TMP, "body.gz")
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(rows, file)
        head = os.path.join(TMP, "head")
        reply = self.curl("--compressed", "--dump-header", head, "-H", "Content-Encoding: gzip",
                          "-H", "Content-Type: application/json", "--data-binary", "@" + path,
                          self.url())
        self.assertEqual(json.loads(reply), {"predictions": REPLY["predictions"] * 500})
        with open(head, encoding="utf-8") as file:
            self.assertIn("content-encoding: gzip", file.read().lower())

    def test_a_large_body_that_expects_100_continue(self):
        rows = {"instances": BODY["instances"] * 50000}
        path = write(os.path.join(TMP, "large"), json.dumps(rows))
        reply = self.curl("-H", "Expect: 100-continue", "--data-binary", "@" + path, self.url())
        self.assertEqual(len(json.loads(reply)["predictions"]), 100000)

    def test_one_connection_for_many_requests(self):
        urls = [self.url("/v1/models/m")] * 20
        out = self.curl("--write-out", "%{num_connects} %{http_code}\n",
                        *[arg for url in urls for arg in ("-o", os.devnull, url)])
        lines = out.decode().split("\n")[:-1]
        self.assertEqual(lines, ["1 200"] + ["0 200"] * 19)

    def test_head_and_errors(self):
        self.assertIn(b"200", self.curl("--head", self.url("/v2/health/ready")).split(b"\n")[0])
        error = json.loads(self.curl("-d", "{}", self.url("/v1/models/n:predict")))
        self.assertIn("Servable not found for request: Latest(n)", error["error"])

    def test_v2(self):
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]},
                           {"name": "w", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
        reply = json.loads(self.curl("-d", json.dumps(body), self.url("/v2/models/m/infer")))
        self.assertEqual({out["name"]: out["data"] for out in reply["outputs"]},
                         {"y": [3.0, 6.0], "s": ["a"]})


class Tls(Outside):
    @classmethod
    def setUpClass(cls):
        key, cert = os.path.join(TMP, "key.pem"), os.path.join(TMP, "cert.pem")
        subprocess.run([program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", key, "-out", cert],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        with open(key, encoding="utf-8") as k, open(cert, encoding="utf-8") as c:
            text = f"server_key: {json.dumps(k.read())}\nserver_cert: {json.dumps(c.read())}\n"
        cls.cert = cert
        cls.FLAGS = ["--ssl_config_file=" + write(os.path.join(TMP, "ssl"), text)]
        super().setUpClass()

    def test_curl(self):
        reply = self.curl("--cacert", self.cert, "-d", json.dumps(BODY), self.url(scheme="https"))
        self.assertEqual(json.loads(reply), REPLY)

    def test_curl_trusts_no_other(self):
        done = subprocess.run([program("curl"), "--silent", self.url(scheme="https")],
                              stdout=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 60)  # "cannot be authenticated with known CA certificates"


class PythonGrpc(Outside):

    def test_predict_by_messages_of_protoc(self):
        try:
            import grpc
        except ImportError:
            missing("Python has no grpc")
        stubs = tempfile.mkdtemp(dir=TMP)
        subprocess.run([program("protoc"), "-I.", "--python_out=" + stubs,
                        *with_imports("proto/serving/predict.proto")], check=True)
        sys.path.insert(0, stubs)
        try:
            from proto.serving import predict_pb2
        except (ImportError, TypeError) as error:  # protoc and Python's protobuf do not fit
            missing(f"Python cannot read what protoc wrote: {error}")
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "m"
        x = request.inputs["x"]
        x.dtype = 1
        for size in (1, 2):
            x.tensor_shape.dim.add().size = size
        x.float_val.extend([1, 2])
        w = request.inputs["w"]
        w.dtype = 7
        w.tensor_shape.dim.add().size = 1
        w.string_val.append(b"a")
        with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc}") as channel:
            predict = channel.unary_unary(
                "/tensorflow.serving.PredictionService/Predict",
                request_serializer=predict_pb2.PredictRequest.SerializeToString,
                response_deserializer=predict_pb2.PredictResponse.FromString)
            response = predict(request, timeout=HANG)
            self.assertEqual(list(response.outputs["y"].float_val), [3, 6])
            self.assertEqual(response.model_spec.version.value, 1)
            request.model_spec.name = "n"
            with self.assertRaises(grpc.RpcError) as raised:
                predict(request, timeout=HANG)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)
            self.assertEqual(raised.exception.details(),
                             "Servable not found for request: Latest(n)")


class Proxies(Outside):
    """Many requests through a proxy that keeps its connections to the server."""

    def ask_through(self, port):
        end = time.monotonic() + HANG
        while True:  # until it listens
            done = subprocess.run([program("curl"), "--silent", "-d", json.dumps(BODY),
                                   f"http://127.0.0.1:{port}/v1/models/m:predict"],
                                  stdout=subprocess.PIPE, check=False)
            if done.returncode == 0 or time.monotonic() > end:
                break
        for _ in range(50):
            reply = self.curl("-d", json.dumps(BODY),
                              f"http://127.0.0.1:{port}/v1/models/m:predict")
            self.assertEqual(json.loads(reply), REPLY)

    def test_nginx(self):
        nginx, port = program("nginx"), free_port()
        folder = tempfile.mkdtemp(dir=TMP)
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n"
                            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = write(os.path.join(folder, "nginx.conf"), f"""
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  {temporary}
  upstream models {{ server 127.0.0.1:{self.server.rest}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://models;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
""")
        proxy = Running([nginx, "-p", folder, "-c", config])
        try:
            self.ask_through(port)
        finally:
            proxy.stop()

    def test_haproxy(self):
        haproxy, port = program("haproxy"), free_port()
        folder = tempfile.mkdtemp(dir=TMP)
        config = write(os.path.join(folder, "haproxy.cfg"), f"""
defaults
  mode http
  timeout connect 60s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:{port}
  default_backend models
backend models
  option httpchk GET /v2/health/ready
  server one 127.0.0.1:{self.server.rest} check
""")
        proxy = Running([haproxy, "-db", "-f", config])
        try:
            self.ask_through(port)
        finally:
            proxy.stop()


class Prometheus(Outside):
    @classmethod
    def setUpClass(cls):
        config = write(os.path.join(TMP, "monitoring"), "prometheus_config { enable: true }")
        cls.FLAGS = ["--monitoring_config_file=" + config]
        super().setUpClass()

    def test_promtool_reads_the_page(self):
        promtool = program("promtool")
        self.curl("-d", json.dumps(BODY), self.url())
        page = self.curl(self.url(METRICS))
        self.assertIn(b":tensorflow:serving:request_count", page)
        checked = subprocess.run([promtool, "check", "metrics"], input=page, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, check=False)
        # 3: it could be read, and names are not as its advice has them: TensorFlow Serving's.
        self.assertIn(checked.returncode, (0, 3), checked.stdout)
        self.assertNotIn(b"error while linting", checked.stdout)


if __name__ == "__main__":
    unittest.main()
