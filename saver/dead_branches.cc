// SPDX-License-Identifier: Apache-2.0
#include "saver/dead_branches.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph_def.h"
#include "graph/op_registry.h"

namespace millrace {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

constexpr int kControl = -1;

bool IsSwitch(const NodeDef& node) { return node.op() == "Switch" || node.op() == "RefSwitch"; }
bool IsMerge(const NodeDef& node) { return node.op() == "Merge" || node.op() == "RefMerge"; }
bool IsBack(const NodeDef& node) {
  return node.op() == "NextIteration" || node.op() == "RefNextIteration";
}
// Ops that may stay idle, or run more than once, though all nodes before them run once.
bool MayStayIdle(const NodeDef& node) {
  for (const absl::string_view op : {"Switch", "Merge", "Enter", "Exit", "NextIteration"}) {
    absl::string_view kind = node.op();
    absl::ConsumePrefix(&kind, "Ref");
    if (kind == op) return true;
  }
  return false;
}
bool IsOfReferences(const NodeDef& node) { return absl::StartsWith(node.op(), "Ref"); }

// "x" and 1 of "x:1"; 0 where none is said; kControl of "^x".
std::pair<absl::string_view, int> SourceOf(absl::string_view input) {
  if (absl::StartsWith(input, "^")) return {input.substr(1), kControl};
  const size_t colon = input.rfind(':');
  int index = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(input.substr(colon + 1), &index)) {
    index = 0;
  }
  return {input.substr(0, colon), index};
}

// The value of a constant Boolean; nullopt of every other node.
std::optional<bool> ConstantBool(const NodeDef& node) {
  if (node.op() != "Const") return std::nullopt;
  const StatusOr<DType> dtype = GetAttr<DType>(node, "dtype");
  if (!dtype.ok() || *dtype != DT_BOOL) return std::nullopt;
  const StatusOr<Tensor> value = GetAttr<Tensor>(node, "value");
  if (!value.ok() || value->dtype() != DT_BOOL || value->num_elements() != 1) return std::nullopt;
  return value->flat<bool>()[0];
}

// What is known of the nodes of a graph. Facts are only ever added, each is told to the node's
// consumers once.
class Analysis {
 public:
  // `graph` stays as it is until this ends.
  Analysis(const GraphDef& graph, bool with_defaults)
      : graph_(graph),
        with_defaults_(with_defaults),
        nodes_(static_cast<size_t>(graph.node_size())) {
    for (int i = 0; i < graph.node_size(); ++i) by_name_.emplace(graph.node(i).name(), i);
    for (int i = 0; i < graph.node_size(); ++i) {
      for (const std::string& input : graph.node(i).input()) {
        const auto [name, output] = SourceOf(input);
        const auto found = by_name_.find(std::string(name));
        const int source = found == by_name_.end() ? -1 : found->second;
        of(i).inputs.push_back({source, output});
        if (source >= 0) of(source).consumers.push_back(i);
      }
    }
    for (int i = 0; i < graph.node_size(); ++i) Look(i);
    while (!open_.empty()) {
      const int node = open_.back();
      open_.pop_back();
      Look(node);
    }
  }

  struct Input {
    int source;  // -1: no node of that name
    int output;  // kControl
  };
  const std::vector<Input>& inputs(int node) const { return of(node).inputs; }
  bool IsDead(int node) const { return of(node).is_dead; }
  bool IsDead(const Input& input) const {
    if (input.source < 0) return false;
    const Facts& facts = of(input.source);
    return facts.is_dead || (facts.live_output && input.output >= 0 && input.output <= 1 &&
                             input.output != *facts.live_output);
  }
  // In every step that needs it: it is part of no branch.
  bool AlwaysRuns(int node) const { return of(node).always_runs; }
  // Of a Switch whose predicate is known.
  std::optional<int> LiveOutput(int node) const { return of(node).live_output; }
  std::optional<int> Find(absl::string_view name) const {
    const auto found = by_name_.find(std::string(name));
    return found == by_name_.end() ? std::nullopt : std::optional<int>(found->second);
  }

