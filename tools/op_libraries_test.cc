// SPDX-License-Identifier: Apache-2.0
//
// The programs of tools/ and op libraries: what they load, and what they refuse.

#include <google/protobuf/text_format.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "formats/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/saved_model.pb.h"
#include "saver/tensor_bundle.h"

// covers: programs: tools run graphs with ops of libraries (`--op_library`,
// `MILLRACE_OP_LIBRARIES`)
//   and name a library that is missing, of another version, or defines what exists

namespace millrace {
namespace {

using ::testing::HasSubstr;

FileSystem* Fs() { return FileSystem::Posix(); }

struct Ended {
  int code;
  std::string text;  // stdout and stderr
};
Ended RunProgram(const std::string& command) {
  FILE* const pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  Ended ended;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    ended.text.append(buffer, n);
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

// y = 2 x, by an op of the library good.so; z = 2 v of a variable.
constexpr char kGraph[] = R"pb(
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
      value { shape { dim { size: -1 } } }
    }
  }
  node {
    name: "y"
    op: "LibraryOp_good"
    input: "x"
    attr {
      key: "T"
      value { type: DT_FLOAT }
    }
  }
  node {
    name: "v"
    op: "VariableV2"
    attr {
      key: "dtype"
      value { type: DT_FLOAT }
    }
    attr {
      key: "shape"
      value { shape { dim { size: 2 } } }
    }
  }
  node {
    name: "z"
    op: "LibraryOp_good"
    input: "v"
    attr {
      key: "T"
      value { type: DT_FLOAT }
    }
  }
)pb";

std::string Library(const std::string& kind) {
  return absl::StrCat("runtime/testing/", kind, ".so");
}

class OpLibraries : public ::testing::Test {
 protected:
  OpLibraries()
      : directory_(JoinPath(::testing::TempDir(), absl::StrCat("op_libraries_", RandomHexName()))) {
  }
  ~OpLibraries() override { Fs()->RecursivelyDelete(directory_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  void SetUp() override {
    ASSERT_OK(Fs()->RecursivelyCreateDirectory(Path("model")));
    ASSERT_OK(WriteFileAtomically(Fs(), Path("graph.pbtxt"), kGraph));
    ASSERT_OK(WriteNpz(Fs(), Path("in.npz"), {{"x:0", TensorOf<float>({2}, {1.5, -2})}}));
    ASSERT_OK(WriteFileAtomically(Fs(), Path("in.json"), "{\"x\": 1.5}\n{\"x\": -2}\n"));
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(Fs(), Path("ckpt-1")));
    ASSERT_OK(writer->Add("v", TensorOf<float>({2}, {3, 4})));
    ASSERT_OK(writer->Finish());
    tensorflow::SavedModel model;
    model.set_saved_model_schema_version(1);
    tensorflow::MetaGraphDef* const meta = model.add_meta_graphs();
    meta->mutable_meta_info_def()->add_tags("serve");
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kGraph, meta->mutable_graph_def()));
    // No variables: what the signature does not need is not restored.
    meta->mutable_graph_def()->mutable_node()->DeleteSubrange(2, 2);
    tensorflow::SignatureDef& signature = (*meta->mutable_signature_def())["serving_default"];
    signature.set_method_name("tensorflow/serving/predict");
    for (const auto& [infos, name] : {std::pair(signature.mutable_inputs(), "x"),
                                      std::pair(signature.mutable_outputs(), "y")}) {
      tensorflow::TensorInfo& info = (*infos)[std::string(name)];
      info.set_name(absl::StrCat(name, ":0"));
      info.set_dtype(tensorflow::DT_FLOAT);
      info.mutable_tensor_shape()->add_dim()->set_size(-1);
    }
    ASSERT_OK(WriteFileAtomically(Fs(), Path("model/saved_model.pb"), model.SerializeAsString()));
  }

  struct Tool {
    std::string command;
    std::string text;  // with the library
    bool fails_without = true;
  };
  std::vector<Tool> Tools() const {
    const std::string graph = absl::StrCat(" --graph ", Path("graph.pbtxt"));
    const std::string model = absl::StrCat(" --dir ", Path("model"));
    const std::string serving = " --tag_set serve --signature_def serving_default";
    return {
        {absl::StrCat("run_graph --fetches y:0 --json --feeds ", Path("in.npz"), graph), "-4.0"},
        {absl::StrCat("freeze_graph --output_node_names z --input_graph ", Path("graph.pbtxt"),
                      " --input_checkpoint ", Path("ckpt-1"), " --output_graph ",
                      Path("frozen.pb")),
         "Converted 1 variables", false},
        {absl::StrCat("saved_model_cli run --input_exprs 'x=[1.5, -2]'", model, serving),
         "[ 3. -4.]"},
        {absl::StrCat("saved_model_cli check", model), ""},
        {absl::StrCat("saved_model_cli show --all", model), "serving_default", false},
        {absl::StrCat("saved_model_cli scan", model), "", false},
        {absl::StrCat("local_predict --format json --model-dir ", Path("model"),
                      " --json-instances ", Path("in.json")),
         "-4"},
        {absl::StrCat("inspect_checkpoint ", Path("ckpt-1")), "1 tensors", false},
    };
  }

  const std::string directory_;
};

