# SPDX-License-Identifier: Apache-2.0
"""Model servers for tests with programs that are not ours, and these programs.

A test is skipped, with the reason, where its program is absent; with OUTSIDE_ALL=1 it fails there.
Packages of npm are those of the folder $OUTSIDE_NPM_DIR (its node_modules); with OUTSIDE_ALL=1 alone
they are downloaded, never without. $OUTSIDE_BIN: where tools/model_server is, when not here.

  TEST_TMPDIR=DIR OUTSIDE_BIN=bazel-bin tests/serving/outside_clients_test.py [CLASS...]
  python3 tests/serving/outside_programs.py DIR    puts the packages of npm into DIR
"""

import atexit
import functools
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server_by_python import Running, free_port, write

TMP = os.environ.get("TEST_TMPDIR")
BIN = os.environ.get("OUTSIDE_BIN", "")
SERVER = os.path.join(BIN, "tools", "model_server")
EXPORTER = os.path.join(BIN, "tests", "serving", "export_scaling")
SCALE = 3
HANG = 120  # seconds: what takes longer will not end
BODY = {"instances": [{"x": [1, 2], "w": "a"}, {"x": [3, 4], "w": "b"}]}
REPLY = {"predictions": [{"y": [3.0, 6.0], "s": "a"}, {"y": [9.0, 12.0], "s": "b"}]}
PREDICT = "/v1/models/m:predict"
NOT_FOUND = "Servable not found for request: Latest(n)"

# Program, or Python's module -> Debian's package, where it has another name.
DEBIAN_PACKAGES = {
    "google.protobuf": "python3-protobuf",
    "grpc": "python3-grpcio",
    "nginx": "nginx-light",
    "node": "nodejs",
    "promtool": "prometheus",
    "protoc": "protobuf-compiler",
}

# They run on Debian's Node.js.
NPM_PACKAGES = {
    "@bufbuild/buf": "1.75.0",
    "@grpc/grpc-js": "1.14.7",
    "@grpc/proto-loader": "0.8.1",
    "@stoplight/prism-cli": "5.14.2",
}


# --- Programs.

def all_must_run():
    return os.environ.get("OUTSIDE_ALL") == "1"


def missing(what):
    if all_must_run():
        raise AssertionError(what)
    raise unittest.SkipTest(what)


def missing_program(name):
    package = DEBIAN_PACKAGES.get(name, name)
    return missing(f"this machine has no {name}; Debian's package {package} has it")


def program(name):
    """The path of a program of the system; the test is skipped without it."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return path or missing_program(name)


def install_npm_packages(folder):
    os.makedirs(folder, exist_ok=True)
    # Their scripts do nothing that is needed.
    subprocess.run([program("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund",
                    "--no-save", "--no-update-notifier", "--loglevel=error", "--prefix", folder,
                    "--cache", os.path.join(folder, "cache"),
                    *[f"{name}@{version}" for name, version in NPM_PACKAGES.items()]],
                   check=True)


def node_modules():
    """The folder of npm's packages; the test is skipped without it."""
    folder = os.environ.get("OUTSIDE_NPM_DIR")
    if not folder:
        if not all_must_run():
            missing("OUTSIDE_NPM_DIR names no folder with packages of npm: " +
                    " ".join(sorted(NPM_PACKAGES)))
        folder = os.path.join(TMP, "npm")
        if not os.path.isdir(os.path.join(folder, "node_modules")):
            install_npm_packages(folder)
    return os.path.join(folder, "node_modules")


def npm_program(name):
    program("node")
    path = os.path.join(node_modules(), ".bin", name)
    return path if os.path.exists(path) else missing(f"{node_modules()} has no {name}")


@functools.lru_cache(None)
def python_messages(*protos):
    """The modules that protoc makes of our .proto files, as Python's clients have them."""
    stubs = tempfile.mkdtemp(dir=TMP)
    files = sorted(set().union(*[with_imports(proto) for proto in protos]))
    subprocess.run([program("protoc"), "-I.", "--python_out=" + stubs, *files], check=True)
    sys.path.insert(0, stubs)
    try:
        return [__import__(proto[:-len(".proto")].replace("/", ".") + "_pb2", fromlist=["x"])
                for proto in protos]
    except (ImportError, TypeError) as error:  # protoc and Python's protobuf do not fit
        return missing(f"Python cannot read what protoc wrote: {error}")


def python_grpc():
    if "/usr/lib/python3/dist-packages" not in sys.path:
        # Debian's packages fit another Python of the same version.
        sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import grpc
        import google.protobuf.message  # noqa: F401
    except ImportError as error:
        module = error.name or "grpc"
        return missing_program(module if module in DEBIAN_PACKAGES else "grpc")
    return grpc


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
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def run_on_port(command_of, is_ready):
    """Runs command_of(port): another process may take the port meanwhile."""
    for _ in range(5):
        port = free_port()
        running = Running(command_of(port))
        if is_ready(running, port):
            running.port = port
            return running
        running.stop()
        if "in use" not in running.output():
            break
    raise AssertionError(running.output())


