#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that are not ours ask a model server over HTTP: curl, promtool, Prometheus, prism.

outside_programs.py says what happens where one is absent."""

# covers: serving: curl asks a server: JSON, gzip both ways, chunks, Expect, pipelining, HEAD, HTTP
#   1.0, an offer of HTTP/2, unix sockets, TLS, certificates of clients
# covers: serving: promtool reads the page of metrics; Prometheus itself scrapes it and answers
#   queries about it
# covers: serving: prism, between a client and `/v2`, finds each request and reply as
#   `docs/open_inference_rest.yaml` says

import gzip
import json
import os
import re
import subprocess
import tempfile
import time
import unittest
import urllib.parse

from outside_programs import (BODY, HANG, NOT_FOUND, PREDICT, REPLY, TMP, Keys, Outside,
                              npm_program, program, read, run_on_port, socket_path, write)

METRICS = "/monitoring/prometheus/metrics"
V2_INPUTS = [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]},
             {"name": "w", "shape": [1], "datatype": "BYTES", "data": ["a"]}]


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
        self.assertIn("content-encoding: gzip", read(head).lower())

    def ask_large(self, *args):
        """100,000 rows; what curl tells of the conversation."""
        path = write(os.path.join(TMP, "large"), json.dumps({"instances": BODY["instances"] * 50000}))
        done = self.run_curl("--verbose", "--data-binary", "@" + path, *args, self.url())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), {"predictions": REPLY["predictions"] * 50000})
        return done.stderr

    def test_a_large_body_that_expects_100_continue(self):
        self.assertIn(b"< HTTP/1.1 100 Continue",
                      self.ask_large("-H", "Expect: 100-continue", "--expect100-timeout", str(HANG)))

    def test_a_large_body_in_chunks(self):
        self.ask_large("-H", "Transfer-Encoding: chunked", "-H", "Expect:")

    def test_one_connection_for_many_requests(self):
        urls = [self.url("/v1/models/m")] * 20
        out = self.curl("--write-out", "%{num_connects} %{http_code}\n",
                        *[arg for url in urls for arg in ("-o", os.devnull, url)])
        lines = out.decode().split("\n")[:-1]
        self.assertEqual(lines, ["1 200"] + ["0 200"] * 19)

    def test_many_connections_at_once(self):
        urls = [self.url("/v1/models/m")] * 100
        out = self.curl("--parallel", "--parallel-immediate", "--parallel-max", "50",
                        "--write-out", "%{http_code}\n",
                        *[arg for url in urls for arg in ("-o", os.devnull, url)])
        self.assertEqual(out.decode().split(), ["200"] * 100)

    def test_requests_that_wait_for_no_reply_are_answered_in_their_order(self):
        # curl sends what it reads, as it is.
        asked, paths = b"", ["/v1/models/m", "/v2/health/live", "/v1/models/n", "/v2"] * 5
        for i, path in enumerate(paths):
            close = "Connection: close\r\n" if i + 1 == len(paths) else ""
            asked += f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n".encode()
        replies = self.curl(f"telnet://localhost:{self.server.rest}", stdin=asked).decode()
        self.assertEqual(re.findall(r"HTTP/1\.1 (\d+)", replies), ["200", "200", "404", "200"] * 5)

    def test_head_and_errors(self):
        self.assertIn(b"200", self.curl("--head", self.url("/v2/health/ready")).split(b"\n")[0])
        error = json.loads(self.curl("-d", "{}", self.url("/v1/models/n:predict")))
        self.assertIn(NOT_FOUND, error["error"])

    def test_other_versions_of_http(self):
        for flag, version in (("--http1.0", "1.0"), ("--http2", "1.1")):  # 2 is offered, not taken
            done = self.curl(flag, "-d", json.dumps(BODY), "--write-out", "\n%{http_version}",
                             self.url()).decode()
            reply, got = done.rsplit("\n", 1)
            self.assertEqual(json.loads(reply), REPLY)
            self.assertIn(got, ("1.1", version))

    def test_v2(self):
        reply = json.loads(self.curl("-d", json.dumps({"inputs": V2_INPUTS}),
                                     self.url("/v2/models/m/infer")))
        self.assertEqual({out["name"]: out["data"] for out in reply["outputs"]},
                         {"y": [3.0, 6.0], "s": ["a"]})


class CurlOnUnixSocket(Outside):
    @classmethod
    def setUpClass(cls):
        cls.path = socket_path()
        cls.FLAGS = ["--rest_socket_path=" + cls.path]
        super().setUpClass()

    def test_one_connection_for_many_requests(self):
        replies = [os.path.join(TMP, f"reply{i}") for i in range(3)]
        out = self.curl("--unix-socket", self.path, "--write-out", "%{num_connects}\n", "-d",
                        json.dumps(BODY),
                        *[arg for reply in replies for arg in ("-o", reply, "http://localhost" + PREDICT)])
        self.assertEqual(out.decode().split(), ["1", "0", "0"])
        self.assertEqual([json.loads(read(reply)) for reply in replies], [REPLY] * 3)


class Tls(Outside):
    OF_CLIENTS = False

    @classmethod
    def setUpClass(cls):
        cls.keys = Keys()
        cls.FLAGS = ["--ssl_config_file=" + cls.keys.ssl_config(cls.OF_CLIENTS)]
        super().setUpClass()

    def ask(self, *args):
        return self.run_curl("-d", json.dumps(BODY), *args, self.url(scheme="https"))

    def assert_answers(self, *args):
        done = self.ask("--cacert", self.keys.ca, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), REPLY)

    @staticmethod
    def certificate(pair):
        return ["--key", pair[0], "--cert", pair[1]]


class CurlTls(Tls):

    def test_each_version(self):
        for version in ("1.2", "1.3"):
            self.assert_answers("--tlsv" + version, "--tls-max", version)

    def test_old_versions_are_refused(self):
        for version in ("1.0", "1.1"):
            done = self.ask("--cacert", self.keys.ca, "--tlsv" + version, "--tls-max", version,
                            "--ciphers", "DEFAULT@SECLEVEL=0")
            self.assertEqual(done.returncode, 35, done.stderr)  # "SSL connect error"

    def test_curl_trusts_no_other(self):
        self.assertEqual(self.ask().returncode, 60)  # its certificates do not say who this is

    def test_a_client_that_speaks_without_tls_gets_no_answer(self):
        self.assertNotEqual(self.run_curl(self.url("/v2/health/live")).returncode, 0)
        self.assert_answers()


class CurlTlsOfClients(Tls):
    OF_CLIENTS = True

    def test_a_client_with_a_certificate(self):
        for version in ("1.2", "1.3"):
            self.assert_answers("--tlsv" + version, "--tls-max", version,
                                *self.certificate(self.keys.client))

    def test_clients_without_and_of_strangers_get_no_answer(self):
        for args in ([], self.certificate(self.keys.stranger)):
            for version in ("1.2", "1.3"):
                # 403, or no reply at all.
                done = self.ask("--cacert", self.keys.ca, "--tlsv" + version, "--tls-max", version,
                                "--output", os.devnull, "--write-out", "%{http_code}", *args)
                self.assertIn(done.stdout, (b"403", b"000"), done.stderr)


class Prometheus(Outside):
    @classmethod
    def setUpClass(cls):
        config = write(os.path.join(TMP, "monitoring"), "prometheus_config { enable: true }")
        cls.FLAGS = ["--monitoring_config_file=" + config]
        super().setUpClass()
        cls.asked = 0

    def ask(self, count):
        for _ in range(count):
            self.curl("-d", json.dumps(BODY), self.url())
            Prometheus.asked += 1

    def test_promtool_reads_the_page(self):
        promtool = program("promtool")
        self.ask(1)
        page = self.curl(self.url(METRICS))
        self.assertIn(b":tensorflow:serving:request_count", page)
        checked = subprocess.run([promtool, "check", "metrics"], input=page, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, check=False)
        # 3: it could be read, and names are not as its advice has them: TensorFlow Serving's.
        self.assertIn(checked.returncode, (0, 3), checked.stdout)
        self.assertNotIn(b"error while linting", checked.stdout)

    def test_prometheus_scrapes_the_page(self):
        prometheus = program("prometheus")
        self.ask(7)
        folder = tempfile.mkdtemp(dir=TMP)
        config = write(os.path.join(folder, "prometheus.yml"), f"""
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: models
    metrics_path: {METRICS}
    static_configs:
      - targets: ["127.0.0.1:{self.server.rest}"]
