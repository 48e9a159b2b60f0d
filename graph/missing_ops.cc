// SPDX-License-Identifier: Apache-2.0
#include "graph/missing_ops.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/function_library.h"
#include "graph/graph_def.h"
#include "graph/op_registry.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

// More are counted, not listed.
constexpr size_t kMaxListed = 5;

// Looks at nodes, and then at the functions that they call.
class Walk {
 public:
  explicit Walk(const tensorflow::GraphDef& graph) {
    for (const auto& function : graph.library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  void LookAt(const tensorflow::NodeDef& node, absl::string_view function) {
    if (!Call(node.op()) && LookUpOp(node.op()) == nullptr) {
      missing_.try_emplace(node.op(), MissingOp{node.op(), node.name(), std::string(function)});
    }
    for (const auto& [name, value] : node.attr()) {
      ForEachFunction(value, [&](const tensorflow::NameAttrList& called) { Call(called.name()); });
    }
  }

  std::vector<MissingOp> Finish() {
    while (!open_.empty()) {
      const tensorflow::FunctionDef& function = *open_.back();
      open_.pop_back();
      for (const auto& node : function.node_def()) LookAt(node, function.signature().name());
    }
    std::vector<MissingOp> missing;
    for (auto& [op, one] : missing_) missing.push_back(std::move(one));
    return missing;
  }

 private:
  // Is there a function of this name? Each is looked at once.
  bool Call(const std::string& name) {
    const auto found = functions_.find(name);
    if (found == functions_.end()) return false;
    if (found->second != nullptr) open_.push_back(std::exchange(found->second, nullptr));
    return true;
  }

  // Null: it has been called.
  std::map<std::string, const tensorflow::FunctionDef*> functions_;
  std::vector<const tensorflow::FunctionDef*> open_;
  std::map<std::string, MissingOp> missing_;
};

}  // namespace

std::vector<MissingOp> MissingOps(const tensorflow::GraphDef& graph,
                                  absl::Span<const std::string> fetches,
                                  absl::Span<const std::string> feeds) {
  Walk walk(graph);
  for (const std::string& fetch : fetches) {
    const StatusOr<std::vector<int>> needed =
        NeededNodes(graph, absl::MakeConstSpan(&fetch, 1), feeds);
    if (!needed.ok()) continue;
    for (const int position : *needed) walk.LookAt(graph.node(position), "");
  }
  return walk.Finish();
}

std::string MissingOpsText(absl::Span<const MissingOp> missing) {
  std::string text = absl::StrCat(
      "got ", absl::StrJoin(missing.subspan(0, kMaxListed), ", ",
                            [](std::string* out, const MissingOp& one) {
                              absl::StrAppend(out, "'", one.op, "' of node '", one.node, "'");
                              if (one.function.empty()) return;
                              absl::StrAppend(out, " in function '", one.function, "'");
                            }));
  if (missing.size() > kMaxListed) {
    absl::StrAppend(&text, " and ", missing.size() - kMaxListed, " more");
  }
  return text;
}

}  // namespace millrace
