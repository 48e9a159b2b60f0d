#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every model of TensorFlow in the shared data, all in one model server, asked over REST: it gives
the values of cases.json, by columns, by rows, and by classify and regress, or is refused with a
reason that stands here. Then TensorFlow Serving's own texts: configurations and metadata.

Skipped where MILLRACE_SHARED names no shared data. gRPC: shared_models_grpc_test.cc."""

# covers: serving: all models that TensorFlow wrote, served at once, give their expected values over
#   REST: 45 of 45 cases by columns, those with rows by rows, classify and regress by examples; or
#   are refused with a reason (two aliases of one tensor, other tags, an op without a kernel)
# covers: serving: TensorFlow Serving's texts of configurations are read, good and bad; its answers
#   about metadata are ours

import base64
import json
import math
import os
import struct
import sys
import unittest

sys.dont_write_bytecode = True  # next to the sources
sys.path.insert(0, os.path.join("tests", "serving"))
from server_by_python import (  # pylint: disable=wrong-import-position
    SERVER, Running, Server, free_port, write)

TMP = os.environ["TEST_TMPDIR"]
DATA = os.path.join(os.environ.get("MILLRACE_SHARED", ""), "data")
# Model -> what its status says; its cases are asked of a server of its own, below.
OTHER_TAGS = {
    "babyweight_dnn_eval": "it has { eval }",
    "hub_plus_one_1_15": "it has {  }",
    "regression_train_1_2": "it has { serve, train }",
}
# Case -> what the request is told.
REFUSED = {
    # TensorFlow's sessions take a tensor once: TensorFlow Serving refuses it, too.
    "types_identity/serving_default":
        'Predict: signature \'serving_default\': Endpoint "i16:0" fed more than once.',
}


def shared(*names):
    return os.path.join(DATA, *names)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- What cases.json says.


def npy_values(path):
    """The elements of a file of float32."""
    with open(shared(path), "rb") as file:
        data = file.read()
    size, = struct.unpack("<H", data[8:10])
    head = data[10:10 + size]
    assert b"'<f4'" in head and b"'fortran_order': False" in head, head
    data = data[10 + size:]
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def element(value):
    """As REST reads and writes it."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"]).decode("latin-1")
    return value


def values_of(tensor):
    values = npy_values(tensor["npy"]) if "npy" in tensor else tensor["values"]
    if tensor["dtype"].startswith("float"):
        return [float(value) for value in values]
    return [element(value) for value in values]


def nested(values, shape):
    if not shape:
        return values[0]
    size = len(values) // shape[0]
    return [nested(values[i * size:(i + 1) * size], shape[1:]) for i in range(shape[0])]


def flat(value):
    if not isinstance(value, list):
        return [value]
    return [one for part in value for one in flat(part)]


def cases():
    return [case for case in json.loads(read(shared("cases.json")))["cases"]
            if case["kind"] == "saved_model_run"]


def model_of(case):
    return os.path.basename(case["path"])


def json_input(tensor):
    if tensor["dtype"] == "string":
        values = [value if isinstance(value, dict) else {"b64": base64.b64encode(
            value.encode()).decode()} for value in tensor["values"]]
    else:
        values = values_of(tensor)
    return nested(values, tensor["shape"])


def num_rows(case):
    """0: it has none."""
    shapes = [one["shape"] for side in ("inputs", "outputs") for one in case[side].values()]
    if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
        return 0
    return shapes[0][0]


# --- Examples, from their bytes.


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The fields of a message, by number, with their values."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            assert tag & 7 == 5, tag
            value, at = data[at:at + 4], at + 4
        yield tag >> 3, value


def feature_values(data):
    values = []
    for kind, items in fields(data):
        for _, value in fields(items):
            if kind == 1:
                values.append({"b64": base64.b64encode(value).decode()})
            elif kind == 2:
                values += struct.unpack(f"<{len(value) // 4}f", value)
            elif isinstance(value, int):
                values.append(value)
            else:
                at = 0
                while at < len(value):
                    number, at = varint(value, at)
                    values.append(number - (1 << 64) if number >> 63 else number)
    return values


def example_of(data):
    features = {}
    for _, map_of_features in fields(data):
        for _, entry in fields(map_of_features):
            parts = dict(fields(entry))
            features[parts[1].decode()] = feature_values(parts.get(2, b""))
    return features


# --- The server of all.


def config_of(name, base_path, more=""):
    return (f'config {{ name: "{name}" base_path: "{base_path}" model_platform: "tensorflow" '
            f'{more} }}')


def base_path_of(name, version="1"):
    """A base path with one version, which lies in the shared data."""
    path = os.path.join(TMP, "bases", name, version)
    if not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(shared("saved_models", name), path)
    return os.path.dirname(path)


def server_of(configs, *flags):
    path = write(os.path.join(TMP, "models.config"),
                 "model_config_list {\n" + "\n".join(configs) + "\n}\n")
    return Server("--model_config_file=" + path, "--trust_new_versions",
                  "--max_num_load_retries=0", *flags)


