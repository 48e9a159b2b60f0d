#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scenarios of serving with real processes: a model server, batches, batch prediction and the
front. What they have in common with other tests is there: bad versions in bad_versions_test, swaps
under all fronts in swap_test, forms and errors in rest_goldens_test."""

# covers: scenario F14: a version that comes under 50 requests a second fails none and answers from
#   then on; old versions are deleted; policies latest, all, specific; labels move with a new list
#   of models, which also removes and adds models
# covers: scenario F15: (b) rows of files by a glob, locally and by a server; (c) 64 clients of one
#   row share batches and get their own rows, a full queue is 503, batches are padded to their sizes
# covers: scenario F16: a model with versions, the default moves, the first request after idle times
#   succeeds, the program predict names models and versions, load brings nodes up to the maximum,
#   idle versions have none or their minimum, the rules of deleting

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

sys.dont_write_bytecode = True  # next to the sources
sys.path.insert(0, os.path.join("tests", "serving"))
from server_by_python import (  # pylint: disable=wrong-import-position
    HANG, Client, Graph, Running, Server, ask, await_that, write)

TMP = os.environ["TEST_TMPDIR"]
PREDICT = os.path.join("tools", "predict")
BATCH_PREDICT = os.path.join("tools", "batch_predict")
FRONT = os.path.join("tools", "front")
METRICS = "/monitoring/prometheus/metrics"


def export_times(directory, factor):
    """y = x * factor. It is there at once, as good exporters do."""
    graph = Graph()
    x = graph.placeholder("x", "DT_FLOAT", [-1])
    y = graph.mul("y", x, graph.constant("factor", "DT_FLOAT", [], [factor]))
    graph.sign("serving_default", {"x": x}, {"y": y})
    made = tempfile.mkdtemp(dir=TMP)
    graph.write(made)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    os.rename(made, directory)


def predictions(reply):
    assert reply.status == 200, (reply.status, reply.body)
    return json.loads(reply.body)["predictions"]


def run_program(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=HANG, check=False)
    return done.returncode, done.stdout


class Threads:
    """Runs functions at the same time, and raises what one of them raised."""

    def __init__(self, functions):
        self.errors = []
        self.threads = [threading.Thread(target=self._run, args=(one,)) for one in functions]
        for thread in self.threads:
            thread.start()

    def _run(self, function):
        try:
            function()
        except BaseException as error:  # pylint: disable=broad-except
            self.errors.append(error)

    def join(self):
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


class ModelServerScenarios(unittest.TestCase):
    """F14."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=TMP)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def serve(self, *flags):
        server = Server("--file_system_poll_wait_seconds=1", "--max_num_load_retries=0", *flags)
        self.addCleanup(server.stop)
        return server

    def states(self, server, model):
        reply = server.ask("GET", "/v1/models/" + model)
        if reply.status != 200:
            return {}
        return {int(one["version"]): one["state"]
                for one in json.loads(reply.body)["model_version_status"]}

    def await_states(self, server, model, wanted):
        await_that(lambda: self.states(server, model) == wanted,
                   lambda: f"{self.states(server, model)} must become {wanted}: {server.output()}")

    def factor(self, server, model):
        """Which version answers; the error when none does."""
        reply = server.ask("POST", f"/v1/models/{model}:predict", '{"instances": [1]}')
        if reply.status != 200:
            return json.loads(reply.body)["error"]
        return predictions(reply)[0]

    def test_a_new_version_under_fifty_requests_a_second(self):
        export_times(self.path("m", "1"), 1)
        server = self.serve("--model_name=m", "--model_base_path=" + self.path("m"))
        stop, lock, answers, failures = threading.Event(), threading.Lock(), [], []

        def client(number):
            # Ten a second of each of five clients, at times that do not depend on the replies.
            begin = time.monotonic() + number / 50
            with Client(server.rest) as connection:
                i = 0
                while not stop.is_set():
                    stop.wait(max(0, begin + i / 10 - time.monotonic()))
                    reply = connection.ask("POST", "/v1/models/m:predict",
                                           f'{{"instances": [{i}, 1]}}')
                    i += 1
                    with lock:
                        if reply.status != 200:
                            failures.append((reply.status, reply.body))
                        else:
                            answers.append((i - 1, predictions(reply)))

        def num_of(factor):
            with lock:
                return sum(1 for _, (_, one) in answers if one == factor)

        def not_enough(factor):
            return lambda: f"answers of {factor} must come, got {num_of(factor)}: {server.output()}"

        threads = Threads([lambda number=number: client(number) for number in range(5)])
        try:
            await_that(lambda: num_of(1) >= 50, not_enough(1))
            export_times(self.path("m", "2"), 2)
            await_that(lambda: num_of(2) >= 50, not_enough(2))
            self.await_states(server, "m", {2: "AVAILABLE", 1: "END"})
            shutil.rmtree(self.path("m", "1"))
            before = num_of(2)
            await_that(lambda: num_of(2) >= before + 50, not_enough(2))
        finally:
            stop.set()
        threads.join()
        self.assertEqual(failures, [])
        for i, (first, one) in answers:
            self.assertIn(one, (1, 2))
            self.assertEqual(first, i * one)

    def test_policies(self):
        for version in (1, 2, 3):
            export_times(self.path("m", str(version)), version)

        def config(policy):
            write(self.path("models.config"),
                  f'model_config_list {{ config {{ name: "m" base_path: "{self.path("m")}" '
                  f'model_platform: "tensorflow" model_version_policy {{ {policy} }} }} }}')

        config("latest { num_versions: 2 }")
        server = self.serve("--model_config_file=" + self.path("models.config"),
                            "--model_config_file_poll_wait_seconds=1")
        self.await_states(server, "m", {3: "AVAILABLE", 2: "AVAILABLE"})
        config("specific { versions: 1 versions: 3 }")
        self.await_states(server, "m", {3: "AVAILABLE", 2: "END", 1: "AVAILABLE"})
        config("all { }")
        self.await_states(server, "m", {3: "AVAILABLE", 2: "AVAILABLE", 1: "AVAILABLE"})
        config("specific { versions: 1 }")
        self.await_states(server, "m", {3: "END", 2: "END", 1: "AVAILABLE"})
        self.assertEqual(self.factor(server, "m"), 1)

    def test_labels_and_models_follow_the_list(self):
        for version in (1, 2):
            export_times(self.path("m", str(version)), version)
        export_times(self.path("other", "1"), 10)

        def config(models):
            write(self.path("new.config"), "model_config_list {\n" + "\n".join(
                f'config {{ name: "{name}" base_path: "{self.path(name)}" '
                f'model_platform: "tensorflow" model_version_policy {{ all {{ }} }} {labels} }}'
                for name, labels in models.items()) + "\n}\n")
            # Read whole or not at all.
            os.rename(self.path("new.config"), self.path("models.config"))

        def labels(stable, canary):
            return (f'version_labels {{ key: "stable" value: {stable} }} '
                    f'version_labels {{ key: "canary" value: {canary} }}')

        def labelled(label):
            return predictions(server.ask("POST", f"/v1/models/m/labels/{label}:predict",
                                          '{"instances": [1]}'))[0]

        config({"m": labels(1, 2), "other": ""})
        server = self.serve("--model_config_file=" + self.path("models.config"),
                            "--model_config_file_poll_wait_seconds=1",
                            "--allow_version_labels_for_unavailable_models")
        self.assertEqual([labelled("stable"), labelled("canary")], [1, 2])
        self.assertEqual(self.factor(server, "other"), 10)
        # The new version is the stable one; a model is gone, another comes.
        export_times(self.path("third", "1"), 30)
        config({"m": labels(2, 2), "third": ""})
        await_that(lambda: labelled("stable") == 2, server.output)
        self.assertEqual(labelled("canary"), 2)
        await_that(lambda: self.factor(server, "third") == 30, server.output)
        await_that(lambda: self.factor(server, "other") ==
                   "Servable not found for request: Latest(other)", server.output)
        # A label of a version that is not there: all stays as it is.
        config({"m": labels(9, 1)})
        await_that(lambda: "Request to assign label to version 9" in server.output(), server.output)
        self.assertEqual([labelled("stable"), labelled("canary")], [2, 2])
        self.assertEqual(self.factor(server, "third"), 30)


