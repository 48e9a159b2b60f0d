// SPDX-License-Identifier: Apache-2.0
//
// The texts, files and exit codes of saved_model_cli.

#include <sys/wait.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "formats/npy.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/example.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/kernel.h"
#include "saver/saved_model.h"
#include "tools/saved_model_check.h"
#include "tools/saved_model_inputs.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

// covers: graphs: graphs that ask for a GPU run on the CPU where soft placement allows, with one
//   warning per session
// covers: programs: `saved_model_cli check` names every op, type and attr that stops a model
// covers: scenario F12: saved_model_cli, C programs, models of TensorFlow

// covers: graphs: graphs that ask for a GPU run on the CPU where soft placement allows, with one
//   warning per session
// covers: programs: `saved_model_cli check` names every op, type and attr that stops a model at
//   once, and its verdict is what loading and running give on TensorFlow's models
// covers: scenario F12: saved_model_cli, C programs, models of TensorFlow

namespace millrace {
namespace {

using absl::StatusCode;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kCli[] = "tools/saved_model_cli";

FileSystem* Fs() { return FileSystem::Posix(); }

std::string TempPath(const std::string& name) {
  return JoinPath(
      ::testing::TempDir(),
      absl::StrCat("saved_model_cli_test_",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(), "_", name));
}

// Three meta graphs (one cannot be run); kinds of tensor infos; no variables.
constexpr char kModel[] = R"pb(
  saved_model_schema_version: 1
  meta_graphs {
    meta_info_def { tags: "serve" tags: "gpu" }
    graph_def {
      node { name: "w" op: "WriteFile" }
      node { name: "p" op: "PrintV2" }
    }
  }
  meta_graphs {
    meta_info_def { tags: "serve" }
    graph_def {
      versions { producer: 134 }
      node {
        name: "x"
        op: "Placeholder"
        attr {
          key: "dtype"
          value { type: DT_FLOAT }
        }
        attr {
          key: "shape"
          value { shape { unknown_rank: true } }
        }
      }
      node {
        name: "s"
        op: "Placeholder"
        attr {
          key: "dtype"
          value { type: DT_STRING }
        }
        attr {
          key: "shape"
          value { shape { unknown_rank: true } }
        }
      }
      node {
        name: "y"
        op: "Add"
        input: "x"
        input: "x"
        attr {
          key: "T"
          value { type: DT_FLOAT }
        }
      }
      node {
        name: "t"
        op: "Identity"
        input: "s"
        attr {
          key: "T"
          value { type: DT_STRING }
        }
      }
    }
    signature_def {
      key: "twice"
      value {
        inputs {
          key: "x"
          value {
            name: "x:0"
            dtype: DT_FLOAT
            tensor_shape {
              dim { size: -1 }
              dim { size: 1 }
            }
          }
        }
        outputs {
          key: "y"
          value {
            name: "y:0"
            dtype: DT_FLOAT
            tensor_shape { dim { size: 3 } }
          }
        }
        method_name: "tensorflow/serving/predict"
      }
    }
    signature_def {
      key: "Strings"
      value {
        inputs {
          key: "s"
          value {
            name: "s:0"
            dtype: DT_STRING
            tensor_shape { unknown_rank: true }
          }
        }
        outputs {
          key: "../t"
          value { name: "t:0" dtype: DT_STRING }
        }
      }
    }
  }
  meta_graphs {
    meta_info_def { tags: "show" }
    signature_def {
      key: "Odd"
      value {
        inputs {
          key: "b"
          value { coo_sparse { values_tensor_name: "v:0" } }
        }
        inputs {
          key: "a"
          value { name: "r:0" dtype: DT_FLOAT_REF }
        }
      }
    }
  }
)pb";

tensorflow::SavedModel Parse(const std::string& text) {
  tensorflow::SavedModel model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
  return model;
}

// The directory of a model with this text.
std::string Written(const std::string& text) {
  const std::string dir = TempPath("model");
  EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir));
  EXPECT_OK(
      WriteFileAtomically(Fs(), JoinPath(dir, "saved_model.pb"), Parse(text).SerializeAsString()));
  return dir;
}