 private:
  struct Facts {
    std::vector<Input> inputs;
    std::vector<int> consumers;
    bool is_dead = false;
    bool always_runs = false;
    std::optional<int> live_output;  // of a Switch
    std::optional<bool> value;       // of all of its outputs
  };
  Facts& of(int node) { return nodes_[static_cast<size_t>(node)]; }
  const Facts& of(int node) const { return nodes_[static_cast<size_t>(node)]; }

  std::optional<bool> ValueOf(int node, size_t input) const {
    const std::vector<Input>& inputs = of(node).inputs;
    if (input >= inputs.size() || inputs[input].output == kControl || inputs[input].source < 0) {
      return std::nullopt;
    }
    return of(inputs[input].source).value;
  }

  bool HasNoLiveInput(int node) const {
    bool enters = false, lives = false;  // by data, into a Merge
    const bool is_merge = IsMerge(graph_.node(node));
    // A trigger counts those that it waits for, dead or not; so does a Merge by control inputs.
    if (TraitsOf(graph_.node(node).op()).is_trigger) return false;
    for (const Input& input : of(node).inputs) {
      const bool is_dead = IsDead(input);
      if (is_merge && input.output == kControl) continue;
      if (!is_merge) {
        if (is_dead) return true;
        continue;
      }
      // What a loop gives itself lives only when something enters.
      if (input.source >= 0 && IsBack(graph_.node(input.source))) continue;
      enters = true;
      lives = lives || !is_dead;
    }
    return is_merge && enters && !lives;
  }

  // Whether all of the inputs from `first` on do.
  bool InputsAlwaysRun(int node, size_t first) const {
    const std::vector<Input>& inputs = of(node).inputs;
    for (size_t k = first; k < inputs.size(); ++k) {
      if (inputs[k].source < 0 || !of(inputs[k].source).always_runs) return false;
    }
    return true;
  }

  std::optional<bool> Value(int i) const {
    const NodeDef& node = graph_.node(i);
    const std::string& op = node.op();
    if (op == "Const") return ConstantBool(node);
    if (op == "PlaceholderWithDefault") return with_defaults_ ? ValueOf(i, 0) : std::nullopt;
    if (op == "Identity" || op == "Enter" || op == "Switch") return ValueOf(i, 0);
    if (op == "LogicalNot") {
      const std::optional<bool> x = ValueOf(i, 0);
      return x ? std::optional<bool>(!*x) : std::nullopt;
    }
    if (op == "LogicalAnd" || op == "LogicalOr") {
      const bool decides = op == "LogicalOr";  // whatever the other one is
      const std::optional<bool> x = ValueOf(i, 0), y = ValueOf(i, 1);
      if ((x && *x == decides) || (y && *y == decides)) return decides;
      return x && y ? std::optional<bool>(!decides) : std::nullopt;
    }
    return std::nullopt;
  }

  void Look(int i) {
    Facts& facts = of(i);
    if (facts.is_dead) return;
    bool is_news = false;
    if (HasNoLiveInput(i)) {
      facts.is_dead = is_news = true;
    } else {
      const NodeDef& node = graph_.node(i);
      if (!facts.always_runs && !MayStayIdle(node) && InputsAlwaysRun(i, 0)) {
        facts.always_runs = is_news = true;
      }
      if (!facts.value) {
        facts.value = Value(i);
        is_news = is_news || facts.value.has_value();
      }
      // A RefSwitch leaves nothing behind that would stay idle with its predicate.
      if (IsSwitch(node) && !facts.live_output &&
          (!IsOfReferences(node) || InputsAlwaysRun(i, 1))) {
        if (const std::optional<bool> predicate = ValueOf(i, 1)) {
          facts.live_output = *predicate ? 1 : 0;
          is_news = true;
        }
      }
    }
    if (!is_news) return;
    open_.insert(open_.end(), facts.consumers.begin(), facts.consumers.end());
  }

