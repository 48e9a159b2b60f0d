// SPDX-License-Identifier: Apache-2.0
//
// The seven hundred graphs of TensorFlow's, run by sessions without and with rewrites: the outputs
// are equal bit for bit, errors are equal. (What tf_graphs_test compares is near.) A
// graph that gives two different results without rewrites (random numbers without a seed) is
// counted apart.

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/place/placer.h"
#include "graph/prune.h"
#include "graph/rewrite/rewrite.h"
#include "graph/signature.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/config.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/session.h"
#include "tests/compat/json_tensor.h"

// covers: steps: rewrites leave results as they are, bit for bit, and failing graphs failing

namespace millrace {
namespace {

using nlohmann::json;
using Results = StatusOr<std::vector<Tensor>>;

struct Case {
  tensorflow::GraphDef graph;
  std::vector<Feed> feeds;
  std::vector<FetchName> fetches;
};

// NotFound for a case whose feeds have types that JSON cannot say.
StatusOr<Case> ReadCase(const json& c, const std::string& directory) {
  Case result;
  MR_ASSIGN_OR_RETURN(
      result.graph,
      ReadGraphDef(FileSystem::Posix(), JoinPath(directory, c["graph"].get<std::string>())));
  for (const auto& [name, value] : c["feeds"].items()) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorFromJson(value));
    result.feeds.emplace_back(name, std::move(tensor));
  }
  for (const auto& [name, value] : c["fetches"].items()) result.fetches.emplace_back(name);
  return result;
}

Results RunCase(const Case& c, tensorflow::OptimizerOptions::Level level) {
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->mutable_optimizer_options()->set_opt_level(level);
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      NewSession({.config = SessionConfigOf(std::move(config))}));
  MR_RETURN_IF_ERROR(session->Extend(c.graph));
  return session->Run(c.feeds, c.fetches);
}

// "" when bits and errors are equal.
std::string DifferenceOfBits(const Results& a, const Results& b) {
  if (!a.ok() || !b.ok()) {
    // Which kernel is missing is said by the placer, in no order of attrs.
    return a.status() == b.status() ||
                   (absl::IsUnimplemented(a.status()) && absl::IsUnimplemented(b.status()))
               ? ""
               : absl::StrCat(a.status().ToString(), " became ", b.status().ToString());
  }
  for (size_t i = 0; i < a->size(); ++i) {
    const Tensor& x = (*a)[i];
    const Tensor& y = (*b)[i];
    const bool equal = x.dtype() == y.dtype() && x.shape() == y.shape() &&
                       (x.dtype() == DT_STRING ? x == y : x.bytes() == y.bytes());
    if (!equal) {
      return absl::StrCat("output ", i, ": ", x.DebugString(), " became ", y.DebugString());
    }
  }
  return "";
}

// How many nodes the graph of the case has for its fetches, before and after.
StatusOr<RewriteReport> CountNodes(const Case& c) {
  Graph graph;
  MR_RETURN_IF_ERROR(ImportGraphDef(c.graph, {}, &graph));
  RunSignature signature;
  for (const Feed& feed : c.feeds) signature.feeds.push_back(feed.name.name());
  for (const FetchName& fetch : c.fetches) signature.fetches.push_back(fetch.name());
  MR_ASSIGN_OR_RETURN(RunGraph run, BuildRunGraph(graph, signature));
  PlacementOptions placement;
  placement.allow_soft_placement = true;
  const DeviceInfo device = {"/job:localhost/replica:0/task:0/device:CPU:0", "CPU", 1};
  MR_RETURN_IF_ERROR(PlaceGraph(run.graph.get(), {&device, 1}, nullptr, placement));
  KernelEvaluator evaluator;
  return RewriteRunGraph(&run, &evaluator, tensorflow::GraphOptions());
}

TEST(RewriteBitsTest, RewritesChangeNoBitOfTensorFlowsGraphs) {
  const std::string path = SharedDataPath("tf_graphs/cases.jsonl");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs/cases.jsonl";
  std::ifstream file(path);
  std::string line;
  int cases = 0, equal = 0, unreadable = 0, random = 0, before = 0, after = 0, ok = 0;
  std::vector<std::string> differences;
  while (std::getline(file, line)) {
    const json c = json::parse(line);
    ++cases;
    const StatusOr<Case> read = ReadCase(c, Dirname(path));
    if (!read.ok()) {
      ++unreadable;
      continue;
    }
    const Results plain = RunCase(*read, tensorflow::OptimizerOptions::L0);
    const Results rewritten = RunCase(*read, tensorflow::OptimizerOptions::L1);
    ok += plain.ok();
    const std::string difference = DifferenceOfBits(plain, rewritten);
    if (difference.empty()) {
      ++equal;
    } else if (!DifferenceOfBits(plain, RunCase(*read, tensorflow::OptimizerOptions::L0)).empty()) {
      ++random;
    } else {
      differences.push_back(absl::StrCat(c["name"].get<std::string>(), ": ", difference));
    }
    if (const StatusOr<RewriteReport> report = CountNodes(*read); plain.ok() && report.ok()) {
      before += report->nodes_before;
      after += report->nodes_after;
    }
  }
  std::printf(
      "rewrites: %d cases, %d equal (%d with results), %d random, %d not read; %d nodes before, %d "
      "after\n",
      cases, equal, ok, random, unreadable, before, after);
  EXPECT_GT(cases, 700);
  EXPECT_GE(ok, 500);
  EXPECT_LE(unreadable, 30);
  EXPECT_LE(random, 30);
  EXPECT_TRUE(differences.empty()) << absl::StrJoin(differences, "\n");
}

}  // namespace
}  // namespace millrace
