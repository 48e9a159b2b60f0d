#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of gRPC that are not ours ask a model server: Python's, @grpc/grpc-js, buf curl.

outside_programs.py says what happens where one is absent."""

# covers: serving: Python's gRPC and @grpc/grpc-js, with messages of our .proto files, ask a server:
#   predictions, metadata, deadlines, codes and texts, large messages, gzip, health's watch, unix
#   sockets, TLS, certificates of clients
# covers: serving: `buf curl` knows the server by reflection alone, v1 and v1alpha: it lists, asks,
#   reads errors and the Any of a model's metadata

import json
import os
import subprocess
import tempfile
import threading
import unittest

from outside_programs import (HANG, NOT_FOUND, SCALE, TMP, Keys, Outside, Running, node_modules,
                              npm_program, program, python_grpc, python_messages, read, serve,
                              serve_on, socket_path, write)

NODE_CLIENT = os.path.join("tests", "serving", "outside_grpc_client.js")
PREDICT_METHOD = "/tensorflow.serving.PredictionService/Predict"
MESSAGES = ("proto/serving/predict.proto", "proto/serving/get_model_status.proto",
            "proto/health/health.proto")
# A batch of two rows, or of what is there 3 s after its first.
BATCHES_OF_TWO = """
max_batch_size { value: 2 }
batch_timeout_micros { value: 3000000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 2 }
"""


def batching_flags():
    return ["--enable_batching",
            "--batching_parameters_file=" + write(os.path.join(TMP, "batching"), BATCHES_OF_TWO)]


class Python:
    """Python's client with what protoc made of our .proto files."""

    def __init__(self, channel=None, address=None):
        self.grpc = python_grpc()
        self.predict_pb2, self.status_pb2, self.health_pb2 = python_messages(*MESSAGES)
        self.channel = channel or self.grpc.insecure_channel(address, self.options())

    @staticmethod
    def options():
        # Connections of its own; replies of any size.
        return [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def unary(self, path, request, response):
        return self.channel.unary_unary(path, request_serializer=request.SerializeToString,
                                        response_deserializer=response.FromString)

    def predict(self, request, timeout=HANG, **kwargs):
        ask = self.unary(PREDICT_METHOD, self.predict_pb2.PredictRequest,
                         self.predict_pb2.PredictResponse)
        return ask(request, timeout=timeout, **kwargs)

    def request(self, values=(1, 2), model="m"):
        """Rows of two values."""
        request = self.predict_pb2.PredictRequest()
        request.model_spec.name = model
        x = request.inputs["x"]
        x.dtype = 1  # DT_FLOAT
        for size in (len(values) // 2, 2):
            x.tensor_shape.dim.add().size = size
        x.float_val.extend(values)
        w = request.inputs["w"]
        w.dtype = 7  # DT_STRING
        w.tensor_shape.dim.add().size = 1
        w.string_val.append(b"a")
        return request

    def raised(self, call):
        """The code and the text of a call that fails."""
        try:
            reply = call()
        except self.grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"must fail, got {reply}")


class PythonGrpc(Outside):
    @classmethod
    def setUpClass(cls):
        cls.path = socket_path()
        cls.FLAGS = ["--grpc_socket_path=" + cls.path]
        super().setUpClass()

    def python(self):
        return Python(address=f"127.0.0.1:{self.server.grpc}")

    def test_predict(self):
        with self.python() as client:
            response = client.predict(client.request())
            self.assertEqual(list(response.outputs["y"].float_val), [3, 6])
            self.assertEqual(list(response.outputs["s"].string_val), [b"a"])
            self.assertEqual(response.model_spec.version.value, 1)
            self.assertEqual(response.model_spec.signature_name, "serving_default")

    def test_errors(self):
        with self.python() as client:
            codes = client.grpc.StatusCode
            self.assertEqual(client.raised(lambda: client.predict(client.request(model="n"))),
                             (codes.NOT_FOUND, NOT_FOUND))
            self.assertEqual(
                client.raised(lambda: client.predict(client.predict_pb2.PredictRequest())),
                (codes.INVALID_ARGUMENT, "Missing ModelSpec"))
            ask = client.unary("/tensorflow.serving.PredictionService/Guess",
                               client.predict_pb2.PredictRequest, client.predict_pb2.PredictResponse)
            self.assertEqual(client.raised(lambda: ask(client.request(), timeout=HANG))[0],
                             codes.UNIMPLEMENTED)

    def test_a_message_of_8_mb_each_way(self):
        values = [i % 1000 for i in range(2 << 20)]
        with self.python() as client:
            for compression in (client.grpc.Compression.NoCompression, client.grpc.Compression.Gzip):
                response = client.predict(client.request(values), compression=compression)
                self.assertEqual(list(response.outputs["y"].float_val), [SCALE * v for v in values])

    def test_many_calls_at_once(self):
        with self.python() as client:
            ask = client.unary(PREDICT_METHOD, client.predict_pb2.PredictRequest,
                               client.predict_pb2.PredictResponse)
            calls = [ask.future(client.request((i, -i)), timeout=HANG) for i in range(200)]
            self.assertEqual([list(call.result().outputs["y"].float_val) for call in calls],
                             [[SCALE * i, -SCALE * i] for i in range(200)])

    def test_a_call_that_its_client_ends(self):
        with self.python() as client:
            ask = client.unary(PREDICT_METHOD, client.predict_pb2.PredictRequest,
                               client.predict_pb2.PredictResponse)
            call = ask.future(client.request(), timeout=HANG)
            call.cancel()
            self.assertTrue(call.cancelled())
            self.assertEqual(list(client.predict(client.request()).outputs["y"].float_val), [3, 6])

    def test_status_of_the_model(self):
        with self.python() as client:
            request = client.status_pb2.GetModelStatusRequest()
            request.model_spec.name = "m"
            ask = client.unary("/tensorflow.serving.ModelService/GetModelStatus",
                               client.status_pb2.GetModelStatusRequest,
                               client.status_pb2.GetModelStatusResponse)
            [version] = ask(request, timeout=HANG).model_version_status
            self.assertEqual((version.version, version.state, version.status.error_message),
                             (1, client.status_pb2.ModelVersionStatus.AVAILABLE, ""))

    def test_unix_socket(self):
        with Python(address="unix:" + self.path) as client:
            self.assertEqual(list(client.predict(client.request()).outputs["y"].float_val), [3, 6])

    def test_a_client_that_waits_finds_a_server_again_that_was_killed(self):
        server = serve()
        with Python(address=f"127.0.0.1:{server.grpc}") as client:
            try:
                client.predict(client.request())
            finally:
                server.stop()
            code, _ = client.raised(lambda: client.predict(client.request()))
            self.assertEqual(code, client.grpc.StatusCode.UNAVAILABLE)
            server = serve_on(server.grpc, server.rest)
            try:
                self.assertTrue(server.await_line("Serves gRPC on port"), server.output())
                response = client.predict(client.request(), wait_for_ready=True)
                self.assertEqual(list(response.outputs["y"].float_val), [3, 6])
            finally:
                server.stop()


class PythonOfItsOwnServer(unittest.TestCase):

    def test_a_row_whose_client_gave_up_is_in_no_later_batch(self):
        server = serve(*batching_flags())
        try:
            with Python(address=f"127.0.0.1:{server.grpc}") as client:
                code, _ = client.raised(lambda: client.predict(client.request((7, 7)), timeout=0.3))
                # The client's own, or TensorFlow Serving's of a row that waits in a batch.
                self.assertIn(code, (client.grpc.StatusCode.DEADLINE_EXCEEDED,
                                     client.grpc.StatusCode.RESOURCE_EXHAUSTED))
                ask = client.unary(PREDICT_METHOD, client.predict_pb2.PredictRequest,
                                   client.predict_pb2.PredictResponse)
                calls = [ask.future(client.request(x), timeout=HANG) for x in ((1, 2), (3, 4))]
                self.assertEqual([list(call.result().outputs["y"].float_val) for call in calls],
                                 [[3, 6], [9, 12]])
        finally:
            server.stop()

    def test_a_watch_sees_the_end_of_the_server(self):
        server = serve()
        try:
            self.watch_until_the_end(server)
        finally:
            server.stop()

    def watch_until_the_end(self, server):
        with Python(address=f"127.0.0.1:{server.grpc}") as client:
            watch = client.channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=client.health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=client.health_pb2.HealthCheckResponse.FromString)
            seen, first = [], threading.Event()

            def read_all():
                try:
                    for reply in watch(client.health_pb2.HealthCheckRequest(service="m"),
                                       timeout=HANG):
                        seen.append(reply.status)
                        first.set()
                except client.grpc.RpcError as error:
                    seen.append(error.code())

            # A message that nobody waits for is lost when its call ends with an error.
            reader = threading.Thread(target=read_all)
            reader.start()
            self.assertTrue(first.wait(HANG))
            self.assertEqual(server.terminate(), 0, server.output())
            reader.join()
            values = client.health_pb2.HealthCheckResponse
            self.assertEqual(seen, [values.SERVING, values.NOT_SERVING,
                                    client.grpc.StatusCode.UNAVAILABLE])