  const GraphDef& graph_;
  const bool with_defaults_;
  std::vector<Facts> nodes_;
  HashMap<std::string, int> by_name_;
  std::vector<int> open_;
};

// Rewrites a graph as RemoveDeadBranches says.
class Removal {
 public:
  Removal(const GraphDef& graph, const Analysis& analysis) : graph_(graph), analysis_(analysis) {}

  // Whether the graph can be rewritten, and something is to be.
  bool IsPossible(absl::Span<const std::string> outputs) const {
    bool something = false;
    for (int i = 0; i < graph_.node_size(); ++i) {
      something = something || analysis_.IsDead(i) || analysis_.LiveOutput(i);
      for (const Analysis::Input& input : analysis_.inputs(i)) {
        if (input.source < 0) return false;  // verification names it
      }
      // Readers of a reference take what went in, and would not wait.
      if ((IsPassedOver(i) || analysis_.LiveOutput(i)) && IsOfReferences(graph_.node(i)) &&
          HasControlInputs(i)) {
        return false;
      }
      // With fewer inputs their numbers would be others.
      if (LiveInputs(i).size() > 1 && LosesInputs(i) && IsRead(i, 1)) return false;
    }
    for (const std::string& output : outputs) {
      const auto [name, index] = SourceOf(output);
      const std::optional<int> node = analysis_.Find(name);
      if (!node) continue;
      if (analysis_.IsDead(*node) || analysis_.IsDead({*node, index})) return false;
      const bool changes = analysis_.LiveOutput(*node) || LosesInputs(*node);
      if (changes && (index > 0 || IsOfReferences(graph_.node(*node)))) return false;
    }
    return something;
  }

