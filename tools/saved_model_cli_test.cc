// SPDX-License-Identifier: Apache-2.0
//
// The texts, files and exit codes of saved_model_cli.

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/npy.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"
#include "proto/saved_model.pb.h"
#include "tools/saved_model_inputs.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
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
                "SavedModel");
}

TEST(ReadTest, BinaryWinsOverText) {
  const std::string dir = Written(kModel);
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir, "saved_model.pbtxt"), "not text at all {"));
  ASSERT_OK_AND_ASSIGN(const tensorflow::SavedModel model, ReadSavedModelForTool(Fs(), dir));
  EXPECT_EQ(model.meta_graphs_size(), 3);
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
      {{dir, "serve", "twice", {.input_exprs = "x=np.ones((2,3))"}},
       "RuntimeError: Expression \"np.ones((2,3))\" is not a valid python literal."},
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
       "ValueError: No SignatureDef with key 'nobody' found in MetaGraphDef."},
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
  EXPECT_EQ(Cli("-v").out, "0.1.0\n");
  EXPECT_EQ(Cli("--version").out, "0.1.0\n");
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

TEST(CliTest, WrongFlagsExitWithTwoAfterTheUsage) {
  struct Case {
    std::string arguments, last;
  };
  const std::vector<Case> cases = {
      {"", "saved_model_cli: error: too few arguments"},
      {"bogus",
       "saved_model_cli: error: invalid choice: 'bogus' (choose from 'show', 'run', 'scan', "
       "'convert')"},
      {"show", "saved_model_cli show: error: the following arguments are required: --dir"},
      {"show --dir a --bogus", "saved_model_cli show: error: unrecognized arguments: --bogus"},
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
       "RuntimeError: MetaGraphDef associated with tag-set a,b could not be found in SavedModel"},
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
