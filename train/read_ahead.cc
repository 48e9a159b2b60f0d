// SPDX-License-Identifier: Apache-2.0
#include "train/read_ahead.h"

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"
#include "ops/state/resource_variable.h"

namespace millrace {
namespace {

constexpr size_t kNamesInText = 8;

// The nodes that run for these outputs, by id.
std::vector<bool> NodesFor(const Graph& graph, const std::vector<Output>& outputs) {
  std::vector<bool> needed(static_cast<size_t>(graph.num_node_ids()));
  std::vector<const Node*> todo;
  const auto need = [&](const Node* node) {
    if (node == nullptr || needed[static_cast<size_t>(node->id())]) return;
    needed[static_cast<size_t>(node->id())] = true;
    todo.push_back(node);
  };
  for (const Output& output : outputs) {
    if (output.valid()) need(output.node());
  }
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    for (const OutputRef& input : node->inputs()) need(input.node);
    for (const Node* control : node->control_inputs()) need(control);
  }
  return needed;
}

// "" where the node asks for none, or for what cannot be read.
std::string JobOf(const Node& node) {
  const StatusOr<DeviceName> device = DeviceName::Parse(node.requested_device());
  return device.ok() ? device->job.value_or("") : "";
}

bool IsControlFlow(const Node& node) {
  return node.is_switch() || node.is_merge() || node.is_enter() || node.is_exit() ||
         node.is_next_iteration() || node.is_loop_cond();
}

// What the step does with a resource variable.
struct Use {
  std::vector<Node*> reads;    // of the whole value, in no order
  std::vector<Node*> writers;  // and what may be one
  // The handle goes on: what is done with it there is not known here.
  bool goes_on = false;
};

// Inputs of nodes of the step that take the output of a read.
struct Reader {
  Node* node;
  int input;
};
struct Readers {
  std::vector<Reader> here;       // on the job of the variable
  std::vector<Reader> elsewhere;  // on another one
};

Readers ReadersOf(const Node& read, const std::string& job, const std::vector<bool>& needed) {
  Readers readers;
  for (const Edge& edge : read.out_edges()) {
    const size_t id = static_cast<size_t>(edge.dst->id());
    if (edge.is_control() || id >= needed.size() || !needed[id]) continue;
    (JobOf(*edge.dst) == job ? readers.here : readers.elsewhere)
        .push_back({edge.dst, edge.dst_input});
  }
  return readers;
}

// What a step does with variables.
struct Uses {
  // Resource variables, by the id of their node, so that equal programs make equal graphs.
  std::map<int, Use> of;
  // All that change a variable, by the device that they ask for.
  std::map<std::string, std::vector<Operation>> writers_on;
};

void AddUses(Node* node, Uses* uses) {
  for (int i = 0; i < node->num_inputs(); ++i) {
    const Node* const made = node->input(i).node;
    if (made == nullptr || !made->traits().makes_variable) continue;
    const bool is_resource = made->output_type(0) == DT_RESOURCE;
    if (!is_resource && !IsRef(node->input_type(i))) continue;
    if (IsControlFlow(*node) || node->traits().hands_on != HandsOn::kNothing) {
      if (is_resource) uses->of[made->id()].goes_on = true;
      continue;
    }
    const VariableUse use = node->traits().VariableUseOf(i);
    if (use == VariableUse::kMayWrite) {
      std::vector<Operation>& writers = uses->writers_on[node->requested_device()];
      if (writers.empty() || writers.back().node() != node) writers.emplace_back(node);
      if (is_resource) uses->of[made->id()].writers.push_back(node);
    } else if (use == VariableUse::kReads && is_resource && node->control_inputs().empty()) {
      uses->of[made->id()].reads.push_back(node);
    }
  }
}

// After all updates of a step on the device of a variable, and all of the variable.
class AfterUpdates {
 public:
  AfterUpdates(const Scope& inside, const ReadAhead::Step& step, const Uses& uses)
      : inside_(inside), step_(step), uses_(uses) {}

  std::vector<Operation> Of(Node* variable, const Use& use) {
    const std::string& device = variable->requested_device();
    const auto [found, is_new] = on_.try_emplace(device);
    if (is_new) found->second = Make(variable);
    std::vector<Operation> all;
    if (found->second.valid()) all.push_back(found->second);
    const size_t here = all.size();
    for (Node* const writer : use.writers) {
      if (writer->requested_device() != device) all.emplace_back(writer);
    }
    if (all.size() > here) all = {After(variable, all)};
    return all;
  }

 private:
  // Invalid where nothing changes.
  Operation Make(Node* variable) const {
    const std::string& device = variable->requested_device();
    const auto writers = uses_.writers_on.find(device);
    std::vector<Operation> before;
    if (writers != uses_.writers_on.end()) before = writers->second;
    // The count is read before the values: what others update in between counts as not seen.
    if (device == step_.global_step.handle.node()->requested_device()) {
      before.push_back(step_.step_after.op());
    }
    return before.empty() ? Operation() : After(variable, before);
  }
  // Also where one of them does not run in a step (train/staleness_aware.h drops updates): the
  // values are needed all the same.
  Operation After(Node* variable, const std::vector<Operation>& before) const {
    return ControlTrigger(inside_.ColocatedWith(Operation(variable))
                              .WithControlDependencies(before)
                              .WithName("updated"));
  }

