// SPDX-License-Identifier: Apache-2.0
//
// The library and the program run_graph.

#include "tools/graph_run.h"

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "formats/npy.h"
#include "graph/import_export.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// covers: graphs: graphs that ask for a GPU run on the CPU where soft placement allows, with one
//   warning per session

// covers: graphs: graphs that ask for a GPU run on the CPU where soft placement allows, with one
//   warning per session

namespace millrace {
namespace {

using absl::StatusCode;

// A placeholder, a variable and its initialiser, strings, half, bfloat16 and quantised tensors.
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
      value { shape { unknown_rank: true } }
    }
  }
  node {
    name: "one"
    op: "Const"
    attr {
      key: "dtype"
      value { type: DT_FLOAT }
    }
    attr {
      key: "value"
      value {
        tensor {
          dtype: DT_FLOAT
          tensor_shape {}
          float_val: 1
        }
      }
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
      value { shape {} }
    }
    attr {
      key: "container"
      value { s: "" }
    }
    attr {
      key: "shared_name"
      value { s: "" }
    }
  }
  node {
    name: "init"
    op: "Assign"
    input: "v"
    input: "one"
    attr {
      key: "T"
      value { type: DT_FLOAT }
    }
    attr {
      key: "use_locking"
      value { b: true }
    }
    attr {
      key: "validate_shape"
      value { b: true }
    }
    attr {
      key: "_class"
      value { list { s: "loc:@v" } }
    }
  }
  node {
    name: "sum"
    op: "Add"
    input: "x"
    input: "v"
    attr {
      key: "T"
      value { type: DT_FLOAT }
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
    name: "same"
    op: "Identity"
    input: "s"
    attr {
      key: "T"
      value { type: DT_STRING }
    }
  }
  node {
    name: "h"
    op: "Placeholder"
    attr {
      key: "dtype"
      value { type: DT_HALF }
    }
    attr {
      key: "shape"
      value { shape { unknown_rank: true } }
    }
  }
  node {
    name: "b"
    op: "Placeholder"
    attr {
      key: "dtype"
      value { type: DT_BFLOAT16 }
    }
    attr {
      key: "shape"
      value { shape { unknown_rank: true } }
    }
  }
  node {
    name: "q"
    op: "Placeholder"
    attr {
      key: "dtype"
      value { type: DT_QUINT8 }
    }
    attr {
      key: "shape"
      value { shape { unknown_rank: true } }
    }
  }
  node {
    name: "r"
    op: "VarHandleOp"
    attr {
      key: "dtype"
      value { type: DT_FLOAT }
    }
    attr {
      key: "shape"
      value { shape {} }
    }
    attr {
      key: "container"
      value { s: "" }
    }
    attr {
      key: "shared_name"
      value { s: "" }
    }
  }
)pb";

tensorflow::GraphDef Graph() { return ParseGraphDefText(kGraph).value(); }

std::string TempPath(const std::string& name) {
  return JoinPath(::testing::TempDir(), absl::StrCat("graph_run_test_", name));
}

TEST(GraphRunTest, TargetsRunBeforeFetches) {
  ASSERT_OK_AND_ASSIGN(const NamedArrays out,
                       RunGraphOnArrays(Graph(), {{"x:0", TensorOf<float>({2}, {1, 2})}},
                                        {{"init"}, {"sum:0", "x:0"}}));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].first, "sum:0");
  ExpectTensorEqual(out[0].second, TensorOf<float>({2}, {2, 3}));
  EXPECT_EQ(out[1].first, "x:0");
  ExpectTensorEqual(out[1].second, TensorOf<float>({2}, {1, 2}));
  EXPECT_STATUS(RunGraphOnArrays(Graph(), {{"x", TensorOf<float>({1}, {1})}}, {{}, {"sum"}}),
                StatusCode::kFailedPrecondition, "v");
}