class Batches(unittest.TestCase):
    """F15 (c)."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=TMP)
        export_times(os.path.join(self.dir, "m", "1"), 3)

    def serve(self, parameters):
        server = Server(
            "--model_name=m", "--model_base_path=" + os.path.join(self.dir, "m"),
            "--trust_new_versions", "--enable_batching", "--rest_api_timeout_in_ms=600000",
            "--batching_parameters_file=" + write(os.path.join(self.dir, "batching"), parameters),
            "--monitoring_config_file=" + write(os.path.join(self.dir, "monitoring"),
                                                "prometheus_config { enable: true }"))
        self.addCleanup(server.stop)
        return server

    @staticmethod
    def ask(server, numbers):
        return server.ask("POST", "/v1/models/m:predict", json.dumps({"instances": numbers}))

    @staticmethod
    def metric(server, name):
        page = server.ask("GET", METRICS).body.decode()
        found = re.search(rf"^:tensorflow:serving:batching_session:{name}(?:{{[^}}]*}})? (\S+)$",
                          page, re.MULTILINE)
        return float(found.group(1)) if found else 0

    def test_clients_of_one_row_share_batches(self):
        clients, rounds = 64, 5
        # A batch waits a while for others, however slowly the clients come.
        server = self.serve("max_batch_size { value: 64 } batch_timeout_micros { value: 200000 } "
                            "max_enqueued_batches { value: 1000 } num_batch_threads { value: 2 }")
        together = threading.Barrier(clients)

        def client(number):
            with Client(server.rest) as connection:
                for i in range(rounds):
                    together.wait(HANG)
                    x = number * rounds + i
                    reply = connection.ask("POST", "/v1/models/m:predict",
                                           json.dumps({"instances": [x]}))
                    self.assertEqual(predictions(reply), [3.0 * x])

        Threads([lambda number=number: client(number) for number in range(clients)]).join()
        rows = clients * rounds
        # More, where the first batch was run a second time, to see that the model is per row.
        self.assertGreaterEqual(self.metric(server, "processed_batch_size_sum"), rows)
        # Several rows in a batch.
        self.assertLess(self.metric(server, "processed_batch_size_count"), rows)

    def test_batches_are_padded_to_an_allowed_size(self):
        server = self.serve("max_batch_size { value: 16 } batch_timeout_micros { value: 0 } "
                            "allowed_batch_sizes: 4 allowed_batch_sizes: 16 "
                            "num_batch_threads { value: 1 }")

        def sums():
            return [self.metric(server, name + "_sum")
                    for name in ("padding_size", "processed_batch_size")]

        def ask_all():
            for rows in (3, 4, 5):
                numbers = list(range(rows))
                self.assertEqual(predictions(self.ask(server, numbers)), [3 * x for x in numbers])

        # By now it is known that the model is per row: before, a step may run a second time.
        ask_all()
        before = sums()
        ask_all()
        padding, processed = (after - one for after, one in zip(sums(), before))
        self.assertEqual(padding, (4 - 3) + (4 - 4) + (16 - 5))
        self.assertEqual(processed, 4 + 4 + 16)
        too_large = self.ask(server, list(range(17)))
        self.assertEqual(too_large.status, 400)
        self.assertIn(b"Task size 17 is larger than maximum", too_large.body)

    def test_a_full_queue_is_unavailable(self):
        # A row waits for a second one, far longer than this test; one batch may wait.
        server = self.serve("max_batch_size { value: 2 } max_enqueued_batches { value: 1 } "
                            "batch_timeout_micros { value: 1000000000 } "
                            "num_batch_threads { value: 1 }")
        first = []

        def wait():
            # Refused itself when it meets two rows that are about to run.
            while not first or first[-1].status == 503:
                first.append(self.ask(server, [1]))

        threads = Threads([wait])

        # Two rows do not fit in its batch. Until it waits, they are a batch of their own.
        def refused():
            reply = self.ask(server, [5, 6])
            if reply.status == 200:
                self.assertEqual(predictions(reply), [15, 18])
                return None
            return reply

        reply = await_that(refused, server.output)
        self.assertEqual(reply.status, 503)
        self.assertIn("The batch scheduling queue to which this task was submitted is full",
                      json.loads(reply.body)["error"])
        self.assertEqual(reply.header("Retry-After"), "1")
        # The second row of its batch.
        self.assertEqual(predictions(self.ask(server, [2])), [6])
        threads.join()
        self.assertEqual(predictions(first[-1]), [3])
        # There is room again.
        self.assertEqual(predictions(self.ask(server, [5, 6])), [15, 18])


class BatchPrediction(unittest.TestCase):
    """F15 (b)."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=TMP)
        export_times(os.path.join(self.dir, "m", "1"), 3)
        self.rows = {"in/part-00.json": "1\n2\n", "in/part-01.json": "3\n\"four\"\n",
                     "in/deeper/part-02.json": "5\n", "in/other.txt": "6\n"}
        for name, text in self.rows.items():
            write(os.path.join(self.dir, name), text)

    def lines(self, out, kind, shards):
        found = []
        for i in range(shards):
            with open(os.path.join(out, f"prediction.{kind}-{i:05}-of-{shards:05}"),
                      encoding="utf-8") as file:
                found.append(file.read().split("\n")[:-1])
        return found

    def check(self, out, *flags):
        code, text = run_program(
            BATCH_PREDICT, "--output_dir", out, "--num_shards", "2",
            "--input", os.path.join(self.dir, "in", "part-*.json"),
            "--input", os.path.join(self.dir, "in", "*", "part-*.json"), *flags)
        self.assertEqual(code, 0, text)
        self.assertIn("4 results and 1 errors", text)
        # Five rows: two of them in the first shard. Their order is that of the files' names.
        results = self.lines(out, "results", 2)
        self.assertEqual(sorted(results[0] + results[1]), ["15.0", "3.0", "6.0", "9.0"])
        errors = self.lines(out, "errors_stats", 2)
        error, = errors[0] + errors[1]
        self.assertEqual(os.path.basename(json.loads(error)["file"]), "part-01.json")
        self.assertEqual(json.loads(error)["row"], 2)

    def test_locally(self):
        self.check(os.path.join(self.dir, "out"), "--model_dir", os.path.join(self.dir, "m", "1"))

    def test_by_a_server(self):
        server = Server("--model_name=m", "--model_base_path=" + os.path.join(self.dir, "m"),
                        "--trust_new_versions")
        try:
            self.check(os.path.join(self.dir, "out"), "--server", f"127.0.0.1:{server.grpc}",
                       "--model", "m")
        finally:
            server.stop()