  GraphDef Rewritten() {
    GraphDef result;
    *result.mutable_versions() = graph_.versions();
    *result.mutable_library() = graph_.library();
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (analysis_.IsDead(i)) continue;
      NodeDef* const node = result.add_node();
      *node = graph_.node(i);
      node->clear_input();
      if (analysis_.LiveOutput(i) || IsPassedOver(i)) {
        MakeIdentity(node);
        AddInput(analysis_.inputs(i)[LiveOutput0(i)], node);
      } else {
        for (const Analysis::Input& input : analysis_.inputs(i)) {
          if (input.output != kControl && !analysis_.IsDead(input)) AddInput(input, node);
        }
        if (LosesInputs(i)) SetAttr(int64_t{node->input_size()}, &(*node->mutable_attr())["N"]);
      }
      // A predicate within a branch stays idle with the branch, and so does what it chose from.
      if (analysis_.LiveOutput(i) && !analysis_.AlwaysRuns(analysis_.inputs(i)[1].source)) {
        AddInput({analysis_.inputs(i)[1].source, kControl}, node);
      }
      for (const Analysis::Input& input : analysis_.inputs(i)) {
        if (input.output == kControl && !analysis_.IsDead(input)) AddInput(input, node);
      }
    }
    for (NodeDef& constant : indices_) result.add_node()->Swap(&constant);
    return result;
  }

 private:
  // Places of the data inputs of a Merge that live.
  std::vector<size_t> LiveInputs(int node) const {
    std::vector<size_t> live;
    if (!IsMerge(graph_.node(node)) || analysis_.IsDead(node)) return live;
    const std::vector<Analysis::Input>& inputs = analysis_.inputs(node);
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k].output != kControl && !analysis_.IsDead(inputs[k])) live.push_back(k);
    }
    return live;
  }
  bool LosesInputs(int node) const {
    if (!IsMerge(graph_.node(node)) || analysis_.IsDead(node)) return false;
    const std::vector<Analysis::Input>& inputs = analysis_.inputs(node);
    return std::any_of(inputs.begin(), inputs.end(), [this](const Analysis::Input& input) {
      return input.output != kControl && analysis_.IsDead(input);
    });
  }
  bool HasControlInputs(int node) const {
    const std::vector<Analysis::Input>& inputs = analysis_.inputs(node);
    return !inputs.empty() && inputs.back().output == kControl;
  }
  // A Merge of one branch.
  bool IsPassedOver(int node) const { return LosesInputs(node) && LiveInputs(node).size() == 1; }
  // The input that goes on, of a Switch or of a Merge of one branch.
  size_t LiveOutput0(int node) const {
    return analysis_.LiveOutput(node) ? size_t{0} : LiveInputs(node)[0];
  }

  // Whether a node that lives takes this output.
  bool IsRead(int node, int output) const {
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (analysis_.IsDead(i)) continue;
      for (const Analysis::Input& input : analysis_.inputs(i)) {
        if (input.source == node && input.output == output) return true;
      }
    }
    return false;
  }

  static void MakeIdentity(NodeDef* node) {
    node->set_op("Identity");
    node->mutable_attr()->erase("N");
  }

  // As the new graph names it.
  void AddInput(Analysis::Input input, NodeDef* node) {
    // A reference cannot go through an Identity: its reader takes what went in.
    for (int i = 0; i < graph_.node_size(); ++i) {
      const bool goes = analysis_.LiveOutput(input.source) || IsPassedOver(input.source);
      if (!goes || !IsOfReferences(graph_.node(input.source))) break;
      if (IsMerge(graph_.node(input.source)) && input.output == 1) break;
      const Analysis::Input& before = analysis_.inputs(input.source)[LiveOutput0(input.source)];
      input = {before.source, input.output == kControl ? kControl : before.output};
    }
    const std::string& name = graph_.node(input.source).name();
    if (input.output == kControl) {
      node->add_input(absl::StrCat("^", name));
    } else if (analysis_.LiveOutput(input.source) || input.output == 0) {
      node->add_input(name);
    } else if (IsPassedOver(input.source)) {
      node->add_input(ValueIndex(input.source));
    } else {
      node->add_input(absl::StrCat(name, ":", input.output));
    }
  }

  // A constant: which input a Merge of one branch takes.
  std::string ValueIndex(int merge) {
    const auto known = index_of_.find(merge);
    if (known != index_of_.end()) return known->second;
    const std::string wanted = absl::StrCat(graph_.node(merge).name(), "/value_index");
    std::string name = wanted;
    for (int i = 1; analysis_.Find(name); ++i) name = absl::StrCat(wanted, "_", i);
    NodeDef& constant = indices_.emplace_back();
    constant.set_name(name);
    constant.set_op("Const");
    constant.set_device(graph_.node(merge).device());
    SetAttr(DT_INT32, &(*constant.mutable_attr())["dtype"]);
    SetAttr(Tensor::Scalar<int32_t>(static_cast<int32_t>(LiveInputs(merge)[0])),
            &(*constant.mutable_attr())["value"]);
    index_of_.emplace(merge, name);
    return name;
  }

  const GraphDef& graph_;
  const Analysis& analysis_;
  std::vector<NodeDef> indices_;
  HashMap<int, std::string> index_of_;
};

}  // namespace

Status RemoveDeadBranches(absl::Span<const std::string> outputs, GraphDef* graph) {
  GraphDef rewritten;
  {
    const Analysis analysis(*graph, /*with_defaults=*/false);
    Removal removal(*graph, analysis);
    if (!removal.IsPossible(outputs)) return absl::OkStatus();
    rewritten = removal.Rewritten();
  }
  MR_ASSIGN_OR_RETURN(*graph, PrunedGraphDef(rewritten, outputs));
  return absl::OkStatus();
}

HashSet<std::string> NodesOffByDefault(const GraphDef& graph) {
  const Analysis analysis(graph, /*with_defaults=*/true);
  HashSet<std::string> names;
  for (int i = 0; i < graph.node_size(); ++i) {
    if (analysis.IsDead(i)) names.insert(graph.node(i).name());
  }
  return names;
}

}  // namespace millrace
