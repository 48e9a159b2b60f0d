// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/testing/rewrite_test.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/print.h"
#include "graph/prune.h"
#include "graph/rewrite/rewrite.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "proto/config.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/session.h"

namespace millrace::testing {
namespace {

constexpr char kDevice[] = "/device:CPU:0";

StatusOr<RunGraph> Placed(const Scope& root, const RunSignature& signature) {
  MR_RETURN_IF_ERROR(root.status());
  MR_ASSIGN_OR_RETURN(RunGraph run, BuildRunGraph(*root.graph(), signature));
  for (const auto& node : run.graph->nodes()) {
    node->set_assigned_device(node->requested_device().empty() ? kDevice
                                                               : node->requested_device());
  }
  return run;
}

StatusOr<std::vector<Tensor>> RunIn(const Scope& root, bool rewrites,
                                    const std::vector<Feed>& feeds,
                                    const std::vector<FetchName>& fetches,
                                    const std::vector<FetchName>& targets) {
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->mutable_optimizer_options()->set_opt_level(
      rewrites ? tensorflow::OptimizerOptions::L1 : tensorflow::OptimizerOptions::L0);
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      NewSession({.config = SessionConfigOf(std::move(config))}));
  MR_RETURN_IF_ERROR(session->Extend(root));
  return session->Run(feeds, fetches, targets);
}

// operator== takes equal floats for equal: 0 and -0 are not.
bool AreEqualBits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  return a.dtype() == DT_STRING ? a == b : a.bytes() == b.bytes();
}

}  // namespace

std::string NodesAsText(const Graph& graph) {
  std::string text;
  for (const absl::string_view line : absl::StrSplit(GraphToText(graph), '\n')) {
    if (absl::StartsWith(line, "node ")) {
      absl::StrAppend(
          &text, absl::StrReplaceAll(line.substr(5), {{absl::StrCat(" @", kDevice), ""}}), "\n");
    } else if (absl::StartsWith(line, "  value = ")) {
      text.pop_back();
      // "<int32[2]: 4 6>"
      absl::StrAppend(&text, " ", line.substr(11, line.size() - 12), "\n");
    }
  }
  return text;
}

std::string RewriteTest::Before(const RunSignature& signature) {
  const StatusOr<RunGraph> run = Placed(root_, signature);
  return run.ok() ? NodesAsText(*run->graph) : run.status().ToString();
}

std::string RewriteTest::After(absl::string_view passes, const RunSignature& signature) {
  StatusOr<RunGraph> run = Placed(root_, signature);
  if (!run.ok()) return run.status().ToString();
  RewriteOptions options;
  options.max_rounds = 10;
  options.passes = absl::StrSplit(passes, ',', absl::SkipEmpty());
  if (passes.empty()) {
    for (const RewritePass& pass : RewritePasses()) options.passes.emplace_back(pass.name);
  }
  std::vector<Node*> keep;
  for (const auto* nodes :
       {&run->signature.feed_nodes, &run->signature.fetch_nodes, &run->signature.target_nodes}) {
    keep.insert(keep.end(), nodes->begin(), nodes->end());
  }
  KernelEvaluator evaluator;
  StatusOr<RewriteReport> report = RunRewrites(run->graph.get(), keep, &evaluator, options);
  if (!report.ok()) return report.status().ToString();
  report_ = *std::move(report);
  return NodesAsText(*run->graph);
}

StatusOr<std::vector<Tensor>> RewriteTest::ExpectSameResults(
    const std::vector<Feed>& feeds, const std::vector<FetchName>& fetches,
    const std::vector<FetchName>& targets) {
  const StatusOr<std::vector<Tensor>> plain = RunIn(root_, false, feeds, fetches, targets);
  StatusOr<std::vector<Tensor>> rewritten = RunIn(root_, true, feeds, fetches, targets);
  EXPECT_EQ(plain.status(), rewritten.status());
  if (!plain.ok() || !rewritten.ok()) return rewritten;
  EXPECT_EQ(plain->size(), rewritten->size());
  for (size_t i = 0; i < plain->size() && i < rewritten->size(); ++i) {
    EXPECT_TRUE(AreEqualBits((*plain)[i], (*rewritten)[i]))
        << fetches[i].name() << ": " << (*plain)[i].DebugString() << " without rewrites, "
        << (*rewritten)[i].DebugString() << " with";
  }
  return rewritten;
}

}  // namespace millrace::testing
