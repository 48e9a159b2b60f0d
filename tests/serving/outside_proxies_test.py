#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nginx and haproxy, which are not ours, in front of model servers.

outside_programs.py says what happens where one is absent."""

# covers: serving: nginx and haproxy in front, with connections that they keep: many requests, large
#   bodies, a unix socket, gRPC; a server that is killed or stopped and comes back gives no wrong
#   answer; of two servers behind nginx each may end and come back, and no request fails

import csv
import json
import os
import tempfile
import unittest

from outside_programs import (BODY, HANG, NOT_FOUND, PREDICT, REPLY, TMP, Asking, Outside, program,
                              python_grpc, python_messages, run_on_port, serve, serve_on,
                              socket_path, write)


def run_nginx(upstream, location="proxy_pass http://models;", listen=""):
    """nginx in front of the addresses of `upstream`."""
    nginx, folder = program("nginx"), tempfile.mkdtemp(dir=TMP)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n"
                        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))

    def command(port):
        return [nginx, "-p", folder, "-c", write(os.path.join(folder, "nginx.conf"), f"""
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  {temporary}
  client_max_body_size 0;
  upstream models {{ {"".join(f"server {address} max_fails=0; " for address in upstream)} keepalive 4; }}
  server {{
    listen 127.0.0.1:{port} {listen};
    location / {{
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      {location}
    }}
  }}
}}
""")]

    return run_on_port(command, lambda running, port: running.await_listener(port))


def run_haproxy(backend, bind="", servers=(), options=""):
    haproxy, folder = program("haproxy"), tempfile.mkdtemp(dir=TMP)
    lines = "".join(f"  server s{i} {server}\n" for i, server in enumerate(servers))

    def command(port):
        return [haproxy, "-db", "-f", write(os.path.join(folder, "haproxy.cfg"), f"""
defaults
  mode http
  timeout connect 60s
  timeout client 120s
  timeout server 120s
frontend front
  bind 127.0.0.1:{port} {bind}
  default_backend models
backend models
{backend}{lines}{options}""")]

    return run_on_port(command, lambda running, port: running.await_listener(port))


CHECKS = "  option httpchk GET /v2/health/ready\n  default-server check inter 100ms fall 1 rise 1\n"
# As for a request that no server has seen: predictions may be asked for twice.
AGAIN = """  retries 20
  retry-on conn-failure empty-response response-timeout 503
  option redispatch 1
"""


class Http:
    """What each proxy must do; subclasses say how it runs in front of self.server."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.proxy = cls.run_proxy()
        except BaseException:
            super().tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.proxy.stop()
        super().tearDownClass()

    def through(self, path=PREDICT):
        return f"http://127.0.0.1:{self.proxy.port}{path}"

    def test_many_requests_over_few_connections(self):
        asking = Asking(self.proxy.port)
        self.assertTrue(asking.await_right(1000))
        self.assertEqual(asking.stop(), [])

    def test_large_bodies(self):
        path = write(os.path.join(TMP, "large"), json.dumps({"instances": BODY["instances"] * 50000}))
        for flags in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]):
            reply = json.loads(self.curl("--data-binary", "@" + path, *flags, self.through()))
            self.assertEqual(reply, {"predictions": REPLY["predictions"] * 50000})

    def test_gzip_passes(self):
        path = write(os.path.join(TMP, "rows"), json.dumps({"instances": BODY["instances"] * 500}))
        reply = json.loads(self.curl("--compressed", "-d", "@" + path, self.through()))
        self.assertEqual(reply, {"predictions": REPLY["predictions"] * 500})

    def test_errors_pass_as_they_are(self):
        out = self.curl("-d", json.dumps(BODY), "--write-out", "\n%{http_code}",
                        self.through("/v1/models/n:predict"))
        text, status = out.decode().rsplit("\n", 1)
        self.assertEqual((json.loads(text), status), ({"error": NOT_FOUND}, "404"))

    def test_a_client_that_leaves(self):
        # Its large request may be anywhere on the way.
        path = write(os.path.join(TMP, "left"), json.dumps({"instances": BODY["instances"] * 50000}))
        for ms in (5, 20, 50, 100):
            self.run_curl("--max-time", f"0.{ms:03}", "--data-binary", "@" + path, self.through())
        self.assertEqual(json.loads(self.curl("-d", json.dumps(BODY), self.through())), REPLY)

    def test_a_server_that_comes_back_gives_no_wrong_answer(self):
        asking = Asking(self.proxy.port)
        try:
            self.assertTrue(asking.await_right(100))
            for end in ("killed", "terminated"):
                if end == "terminated":
                    self.assertEqual(self.server.terminate(), 0, self.server.output())
                self.server.stop()
                type(self).server = serve_on(self.server.grpc, self.server.rest, *self.FLAGS)
                self.assertTrue(self.server.await_line("Serves REST on port"), self.server.output())
                self.assertTrue(asking.await_right(100))
        finally:
            others = asking.stop()
        # What the proxy says of a server that is not there (haproxy, of a connection that it kept:
        # nothing), and 503 of one that stops.
        self.assertEqual([other for other in others if other[0] not in (0, 502, 503, 504)], [])


class Nginx(Http, Outside):
    @classmethod
    def run_proxy(cls):
        return run_nginx([f"127.0.0.1:{cls.server.rest}"])