""")
        scraper = run_on_port(
            lambda port: [prometheus, "--config.file=" + config, f"--storage.tsdb.path={folder}/data",
                          f"--web.listen-address=127.0.0.1:{port}"],
            lambda running, port: running.await_line("Server is ready to receive web requests"))
        try:
            self.assertEqual(self.await_value(scraper, 'up{job="models"}', 1), 1)
            count = ':tensorflow:serving:request_count{model_name="m",status="OK"}'
            self.assertEqual(self.await_value(scraper, count, self.asked), self.asked)
            self.ask(3)  # and the next scrape sees them
            self.assertEqual(self.await_value(scraper, count, self.asked), self.asked)
            median = ("histogram_quantile(0.5, sum by (le) "
                      '(:tensorflow:serving:request_latency_bucket{model_name="m"}))')
            self.assertGreater(self.query(scraper, median), 0)  # µs
            targets = json.loads(self.curl(f"http://127.0.0.1:{scraper.port}/api/v1/targets"))
            self.assertEqual([(target["health"], target["lastError"])
                              for target in targets["data"]["activeTargets"]], [("up", "")])
        finally:
            scraper.stop()

    def query(self, scraper, text):
        """The value of the one series; None without one."""
        reply = json.loads(self.curl(f"http://127.0.0.1:{scraper.port}/api/v1/query?query=" +
                                     urllib.parse.quote(text)))
        self.assertEqual(reply["status"], "success", reply)
        series = reply["data"]["result"]
        self.assertLessEqual(len(series), 1, reply)
        return float(series[0]["value"][1]) if series else None

    def await_value(self, scraper, text, wanted):
        end = time.monotonic() + HANG
        while True:
            value = self.query(scraper, text)
            if value == wanted or time.monotonic() > end:
                return value
            with scraper.changed:
                scraper.changed.wait(0.2)


class Prism(Outside):
    """A proxy that refuses requests and replies that are not as the description says."""
    DESCRIPTION = os.path.join("docs", "open_inference_rest.yaml")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.prism = cls.run_prism(cls.DESCRIPTION)
        except BaseException:
            super().tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.prism.stop()
        super().tearDownClass()

    @classmethod
    def run_prism(cls, description):
        prism = npm_program("prism")
        return run_on_port(
            lambda port: [prism, "proxy", description, f"http://127.0.0.1:{cls.server.rest}",
                          "--errors", "--host", "127.0.0.1", "--port", str(port)],
            lambda running, port: running.await_line("Prism is listening"))

    def ask(self, path, body=None, prism=None):
        """The status and the reply of the server, or of prism, which has a "type"."""
        data = [] if body is None else ["-H", "Content-Type: application/json", "-d",
                                        json.dumps(body)]
        out = self.curl(*data, "--write-out", "\n%{http_code}",
                        f"http://127.0.0.1:{(prism or self.prism).port}{path}").decode()
        reply, status = out.rsplit("\n", 1)
        return int(status), json.loads(reply)

    def test_the_server(self):
        for path, body in (("/v2/health/live", {"live": True}), ("/v2/health/ready", {"ready": True})):
            self.assertEqual(self.ask(path), (200, body))
        status, reply = self.ask("/v2")
        self.assertEqual((status, reply.get("name")), (200, "millrace"), reply)

    def test_a_model(self):
        for model in ("/v2/models/m", "/v2/models/m/versions/1"):
            status, reply = self.ask(model)
            self.assertEqual((status, reply.get("versions")), (200, ["1"]), reply)
            self.assertEqual([(tensor["name"], tensor["datatype"], tensor["shape"])
                              for tensor in reply["inputs"]],
                             [("w", "BYTES", [-1]), ("x", "FP32", [-1, 2])])
            self.assertEqual(self.ask(model + "/ready"), (200, {"name": "m", "ready": True}))
        for model in ("/v2/models/n", "/v2/models/n/ready"):
            self.assertEqual(self.ask(model), (404, {"error": NOT_FOUND}))
        self.assertEqual(self.ask("/v2/models/m/versions/9/ready"),
                         (404, {"error": "Servable not found for request: Specific(m, 9)"}))

    def test_inference(self):
        y = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3, 6]}
        s = {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["a"]}
        m = {"model_name": "m", "model_version": "1"}
        for model in ("/v2/models/m", "/v2/models/m/versions/1"):
            self.assertEqual(self.ask(model + "/infer", {"id": "7", "inputs": V2_INPUTS}),
                             (200, {**m, "id": "7", "outputs": [s, y]}))
        nested = [{**V2_INPUTS[0], "data": [[1, 2]]}, {**V2_INPUTS[1], "data": [{"b64": "YQ=="}]}]
        asked = {"parameters": {"signature_name": "serving_default"}, "inputs": nested,
                 "outputs": [{"name": "y"}]}
        self.assertEqual(self.ask("/v2/models/m/infer", asked), (200, {**m, "outputs": [y]}))

    def test_errors_of_inference(self):
        short = [{**V2_INPUTS[0], "shape": [1, 3]}, V2_INPUTS[1]]
        signature = {"parameters": {"signature_name": "none"}, "inputs": V2_INPUTS}
        for model, asked, status in (("n", {"inputs": V2_INPUTS}, 404), ("m", {"inputs": short}, 400),
                                     ("m", {"inputs": V2_INPUTS[:1]}, 400), ("m", signature, 400)):
            got, reply = self.ask(f"/v2/models/{model}/infer", asked)
            self.assertEqual((got, list(reply)), (status, ["error"]), reply)

    def test_prism_refuses_what_is_not_described(self):
        status, reply = self.ask("/v2/models/m/infer", {"id": "7"})
        self.assertEqual(status, 422, reply)
        self.assertIn("must have required property 'inputs'", json.dumps(reply))
        # And replies: the test above would see a wrong one.
        text = read(self.DESCRIPTION)
        described = "live: {type: boolean}"
        self.assertIn(described, text)
        other = self.run_prism(write(os.path.join(TMP, "other.yaml"),
                                     text.replace(described, "live: {type: string}")))
        try:
            status, reply = self.ask("/v2/health/live", prism=other)
        finally:
            other.stop()
        self.assertEqual(status, 500, reply)
        self.assertIn("errors#VIOLATIONS", reply["type"])


if __name__ == "__main__":
    unittest.main()
