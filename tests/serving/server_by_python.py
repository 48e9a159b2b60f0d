# SPDX-License-Identifier: Apache-2.0
"""For the Python tests of this folder: programs that run, model servers, HTTP, small models.

Server() runs tools/model_server on free ports and has started when they are open; Front() runs
tools/front. ask() sends one HTTP request. Graph writes a SavedModel as text: placeholders,
constants, Identity, Mul and ParseExample, without variables.

Whoever starts a program ends it with stop(). What takes longer than HANG hangs.
"""

import atexit
import http.client
import os
import socket
import subprocess
import threading
import time

HANG = 120  # seconds
SERVER = os.path.join("tools", "model_server")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def await_that(condition, what):
    """Asks until the condition gives something, which it returns."""
    end = time.monotonic() + HANG
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.02)  # leaves the machine to what is waited for


class Running:
    """A program, and its output."""

    def __init__(self, command, env=None):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace",
                                        env=env)
        self.ended = False
        # A test that is skipped, or fails, leaves programs behind: they end with it.
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        atexit.register(self.process.kill)

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

    def await_listener(self, port):
        """The same until somebody listens."""
        end = time.monotonic() + HANG
        while True:
            with self.changed:
                if self.ended or time.monotonic() > end:
                    return False
                self.changed.wait(0.02)
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return True

    def output(self):
        with self.changed:
            return "".join(self.lines)

    def wait(self):
        """The exit code of a program that ends by itself."""
        code = self.process.wait(HANG)
        self.reader.join()
        self.process.stdout.close()
        return code

    def terminate(self):
        self.process.terminate()
        return self.wait()

    def stop(self):
        self.process.kill()
        self.wait()


class Reply:

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class UnixConnection(http.client.HTTPConnection):

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Client:
    """One connection to a port, or to a unix socket; one thread's."""

    def __init__(self, address):
        self.connection = (UnixConnection(address, HANG) if isinstance(address, str) else
                           http.client.HTTPConnection("127.0.0.1", address, timeout=HANG))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def ask(self, method, path, body=b"", headers=()):
        """Exactly these headers, and those that HTTP cannot do without."""
        if isinstance(body, str):
            body = body.encode()
        one = self.connection
        one.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            one.putheader(name, value)
        if body or method in ("POST", "PUT"):
            one.putheader("Content-Length", str(len(body)))
        one.endheaders(body)
        response = one.getresponse()
        return Reply(response.status, response.getheaders(), response.read())


def ask(address, method, path, body=b"", headers=()):
    with Client(address) as client:
        return client.ask(method, path, body, headers)


class Server:
    """A model server: its ports are .rest and .grpc. Another process may take one of them
    meanwhile: then it takes others."""

    def __init__(self, *flags):
        for _ in range(5):
            self.grpc, self.rest = free_port(), free_port()
            self.running = Running([SERVER, f"--port={self.grpc}", f"--rest_api_port={self.rest}",
                                    *flags])
            if self.running.await_line("Serves REST on port"):
                return
            self.running.stop()
            if "in use" not in self.running.output():
                break
        raise AssertionError(self.running.output())

    def ask(self, method, path, body=b"", headers=()):
        return ask(self.rest, method, path, body, headers)

    def output(self):
        return self.running.output()

    def stop(self):
        self.running.stop()


class Tensor:

    def __init__(self, name, dtype, shape):
        self.name, self.dtype, self.shape = name, dtype, shape


def shape_text(shape):
    """None: of unknown rank."""
    if shape is None:
        return "unknown_rank: true"
    return " ".join(f"dim {{ size: {size} }}" for size in shape)


FIELDS = {"DT_FLOAT": "float_val", "DT_DOUBLE": "double_val", "DT_INT32": "int_val",
          "DT_INT64": "int64_val", "DT_STRING": "string_val"}


class Graph:
    """The nodes and signatures of a model."""

    def __init__(self):
        self.nodes, self.signatures = [], []

    def node(self, name, op, inputs, attrs):
        lines = [f'input: "{one}"' for one in inputs]
        lines += [f'attr {{ key: "{key}" value {{ {value} }} }}' for key, value in attrs.items()]
        self.nodes.append(f'node {{ name: "{name}" op: "{op}" {" ".join(lines)} }}')

    def placeholder(self, name, dtype, shape=None):
        self.node(name, "Placeholder", [],
                  {"dtype": f"type: {dtype}", "shape": f"shape {{ {shape_text(shape)} }}"})
        return Tensor(name + ":0", dtype, shape)

    def constant(self, name, dtype, shape, values):
        text = " ".join(f"{FIELDS[dtype]}: {value}" for value in values)
        self.node(name, "Const", [], {
            "dtype": f"type: {dtype}",
            "value": f"tensor {{ dtype: {dtype} tensor_shape {{ {shape_text(shape)} }} {text} }}"})
        return Tensor(name + ":0", dtype, shape)

    def identity(self, name, one):
        self.node(name, "Identity", [one.name], {"T": f"type: {one.dtype}"})
        return Tensor(name + ":0", one.dtype, one.shape)

    def mul(self, name, one, other):
        self.node(name, "Mul", [one.name, other.name], {"T": f"type: {one.dtype}"})
        return Tensor(name + ":0", one.dtype, one.shape)

    def parse_example(self, name, serialized, features):
        """`features`: name to (dtype, size); each example has them all."""
        keys, defaults = [], []
        for i, (key, (dtype, _)) in enumerate(features.items()):
            keys.append(self.constant(f"{name}/key{i}", "DT_STRING", [], [f'"{key}"']).name)
            defaults.append(self.constant(f"{name}/default{i}", dtype, [0], []).name)
        names = self.constant(f"{name}/names", "DT_STRING", [0], [])
        dtypes = " ".join(f"type: {dtype}" for dtype, _ in features.values())
        shapes = " ".join(f"shape {{ dim {{ size: {size} }} }}" for _, size in features.values())
        self.node(name, "ParseExample", [serialized.name, names.name, *keys, *defaults], {
            "Nsparse": "i: 0", "Ndense": f"i: {len(features)}", "sparse_types": "list { }",
            "Tdense": f"list {{ {dtypes} }}", "dense_shapes": f"list {{ {shapes} }}"})
        return {key: Tensor(f"{name}:{i}", dtype, [-1, size])
                for i, (key, (dtype, size)) in enumerate(features.items())}

    def sign(self, key, inputs, outputs, method="predict"):
        lines = []
        for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
            for alias, one in tensors.items():
                lines.append(f'{kind} {{ key: "{alias}" value {{ name: "{one.name}" dtype: '
                             f'{one.dtype} tensor_shape {{ {shape_text(one.shape)} }} }} }}')
        self.signatures.append(f'signature_def {{ key: "{key}" value {{ {" ".join(lines)} '
                               f'method_name: "tensorflow/serving/{method}" }} }}')

    def write(self, directory):
        lines = ["saved_model_schema_version: 1", "meta_graphs {",
                 '  meta_info_def { tags: "serve" }', "  graph_def {",
                 *("    " + node for node in self.nodes), "  }",
                 *("  " + signature for signature in self.signatures), "}", ""]
        write(os.path.join(directory, "saved_model.pbtxt"), "\n".join(lines))