std::string Stripped(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

TEST(ShowTest, AllEqualsTheTextsOfRealModels) {
  const std::string expected = SharedDataPath("expected");
  if (expected.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no expected";
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, Fs()->GetChildren(expected));
  int compared = 0;
  for (const std::string& file : files) {
    const std::string name = file.substr(0, file.find('.'));
    ASSERT_OK_AND_ASSIGN(const tensorflow::SavedModel model,
                         ReadSavedModelForTool(Fs(), SharedDataPath("saved_models/" + name)));
    ASSERT_OK_AND_ASSIGN(const std::string want, ReadFileToString(Fs(), JoinPath(expected, file)));
    EXPECT_EQ(Stripped(ShowAll(model)), Stripped(want)) << name;
    ++compared;
  }
  EXPECT_GE(compared, 22);
}

TEST(ShowTest, TagSetsAreSortedAsListsAndWithin) {
  EXPECT_EQ(ShowTagSets(Parse(kModel)),
            "The given SavedModel contains the following tag-sets:\n"
            "serve\n"
            "gpu, serve\n"
            "show\n");
}

TEST(ShowTest, SignatureKeysAreSortedByByte) {
  const tensorflow::SavedModel model = Parse(kModel);
  ASSERT_OK_AND_ASSIGN(const tensorflow::MetaGraphDef* meta, MetaGraphWithTags(model, "serve"));
  EXPECT_EQ(ShowSignatureKeys(*meta),
            "The given SavedModel MetaGraphDef contains SignatureDefs with the following keys:\n"
            "SignatureDef key: \"Strings\"\n"
            "SignatureDef key: \"twice\"\n");
}

TEST(ShowTest, SignatureShowsShapesTypesAndNames) {
  const tensorflow::SavedModel model = Parse(kModel);
  ASSERT_OK_AND_ASSIGN(const tensorflow::MetaGraphDef* meta, MetaGraphWithTags(model, "serve"));
  EXPECT_EQ(ShowSignature(*meta, "twice"),
            "The given SavedModel SignatureDef contains the following input(s):\n"
            "  inputs['x'] tensor_info:\n"
            "      dtype: DT_FLOAT\n"
            "      shape: (-1, 1)\n"
            "      name: x:0\n"
            "The given SavedModel SignatureDef contains the following output(s):\n"
            "  outputs['y'] tensor_info:\n"
            "      dtype: DT_FLOAT\n"
            "      shape: (3)\n"
            "      name: y:0\n"
            "Method name is: tensorflow/serving/predict\n");
  ASSERT_OK_AND_ASSIGN(const tensorflow::MetaGraphDef* odd, MetaGraphWithTags(model, "show"));
  EXPECT_EQ(ShowSignature(*odd, "Odd"),
            "The given SavedModel SignatureDef contains the following input(s):\n"
            "  inputs['a'] tensor_info:\n"
            "      dtype: DT_FLOAT_REF\n"
            "      shape: ()\n"
            "      name: r:0\n"
            "  inputs['b'] tensor_info:\n"
            "      dtype: DT_INVALID\n"
            "      shape: ()\n"
            "      name: \n"
            "The given SavedModel SignatureDef contains the following output(s):\n"
            "Method name is: \n");
  EXPECT_EQ(ShowSignature(*meta, "nobody"),
            "The given SavedModel SignatureDef contains the following input(s):\n"
            "The given SavedModel SignatureDef contains the following output(s):\n"
            "Method name is: \n");
}

TEST(ShowTest, AllGoesThroughMetaGraphsInSortedOrder) {
  const std::string text = ShowAll(Parse(kModel));
  EXPECT_THAT(
      text,
      StartsWith("\nMetaGraphDef with tag-set: 'serve' contains the following SignatureDefs:\n"
                 "\nsignature_def['Strings']:\n"
                 "  The given SavedModel SignatureDef contains the following input(s):\n"
                 "    inputs['s'] tensor_info:\n"
                 "        dtype: DT_STRING\n"
                 "        shape: unknown_rank\n"
                 "        name: s:0\n"));
  EXPECT_THAT(text, HasSubstr("\n\nMetaGraphDef with tag-set: 'serve, gpu' contains the following "
                              "SignatureDefs:\n"));
}

TEST(ShowTest, FunctionsOfAnObjectGraphAreListed) {
  const std::string text = R"pb(
    meta_graphs {
      meta_info_def { tags: "serve" }
      object_graph_def {
        nodes {
          children { node_id: 1 local_name: "times" }
          children { node_id: 2 local_name: "add" }
          children { node_id: 3 local_name: "v" }
          children { node_id: 9 local_name: "bad" }
          user_object {}
        }
        nodes {
          function {
            concrete_functions: "__inference_times_10"
            concrete_functions: "__inference_times_9"
          }
        }
        nodes {
          bare_concrete_function {
            concrete_function_name: "__inference_add_1"
            argument_keywords: "left"
            argument_keywords: "right"
          }
        }
        nodes { variable {} }
        concrete_functions {
          key: "__inference_times_9"
          value {
            canonicalized_input_signature {
              tuple_value {
                values {
                  tuple_value {
                    values {
                      tensor_spec_value {
                        name: "x"
                        shape {}
                        dtype: DT_INT32
                      }
                    }
                    values { int64_value: 7 }
                    values { none_value {} }
                    values {
                      list_value {
                        values { string_value: "a" }
                        values { bool_value: true }
                      }
                    }
                  }
                }
                values {
                  dict_value {
                    fields {
                      key: "training"
                      value { bool_value: false }
                    }
                  }
                }
              }
            }
          }
        }
        concrete_functions {
          key: "__inference_times_10"
          value {
            canonicalized_input_signature {
              tuple_value {
                values {
                  tuple_value {
                    values {
                      tensor_spec_value {
                        name: "x"
                        shape {
                          dim { size: -1 }
                          dim { size: 2 }
                        }
                        dtype: DT_FLOAT
                      }
                    }
                    values { float64_value: 0.5 }
                  }
                }
                values { dict_value {} }
              }
            }
          }
        }
      }
    }
  )pb";
  EXPECT_EQ(ShowAll(Parse(text)),
            "\nMetaGraphDef with tag-set: 'serve' contains the following SignatureDefs:\n"
            "\nDefined Functions:\n"
            "  Function Name: 'add'\n"
            "    Option #1\n"
            "      Callable with:\n"
            "        Argument #1\n"
            "          left\n"
            "        Argument #2\n"
            "          right\n"
            "\n"
            "  Function Name: 'times'\n"
            "    Option #1\n"
            "      Callable with:\n"
            "        Argument #1\n"
            "          x: TensorSpec(shape=(), dtype=tf.int32, name='x')\n"
            "        Argument #2\n"
            "          DType: int\n"
            "          Value: 7\n"
            "        Argument #3\n"
            "          DType: NoneType\n"
            "          Value: None\n"
            "        Argument #4\n"
            "          DType: list\n"
            "          Value: ['a', True]\n"
            "        Named Argument #1\n"
            "          training\n"
            "    Option #2\n"
            "      Callable with:\n"
            "        Argument #1\n"
            "          x: TensorSpec(shape=(None, 2), dtype=tf.float32, name='x')\n"
            "        Argument #2\n"
            "          DType: float\n"
            "          Value: 0.5\n");
}

TEST(ShowTest, AModelOfTensorFlow2ListsItsFunction) {
  const std::string dir = SharedDataPath("saved_models/times_three_float");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/times_three_float";
  ASSERT_OK_AND_ASSIGN(const tensorflow::SavedModel model, ReadSavedModelForTool(Fs(), dir));
  EXPECT_THAT(ShowAll(model), HasSubstr("\nDefined Functions:\n  Function Name: '"));
}

TEST(ShowTest, JsonHasTheMetaGraphsAndTheirSignatures) {
  const tensorflow::SavedModel model = Parse(kModel);
  ASSERT_OK_AND_ASSIGN(std::string text, ShowJson(model, nullptr, nullptr));
  json shown = json::parse(text);
  EXPECT_EQ(shown.at("saved_model_schema_version"), 1);
  ASSERT_EQ(shown.at("meta_graphs").size(), 3u);
  EXPECT_EQ(shown["meta_graphs"][0]["tags"], json::parse(R"(["serve", "gpu"])"));
  EXPECT_EQ(shown["meta_graphs"][1]["nodes"], 4);
  EXPECT_EQ(shown["meta_graphs"][1]["signatures"]["twice"], json::parse(R"({
      "method_name": "tensorflow/serving/predict",
      "inputs": {"x": {"dtype": "float32", "shape": [-1, 1], "name": "x:0"}},
      "outputs": {"y": {"dtype": "float32", "shape": [3], "name": "y:0"}}})"));
  EXPECT_EQ(shown["meta_graphs"][1]["signatures"]["Strings"]["inputs"], json::parse(R"({
      "s": {"dtype": "string", "shape": null, "name": "s:0"}})"));
  EXPECT_EQ(shown["meta_graphs"][2]["signatures"]["Odd"]["inputs"], json::parse(R"({
      "a": {"dtype": "float32_ref", "shape": [], "name": "r:0"},
      "b": {"dtype": "INVALID", "shape": [],
            "coo_sparse": {"values": "v:0", "indices": "", "dense_shape": ""}}})"));

  const std::string serve = "serve", twice = "twice", nobody = "nobody";
  ASSERT_OK_AND_ASSIGN(text, ShowJson(model, &serve, &twice));
  shown = json::parse(text);
  ASSERT_EQ(shown.at("meta_graphs").size(), 1u);
  EXPECT_EQ(shown["meta_graphs"][0]["signatures"].size(), 1u);
  EXPECT_STATUS(ShowJson(model, &serve, &nobody), StatusCode::kInvalidArgument,
                "ValueError: No SignatureDef with key 'nobody' found in MetaGraphDef; it has "
                "'Strings', 'twice'");
  EXPECT_STATUS(ShowJson(model, &nobody, nullptr), StatusCode::kInvalidArgument, "it has 'serve'");
}

