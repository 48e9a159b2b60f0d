// SPDX-License-Identifier: Apache-2.0
#include "graph/place/waves.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "graph/function_library.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/op_traits.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// Of an op that is no function.
bool MayWait(absl::string_view op) {
  const OpEntry* const entry = LookUpOp(op);
  return entry == nullptr || entry->traits.waits_for_steps == WaitsForSteps::kMay ||
         NodeBody::KindOf(op) == NodeBody::Kind::kEnter;
}

// Those that may wait for another step, by themselves or in what they call. The names are the
// library's.
HashSet<absl::string_view> WaitingFunctions(const FunctionLibrary& library) {
  HashMap<absl::string_view, std::vector<absl::string_view>> callers;  // by what they call
  std::vector<absl::string_view> open;                                 // they wait
  std::vector<absl::string_view> running_others;  // they wait if any function does
  for (const auto& function : library.functions()) {
    const absl::string_view caller = function->name();
    bool waits = false, runs_others = false;
    for (const tensorflow::NodeDef& node : function->def().node_def()) {
      if (library.Find(node.op()) != nullptr) {
        callers[node.op()].push_back(caller);
      } else {
        waits |= MayWait(node.op());
        runs_others |= TraitsOf(node.op()).waits_for_steps == WaitsForSteps::kInFunctions;
      }
      for (const auto& [name, value] : node.attr()) {
        // Perhaps a function that the caller names.
        waits |= value.value_case() == tensorflow::AttrValue::kPlaceholder &&
                 OnlyCallsFunctions(node.op());
        ForEachFunction(value, [&](const tensorflow::NameAttrList& callee) {
          callers[callee.name()].push_back(caller);
        });
      }
    }
    // What asks for the gradient of a function names the function.
    const absl::string_view gradient = library.GradientOf(caller);
    if (!gradient.empty()) callers[gradient].push_back(caller);
    if (waits) open.push_back(caller);
    if (runs_others) running_others.push_back(caller);
  }
  if (!open.empty()) open.insert(open.end(), running_others.begin(), running_others.end());
  HashSet<absl::string_view> waiting;
  while (!open.empty()) {
    const absl::string_view function = open.back();
    open.pop_back();
    if (!waiting.insert(function).second) continue;
    const auto calling = callers.find(function);
    if (calling == callers.end()) continue;
    open.insert(open.end(), calling->second.begin(), calling->second.end());
  }
  return waiting;
}

class StepWaits {
 public:
  explicit StepWaits(const FunctionLibrary& library) : library_(library) {}

  // Whether a node may wait for another step, or is where a loop begins.
  bool MayWait(const Node& node) {
    if (node.op_entry() == nullptr || node.is_enter()) return true;
    const WaitsForSteps waits = node.traits().waits_for_steps;
    if (waits == WaitsForSteps::kMay) return true;
    if (library_.empty()) return false;
    if (waits == WaitsForSteps::kInFunctions && !waiting().empty()) return true;
    if (node.body()->function() != nullptr && waiting().contains(node.op())) return true;
    bool calls_waiting = false;
    for (const auto& [name, value] : node.def().attr()) {
      if (value.value_case() != tensorflow::AttrValue::kFunc &&
          value.value_case() != tensorflow::AttrValue::kList) {
        continue;
      }
      ForEachFunction(value, [&](const tensorflow::NameAttrList& callee) {
        calls_waiting |= waiting().contains(callee.name());
      });
    }
    return calls_waiting;
  }

 private:
  const HashSet<absl::string_view>& waiting() {
    if (!waiting_) waiting_ = WaitingFunctions(library_);
    return *waiting_;
  }

  const FunctionLibrary& library_;
  std::optional<HashSet<absl::string_view>> waiting_;
};

}  // namespace

StatusOr<std::vector<int>> WavesOf(const Graph& graph,
                                   absl::FunctionRef<int(const Node&)> location_of) {
  MR_ASSIGN_OR_RETURN(const std::vector<Node*> order, TopologicalOrder(graph));
  StepWaits waits(graph.library());
  std::vector<int> waves(static_cast<size_t>(graph.num_node_ids()), kNoWave);
  for (const Node* node : order) {
    if (waits.MayWait(*node)) continue;
    const int location = location_of(*node);
    int wave = 0;
    bool has_wave = true;
    const auto add = [&](const Node& input) {
      const int before = waves[static_cast<size_t>(input.id())];
      if (before == kNoWave) has_wave = false;
      wave = std::max(wave, before + (location_of(input) == location ? 0 : 1));
    };
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr) add(*input.node);
    }
    for (const Node* input : node->control_inputs()) add(*input);
    if (has_wave) waves[static_cast<size_t>(node->id())] = wave;
  }
  return waves;
}

}  // namespace millrace