// The initialiser and the fetches are two signatures of one session.
TEST(GraphRunTest, AGraphPinnedToAGpuRunsWithOneWarning) {
  tensorflow::GraphDef graph = Graph();
  for (auto& node : *graph.mutable_node()) node.set_device("/device:GPU:0");
  ::testing::internal::CaptureStderr();
  const StatusOr<NamedArrays> out =
      RunGraphOnArrays(graph, {{"x:0", TensorOf<float>({2}, {1, 2})}}, {{"init"}, {"sum:0"}});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(out.status());
  ExpectTensorEqual((*out)[0].second, TensorOf<float>({2}, {2, 3}));
  const size_t warning = log.find("for a GPU that does not exist");
  EXPECT_NE(warning, std::string::npos) << log;
  EXPECT_EQ(warning, log.rfind("for a GPU that does not exist")) << log;
}

TEST(GraphRunTest, StringsKeepTheirTrailingNuls) {
  const std::string nul("a\0", 2);
  ASSERT_OK_AND_ASSIGN(const NamedArrays out,
                       RunGraphOnArrays(Graph(),
                                        {{"s", TensorOf<std::string>({2}, {"a", "bc"})},
                                         {"s#lengths", TensorOf<int64_t>({2}, {2, 2})}},
                                        {{}, {"same:0"}}));
  ASSERT_EQ(out.size(), 2u);
  ExpectTensorEqual(out[0].second, TensorOf<std::string>({2}, {nul, "bc"}));
  EXPECT_EQ(out[1].first, "same:0#lengths");
  ExpectTensorEqual(out[1].second, TensorOf<int64_t>({2}, {2, 2}));
}

TEST(GraphRunTest, TypesThatNumpyLacksAreFedByWhatStandsForThem) {
  ASSERT_OK_AND_ASSIGN(const NamedArrays out,
                       RunGraphOnArrays(Graph(),
                                        {{"h", TensorOf<Half>({1}, {ToHalf(0.5f)})},
                                         {"b", TensorOf<float>({1}, {1.5f})},
                                         {"q", TensorOf<uint8_t>({1}, {200})}},
                                        {{}, {"h", "b", "q"}}));
  ExpectTensorEqual(out[0].second, TensorOf<Half>({1}, {ToHalf(0.5f)}));
  ExpectTensorEqual(out[1].second, TensorOf<Bfloat16>({1}, {ToBfloat16(1.5f)}));
  ExpectTensorEqual(out[2].second, TensorOf<QUInt8>({1}, {QUInt8{200}}));
  // As files: float32 and uint8.
  const std::string path = TempPath("types.npz");
  ASSERT_OK(WriteNpz(FileSystem::Posix(), path, out));
  ASSERT_OK_AND_ASSIGN(const NamedArrays read, ReadNpz(FileSystem::Posix(), path));
  ExpectTensorEqual(read[1].second, TensorOf<float>({1}, {1.5f}));
  ExpectTensorEqual(read[2].second, TensorOf<uint8_t>({1}, {200}));
}