TEST(ScanTest, DeniedOpsAreNamed) {
  const tensorflow::SavedModel model = Parse(kModel);
  ASSERT_OK_AND_ASSIGN(std::string text, ScanForDeniedOps(model, nullptr));
  EXPECT_EQ(text,
            "MetaGraph with tag set ['serve', 'gpu'] contains the following blacklisted ops: "
            "{'PrintV2', 'WriteFile'}\n"
            "MetaGraph with tag set ['serve'] does not contain blacklisted ops.\n"
            "MetaGraph with tag set ['show'] does not contain blacklisted ops.\n");
  const std::string serve = "serve", nobody = "nobody";
  ASSERT_OK_AND_ASSIGN(text, ScanForDeniedOps(model, &serve));
  EXPECT_EQ(text, "MetaGraph with tag set ['serve'] does not contain blacklisted ops.\n");
  EXPECT_STATUS(ScanForDeniedOps(model, &nobody), StatusCode::kInvalidArgument,
                "RuntimeError: MetaGraphDef associated with tag-set nobody could not be found in "
                "SavedModel; it has 'serve', 'serve,gpu', 'show'");
  ASSERT_OK_AND_ASSIGN(text, ScanJson(model, nullptr));
  EXPECT_EQ(json::parse(text), json::parse(R"({"meta_graphs": [
      {"tags": ["serve", "gpu"], "denied_ops": ["PrintV2", "WriteFile"]},
      {"tags": ["serve"], "denied_ops": []},
      {"tags": ["show"], "denied_ops": []}]})"));
  ASSERT_OK_AND_ASSIGN(text, ScanJson(model, &serve));
  EXPECT_EQ(json::parse(text).at("meta_graphs").size(), 1u);
  EXPECT_FALSE(ScanJson(model, &nobody).ok());
}

TEST(ReadTest, BinaryWinsOverText) {
  const std::string dir = Written(kModel);
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir, "saved_model.pbtxt"), "not text at all {"));
  ASSERT_OK_AND_ASSIGN(const tensorflow::SavedModel model, ReadSavedModelForTool(Fs(), dir));
  EXPECT_EQ(model.meta_graphs_size(), 3);
  EXPECT_STATUS(ReadSavedModelForTool(Fs(), JoinPath(dir, "saved_model.pb")), StatusCode::kNotFound,
                absl::StrCat("; the model's directory is '", dir, "'"));
}

TEST(ReadTest, MissingAndDamagedFilesAreIoErrors) {
  const std::string dir = TempPath("dir");
  EXPECT_STATUS(ReadSavedModelForTool(Fs(), dir), StatusCode::kNotFound,
                absl::StrCat("IOError: SavedModel file does not exist at: ", dir,
                             "/{saved_model.pbtxt|saved_model.pb}"));
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(dir));
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir, "saved_model.pbtxt"), "meta_graphs {\n  bad"));
  EXPECT_STATUS(
      ReadSavedModelForTool(Fs(), dir), StatusCode::kNotFound,
      absl::StrCat("IOError: Cannot parse file ", dir,
                   "/saved_model.pbtxt: 2:6 : Message type \"tensorflow.MetaGraphDef\" has no "
                   "field named \"bad\".."));
  const std::string good = Parse(kModel).SerializeAsString();
  ASSERT_OK(
      WriteFileAtomically(Fs(), JoinPath(dir, "saved_model.pb"), good.substr(0, good.size() - 5)));
  EXPECT_STATUS(
      ReadSavedModelForTool(Fs(), dir), StatusCode::kNotFound,
      absl::StrCat("IOError: Cannot parse file ", dir, "/saved_model.pb: Error parsing message."));
}

TEST(TagSetTest, OrderDoesNotMatterButEqualityDoes) {
  const tensorflow::SavedModel model = Parse(kModel);
  ASSERT_OK_AND_ASSIGN(const tensorflow::MetaGraphDef* meta, MetaGraphWithTags(model, "gpu,serve"));
  EXPECT_EQ(meta, &model.meta_graphs(0));
  EXPECT_FALSE(MetaGraphWithTags(model, "gpu").ok());
  EXPECT_FALSE(MetaGraphWithTags(model, "").ok());
  EXPECT_FALSE(MetaGraphWithTags(model, "gpu,serve,x").ok());
}

// --- check ---------------------------------------------------------------------------------------

// Ops of these tests alone.
class PickyKernel : public PassInputKernel {
 public:
  Status Init(KernelConstruction* construction) override {
    MR_ASSIGN_OR_RETURN(const std::string mode, construction->GetAttr<std::string>("mode"));
    if (mode != "fast") return InvalidArgument("mode must be 'fast', got '", mode, "'");
    return absl::OkStatus();
  }
};
const OpRegistration kPicky =
    OpSpec("CheckTestPicky", "x: T -> y: T",
           "T: {float, double}; mode: {'fast', 'slow'} = 'fast'; size: int >= 1 = 1")
        .Shape(UnchangedShape)
        .With(KernelFor<PickyKernel>().Types("T", {DT_FLOAT}));
const OpRegistration kNobody =
    OpSpec("CheckTestNobody", "x: T -> y: T", "T: type").Shape(UnchangedShape);

// A model with these nodes, placeholder "x" and a signature for each of the outputs.
tensorflow::MetaGraphDef CheckedModel(const std::string& nodes,
                                      const std::vector<std::string>& outputs,
                                      const std::string& more = "") {
  std::string text = absl::StrCat(
      "meta_info_def { tags: 'serve' stripped_op_list { op { name: 'MadeUp' input_arg { name: 'a' "
      "type: DT_FLOAT } output_arg { name: 'b' number_attr: 'N' type_attr: 'T' } } } } "
      "graph_def { versions { producer: 134 } node { name: 'x' op: 'Placeholder' attr { key: "
      "'dtype' value { type: DT_FLOAT } } } ",
      nodes, " } ", more);
  for (const std::string& output : outputs) {
    absl::StrAppend(&text, " signature_def { key: '", output,
                    "' value { inputs { key: 'x' value { name: 'x:0' } } outputs { key: 'y' value "
                    "{ name: '",
                    output, ":0' } } } }");
  }
  tensorflow::MetaGraphDef meta;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &meta));
  return meta;
}

ModelCheck Checked(const tensorflow::MetaGraphDef& meta, const std::string* key = nullptr) {
  const auto check = CheckModel(Fs(), "/no/such", meta, key);
  EXPECT_OK(check.status());
  return check.value_or(ModelCheck());
}

std::string CheckNode(const std::string& name, const std::string& op, const std::string& attrs,
                      const std::string& input = "x") {
  return absl::StrCat(" node { name: '", name, "' op: '", op, "' input: '", input, "' ", attrs,
                      " } ");
}
constexpr char kT[] = "attr { key: 'T' value { type: DT_FLOAT } } ";