class Secure(Outside):
    """TLS; each client shows a certificate."""
    @classmethod
    def setUpClass(cls):
        cls.keys = Keys()
        cls.FLAGS = ["--ssl_config_file=" + cls.keys.ssl_config(of_clients=True)]
        super().setUpClass()

    def test_python(self):
        grpc = python_grpc()

        def python(pair):
            key, certificate = [read(path).encode() for path in pair] if pair else (None, None)
            credentials = grpc.ssl_channel_credentials(read(self.keys.ca).encode(), key, certificate)
            return Python(grpc.secure_channel(f"localhost:{self.server.grpc}", credentials,
                                              Python.options()))

        with python(self.keys.client) as client:
            self.assertEqual(list(client.predict(client.request()).outputs["y"].float_val), [3, 6])
        for pair in (None, self.keys.stranger):
            with python(pair) as client:
                self.assertEqual(client.raised(lambda: client.predict(client.request()))[0],
                                 grpc.StatusCode.UNAVAILABLE)

    def test_node(self):
        [reply] = node(f"localhost:{self.server.grpc}", "predict", self.keys.ca, *self.keys.client)
        self.assertEqual(reply, {"name": "predict", "y": [3, 6]})
        [reply] = node(f"localhost:{self.server.grpc}", "predict", self.keys.ca, *self.keys.stranger)
        self.assertEqual(reply["code"], "UNAVAILABLE")

    def test_buf(self):
        key, certificate = self.keys.client
        done = buf(f"https://localhost:{self.server.grpc}{PREDICT_METHOD}", "--cacert", self.keys.ca,
                   "--key", key, "--cert", certificate, "-d", json.dumps(BUF_REQUEST))
        self.assertEqual(json.loads(done.stdout)["outputs"]["y"]["floatVal"], [3, 6], done.stderr)
        done = buf(f"https://localhost:{self.server.grpc}{PREDICT_METHOD}", "--cacert", self.keys.ca,
                   "-d", json.dumps(BUF_REQUEST))
        self.assertNotEqual(done.returncode, 0)