class HostedFront(unittest.TestCase):
    """F16."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mr", dir="/tmp")  # a short path, for the sockets
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        for name, factor in (("twice", 2), ("thrice", 3)):
            export_times(os.path.join(TMP, os.path.basename(self.dir), name), factor)
        self.front = Running([FRONT, "--state_dir=" + os.path.join(self.dir, "state"),
                              "--address=unix:" + self.socket(), "--socket_dir=" + self.dir,
                              "--model_server=" + os.path.join("tools", "model_server"),
                              "--hold_seconds=100", "--drain_seconds=100", "--",
                              "--trust_new_versions"])
        self.addCleanup(self.stop)
        self.assertTrue(self.front.await_line("Serves at"), self.front.output())
        self.ask("POST", "/v1/models", {"name": "census"})

    def stop(self):
        self.assertEqual(self.front.terminate(), 0, self.front.output())

    def socket(self):
        return os.path.join(self.dir, "rest")

    def ask(self, method, path, body=None, code=200):
        reply = ask(self.socket(), method, path, json.dumps(body) if body is not None else "")
        self.assertEqual(reply.status, code, (path, reply.body))
        return json.loads(reply.body)

    def make(self, version, model, **more):
        return self.ask("POST", "/v1/models/census/versions", {
            "name": version, **more,
            "deploymentUri": os.path.join(TMP, os.path.basename(self.dir), model)})

    def predict(self, version=None):
        path = "/v1/models/census" + (f"/versions/{version}" if version else "") + ":predict"
        return self.ask("POST", path, {"instances": [1, 2.5]})["predictions"]

    def nodes(self, version):
        """The processes of its nodes that are ready."""
        found = self.ask("GET", f"/v1/models/census/versions/{version}").get("nodes", [])
        return {one["pid"] for one in found if one["state"] == "ready"}

    def await_nodes(self, version, count):
        await_that(lambda: len(self.nodes(version)) == count,
                   lambda: f"{count} nodes of {version} must be ready, got {self.nodes(version)}: "
                   + self.front.output())

    @staticmethod
    def is_gone(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def raise_to(self, version, count):
        """Clients that do not pause, until it has so many nodes; it never has more."""
        stop = threading.Event()

        def client():
            while not stop.is_set():
                self.assertEqual(self.predict(version), [2.0, 5.0])

        threads = Threads([client] * 6)
        try:
            await_that(lambda: len(self.nodes(version)) >= count,
                       lambda: f"nodes must become {count}: " + self.front.output())
            for _ in range(20):  # under load
                self.assertLessEqual(len(self.nodes(version)), count)
        finally:
            stop.set()
        threads.join()

    def test_versions_their_default_and_their_end(self):
        self.assertTrue(self.make("v1", "twice")["isDefault"])
        self.make("v2", "thrice")
        self.assertEqual(self.nodes("v1"), set())
        self.assertEqual(self.predict(), [2.0, 5.0])  # a cold start
        self.assertEqual(self.predict("v2"), [3.0, 7.5])
        self.ask("POST", "/v1/models/census/versions/v2:setDefault", {})
        self.assertEqual(self.predict(), [3.0, 7.5])
        self.assertEqual(self.predict("v1"), [2.0, 5.0])
        # The default goes last, and the model after its versions.
        refused = self.ask("DELETE", "/v1/models/census/versions/v2", code=400)["error"]
        self.assertEqual(refused["status"], "FAILED_PRECONDITION")
        refused = self.ask("DELETE", "/v1/models/census", code=400)["error"]
        self.assertEqual(refused["status"], "FAILED_PRECONDITION")
        self.assertEqual(self.predict(), [3.0, 7.5])
        for version in ("v1", "v2"):
            nodes = self.nodes(version)
            self.assertEqual(len(nodes), 1)
            self.ask("DELETE", f"/v1/models/census/versions/{version}")
            await_that(lambda nodes=nodes: all(map(self.is_gone, nodes)), self.front.output)
            self.ask("POST", f"/v1/models/census/versions/{version}:predict", {"instances": [1]},
                     404)
        self.ask("DELETE", "/v1/models/census")
        self.assertEqual(self.ask("GET", "/v1/models"), {"models": []})

    def test_the_program_predict_names_a_model_and_a_version(self):
        self.make("v1", "twice")
        self.make("v2", "thrice")
        rows = write(os.path.join(TMP, os.path.basename(self.dir), "rows.json"), "1\n2.5\n")

        def predict(*flags):
            return run_program(PREDICT, "--rest", "--server", "unix:" + self.socket(),
                               "--json_instances", rows, *flags)

        self.assertEqual(predict("--model", "census"), (0, "Y\n2.0\n5.0\n"))
        self.assertEqual(predict("--model", "census", "--model_version", "v2"),
                         (0, "Y\n3.0\n7.5\n"))
        code, text = predict("--model", "census", "--model_version", "v3")
        self.assertNotEqual(code, 0)
        self.assertIn("NOT_FOUND", text)
        code, text = predict("--model", "nobody")
        self.assertNotEqual(code, 0)
        self.assertIn("NOT_FOUND", text)

    def test_nodes_come_with_load_and_go_when_idle(self):
        self.make("v1", "twice", maxNodes=2, concurrencyTarget=1, idleSeconds=1)
        self.raise_to("v1", 2)
        self.await_nodes("v1", 0)
        # The first request after that is answered.
        self.assertEqual(self.predict("v1"), [2.0, 5.0])

    def test_a_minimum_of_nodes_stays(self):
        self.make("v1", "twice", minNodes=1, maxNodes=2, concurrencyTarget=1, idleSeconds=1)
        self.await_nodes("v1", 1)  # without a request
        self.raise_to("v1", 2)
        self.await_nodes("v1", 1)
        # Also after another version that was idle for as long has none.
        self.make("v2", "thrice", idleSeconds=1)
        self.assertEqual(self.predict("v2"), [3.0, 7.5])
        kept = self.nodes("v1")
        self.await_nodes("v2", 0)
        self.assertEqual(self.nodes("v1"), kept)
        self.assertEqual(len(kept), 1)


if __name__ == "__main__":
    unittest.main()