TEST(CheckTest, EverythingThatIsMissingIsNamedAtOnce) {
  const std::string slow = "attr { key: 'mode' value { s: 'slow' } } ";
  const std::string nodes = absl::StrCat(
      CheckNode("u1", "MadeUp", ""), CheckNode("u2", "MadeUp", "", "u1"),
      CheckNode("u3", "MadeUp", ""), CheckNode("u4", "MadeUp", ""), CheckNode("z", "Unheard", ""),
      CheckNode("n", "CheckTestNobody", kT),
      CheckNode("d", "CheckTestPicky", "attr { key: 'T' value { type: DT_DOUBLE } } "),
      CheckNode("s", "CheckTestPicky", kT + slow),
      CheckNode("zero", "CheckTestPicky", absl::StrCat(kT, "attr { key: 'size' value { i: 0 } } ")),
      CheckNode("i", "CheckTestPicky", "attr { key: 'T' value { type: DT_INT32 } } "),
      CheckNode("good", "CheckTestPicky", kT));
  const ModelCheck check = Checked(CheckedModel(nodes, {"good", "u2", "zero"}));
  EXPECT_FALSE(check.runnable());
  EXPECT_EQ(
      CheckText(check),
      "MetaGraphDef with tag-set 'serve': 12 nodes\n"
      "  CheckTestNobody: no kernel for T=float\n"
      "    1 node: n (nothing that was asked for needs them)\n"
      "    needed: a kernel (docs/adding_an_op.md); there is none\n"
      "  CheckTestPicky: attr 'T' must be one of {float, double}, got int32\n"
      "    1 node: i (no graph with them is loaded)\n"
      "    needed: another value of the attr\n"
      "  CheckTestPicky: attr 'size' must be >= 1, got 0\n"
      "    1 node: zero (no graph with them is loaded)\n"
      "    needed: another value of the attr\n"
      "  CheckTestPicky: mode must be 'fast', got 'slow'\n"
      "    1 node: s (nothing that was asked for needs them)\n"
      "    needed: another value of the attr\n"
      "  CheckTestPicky: no kernel for T=double\n"
      "    1 node: d (nothing that was asked for needs them)\n"
      "    needed: a kernel (docs/adding_an_op.md); there are CPU [T in {float}]\n"
      "  MadeUp: the op kind is not known here\n"
      "    4 nodes: u1, u2, u3 and 1 more\n"
      "    needed: an op and its kernel (docs/adding_an_op.md), or their library (--op_library): "
      "(a: float) -> (b: N * T)\n"
      "  Unheard: the op kind is not known here\n"
      "    1 node: z (nothing that was asked for needs them)\n"
      "    needed: an op and its kernel (docs/adding_an_op.md), or their library (--op_library)\n"
      "  loading: SavedModel '/no/such': GraphDef node[9] 'zero': attr 'size' must be >= 1, "
      "got 0\n"
      "  signature 'good': ok\n"
      "  signature 'u2': needs MadeUp\n"
      "  signature 'zero': needs CheckTestPicky\n"
      "not runnable: 3 of 4 (loading and signatures) cannot be done\n");

  const json checked = json::parse(CheckJson({check}));
  EXPECT_EQ(checked.at("runnable"), false);
  const json& problems = checked["meta_graphs"][0]["problems"];
  ASSERT_EQ(problems.size(), 7u);
  EXPECT_EQ(problems[5], json::parse(R"json({"op": "MadeUp", "kind": "unknown_op",
      "what": "the op kind is not known here", "count": 4, "nodes": ["u1", "u2", "u3", "u4"],
      "needs": "an op and its kernel (docs/adding_an_op.md), or their library )json"
                                     R"json((--op_library): (a: float) -> (b: N * T)"})json"));
  EXPECT_EQ(checked["meta_graphs"][0]["tasks"][2], json::parse(R"({"name": "signature 'u2'",
      "runnable": false, "problems": [5], "errors": []})"));
}

TEST(CheckTest, WhatASignatureDoesNotNeedDoesNotStopIt) {
  const tensorflow::MetaGraphDef meta = CheckedModel(
      CheckNode("good", "CheckTestPicky", kT) + CheckNode("u", "MadeUp", ""), {"good", "u"});
  EXPECT_FALSE(Checked(meta).runnable());
  std::string key = "good";
  EXPECT_TRUE(Checked(meta, &key).runnable());
  key = "u";
  EXPECT_FALSE(Checked(meta, &key).runnable());
  key = "nobody";
  EXPECT_STATUS(CheckModel(Fs(), "", meta, &key), StatusCode::kInvalidArgument,
                "ValueError: No SignatureDef with key 'nobody' found in MetaGraphDef; it has "
                "'good', 'u'");
  // What is fed need not be computed.
  EXPECT_TRUE(Checked(CheckedModel(
                          CheckNode("t", "Unheard", "") + CheckNode("y", "CheckTestPicky", kT, "t"),
                          {}, R"(signature_def { key: 's' value {
                                       inputs { key: 'x' value { name: 't:0' } }
                                       outputs { key: 'y' value { name: 'y' } } } })"))
                  .runnable());
}

TEST(CheckTest, FunctionsAreLookedThrough) {
  const std::string library = R"(
    library {
      function { signature { name: 'outer' } node_def { name: 'call' op: 'inner' }
                 node_def { name: 'p' op: 'CheckTestPicky' input: 'a'
                            attr { key: 'T' value { placeholder: 'T' } } } }
      function { signature { name: 'inner' } node_def { name: 'u' op: 'Unheard' } }
      function { signature { name: 'unused' } node_def { name: 'v' op: 'MadeUp' } }
    } )";
  const ModelCheck check = Checked(CheckedModel(
      absl::StrCat(
          CheckNode("y", "CheckTestPicky",
                    absl::StrCat(kT, "attr { key: '_f' value { func { name: 'outer' } } } ")),
          library),
      {"y"}));
  EXPECT_EQ(check.num_functions, 3u);
  EXPECT_EQ(check.num_nodes, 6u);
  ASSERT_EQ(check.problems.size(), 2u);
  EXPECT_EQ(check.problems[0].op, "MadeUp");
  EXPECT_THAT(check.problems[0].nodes, ElementsAre("v in function unused"));
  EXPECT_EQ(check.problems[1].op, "Unheard");
  EXPECT_THAT(check.problems[1].nodes, ElementsAre("u in function inner"));
  EXPECT_THAT(check.tasks[1].problems, ElementsAre(1u));
}

TEST(CheckTest, WhatLoadingLacksIsNamed) {
  struct Case {
    std::string nodes, more;
    std::vector<std::string> outputs;
    std::string text;
  };
  const std::vector<Case> cases = {
      {" node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } "
       "attr { key: 'shape' value { shape { } } } } node { name: 'restore' op: 'NoOp' }",
       "saver_def { restore_op_name: 'restore' filename_tensor_name: 'f:0' }",
       {},
       "loading: SavedModel '/no/such': its graph has variables; "
       "'/no/such/variables/variables.index' must exist"},
      {"",
       "collection_def { key: 'legacy_init_op' value { node_list { value: 'nobody' } } }",
       {},
       "loading: SavedModel '/no/such': the init op 'nobody'"},
      {CheckNode("init", "Unheard", ""),
       "collection_def { key: 'legacy_init_op' value { node_list { value: 'init' } } }",
       {},
       "loading: needs Unheard"},
      {"", "asset_file_def { tensor_info { name: 'x' } filename: '../up' }", {}, "'../up'"},
      {"", "", {"y"}, "signature 'y': GraphDef: has no node 'y'"},
      {CheckNode("y", "Identity", kT, "nobody"),
       "",
       {"y"},
       "loading: SavedModel '/no/such': GraphDef node[1] 'y': input 0 refers to"},
      {"",
       "asset_file_def { tensor_info { name: 'gone' } filename: 'a' }",
       {},
       "'gone' must be in"},
      {CheckNode("y", "Identity", absl::StrCat(kT, " device: '/job:ps/task:3'")),
       "",
       {"y"},
       "/job:ps"},
  };
  for (const Case& c : cases) {
    const ModelCheck check = Checked(CheckedModel(c.nodes, c.outputs, c.more));
    EXPECT_FALSE(check.runnable());
    EXPECT_THAT(CheckText(check), HasSubstr(c.text));
  }
}