# --- Our server.

def export(name="m", version=1, scale=SCALE):
    folder = os.path.join(TMP, name, str(version))
    if not os.path.isdir(folder):
        subprocess.run([EXPORTER, folder, str(scale)], check=True)


def serve_on(grpc, rest, *flags):
    export()
    server = Running([SERVER, "--model_name=m", "--model_base_path=" + os.path.join(TMP, "m"),
                      f"--port={grpc}", f"--rest_api_port={rest}", *flags])
    server.grpc, server.rest = grpc, rest
    return server


def serve(*flags):
    """A server of the model "m", and its ports: another process may take one of them meanwhile."""
    for _ in range(5):
        server = serve_on(free_port(), free_port(), *flags)
        if server.await_line("Serves REST on port"):
            return server
        server.stop()
        if "in use" not in server.output():
            break
    raise AssertionError(server.output())


def socket_path():
    """Of a unix socket: short, as the system wants it."""
    folder = tempfile.mkdtemp(dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "s")


class Keys:
    """Keys and certificates by openssl: a server's, its clients' and a stranger's."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(dir=TMP)
        self._authority("ca")
        self._authority("other")
        self.server = self._signed("server", "ca")
        self.client = self._signed("client", "ca")
        self.stranger = self._signed("stranger", "other")
        self.ca = self._path("ca.pem")

    def ssl_config(self, of_clients):
        """An SSLConfig; with of_clients each client needs a certificate."""
        key, cert = self.server
        text = f"server_key: {json.dumps(read(key))}\nserver_cert: {json.dumps(read(cert))}\n"
        if of_clients:
            text += f"custom_ca: {json.dumps(read(self.ca))}\nclient_verify: true\n"
        return write(self._path("ssl"), text)

    def _path(self, name):
        return os.path.join(self.folder, name)

    @staticmethod
    def _openssl(*args):
        subprocess.run([program("openssl"), *args], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=True)

    def _authority(self, name):
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                      "-nodes", "-days", "2", "-subj", "/CN=" + name, "-keyout",
                      self._path(name + ".key"), "-out", self._path(name + ".pem"))

    def _signed(self, name, by):
        key, asked, cert = [self._path(name + end) for end in (".key", ".csr", ".pem")]
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                      "-subj", "/CN=" + name, "-keyout", key, "-out", asked)
        names = write(self._path(name + ".ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._openssl("x509", "-req", "-days", "2", "-in", asked, "-CA", self._path(by + ".pem"),
                      "-CAkey", self._path(by + ".key"), "-CAcreateserial", "-extfile", names,
                      "-out", cert)
        return key, cert


class Outside(unittest.TestCase):
    """Tests with one server, of FLAGS."""
    FLAGS = []

    @classmethod
    def setUpClass(cls):
        cls.server = serve(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def run_curl(self, *args, stdin=None):
        return subprocess.run([program("curl"), "--silent", "--show-error", "--max-time", str(HANG),
                               *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False)

    def curl(self, *args, stdin=None):
        done = self.run_curl(*args, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def url(self, path=PREDICT, scheme="http"):
        return f"{scheme}://localhost:{self.server.rest}{path}"


def is_reply(text):
    try:
        return json.loads(text) == REPLY
    except ValueError:
        return False


class Asking:
    """Threads that ask for predictions without a pause, each over a connection that it keeps."""

    def __init__(self, port, threads=4):
        self.port = port
        self.changed = threading.Condition()
        self.right, self.others = 0, []  # what else came: (status or 0, body or error)
        self.stopped = False
        self.threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def await_right(self, more):
        """Until so many more right replies have come."""
        end = time.monotonic() + HANG
        with self.changed:
            goal = self.right + more
            while self.right < goal and time.monotonic() < end:
                self.changed.wait(1)
            return self.right >= goal

    def stop(self):
        """All replies but the right ones."""
        with self.changed:
            self.stopped = True
        for thread in self.threads:
            thread.join()
        return self.others

    def _ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        while True:
            with self.changed:
                if self.stopped:
                    break
            try:
                connection.request("POST", PREDICT, json.dumps(BODY),
                                   {"Content-Type": "application/json"})
                reply = connection.getresponse()
                status, text = reply.status, reply.read().decode()
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # it is opened again
                status, text = 0, repr(error)
            with self.changed:
                if status == 200 and is_reply(text):
                    self.right += 1
                else:
                    self.others.append((status, text))
                self.changed.notify_all()
        connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    install_npm_packages(sys.argv[1])