def node_command(*args):
    return ([program("node"), NODE_CLIENT, *args], {**os.environ, "NODE_PATH": node_modules()})


def node(*args):
    """The lines of outside_grpc_client.js."""
    command, env = node_command(*args)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=HANG, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


class Node(Outside):

    def test_calls(self):
        replies = node(f"127.0.0.1:{self.server.grpc}", "calls")
        got = {reply.pop("name"): reply for reply in replies}
        self.assertEqual(got["predict"], {"y": [3, 6]})
        self.assertEqual(got["metadata"], {"y": [3, 6]})
        self.assertEqual(got["past"]["code"], "DEADLINE_EXCEEDED")
        self.assertEqual(got["unknown"], {"code": "NOT_FOUND", "details": NOT_FOUND})
        self.assertEqual(got["no spec"], {"code": "INVALID_ARGUMENT", "details": "Missing ModelSpec"})
        self.assertEqual(got["signature"], {"code": "FAILED_PRECONDITION",
                                            "details": 'Serving signature key "none" not found.'})
        self.assertEqual(got["many"], {"right": 200})
        [version] = got["status"]["versions"]
        self.assertEqual((version["version"], version["state"]), ("1", "AVAILABLE"))
        self.assertEqual(got["infer"], {"y": [3, 6]})

    def test_a_row_whose_client_gave_up_is_in_no_later_batch(self):
        server = serve(*batching_flags())
        try:
            replies = node(f"127.0.0.1:{server.grpc}", "deadline")
        finally:
            server.stop()
        got = {reply.pop("name"): reply for reply in replies}
        # The client's own, or TensorFlow Serving's of a row that waits in a batch.
        self.assertIn(got.pop("short")["code"], ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"))
        self.assertEqual(got, {"first": {"y": [3, 6]}, "second": {"y": [9, 12]}})

    def test_unix_socket_and_a_watch_that_sees_the_end_of_the_server(self):
        path = socket_path()
        server = serve("--grpc_socket_path=" + path)
        try:
            self.assertEqual(node("unix:" + path, "predict"), [{"name": "predict", "y": [3, 6]}])
            watch = Running(*node_command("unix:" + path, "health"))
            try:
                self.assertTrue(watch.await_line('"SERVING"'), watch.output())
                self.assertEqual(server.terminate(), 0, server.output())
                self.assertTrue(watch.await_line('"NOT_SERVING"'), watch.output())
                self.assertTrue(watch.await_line('"end"'), watch.output())
            finally:
                watch.stop()
        finally:
            server.stop()


BUF_REQUEST = {
    "modelSpec": {"name": "m"},
    "inputs": {
        "x": {"dtype": "DT_FLOAT", "tensorShape": {"dim": [{"size": 1}, {"size": 2}]},
              "floatVal": [1, 2]},
        "w": {"dtype": "DT_STRING", "tensorShape": {"dim": [{"size": 1}]}, "stringVal": ["YQ=="]},
    },
}


def buf(url, *args):
    env = {**os.environ, "HOME": tempfile.mkdtemp(dir=TMP), "BUF_TIMEOUT": f"{HANG}s"}
    return subprocess.run([npm_program("buf"), "curl", "--protocol", "grpc", *args, url], env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * HANG,
                          check=False)


class Buf(Outside):
    """A client without our .proto files."""
    SERVICES = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection", "inference.GRPCInferenceService",
                "tensorflow.serving.ModelService", "tensorflow.serving.PredictionService"]

    def each_reflection(self, path, *args, data=None):
        """What buf prints, asked over both versions of reflection."""
        more = [] if data is None else ["-d", json.dumps(data)]
        replies = []
        for protocol in ("grpc-v1", "grpc-v1alpha"):
            done = buf(f"http://127.0.0.1:{self.server.grpc}{path}", "--reflect-protocol", protocol,
                       *args, *more)
            replies.append((done.returncode, done.stdout.decode(), done.stderr.decode()))
        self.assertEqual(replies[0], replies[1])
        return replies[0]

    def ask(self, path, data):
        code, out, error = self.each_reflection(path, data=data)
        self.assertEqual(code, 0, error)
        return json.loads(out)

    def test_lists(self):
        code, out, error = self.each_reflection("", "--list-services")
        self.assertEqual((code, out.split()), (0, self.SERVICES), error)
        code, out, error = self.each_reflection("", "--list-methods")
        self.assertEqual(code, 0, error)
        for method in ("inference.GRPCInferenceService/ModelInfer",
                       "tensorflow.serving.ModelService/GetModelStatus", PREDICT_METHOD[1:]):
            self.assertIn(method, out.split())

    def test_predict_and_infer(self):
        reply = self.ask(PREDICT_METHOD, BUF_REQUEST)
        self.assertEqual(reply["outputs"]["y"]["floatVal"], [3, 6])
        self.assertEqual(reply["modelSpec"],
                         {"name": "m", "version": "1", "signatureName": "serving_default"})
        reply = self.ask("/inference.GRPCInferenceService/ModelInfer", {
            "modelName": "m", "outputs": [{"name": "y"}],
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2],
                        "contents": {"fp32Contents": [1, 2]}},
                       {"name": "w", "datatype": "BYTES", "shape": [1],
                        "contents": {"bytesContents": ["YQ=="]}}]})
        self.assertEqual(reply["outputs"], [{"name": "y", "datatype": "FP32", "shape": ["1", "2"],
                                             "contents": {"fp32Contents": [3, 6]}}])

    def test_metadata_with_its_any(self):
        reply = self.ask("/tensorflow.serving.PredictionService/GetModelMetadata",
                         {"modelSpec": {"name": "m"}, "metadataField": ["signature_def"]})
        signatures = reply["metadata"]["signature_def"]
        self.assertEqual(signatures["@type"],
                         "type.googleapis.com/tensorflow.serving.SignatureDefMap")
        signature = signatures["signatureDef"]["serving_default"]
        self.assertEqual(sorted(signature["inputs"]), ["w", "x"])
        self.assertEqual(signature["inputs"]["x"]["dtype"], "DT_FLOAT")

    def test_health(self):
        for service in ("", "m", "tensorflow.serving.PredictionService"):
            self.assertEqual(self.ask("/grpc.health.v1.Health/Check", {"service": service}),
                             {"status": "SERVING"})
        code, _, error = self.each_reflection("/grpc.health.v1.Health/Check", data={"service": "n"})
        self.assertEqual((code >> 3, json.loads(error)["code"]), (5, "not_found"))

    def test_errors(self):
        code, _, error = self.each_reflection(PREDICT_METHOD, data={"modelSpec": {"name": "n"}})
        self.assertEqual((code >> 3, json.loads(error)), (5, {"code": "not_found",
                                                              "message": NOT_FOUND}))
        code, _, error = self.each_reflection("/tensorflow.serving.PredictionService/Guess", data={})
        self.assertNotEqual(code, 0)
        self.assertIn("Guess", error)

    def test_unix_socket(self):
        path = socket_path()
        server = serve("--grpc_socket_path=" + path)
        try:
            done = buf("http://localhost" + PREDICT_METHOD, "--unix-socket", path, "-d",
                       json.dumps(BUF_REQUEST))
        finally:
            server.stop()
        self.assertEqual(json.loads(done.stdout)["outputs"]["y"]["floatVal"], [3, 6], done.stderr)


if __name__ == "__main__":
    unittest.main()