TEST(CheckTest, LoadingIsWhatTheLoaderDoes) {
  struct Case {
    std::string nodes, more;
    bool loads;
  };
  const auto later = [](int value) {
    return absl::StrCat("attr { key: 'later' value { i: ", value, " } } ");
  };
  const std::string bad =
      CheckNode("b", "CheckTestPicky", absl::StrCat(kT, "attr { key: 'size' value { i: 0 } } "));
  const Case cases[] = {
      {"", "", true},
      // What no signature needs: legal, and illegal.
      {CheckNode("n", "CheckTestNobody", kT), "", true},
      {CheckNode("u", "Unheard", ""), "", true},
      {CheckNode("s", "CheckTestPicky",
                 absl::StrCat(kT, "attr { key: 'mode' value { s: 'slow' } } ")),
       "", true},
      {bad, "", false},
      {CheckNode("m", "Mul", kT), "", false},
      {CheckNode("p", "Identity", "attr { key: 'T' value { placeholder: 'T' } } "), "", false},
      {" node { name: 'c' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } }", "", false},
      {CheckNode("l", "CheckTestPicky", kT + later(1)), "", true},
      {CheckNode("l", "CheckTestPicky", kT + later(2)), "", false},
      {absl::StrCat("library { function { signature { name: 'f' } ",
                    "node_def { name: 'b' op: 'CheckTestPicky' input: 'x' attr { key: 'size' value "
                    "{ i: 0 } } } } }"),
       "", false},
      {"", "signature_def { key: 'bad' value { inputs { key: 'q' value { name: 'q:0' } } } }",
       false},
  };
  std::string key = "good";
  for (const Case& c : cases) {
    tensorflow::MetaGraphDef meta = CheckedModel(
        absl::StrCat(CheckNode("good", "CheckTestPicky", kT), c.nodes), {"good"}, c.more);
    // An attr that the producer's op has, and ours lacks.
    auto* const op = meta.mutable_meta_info_def()->mutable_stripped_op_list()->add_op();
    op->set_name("CheckTestPicky");
    auto* const attr = op->add_attr();
    attr->set_name("later");
    attr->set_type("int");
    attr->mutable_default_value()->set_i(1);
    const ModelCheck check = Checked(meta, &key);
    const Status loaded = LoadMetaGraph({}, "/no/such", meta, Fs()).status();
    EXPECT_EQ(loaded.ok(), c.loads) << loaded << c.nodes;
    ASSERT_EQ(check.tasks.size(), 2u);
    EXPECT_EQ(check.tasks[0].runnable(), c.loads) << CheckText(check);
    EXPECT_EQ(check.runnable(), c.loads);
    if (c.loads) continue;
    ASSERT_FALSE(check.tasks[0].other.empty());
    EXPECT_EQ(check.tasks[0].other[0], loaded.message());
  }
}

// --- run -----------------------------------------------------------------------------------------

struct RunResult {
  Status status;
  std::string out, warnings;
};

RunResult RunTool(const SavedModelRun& run) {
  std::ostringstream out, warnings;
  RunResult result;
  result.status = RunSavedModel(Fs(), run, out, warnings);
  result.out = out.str();
  result.warnings = warnings.str();
  return result;
}

TEST(RunTest, LiteralsAreFedAndResultsPrinted) {
  const RunResult result =
      RunTool({Written(kModel), "serve", "twice", {.input_exprs = "x=[[1.25], [3]]"}});
  ASSERT_OK(result.status);
  EXPECT_EQ(result.out, "Result for output key y:\n[[2.5]\n [6. ]]\n");
  EXPECT_EQ(result.warnings, "");
}

TEST(RunTest, OutputsAreTensorsInJson) {
  SavedModelRun run = {Written(kModel), "serve", "twice", {.input_exprs = "x=[[0.05], [3]]"}};
  run.json = true;
  run.outdir = TempPath("out");
  const RunResult result = RunTool(run);
  ASSERT_OK(result.status);
  EXPECT_EQ(json::parse(result.out), json::parse(R"({
      "y": {"dtype": "float32", "shape": [2, 1], "values": [0.1, 6.0]}})"));
  EXPECT_THAT(result.warnings, HasSubstr("Output y is saved to "));
}

TEST(RunTest, AModelOfAClusterRunsWithoutItsDevices) {
  std::string model = kModel;
  const std::string add = "op: \"Add\"";
  model.replace(model.find(add), add.size(), add + " device: \"/job:ps/task:1/cpu:0\"");
  SavedModelRun run = {Written(model), "serve", "twice", {.input_exprs = "x=[[1]]"}};
  EXPECT_THAT(std::string(RunTool(run).status.message()), HasSubstr("/job:ps"));
  run.clear_devices = true;
  const RunResult result = RunTool(run);
  ASSERT_OK(result.status);
  EXPECT_EQ(result.out, "Result for output key y:\n[[2.]]\n");
}

TEST(RunTest, AModelPinnedToAGpuRunsWithOneWarning) {
  std::string model = kModel;
  const std::string add = "op: \"Add\"";
  model.replace(model.find(add), add.size(), add + " device: \"/device:GPU:0\"");
  ::testing::internal::CaptureStderr();
  const RunResult result = RunTool({Written(model), "serve", "twice", {.input_exprs = "x=[[1]]"}});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status);
  EXPECT_EQ(result.out, "Result for output key y:\n[[2.]]\n");
  const size_t warning = log.find("asks for a GPU that does not exist");
  EXPECT_NE(warning, std::string::npos) << log;
  EXPECT_EQ(warning, log.rfind("asks for a GPU that does not exist")) << log;
}

TEST(RunTest, ArraysOfFilesAreFedInTheTypeOfTheSignature) {
  const std::string dir = Written(kModel);
  const std::string npy = TempPath("x: \\~.npy"), npz = TempPath("x.npz"), one = TempPath("1.npz");
  ASSERT_OK(WriteNpy(Fs(), npy, TensorOf<double>({2}, {0.5, 2})));
  ASSERT_OK(
      WriteNpz(Fs(), npz, {{"a", TensorOf<float>({}, {1})}, {"b", TensorOf<float>({}, {2})}}));
  ASSERT_OK(WriteNpz(Fs(), one, {{"a", TensorOf<int64_t>({}, {4})}}));
  const auto run = [&](const std::string& inputs) {
    return RunTool({dir, "serve", "twice", {.inputs = inputs}});
  };
  EXPECT_EQ(run("x=" + npy).out, "Result for output key y:\n[1. 4.]\n");
  EXPECT_EQ(run(";x=" + npz + "[b];").out, "Result for output key y:\n4.0\n");
  EXPECT_EQ(run("x=" + one).out, "Result for output key y:\n8.0\n");
  const RunResult named = run("x=" + npy + "[name]");
  EXPECT_EQ(named.out, "Result for output key y:\n[1. 4.]\n");
  EXPECT_EQ(named.warnings, absl::StrCat("WARNING: Input file ", npy,
                                         " contains a single ndarray. Name key \"name\" "
                                         "ignored.\n"));
  EXPECT_STATUS(run("x=" + npz).status, StatusCode::kInvalidArgument,
                absl::StrCat("RuntimeError: Input file ", npz,
                             " contains more than one ndarrays. Please specify the name of "
                             "ndarray to use."));
  EXPECT_STATUS(run("x=" + npz + "[c]").status, StatusCode::kInvalidArgument,
                absl::StrCat("RuntimeError: Input file ", npz,
                             " does not contain variable with name \"c\"."));
}