TEST_F(OpLibraries, EveryToolTakesThemByAFlagAndByTheEnvironment) {
  for (const Tool& tool : Tools()) {
    const std::string program = absl::StrCat("tools/", tool.command);
    if (tool.fails_without) {
      const Ended without = RunProgram(program);
      EXPECT_EQ(without.code, 1) << tool.command << "\n" << without.text;
      EXPECT_THAT(without.text, HasSubstr("LibraryOp_good")) << tool.command;
      EXPECT_THAT(without.text, HasSubstr("--op_library")) << tool.command;
    }
    const std::string good = Library("good"), also = Library("also_good");
    for (const std::string& command : {absl::StrCat(program, " --op_library ", good),
                                       absl::StrCat(program, " --op_library=", also,
                                                    " --op_library=", good, " --op_library=", good),
                                       absl::StrCat("MILLRACE_OP_LIBRARIES=", good, " ", program),
                                       absl::StrCat("MILLRACE_OP_LIBRARIES=", also, ":", good, ": ",
                                                    program, " --op_library ", good)}) {
      const Ended ended = RunProgram(command);
      EXPECT_EQ(ended.code, 0) << command << "\n" << ended.text;
      EXPECT_THAT(ended.text, HasSubstr(tool.text)) << command;
    }
  }
}

TEST_F(OpLibraries, AFrozenGraphKeepsTheOp) {
  const Ended frozen = RunProgram(
      absl::StrCat("tools/freeze_graph --op_library ", Library("good"), " --input_graph ",
                   Path("graph.pbtxt"), " --input_checkpoint ", Path("ckpt-1"),
                   " --output_node_names z --output_graph ", Path("frozen.pb")));
  ASSERT_EQ(frozen.code, 0) << frozen.text;
  const Ended ended =
      RunProgram(absl::StrCat("tools/run_graph --op_library ", Library("good"), " --graph ",
                              Path("frozen.pb"), " --fetches z:0 --json"));
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("8.0"));
}

TEST_F(OpLibraries, WhatCannotBeLoadedIsNamed) {
  ASSERT_OK(WriteFileAtomically(Fs(), Path("text.so"), "no library"));
  struct Case {
    std::string library;
    std::string text;
  };
  const std::vector<Case> cases = {
      {Path("none.so"), "must exist, got no file"},
      {directory_, "must be a file, got a directory"},
      {Path("text.so"), "must be a library that this program can load"},
      {Library("other_version"), "got one built for 0.1.9; build it again with the headers of"},
      {Library("no_version"), "must say which version of Millrace it is built for, got none"},
      {Library("known_op"), "MatMul"},
      {Library("nothing"), "must register at least one op or kernel, got none"},
      {Library("missing_symbol"), "NobodyDefinesThis"},
  };
  for (const Tool& tool : Tools()) {
    if (absl::StartsWith(tool.command, "inspect")) continue;
    for (const Case& c : cases) {
      const Ended flag =
          RunProgram(absl::StrCat("tools/", tool.command, " --op_library ", c.library));
      EXPECT_EQ(flag.code, 1) << tool.command;
      EXPECT_THAT(flag.text,
                  HasSubstr(absl::StrCat("--op_library: LoadOpLibrary '", c.library, "': ")));
      EXPECT_THAT(flag.text, HasSubstr(c.text)) << tool.command;
    }
  }
  const Ended variable =
      RunProgram(absl::StrCat("MILLRACE_OP_LIBRARIES=", Path("none.so"),
                              " tools/saved_model_cli check --dir ", Path("model")));
  EXPECT_EQ(variable.code, 1);
  EXPECT_THAT(variable.text,
              HasSubstr(absl::StrCat("NotFoundError: MILLRACE_OP_LIBRARIES: LoadOpLibrary '",
                                     Path("none.so"), "': must exist, got no file")));
  for (const char* program : {"inspect_checkpoint", "inspect_events"}) {
    const Ended ended = RunProgram(
        absl::StrCat("tools/", program, " --op_library ", Path("none.so"), " ", Path("ckpt-1")));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.text, HasSubstr(absl::StrCat(program, ": --op_library: '", Path("none.so"),
                                                   "' must exist, got no file")));
  }
  const Ended nothing = RunProgram("tools/run_graph --op_library");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.text, HasSubstr("argument --op_library: expected one argument"));
}

}  // namespace
}  // namespace millrace