@unittest.skipUnless(os.path.exists(shared("cases.json")), "MILLRACE_SHARED has no cases.json")
class SharedModels(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.saved = sorted(os.listdir(shared("saved_models")))
        cls.of_serving = [name for name in sorted(os.listdir(shared("serving")))
                          if os.path.isdir(shared("serving", name))]
        configs = [config_of(name, base_path_of(name)) for name in cls.saved]
        configs += [config_of(name, shared("serving", name), "model_version_policy { all { } }")
                    for name in cls.of_serving]
        cls.server = server_of(configs)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def get(self, path):
        reply = self.server.ask("GET", path)
        self.assertEqual(reply.status, 200, reply.body)
        return json.loads(reply.body)

    def post(self, model, verb, body, server=None, code=200):
        reply = (server or self.server).ask("POST", f"/v1/models/{model}:{verb}", json.dumps(body))
        self.assertEqual(reply.status, code, reply.body[:2000])
        return json.loads(reply.body)

    def expect(self, case, alias, got):
        """The elements of an output, in order."""
        tensor = case["outputs"][alias]
        wanted = values_of(tensor)
        got = flat(got)
        self.assertEqual(len(got), len(wanted), alias)
        for a, b in zip(got, wanted):
            if isinstance(b, float):
                close = (math.isnan(a) and math.isnan(b)) or a == b or (
                    abs(a - b) <= case["atol"] + case["rtol"] * abs(b))
                self.assertTrue(close, f"{alias}: {a} != {b}")
            else:
                self.assertEqual(a, b, alias)

    def check_case(self, case, server=None):
        name, model, signature = case["name"], model_of(case), case["signature"]
        inputs = {alias: json_input(one) for alias, one in case["inputs"].items()}
        outputs = case["outputs"]
        body = {"signature_name": signature, "inputs": inputs}
        if name in REFUSED:
            self.assertEqual(self.post(model, "predict", body, server, 400)["error"], REFUSED[name])
            return
        got = self.post(model, "predict", body, server)["outputs"]
        for alias in outputs:
            self.expect(case, alias, got if len(outputs) == 1 else got[alias])
        if len(inputs) == 1:  # an input alone needs no name
            alone = {"signature_name": signature, "inputs": next(iter(inputs.values()))}
            self.assertEqual(self.post(model, "predict", alone, server)["outputs"], got)
        rows = num_rows(case)
        if rows == 0:
            return
        instances = [{alias: value[i] for alias, value in inputs.items()} for i in range(rows)]
        got = self.post(model, "predict", {"signature_name": signature, "instances": instances},
                        server)["predictions"]
        self.assertEqual(len(got), rows)
        for alias in outputs:
            self.expect(case, alias, got if len(outputs) == 1 else [row[alias] for row in got])

    def test_each_case_by_columns_and_rows(self):
        num_asked = 0
        for case in cases():
            if model_of(case) in OTHER_TAGS:
                continue
            with self.subTest(case["name"]):
                self.check_case(case)
            num_asked += 1
        # Those of OTHER_TAGS that have a case are asked below.
        self.assertEqual(num_asked, len(cases()) - 2)

    def test_each_case_of_examples_by_its_method(self):
        num_asked = 0
        for case in cases():
            if not case.get("inputs_are_serialized_tf_examples"):
                continue
            metadata = self.get(f"/v1/models/{model_of(case)}/metadata")
            signature = metadata["metadata"]["signature_def"]["signature_def"][case["signature"]]
            verb = signature["method_name"].rpartition("/")[2]
            if verb == "predict":
                continue
            with self.subTest(case["name"], verb=verb):
                inputs, = case["inputs"].values()
                examples = [example_of(base64.b64decode(value["b64"]))
                            for value in inputs["values"]]
                got = self.post(model_of(case), verb, {"signature_name": case["signature"],
                                                       "examples": examples})["results"]
                self.assertEqual(len(got), len(examples))
                if verb == "regress":
                    self.expect(case, "outputs", got)
                else:
                    self.expect(case, "scores", [[score for _, score in one] for one in got])
                    if "classes" in case["outputs"]:
                        self.expect(case, "classes", [[label for label, _ in one] for one in got])
            num_asked += 1
        # Three models half_plus_two with three each; two classifications and a regression of taxi.
        self.assertEqual(num_asked, 12)

    def test_each_model_is_available_or_says_why_not(self):
        listed = {one["name"] for one in self.get("/v1/models")["models"]}
        self.assertEqual(listed, set(self.saved) | set(self.of_serving))
        for name in sorted(listed):
            with self.subTest(name):
                versions = self.get("/v1/models/" + name)["model_version_status"]
                if name in OTHER_TAGS:
                    one, = versions
                    self.assertEqual(one["state"], "END")
                    self.assertEqual(one["status"]["error_code"], "NOT_FOUND")
                    self.assertIn("Could not find meta graph def matching supplied tags: { serve }",
                                  one["status"]["error_message"])
                    self.assertIn(OTHER_TAGS[name], one["status"]["error_message"])
                else:
                    self.assertEqual({one["state"] for one in versions}, {"AVAILABLE"})

    def test_models_of_other_tags(self):
        for name, tags in (("regression_train_1_2", "train,serve"), ("hub_plus_one_1_15", "")):
            with self.subTest(name):
                asked, = [case for case in cases() if model_of(case) == name]
                server = server_of([config_of(name, base_path_of(name))],
                                   "--saved_model_tags=" + tags)
                try:
                    self.check_case(asked, server)
                finally:
                    server.stop()

    def test_a_model_with_an_op_without_a_kernel_names_it(self):
        # It is the only model: the program ends as TensorFlow Serving does.
        name = "babyweight_dnn_eval"
        program = Running([SERVER, f"--port={free_port()}", "--model_name=" + name,
                           "--model_base_path=" + base_path_of(name),
                           "--saved_model_tags=eval", "--trust_new_versions",
                           "--max_num_load_retries=0"])
        self.assertNotEqual(program.wait(), 0, program.output())
        self.assertIn("1 model(s) did not become available", program.output())
        self.assertIn("got 'DenseToDenseSetOperation' of node", program.output())

    # --- TensorFlow Serving's own.

    def test_both_versions_of_half_plus_two(self):
        model = "saved_model_half_plus_two_2_versions"
        body = {"instances": [[1.0], [2.0], [5.0]]}
        for path in (model, model + "/versions/123", model + "/versions/124"):
            with self.subTest(path):
                self.assertEqual(self.post(path, "predict", body)["predictions"],
                                 [[2.5], [3.0], [4.5]])

    def test_half_plus_two_with_a_configuration_of_its_own(self):
        self.assertEqual(
            self.post("saved_model_half_plus_two_cpu_with_saved_model_config", "predict",
                      {"instances": [[1.0], [2.0], [5.0]]})["predictions"],
            [[2.5], [3.0], [4.5]])

    def test_the_counter(self):
        model = "saved_model_counter"
        # REST gives no inputs to a signature that has none, here and there.
        self.assertEqual(
            self.post(model, "predict", {"signature_name": "get_counter", "inputs": {}}, code=400),
            {"error": "Failed to get input map for signature: get_counter"})
        ask = {"signature_name": "incr_counter_by", "inputs": {"delta": 3}}
        self.assertEqual(self.post(model, "predict", ask), {"outputs": 3.0})
        self.assertEqual(self.post(model, "predict", ask), {"outputs": 6.0})

    def test_metadata_is_that_of_tensorflow_serving(self):
        model = "saved_model_half_plus_two_2_versions"
        self.assertEqual(self.get(f"/v1/models/{model}/versions/123/metadata"),
                         json.loads(read(shared("serving", model + "_metadata.json"))))
        server = server_of([config_of("default", base_path_of("half_plus_two_cpu", "123"),
                                      "model_version_policy { specific { versions: 123 } }")])
        try:
            got = json.loads(server.ask("GET", "/v1/models/default/metadata").body)
        finally:
            server.stop()
        wanted = read(shared("serving", "half_plus_two_model_metadata.json"))
        self.assertEqual(got, json.loads(wanted))

    def test_its_good_list_of_models(self):
        text = read(shared("serving", "good_model_config.txt"))
        text = text.replace("${TEST_HALF_PLUS_TWO_DIR}", base_path_of("half_plus_two"))
        text = text.replace("${TEST_HALF_PLUS_THREE_DIR}", base_path_of("half_plus_two_pbtxt"))
        path = write(os.path.join(TMP, "good.config"), text)
        server = Server("--model_config_file=" + path, "--trust_new_versions")
        try:
            for model in ("half_plus_two", "half_plus_three"):
                got = self.post(model, "predict", {"instances": [[2.0]]}, server)
                self.assertEqual(got, {"predictions": [[3.0]]})
        finally:
            server.stop()

    def test_its_bad_list_of_models(self):
        program = Running([SERVER, f"--port={free_port()}",
                           "--model_config_file=" + shared("serving", "bad_model_config.txt")])
        self.assertNotEqual(program.wait(), 0, program.output())
        self.assertIn("Error parsing text-format tensorflow.serving.ModelServerConfig",
                      program.output())

    def test_its_texts_of_batching_and_monitoring(self):
        server = server_of([config_of("half_plus_two", base_path_of("half_plus_two"))],
                           "--enable_batching",
                           "--batching_parameters_file=" + shared("serving", "batching_config.txt"),
                           "--monitoring_config_file=" + shared("serving", "monitoring_config.txt"))
        try:
            got = self.post("half_plus_two", "predict", {"instances": [[2.0], [3.0]]}, server)
            self.assertEqual(got, {"predictions": [[3.0], [3.5]]})
            page = server.ask("GET", "/monitoring/prometheus/metrics").body.decode()
        finally:
            server.stop()
        self.assertIn(':tensorflow:serving:request_count{model_name="half_plus_two",status="OK"} 1',
                      page)
        self.assertRegex(page, "\n:tensorflow:serving:batching_session:"
                         r"processed_batch_size_sum\S* 2\n")


if __name__ == "__main__":
    unittest.main()