TEST(RunTest, OutputsAreSavedOnceUnlessOverwritten) {
  SavedModelRun run = {Written(kModel), "serve", "twice", {.input_exprs = "x=[1]"}};
  run.outdir = TempPath("new/out");
  RunResult result = RunTool(run);
  ASSERT_OK(result.status);
  const std::string path = JoinPath(run.outdir, "y.npy");
  EXPECT_EQ(result.out,
            absl::StrCat("Result for output key y:\n[2.]\nOutput y is saved to ", path, "\n"));
  ASSERT_OK_AND_ASSIGN(const Tensor saved, ReadNpy(Fs(), path));
  ExpectTensorEqual(saved, TensorOf<float>({1}, {2}));

  run.inputs.input_exprs = "x=[5]";
  EXPECT_STATUS(RunTool(run).status, StatusCode::kInvalidArgument,
                absl::StrCat("RuntimeError: Output file ", path,
                             " already exists. Add \"--overwrite\" to overwrite the existing "
                             "output files."));
  ASSERT_OK_AND_ASSIGN(const Tensor kept, ReadNpy(Fs(), path));
  ExpectTensorEqual(kept, TensorOf<float>({1}, {2}));
  run.overwrite = true;
  ASSERT_OK(RunTool(run).status);
  ASSERT_OK_AND_ASSIGN(const Tensor replaced, ReadNpy(Fs(), path));
  ExpectTensorEqual(replaced, TensorOf<float>({1}, {10}));
}

// Python's feeds are a dict by tensor name, filled in the order in which the flags gave the keys.
TEST(RunTest, OfTwoKeysForOneTensorTheLaterOneIsFed) {
  const std::string text = R"pb(
    meta_graphs {
      meta_info_def { tags: "serve" }
      graph_def {
        versions { producer: 134 }
        node {
          name: "x"
          op: "Placeholder"
          attr {
            key: "dtype"
            value { type: DT_FLOAT }
          }
          attr {
            key: "shape"
            value { shape { unknown_rank: true } }
          }
        }
      }
      signature_def {
        key: "same"
        value {
          inputs {
            key: "a"
            value { name: "x:0" dtype: DT_FLOAT }
          }
          inputs {
            key: "b"
            value { name: "x:0" dtype: DT_FLOAT }
          }
          outputs {
            key: "y"
            value { name: "x:0" dtype: DT_FLOAT }
          }
        }
      }
    }
  )pb";
  const std::string dir = Written(text), npy = TempPath("x.npy");
  ASSERT_OK(WriteNpy(Fs(), npy, TensorOf<float>({}, {3})));
  struct Case {
    SavedModelInputFlags flags;
    const char* fed;
  };
  const std::vector<Case> cases = {
      {{.input_exprs = "a=1.0;b=2.0"}, "2.0"},
      {{.input_exprs = "b=2.0;a=1.0"}, "1.0"},
      {{.inputs = "b=" + npy, .input_exprs = "a=1.0"}, "1.0"},
      // b keeps the place that --inputs gave it.
      {{.inputs = "b=" + npy, .input_exprs = "a=1.0;b=2.0"}, "1.0"},
      {{.inputs = "a=" + npy, .input_exprs = "b=2.0;a=1.0"}, "2.0"},
  };
  for (const Case& c : cases) {
    const RunResult result = RunTool({dir, "serve", "same", c.flags});
    ASSERT_OK(result.status);
    EXPECT_EQ(result.out, absl::StrCat("Result for output key y:\n", c.fed, "\n"))
        << c.flags.inputs << " " << c.flags.input_exprs;
  }
}

TEST(RunTest, AnOutputKeyCannotLeaveTheDirectory) {
  SavedModelRun run = {Written(kModel), "serve", "Strings", {.input_exprs = "s=['a']"}};
  const RunResult printed = RunTool(run);
  ASSERT_OK(printed.status);
  EXPECT_EQ(printed.out, "Result for output key ../t:\n[b'a']\n");
  run.outdir = TempPath("out");
  EXPECT_STATUS(RunTool(run).status, StatusCode::kInvalidArgument,
                "ValueError: Output key \"../t\" must be a plain file name");
}

TEST(RunTest, ExamplesWinOverLiteralsAndLiteralsOverFiles) {
  const tensorflow::SavedModel model = Parse(kModel);
  const tensorflow::SignatureDef& signature = model.meta_graphs(1).signature_def().at("Strings");
  const std::string npy = TempPath("s.npy");
  ASSERT_OK(WriteNpy(Fs(), npy, TensorOf<std::string>({1}, {"file"})));
  std::vector<std::string> warnings;
  ASSERT_OK_AND_ASSIGN(auto tensors, LoadSavedModelInputs(Fs(), {"s=" + npy, "s=['literal']", ""},
                                                          signature, &warnings));
  ASSERT_EQ(tensors.size(), 1u);
  ExpectTensorEqual(tensors[0].second, TensorOf<std::string>({1}, {"literal"}));
  EXPECT_THAT(warnings, ElementsAre("input_key s has been specified with both --inputs and "
                                    "--input_exprs options. Value in --input_exprs will be "
                                    "used."));
  warnings.clear();
  ASSERT_OK_AND_ASSIGN(
      tensors,
      LoadSavedModelInputs(
          Fs(),
          {"s=" + npy, "", "s=[{\"x\":[8.0, 1],\"n\":[5, True],'b':['\xc3\xa9',b'\\xff']}, {}]"},
          signature, &warnings));
  EXPECT_THAT(warnings, ElementsAre("input_key s has been specified in multiple options. Value in "
                                    "--input_examples will be used."));
  ASSERT_EQ(tensors.size(), 1u);
  const Tensor& examples = tensors[0].second;
  ASSERT_EQ(examples.shape().ToString(), "[2]");
  tensorflow::Example example;
  ASSERT_TRUE(example.ParseFromString(examples.flat<std::string>()[0]));
  const auto& features = example.features().feature();
  ASSERT_EQ(features.size(), 3u);
  EXPECT_THAT(features.at("x").float_list().value(), ElementsAre(8, 1));
  EXPECT_THAT(features.at("n").int64_list().value(), ElementsAre(5, 1));
  EXPECT_THAT(features.at("b").bytes_list().value(), ElementsAre("\xc3\xa9", "\xff"));
  EXPECT_EQ(examples.flat<std::string>()[1], "");
}