  const Scope inside_;
  const ReadAhead::Step& step_;
  const Uses& uses_;
  std::map<std::string, Operation> on_;  // by device
};

// What fetches the global step's own read in a step gets the count before the step's, as it does
// where the updates wait for the variables. Without this either might come first.
void ReadBeforeTheCount(const Variable& global_step, const Uses& uses, Graph* graph) {
  Node* const read = global_step.value.node();
  const auto use = uses.of.find(global_step.handle.node()->id());
  if (use == uses.of.end() || read->traits().VariableUseOf(0) != VariableUse::kReads ||
      !read->control_inputs().empty()) {
    return;
  }
  for (Node* const writer : use->second.writers) graph->AddControlEdge(read, writer);
}

// A read of the variable for some readers of another read of it.
StatusOr<Node*> ReadApart(const Scope& scope, Node* variable, const Node& read,
                          const std::vector<Reader>& readers) {
  const Output own = ReadVariableOp(scope, Output(variable, 0), read.output_type(0));
  MR_RETURN_IF_ERROR(scope.status());
  for (const Reader& reader : readers) {
    MR_RETURN_IF_ERROR(scope.graph()->UpdateInput(reader.node, reader.input, own.node(), 0));
  }
  return own.node();
}

}  // namespace

StatusOr<ReadAhead> ReadAhead::Make(const Scope& model, const Step& step) {
  MR_RETURN_IF_ERROR(model.status());
  if (!step.step_after.valid() || !step.global_step.valid()) {
    return InvalidArgument("ReadAhead: a step must count the global step, got an invalid ",
                           step.step_after.valid() ? "global step" : "step_after");
  }
  const Scope root = model.OutsideControlFlow().WithRootPrefix().WithoutControlDependencies();
  const Graph& graph = *root.graph();
  std::vector<Output> results = step.also;
  results.push_back(step.step_after);
  const std::vector<bool> needed = NodesFor(graph, results);
  Uses uses;
  for (size_t id = 0; id < needed.size(); ++id) {
    if (needed[id]) AddUses(graph.nodes()[id].get(), &uses);
  }
  std::set<const Node*> may_change = {step.global_step.handle.node()};
  for (const Variable& variable : VariablesOf(root, "trainable_variables")) {
    may_change.insert(variable.handle.node());
  }

  ReadAhead result;
  const Scope inside = root.WithSubScope("read_ahead");
  AfterUpdates after_updates(inside, step, uses);
  for (const auto& [id, use] : uses.of) {
    Node* const variable = graph.nodes()[static_cast<size_t>(id)].get();
    const std::string job = JobOf(*variable);
    if (job.empty()) continue;
    const bool may = !use.goes_on && (use.writers.empty() || may_change.count(variable) > 0);
    const Scope beside = inside.ColocatedWith(Operation(variable));
    Output after;  // one read for all that the step has
    for (Node* const read : use.reads) {
      const Readers readers = ReadersOf(*read, job, needed);
      if (readers.elsewhere.empty()) {
        // It came first when gradients came a round trip later.
        for (Node* const writer : use.writers) root.graph()->AddControlEdge(read, writer);
        continue;
      }
      if (!may) {
        result.left_.push_back(variable->name());
        break;
      }
      Node* fed = read;
      if (variable == step.global_step.handle.node()) {
        // Hooks fetch its read in a step, and mean what is counted.
        MR_ASSIGN_OR_RETURN(
            fed, ReadApart(beside.WithName(absl::StrCat(variable->name(), "/There")), variable,
                           *read, readers.elsewhere));
      } else if (!readers.here.empty()) {
        // No value comes to the server: what reads it there has a read of its own, before the
        // variable changes.
        MR_ASSIGN_OR_RETURN(Node* const own,
                            ReadApart(beside.WithName(absl::StrCat(variable->name(), "/Here")),
                                      variable, *read, readers.here));
        for (Node* const writer : use.writers) root.graph()->AddControlEdge(own, writer);
      }
      if (!after.valid()) {
        after = ReadVariableOp(beside.WithControlDependencies(after_updates.Of(variable, use))
                                   .WithName(absl::StrCat(variable->name(), "/After")),
                               Output(variable, 0), read->output_type(0));
      }
      // On the reader's device, so that both travel as any edge does (as bfloat16 where a session
      // asks for it), which what is fetched from another task does not.
      const std::string& device = readers.elsewhere[0].node->requested_device();
      const Scope there = device.empty() ? inside : inside.WithDevice(device);
      result.fed_.emplace_back(fed, 0);
      result.next_.push_back(
          Identity(there.WithName(absl::StrCat(variable->name(), "/Next")), after));
      result.first_.push_back(
          Identity(there.WithName(absl::StrCat(variable->name(), "/First")), Output(fed, 0)));
    }
  }
  MR_RETURN_IF_ERROR(root.status());
  if (!result.empty()) ReadBeforeTheCount(step.global_step, uses, root.graph());
  return result;
}

std::string ReadAhead::ToString() const {
  if (fed_.empty() && left_.empty()) {
    return "read_ahead does nothing: no variable that a step reads is on a parameter server";
  }
  std::string text = absl::StrCat(
      "read_ahead: variables that come with the end of the step before: ", fed_.size());
  if (left_.empty()) return text;
  std::vector<std::string> names;
  for (const std::string& name : left_) {
    if (names.size() == kNamesInText) break;
    names.push_back(absl::StrCat("'", name, "'"));
  }
  absl::StrAppend(&text, "; that each step waits for: ", left_.size(), ", ",
                  absl::StrJoin(names, ", "));
  if (left_.size() > names.size()) {
    absl::StrAppend(&text, " and ", left_.size() - names.size(), " more");
  }
  return text;
}

}  // namespace millrace