TEST(GraphRunTest, WhatDoesNotFitIsRefusedByName) {
  struct Case {
    NamedArrays feeds;
    GraphRun run;
    std::string message;
  };
  const Tensor f = TensorOf<float>({1}, {1});
  const std::vector<Case> cases = {
      {{{"x", TensorOf<double>({1}, {1})}},
       {{}, {"x"}},
       "feed 'x': array must be of float, got double"},
      {{{"q", TensorOf<int8_t>({1}, {1})}}, {{}, {"q"}}, "must be of quint8, got int8"},
      {{{"nobody:0", f}}, {{}, {"x"}}, "feed 'nobody:0': must name a tensor of the graph"},
      {{{"x:1", f}}, {{}, {"x"}}, "feed 'x:1': node 'x' has 1 outputs, got index 1"},
      {{{"x#lengths", f}}, {{}, {"x"}}, "must belong to an array of strings 'x'"},
      {{{"s", TensorOf<std::string>({1}, {"a"})}, {"s#lengths", TensorOf<int64_t>({2}, {1, 1})}},
       {{}, {"s"}},
       "feed 's': npy: lengths must be int64 of the shape"},
      {{{"x", f}}, {{}, {"x", "x"}}, "fetch 'x' must be given once"},
      {{}, {{}, {"r:0"}}, "fetch 'r:0' must be of a type that numpy has, got resource"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(RunGraphOnArrays(Graph(), c.feeds, c.run), StatusCode::kInvalidArgument,
                  c.message);
  }
  EXPECT_FALSE(RunGraphOnArrays(Graph(), {}, {{}, {"nobody:0"}}).ok());
}

// `arguments` as a shell reads them; the exit code.
int RunGraph(const std::string& arguments) {
  return WEXITSTATUS(
      std::system(absl::StrCat("tools/run_graph ", arguments, " 2>/dev/null").c_str()));
}

TEST(RunGraphProgramTest, ReadsBothFormatsAndWritesAnArchive) {
  FileSystem* const fs = FileSystem::Posix();
  const std::string in = TempPath("in.npz"), out = TempPath("out.npz");
  ASSERT_OK(WriteNpz(fs, in, {{"x:0", TensorOf<float>({1}, {4})}}));
  for (const GraphFormat format : {GraphFormat::kBinary, GraphFormat::kText}) {
    const std::string graph = TempPath(format == GraphFormat::kBinary ? "graph.pb" : "graph.pbtxt");
    ASSERT_OK(WriteGraphDef(fs, graph, Graph(), format));
    EXPECT_EQ(RunGraph(absl::StrCat("--graph ", graph, " --feeds=", in,
                                    " --fetches sum:0,one:0 --targets init --out ", out)),
              0);
    ASSERT_OK_AND_ASSIGN(const NamedArrays arrays, ReadNpz(fs, out));
    ASSERT_EQ(arrays.size(), 2u);
    EXPECT_EQ(arrays[0].first, "sum:0");
    ExpectTensorEqual(arrays[0].second, TensorOf<float>({1}, {5}));
    ASSERT_OK(fs->DeleteFile(out));
    EXPECT_EQ(RunGraph(absl::StrCat("--graph ", graph, " --fetches nobody:0 --out ", out)), 1);
    EXPECT_FALSE(fs->FileExists(out));
  }
  EXPECT_EQ(RunGraph("--graph /no/such.pb --fetches a --out b"), 1);
  EXPECT_EQ(RunGraph("--graph a"), 2);
  EXPECT_EQ(RunGraph("--graph a --fetches b"), 2);
  EXPECT_EQ(RunGraph("--help >/dev/null"), 0);
  EXPECT_EQ(RunGraph("--version >/dev/null"), 0);
}

TEST(RunGraphProgramTest, JsonNeedsNoArchiveAndDevicesCanBeCleared) {
  FileSystem* const fs = FileSystem::Posix();
  tensorflow::GraphDef pinned = Graph();
  for (auto& node : *pinned.mutable_node()) node.set_device("/job:ps/task:3");
  const std::string graph = TempPath("pinned.pb"), in = TempPath("in.npz"), out = TempPath("json");
  ASSERT_OK(WriteGraphDef(fs, graph, pinned, GraphFormat::kBinary));
  ASSERT_OK(WriteNpz(fs, in, {{"s", TensorOf<std::string>({2}, {"a", "bc"})}}));
  const std::string flags = absl::StrCat("--graph ", graph, " --feeds ", in,
                                         " --fetches same:0,one:0 --json --clear_devices=");
  EXPECT_EQ(RunGraph(absl::StrCat(flags, "false >", out)), 1);
  EXPECT_EQ(RunGraph(absl::StrCat(flags, "true >", out)), 0);
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(fs, out));
  EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(R"({
      "same:0": {"dtype": "string", "shape": [2], "values": ["a", "bc"]},
      "one:0": {"dtype": "float32", "shape": [], "values": [1.0]}})"));
}

}  // namespace
}  // namespace millrace