TEST(RunTest, BadInputsEndWithThePythonToolsLastLine) {
  const std::string dir = Written(kModel);
  const std::string pickle = TempPath("x.pkl"), text = TempPath("x.txt");
  ASSERT_OK(WriteFileAtomically(Fs(), pickle, "\x80\x03}q\x00."));
  ASSERT_OK(WriteFileAtomically(Fs(), text, "no array"));
  struct Case {
    SavedModelRun run;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{dir, "serve", "twice", {}},
       "AttributeError: At least one of --inputs, --input_exprs or --input_examples must be "
       "required"},
      {{dir, "serve", "twice", {.inputs = "x"}},
       "RuntimeError: --inputs \"x\" format is incorrect. Please follow\"<input_key>=<filename>\", "
       "or\"<input_key>=<filename>[<variable_name>]\""},
      {{dir, "serve", "twice", {.inputs = "=f"}}, "RuntimeError: --inputs \"=f\" format"},
      {{dir, "serve", "twice", {.inputs = "x="}}, "RuntimeError: --inputs \"x=\" format"},
      {{dir, "serve", "twice", {.inputs = "x=f[a"}}, "RuntimeError: --inputs \"x=f[a\" format"},
      {{dir, "serve", "twice", {.inputs = "x=f[]"}}, "RuntimeError: --inputs \"x=f[]\" format"},
      {{dir, "serve", "twice", {.inputs = "x=f]"}}, "RuntimeError: --inputs \"x=f]\" format"},
      {{dir, "serve", "twice", {.inputs = "x=f[a]b"}}, "RuntimeError: --inputs \"x=f[a]b\" format"},
      {{dir, "serve", "twice", {.inputs = "x=/no/such.npy"}}, "FileNotFoundError: "},
      {{dir, "serve", "twice", {.inputs = "x=" + pickle}}, "is a pickle, which is never loaded"},
      {{dir, "serve", "twice", {.inputs = "x=" + text}}, "ValueError: "},
      {{dir, "serve", "twice", {.input_exprs = "x"}}, "format is incorrect"},
      {{dir, "serve", "twice", {.input_exprs = "x=np.onez((2,3))"}},
       "RuntimeError: Expression \"np.onez((2,3))\" is not a valid python literal. np: a function "
       "must be arange, array, asarray, full, ones, zeros or a type, got 'onez'; did you mean "
       "'ones'?"},
      {{dir, "serve", "twice", {.input_exprs = "x=np.load('a.npy')"}}, "got 'load'"},
      {{dir, "serve", "twice", {.input_exprs = "x=__import__('os').system('true')"}},
       "is not a valid python literal. literal: character 0 must begin a literal"},
      {{dir, "serve", "twice", {.input_examples = "x=[{'a': np.ones(2)}]"}},
       "is not a valid python literal."},
      {{dir, "serve", "twice", {.input_exprs = "x=[[1],[2,3]]"}},
       "ValueError: input 'x': setting an array element with a sequence"},
      {{dir, "serve", "twice", {.input_exprs = "x=['a']"}}, "ValueError: input 'x': "},
      {{dir, "serve", "twice", {.input_exprs = "q=[1]"}},
       "ValueError: \"q\" is not a valid input key. Please choose from \"x\", or use --show "
       "option."},
      {{dir, "show", "Odd", {.input_exprs = "q=[1]"}},
       "Please choose from \"a\", \"b\", or use --show option."},
      {{dir, "serve", "Strings", {.input_examples = "s={'x': [1]}"}},
       "ValueError: tf.Example input must be a list of dictionaries, but \"{'x': [1]}\" is <class "
       "'dict'>"},
      {{dir, "serve", "Strings", {.input_examples = "s=[3]"}},
       "ValueError: tf.Example input must be a list of dictionaries, but \"3\" is <class 'int'>"},
      {{dir, "serve", "Strings", {.input_examples = "s=[{'x': 2.5}]"}},
       "ValueError: feature value must be a list, but x: \"2.5\" is <class 'float'>"},
      {{dir, "serve", "Strings", {.input_examples = "s=[{'x': [{}]}]"}},
       "ValueError: Type <class 'dict'> for value {} is not supported for tf.train.Feature."},
      {{dir, "serve", "Strings", {.input_examples = "s=[{'x': []}]"}},
       "IndexError: list index out of range"},
      {{dir, "serve", "Strings", {.input_examples = "s=[{'x': [1, 2.5]}]"}}, "TypeError: 2.5"},
      {{dir, "train", "twice", {.input_exprs = "x=[1]"}},
       "RuntimeError: MetaGraphDef associated with tag-set train could not be found in SavedModel"},
      {{dir, "serve", "nobody", {.input_exprs = "x=[1]"}},
       "ValueError: No SignatureDef with key 'nobody' found in MetaGraphDef; it has 'Strings', "
       "'twice'"},
      {{"/no/such", "serve", "twice", {.input_exprs = "x=[1]"}},
       "IOError: SavedModel file does not exist at: /no/such/{saved_model.pbtxt|saved_model.pb}"},
  };
  for (const Case& c : cases) {
    const RunResult result = RunTool(c.run);
    EXPECT_FALSE(result.status.ok()) << c.message;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(c.message));
    EXPECT_EQ(result.out, "");
  }
}

// --- The program ---------------------------------------------------------------------------------

struct Process {
  int code = -1;
  std::string out;
  std::vector<std::string> err;  // lines
};

// `arguments` as a shell reads them.
Process Cli(const std::string& arguments) {
  const std::string err = TempPath("stderr");
  FILE* pipe = popen(absl::StrCat(kCli, " ", arguments, " 2>'", err, "'").c_str(), "r");
  Process process;
  char buffer[4096];
  size_t n = 0;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) process.out.append(buffer, n);
  process.code = WEXITSTATUS(pclose(pipe));
  const std::string text = ReadFileToString(Fs(), err).value_or("");
  process.err = absl::StrSplit(text, '\n', absl::SkipEmpty());
  return process;
}

TEST(CliTest, VersionAndCommands) {
  for (const char* flag : {"-v", "--version", "show --version", "run -v"}) {
    EXPECT_EQ(Cli(flag).out, VersionText("saved_model_cli")) << flag;
    EXPECT_EQ(Cli(flag).code, 0);
  }
  const std::string dir = Written(kModel);
  EXPECT_EQ(Cli("show --dir " + dir).out, ShowTagSets(Parse(kModel)));
  EXPECT_THAT(Cli("show --dir=" + dir + " --tag serve").out,
              HasSubstr("SignatureDef key: \"Strings\""));
  EXPECT_THAT(Cli("show --dir " + dir + " --tag_set serve --signature_def twice").out,
              HasSubstr("Method name is: tensorflow/serving/predict\n"));
  // --all wins.
  EXPECT_EQ(Cli("show --all --tag_set nobody --dir " + dir).out, ShowAll(Parse(kModel)));
  EXPECT_THAT(Cli("scan --dir " + dir).out, HasSubstr("does not contain blacklisted ops."));
  EXPECT_EQ(
      Cli("run --dir " + dir + " --tag_set serve --signature_def twice --input_exprs 'x=[1]'").out,
      "Result for output key y:\n[2.]\n");
}

TEST(CliTest, HelpOfEveryCommandExitsWithZero) {
  for (const char* command : {"", "show", "run", "check", "scan", "convert"}) {
    for (const char* flag : {"--help", "-h"}) {
      const Process process = Cli(absl::StrCat(command, " ", flag));
      EXPECT_EQ(process.code, 0) << command;
      EXPECT_THAT(process.out, StartsWith("usage: saved_model_cli"));
      EXPECT_TRUE(process.err.empty());
    }
  }
  EXPECT_THAT(Cli("--help").out, HasSubstr("\ncheck: Says whether"));
  EXPECT_THAT(Cli("run --help").out, HasSubstr("--input_exprs TEXT"));
}

