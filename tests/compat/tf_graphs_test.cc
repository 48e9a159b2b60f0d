// SPDX-License-Identifier: Apache-2.0
//
// Seven hundred small graphs that TensorFlow wrote, with the outputs it computed, through sessions:
// import, pruning, placement, plan, executor and kernels take part. What shape inference says of an
// output before the step must allow what the step gives. A graph with an op that has no kernel
// here is counted as such, never as passed; a result that differs fails the test with its name.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/session.h"
#include "tests/compat/json_tensor.h"

// covers: values: TensorFlow's small graphs: 583 of 705 agree, none differs

namespace millrace {
namespace {

using nlohmann::json;

// Cases that must pass; raised when ops are added, never lowered.
constexpr int kMustPass = 583;
// Frozen graphs that assign to what freezing made a constant: TensorFlow refuses to load them too.
constexpr int kFrozenAssignments = 24;

struct Outcome {
  enum class Kind { kPassed, kMissingOp, kFrozenAssignment, kFailed } kind = Kind::kFailed;
  std::string text;  // the op that is missing, or what is wrong
};

// float16 and bfloat16 as float, everything else as it is.
StatusOr<Tensor> Widened(const Tensor& tensor) {
  if (tensor.dtype() != DT_HALF && tensor.dtype() != DT_BFLOAT16) return tensor;
  MR_ASSIGN_OR_RETURN(Tensor wide, Tensor::Allocate(DT_FLOAT, tensor.shape()));
  const absl::Span<float> out = wide.mutable_flat<float>();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = tensor.dtype() == DT_HALF ? ToFloat(tensor.flat<Half>()[i])
                                       : ToFloat(tensor.flat<Bfloat16>()[i]);
  }
  return wide;
}

// A tensor of a case, in its dtype.
StatusOr<Tensor> FromCase(const json& value) {
  const std::string dtype = value.at("dtype").get<std::string>();
  if (dtype != "float16" && dtype != "bfloat16") return TensorFromJson(value);
  MR_ASSIGN_OR_RETURN(const Tensor wide,
                      TensorFromValues("float32", value.at("shape").get<std::vector<int64_t>>(),
                                       value.at("values")));
  const absl::Span<const float> from = wide.flat<float>();
  if (dtype == "float16") {
    MR_ASSIGN_OR_RETURN(Tensor half, Tensor::Allocate(DT_HALF, wide.shape()));
    for (size_t i = 0; i < from.size(); ++i) half.mutable_flat<Half>()[i] = ToHalf(from[i]);
    return half;
  }
  MR_ASSIGN_OR_RETURN(Tensor brain, Tensor::Allocate(DT_BFLOAT16, wide.shape()));
  for (size_t i = 0; i < from.size(); ++i) brain.mutable_flat<Bfloat16>()[i] = ToBfloat16(from[i]);
  return brain;
}

// The floats in ascending order: for outputs whose order TensorFlow leaves open.
StatusOr<Tensor> Sorted(const Tensor& tensor) {
  if (tensor.dtype() != DT_FLOAT) return tensor;
  MR_ASSIGN_OR_RETURN(Tensor sorted, tensor.Clone());
  const absl::Span<float> values = sorted.mutable_flat<float>();
  std::sort(values.begin(), values.end());
  return sorted;
}

// "" when `got` is what the case wants.
StatusOr<std::string> DifferenceFrom(const Tensor& want, const Tensor& got, const json& c) {
  if (want.dtype() != got.dtype()) return Difference(got, want, 0, 0);
  MR_ASSIGN_OR_RETURN(Tensor a, Widened(want));
  MR_ASSIGN_OR_RETURN(Tensor b, Widened(got));
  if (c.value("reference", "") == "order differs") {
    MR_ASSIGN_OR_RETURN(a, Sorted(a));
    MR_ASSIGN_OR_RETURN(b, Sorted(b));
  }
  return Difference(b, a, c.value("rtol", 1e-4), c.value("atol", 1e-5));
}

Outcome Failed(const std::string& text) { return {Outcome::Kind::kFailed, text}; }

// "" when the shapes that are inferred for the outputs of the graph are those of `got`, or leave
// them open.
StatusOr<std::string> InferredDifference(const tensorflow::GraphDef& def,
                                         const std::vector<FetchName>& fetches,
                                         const std::vector<Tensor>& got) {
  auto graph = std::make_unique<Graph>();
  MR_RETURN_IF_ERROR(ImportGraphDef(def, {}, graph.get()));
  MR_ASSIGN_OR_RETURN(const Scope scope, Scope::ForGraph(std::move(graph)));
  for (size_t i = 0; i < got.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(fetches[i].name()));
    Node* const node = scope.graph()->FindNode(name.node);
    if (node == nullptr) return absl::InternalError(fetches[i].name());
    const PartialShape inferred = scope.shape(Output(node, name.index));
    if (!inferred.IsCompatibleWith(got[i].shape())) {
      return absl::StrCat(fetches[i].name(), ": ", inferred.ToString(), " was inferred, got ",
                          got[i].shape().ToString());
    }
  }
  return std::string();
}