class NginxOnUnixSocket(Http, Outside):
    @classmethod
    def setUpClass(cls):
        cls.path = socket_path()
        cls.FLAGS = ["--rest_socket_path=" + cls.path]
        super().setUpClass()

    @classmethod
    def run_proxy(cls):
        return run_nginx(["unix:" + cls.path])


class Haproxy(Http, Outside):
    @classmethod
    def run_proxy(cls):
        return run_haproxy(CHECKS + "  stats uri /of_haproxy\n",
                           servers=[f"127.0.0.1:{cls.server.rest}"])

    def test_connections_are_kept(self):
        before = self.counts()
        asking = Asking(self.proxy.port)
        self.assertTrue(asking.await_right(1000))
        self.assertEqual(asking.stop(), [])
        made, reused = [now - then for now, then in zip(self.counts(), before)]
        self.assertLessEqual(made, 4)  # one for each thread that asks
        self.assertGreaterEqual(reused, 1000 - made)

    def counts(self):
        """Of connections to the server: made, and used again."""
        page = self.curl(self.through("/of_haproxy;csv")).decode()
        [row] = [row for row in csv.DictReader(page.splitlines()) if row["svname"] == "s0"]
        return int(row["connect"]), int(row["reuse"])


class HaproxyOnUnixSocket(Http, Outside):
    @classmethod
    def setUpClass(cls):
        cls.path = socket_path()
        cls.FLAGS = ["--rest_socket_path=" + cls.path]
        super().setUpClass()

    @classmethod
    def run_proxy(cls):
        return run_haproxy(CHECKS, servers=["unix@" + cls.path])


class OfTwo(unittest.TestCase):
    """One of two servers ends and comes back, then the other."""

    def exchange(self, run_proxy, sees, *flags):
        """All replies but the right ones. sees(proxy, i): it knows that server i is back."""
        servers = [serve(*flags), serve(*flags)]
        try:
            proxy = run_proxy([f"127.0.0.1:{server.rest}" for server in servers])
            try:
                asking = Asking(proxy.port)
                try:
                    self.assertTrue(asking.await_right(100))
                    for i, server in list(enumerate(servers)):
                        self.assertEqual(server.terminate(), 0, server.output())
                        self.assertTrue(asking.await_right(100))
                        server.stop()
                        servers[i] = serve_on(server.grpc, server.rest, *flags)
                        self.assertTrue(servers[i].await_line("Serves REST on port"),
                                        servers[i].output())
                        self.assertTrue(sees(proxy, i), proxy.output())
                        self.assertTrue(asking.await_right(100))
                finally:
                    others = asking.stop()
                return others
            finally:
                proxy.stop()
        finally:
            for server in servers:
                server.stop()

    def test_no_request_fails_behind_nginx(self):
        again = "proxy_next_upstream error timeout http_503 non_idempotent;"
        others = self.exchange(
            lambda addresses: run_nginx(addresses, again + " proxy_pass http://models;"),
            lambda proxy, i: True)  # it asks it each time
        self.assertEqual(others, [])

    def test_no_request_fails_behind_haproxy(self):
        # It hears by its checks that a server goes, and has the time of many of them to turn to the
        # other; connections that it kept then end in order.
        others = self.exchange(lambda addresses: run_haproxy(CHECKS + AGAIN, servers=addresses),
                               lambda proxy, i: proxy.await_line(f"models/s{i} is UP"),
                               "--not_ready_seconds=3")
        self.assertEqual(others, [])


class Grpc(Outside):
    """Python's gRPC through proxies that speak HTTP/2."""

    def ask_through(self, proxy):
        grpc = python_grpc()
        [messages] = python_messages("proto/serving/predict.proto")
        request = messages.PredictRequest()
        request.model_spec.name = "m"
        x = request.inputs["x"]
        x.dtype = 1  # DT_FLOAT
        for size in (1, 2):
            x.tensor_shape.dim.add().size = size
        x.float_val.extend([1, 2])
        w = request.inputs["w"]
        w.dtype = 7  # DT_STRING
        w.tensor_shape.dim.add().size = 1
        w.string_val.append(b"a")
        try:
            with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
                ask = channel.unary_unary(
                    "/tensorflow.serving.PredictionService/Predict",
                    request_serializer=messages.PredictRequest.SerializeToString,
                    response_deserializer=messages.PredictResponse.FromString)
                calls = [ask.future(request, timeout=HANG) for _ in range(200)]
                self.assertEqual([list(call.result().outputs["y"].float_val) for call in calls],
                                 [[3, 6]] * 200)
                request.model_spec.name = "n"
                with self.assertRaises(grpc.RpcError) as raised:
                    ask(request, timeout=HANG)
                self.assertEqual((raised.exception.code(), raised.exception.details()),
                                 (grpc.StatusCode.NOT_FOUND, NOT_FOUND))
        finally:
            proxy.stop()

    def test_nginx(self):
        self.ask_through(run_nginx([f"127.0.0.1:{self.server.grpc}"], "grpc_pass grpc://models;",
                                   "http2"))

    def test_haproxy(self):
        self.ask_through(run_haproxy("", "proto h2", [f"127.0.0.1:{self.server.grpc} proto h2"]))


if __name__ == "__main__":
    unittest.main()
