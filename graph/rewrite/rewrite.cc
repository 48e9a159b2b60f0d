// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/rewrite.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/print.h"
#include "graph/rewrite/arithmetic.h"
#include "graph/rewrite/common_subexpressions.h"
#include "graph/rewrite/constant_folding.h"
#include "graph/rewrite/context.h"
#include "graph/rewrite/dead_branches.h"
#include "graph/rewrite/identities.h"
#include "graph/rewrite/redundant.h"
#include "graph/rewrite/shapes.h"
#include "proto/config.pb.h"

namespace millrace {
namespace {

using tensorflow::RewriterConfig;

constexpr RewritePass kPasses[] = {
    {"shapes", MaterializeShapes},
    {"constant_folding", FoldConstants},
    {"dead_branches", RemoveDeadBranches},
    {"arithmetic", SimplifyArithmetic},
    {"redundant", RemoveRedundantMoves},
    {"identities", RemoveIdentities},
    {"common_subexpressions", MergeCommonSubexpressions},
};

constexpr char kPlace[] = "place";  // what dump_after calls the graph before the first pass

// TensorFlow's names in RewriterConfig.optimizers and what they are here, "" for nothing.
struct OptimizerName {
  absl::string_view name;
  absl::string_view passes;  // joined by ','
};
constexpr OptimizerName kOptimizerNames[] = {
    {"constfold", "shapes,constant_folding"},
    {"shape", "shapes"},
    {"arithmetic", "arithmetic,redundant,common_subexpressions"},
    {"dependency", "identities"},
    {"loop", "dead_branches"},
    {"pruning", ""},
    {"function", ""},
    {"layout", ""},
    {"memory", ""},
    {"remap", ""},
    {"autoparallel", ""},
    {"debug_stripper", ""},
    {"scoped_allocator", ""},
    {"pin_to_host", ""},
    {"implementation_selector", ""},
    {"auto_mixed_precision", ""},
};

const RewritePass* FindPass(absl::string_view name) {
  for (const RewritePass& pass : kPasses) {
    if (pass.name == name) return &pass;
  }
  return nullptr;
}

std::string AllNames() {
  return absl::StrJoin(kPasses, ", ", [](std::string* text, const RewritePass& pass) {
    text->append(pass.name.data(), pass.name.size());
  });
}

void AddPass(absl::string_view name, std::vector<std::string>* passes) {
  if (std::find(passes->begin(), passes->end(), name) == passes->end()) {
    passes->emplace_back(name);
  }
}

StatusOr<std::vector<std::string>> PassesOf(const RewriterConfig& config) {
  std::vector<std::string> passes;
  for (const std::string& name : config.optimizers()) {
    const auto alias = std::find_if(std::begin(kOptimizerNames), std::end(kOptimizerNames),
                                    [&](const OptimizerName& known) { return known.name == name; });
    if (FindPass(name) != nullptr) {
      AddPass(name, &passes);
    } else if (alias != std::end(kOptimizerNames)) {
      for (const absl::string_view pass : absl::StrSplit(alias->passes, ',', absl::SkipEmpty())) {
        AddPass(pass, &passes);
      }
    } else {
      return InvalidArgument(
          "ConfigProto.graph_options.rewrite_options: optimizers must name passes (", AllNames(),
          ", or TensorFlow's names), got '", name, "'");
    }
  }
  return passes;
}

// Whether `pass` runs by level and toggles.
bool IsOn(absl::string_view pass, const tensorflow::GraphOptions& options) {
  const tensorflow::OptimizerOptions& optimizer = options.optimizer_options();
  const RewriterConfig& config = options.rewrite_options();
  bool by_level = optimizer.opt_level() >= tensorflow::OptimizerOptions::L1;
  if (pass == "common_subexpressions") {
    return by_level || optimizer.do_common_subexpression_elimination();
  }
  if (pass == "constant_folding") by_level = by_level || optimizer.do_constant_folding();
  const RewriterConfig::Toggle toggle = pass == "constant_folding" ? config.constant_folding()
                                        : pass == "shapes"         ? config.shape_optimization()
                                        : pass == "identities" ? config.dependency_optimization()
                                        : pass == "dead_branches"
                                            ? config.loop_optimization()
                                            : config.arithmetic_optimization();
  if (config.disable_meta_optimizer() || toggle == RewriterConfig::OFF) return false;
  return by_level || toggle != RewriterConfig::DEFAULT;
}

}  // namespace

absl::Span<const RewritePass> RewritePasses() { return kPasses; }

StatusOr<RewriteOptions> RewriteOptionsFor(const tensorflow::GraphOptions& options) {
  RewriteOptions result;
  if (options.rewrite_options().optimizers_size() > 0) {
    MR_ASSIGN_OR_RETURN(result.passes, PassesOf(options.rewrite_options()));
  } else {
    for (const RewritePass& pass : kPasses) {
      if (IsOn(pass.name, options)) result.passes.emplace_back(pass.name);
    }
  }
  if (options.rewrite_options().meta_optimizer_iterations() == RewriterConfig::ONE) {
    result.max_rounds = 1;
  }
  const int64_t max_bytes = options.optimizer_options().max_folded_constant_in_bytes();
  if (max_bytes > 0) result.max_folded_bytes = max_bytes;
  if (const char* dump = std::getenv("MILLRACE_DUMP_GRAPH_AFTER")) {
    result.dump_after = absl::StrSplit(dump, ',', absl::SkipEmpty());
    for (const std::string& name : result.dump_after) {
      if (FindPass(name) == nullptr && name != kPlace && name != "all") {
        return InvalidArgument("MILLRACE_DUMP_GRAPH_AFTER must name passes (", kPlace, ", ",
                               AllNames(), ", all), got '", name, "'");
      }
    }
  }
  return result;
}

StatusOr<RewriteReport> RunRewrites(Graph* graph, absl::Span<Node* const> keep,
                                    ConstantEvaluator* evaluator, const RewriteOptions& options) {
  const auto dump = [&](absl::string_view pass) {
    const auto wanted = [&](absl::string_view name) {
      return std::find(options.dump_after.begin(), options.dump_after.end(), name) !=
             options.dump_after.end();
    };
    if (!wanted(pass) && !wanted("all")) return;
    const std::string text = GraphToText(*graph);
    if (options.dump != nullptr) {
      options.dump(pass, text);
    } else {
      std::cerr << absl::StrCat("# graph after ", pass, ": ", graph->num_nodes(), " nodes\n", text);
    }
  };
  RewriteReport report;
  report.nodes_before = report.nodes_after = graph->num_nodes();
  for (const std::string& name : options.passes) {
    if (FindPass(name) == nullptr) {
      return InvalidArgument("RunRewrites: passes must be of ", AllNames(), ", got '", name, "'");
    }
    report.changes.emplace_back(name, 0);
  }
  dump(kPlace);
  if (options.passes.empty()) return report;
  RewriteContext context(graph, keep, evaluator, options.max_folded_bytes);
  for (int round = 0; round < options.max_rounds; ++round) {
    int changed = 0;
    for (auto& [name, changes] : report.changes) {
      MR_RETURN_IF_ERROR(context.BeginPass());
      MR_ASSIGN_OR_RETURN(const int count, FindPass(name)->run(&context));
      if (count > 0) MR_RETURN_IF_ERROR(context.Sweep());
      changes += count;
      // Nodes that were merged give no other pass anything to do.
      if (name != "common_subexpressions") changed += count;
      dump(name);
    }
    if (changed == 0) break;
  }
  report.nodes_after = graph->num_nodes();
  return report;
}

StatusOr<RewriteReport> RewriteRunGraph(RunGraph* run, ConstantEvaluator* evaluator,
                                        const tensorflow::GraphOptions& options) {
  MR_ASSIGN_OR_RETURN(const RewriteOptions rewrites, RewriteOptionsFor(options));
  std::vector<Node*> keep;
  for (const std::vector<Node*>* nodes :
       {&run->signature.feed_nodes, &run->signature.fetch_nodes, &run->signature.target_nodes}) {
    keep.insert(keep.end(), nodes->begin(), nodes->end());
  }
  return RunRewrites(run->graph.get(), keep, evaluator, rewrites);
}

}  // namespace millrace