Outcome RunCase(const json& c, const std::string& directory) {
  StatusOr<tensorflow::GraphDef> graph =
      ReadGraphDef(FileSystem::Posix(), JoinPath(directory, c["graph"].get<std::string>()));
  if (!graph.ok()) return Failed(graph.status().ToString());
  StatusOr<std::unique_ptr<Session>> session = NewSession();
  if (!session.ok()) return Failed(session.status().ToString());
  if (const Status s = (*session)->Extend(*graph); !s.ok()) {
    if (absl::IsInvalidArgument(s) && absl::StrContains(s.message(), "_ref, got ")) {
      return {Outcome::Kind::kFrozenAssignment, ""};
    }
    return Failed(s.ToString());
  }

  std::vector<Feed> feeds;
  for (const auto& [name, value] : c["feeds"].items()) {
    StatusOr<Tensor> tensor = FromCase(value);
    if (!tensor.ok()) return Failed(tensor.status().ToString());
    feeds.emplace_back(name, *std::move(tensor));
  }
  std::vector<FetchName> fetches;
  std::vector<Tensor> wanted;
  for (const auto& [name, value] : c["fetches"].items()) {
    StatusOr<Tensor> tensor = FromCase(value);
    if (!tensor.ok()) return Failed(tensor.status().ToString());
    fetches.push_back(name);
    wanted.push_back(*std::move(tensor));
  }
  const StatusOr<std::vector<Tensor>> got = (*session)->Run(feeds, fetches);
  if (absl::IsUnimplemented(got.status())) {
    return {Outcome::Kind::kMissingOp, std::string(got.status().message())};
  }
  if (!got.ok()) return Failed(got.status().ToString());
  if (got->size() != wanted.size()) return Failed("an output is missing");
  for (size_t i = 0; i < wanted.size(); ++i) {
    const StatusOr<std::string> difference = DifferenceFrom(wanted[i], (*got)[i], c);
    if (!difference.ok()) return Failed(difference.status().ToString());
    if (!difference->empty()) return Failed(absl::StrCat(fetches[i].name(), ": ", *difference));
  }
  const StatusOr<std::string> inferred = InferredDifference(*graph, fetches, *got);
  if (!inferred.ok()) return Failed(inferred.status().ToString());
  if (!inferred->empty()) return Failed(*inferred);
  return {Outcome::Kind::kPassed, ""};
}

TEST(TfGraphsTest, GraphsOfTensorFlowGiveItsResults) {
  const std::string path = SharedDataPath("tf_graphs/cases.jsonl");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs/cases.jsonl";
  std::ifstream file(path);
  std::string line;
  int cases = 0, passed = 0, missing = 0, frozen = 0;
  std::vector<std::string> failures;
  std::map<std::string, int> missing_ops;
  while (std::getline(file, line)) {
    const json c = json::parse(line);
    ++cases;
    const Outcome outcome = RunCase(c, Dirname(path));
    if (outcome.kind == Outcome::Kind::kPassed) {
      ++passed;
    } else if (outcome.kind == Outcome::Kind::kMissingOp) {
      ++missing;
      ++missing_ops[outcome.text.substr(0, 100)];
    } else if (outcome.kind == Outcome::Kind::kFrozenAssignment) {
      ++frozen;
    } else {
      failures.push_back(absl::StrCat(c["name"].get<std::string>(), ": ", outcome.text));
    }
  }
  std::printf("tf_graphs: %d cases, %d passed, %d differ or fail, %d lack a kernel, %d invalid\n",
              cases, passed, static_cast<int>(failures.size()), missing, frozen);
  for (const auto& [op, count] : missing_ops) std::printf("  lacks (%d): %s\n", count, op.c_str());
  EXPECT_GT(cases, 700);
  EXPECT_GE(passed, kMustPass);
  EXPECT_EQ(frozen, kFrozenAssignments);
  EXPECT_TRUE(failures.empty()) << absl::StrJoin(failures, "\n");
}

}  // namespace
}  // namespace millrace