TEST(CliTest, ADirectoryOfVersionsMeansItsNewestWholeOne) {
  const std::string base = TempPath("export");
  const auto write = [&](const std::string& version, const std::string& tag) {
    const std::string dir = JoinPath(base, version);
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir));
    EXPECT_OK(WriteFileAtomically(
        Fs(), JoinPath(dir, "saved_model.pb"),
        Parse(absl::StrCat("meta_graphs { meta_info_def { tags: '", tag, "' } }"))
            .SerializeAsString()));
  };
  write("9", "nine");
  write("1700000001", "newest");
  write("170000000", "shorter");
  write("1700000002x", "no_number");
  // Begun, and not whole.
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(JoinPath(base, "1700000003/variables")));
  for (const char* command : {"show", "scan", "check"}) {
    const Process process = Cli(absl::StrCat(command, " --dir ", base));
    EXPECT_THAT(process.out, HasSubstr("newest")) << command;
    ASSERT_EQ(process.err.size(), 1u);
    EXPECT_EQ(process.err[0], absl::StrCat("saved_model_cli: '", base,
                                           "' is a directory of versions; using the newest, '",
                                           base, "/1700000001'"));
  }
  const Process exact = Cli("show --dir " + JoinPath(base, "9"));
  EXPECT_THAT(exact.out, HasSubstr("nine"));
  EXPECT_TRUE(exact.err.empty());

  // Other names are no versions: they are named.
  const std::string named = TempPath("named");
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(JoinPath(named, "best")));
  ASSERT_OK(
      Fs()->RenameFile(JoinPath(base, "9/saved_model.pb"), JoinPath(named, "best/saved_model.pb")));
  const Process other = Cli("show --dir " + named);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err.back(),
              HasSubstr(absl::StrCat("; there are models in '", named, "/best'")));
}

TEST(CliTest, JsonIsPrintedByEveryCommand) {
  const std::string dir = Written(kModel);
  for (const std::string& arguments : std::vector<std::string>{
           "show --dir " + dir, "show --all --dir " + dir,
           "show --tag_set serve --signature_def twice --dir " + dir, "scan --dir " + dir,
           "check --tag_set serve --dir " + dir,
           "run --tag_set serve --signature_def twice --input_exprs 'x=[1]' --dir " + dir}) {
    const Process process = Cli(arguments + " --json");
    EXPECT_EQ(process.code, 0) << arguments;
    EXPECT_TRUE(json::accept(process.out)) << process.out;
  }
}

TEST(CliTest, CheckExitsWithOneWhenTheModelCannotRun) {
  const std::string dir = Written(kModel);
  Process process = Cli("check --tag_set serve --dir " + dir);
  EXPECT_EQ(process.code, 0);
  EXPECT_EQ(process.out,
            "MetaGraphDef with tag-set 'serve': 4 nodes\n"
            "  loading: ok\n"
            "  signature 'Strings': ok\n"
            "  signature 'twice': ok\n"
            "runnable\n");
  EXPECT_TRUE(process.err.empty());
  process = Cli("check --tag_set show --dir " + dir);
  EXPECT_EQ(process.code, 1);
  EXPECT_THAT(process.out, HasSubstr(absl::StrCat("  loading: SavedModel '", dir,
                                                  "': signature 'Odd': input '")));
  EXPECT_THAT(process.out, EndsWith("not runnable: 1 of 2 (loading and signatures) cannot be "
                                    "done\n"));
  EXPECT_EQ(Cli("check --dir " + dir).code, 1);
  EXPECT_EQ(Cli("check --dir " + dir + " --json").code, 1);
}

TEST(CliTest, ATableModelOfTensorFlowRuns) {
  const std::string dir = SharedDataPath("saved_models/taxi_wide_deep_1_12");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/taxi_wide_deep_1_12";
  EXPECT_EQ(Cli("check --dir " + dir).code, 0);
  const json checked = json::parse(Cli("check --json --dir " + dir).out);
  EXPECT_EQ(checked.at("runnable"), true);
  EXPECT_TRUE(checked["meta_graphs"][0]["problems"].empty()) << checked;
}

TEST(CliTest, WrongFlagsExitWithTwoAfterTheUsage) {
  struct Case {
    std::string arguments, last;
  };
  const std::vector<Case> cases = {
      {"", "saved_model_cli: error: too few arguments"},
      {"bogus",
       "saved_model_cli: error: invalid choice: 'bogus' (choose from 'show', 'run', 'check', "
       "'scan', 'convert')"},
      {"show", "saved_model_cli show: error: the following arguments are required: --dir"},
      {"show --dir a --bogus", "saved_model_cli show: error: unrecognized arguments: --bogus"},
      {"show --dir a --tagset=b",
       "saved_model_cli show: error: unrecognized arguments: --tagset=b; did you mean 'tag_set'?"},
      {"--bogus", "saved_model_cli: error: unrecognized arguments: --bogus"},
      {"run --dir a",
       "saved_model_cli run: error: the following arguments are required: --tag_set, "
       "--signature_def"},
  };
  for (const Case& c : cases) {
    const Process process = Cli(c.arguments);
    EXPECT_EQ(process.code, 2) << c.arguments;
    ASSERT_FALSE(process.err.empty());
    EXPECT_THAT(process.err.front(), HasSubstr("usage: saved_model_cli"));
    EXPECT_EQ(process.err.back(), c.last);
  }
}

TEST(CliTest, OtherFailuresExitWithOneAndTheException) {
  const std::string dir = Written(kModel);
  struct Case {
    std::string arguments, last;
  };
  const std::vector<Case> cases = {
      {"show --dir /no/such --all",
       "IOError: SavedModel file does not exist at: /no/such/{saved_model.pbtxt|saved_model.pb}"},
      {"show --dir " + dir + " --tag_set a,b",
       "RuntimeError: MetaGraphDef associated with tag-set a,b could not be found in SavedModel; "
       "it has 'serve', 'serve,gpu', 'show'"},
      {"check --dir " + dir + " --tag_set serve --signature_def nobody",
       "ValueError: No SignatureDef with key 'nobody' found in MetaGraphDef; it has 'Strings', "
       "'twice'"},
      {"check --dir /no/such",
       "IOError: SavedModel file does not exist at: /no/such/{saved_model.pbtxt|saved_model.pb}"},
      {"scan --json --dir /no/such",
       "IOError: SavedModel file does not exist at: /no/such/{saved_model.pbtxt|saved_model.pb}"},
      {"run --dir " + dir + " --tag_set serve --signature_def twice",
       "AttributeError: At least one of --inputs, --input_exprs or --input_examples must be "
       "required"},
      {"convert --dir a tensorrt",
       "NotImplementedError: convert makes TensorRT engines, which need a GPU"},
  };
  for (const Case& c : cases) {
    const Process process = Cli(c.arguments);
    EXPECT_EQ(process.code, 1) << c.arguments;
    ASSERT_FALSE(process.err.empty());
    EXPECT_EQ(process.err.back(), c.last);
    EXPECT_EQ(process.out, "");
  }
}

TEST(CliTest, HalfPlusTwoRunsAsItsCommandLineSays) {
  const std::string dir = SharedDataPath("saved_models/half_plus_two");
  if (dir.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/half_plus_two";
  const std::string flags = "run --dir " + dir + " --tag_set serve --signature_def ";
  Process process = Cli(flags + "serving_default --input_exprs 'x=[[1],[2]]'");
  EXPECT_EQ(process.code, 0) << ::testing::PrintToString(process.err);
  EXPECT_EQ(process.out, "Result for output key y:\n[[2.5]\n [3. ]]\n");
  process = Cli(flags +
                "regress_x_to_y --input_examples 'inputs=[{\"x\":[8.0],\"x2\":[5.0]}, "
                "{\"x\":[4.0],\"x2\":[3.0]}]'");
  EXPECT_EQ(process.code, 0) << ::testing::PrintToString(process.err);
  EXPECT_EQ(process.out, "Result for output key outputs:\n[[6.]\n [4.]]\n");
}

}  // namespace
}  // namespace millrace
