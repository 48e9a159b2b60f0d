// SPDX-License-Identifier: Apache-2.0
#include "saver/freeze_graph.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/rewrite/calls.h"
#include "proto/op_def.pb.h"
#include "saver/checkpoint_name.h"
#include "saver/checkpoint_v1.h"
#include "saver/dead_branches.h"
#include "saver/freeze_tables.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

// Before the names of the nodes that reading and restoring add.
constexpr char kScope[] = "freeze_graph";

struct GraphVariable {
  std::string name;  // of its node
  DType dtype = DT_INVALID;
  PartialShape shape;
  bool is_resource = false;
};

bool IsReferenceVariable(const NodeDef& node) {
  const absl::string_view op = node.op();
  return op == "VariableV2" || op == "Variable";
}
bool IsResourceVariable(const NodeDef& node) {
  return absl::string_view(node.op()) == "VarHandleOp";
}

StatusOr<std::vector<GraphVariable>> GraphVariables(const GraphDef& graph) {
  std::vector<GraphVariable> variables;
  for (const NodeDef& node : graph.node()) {
    if (!IsReferenceVariable(node) && !IsResourceVariable(node)) continue;
    MR_ASSIGN_OR_RETURN(const DType dtype, GetAttr<DType>(node, "dtype"));
    PartialShape shape;
    if (HasAttr(node, "shape")) {
      MR_ASSIGN_OR_RETURN(shape, GetAttr<PartialShape>(node, "shape"));
    }
    // To the oldest kind a scalar is a variable of any shape.
    if (absl::string_view(node.op()) == "Variable" && shape.has_rank() && shape.rank() == 0)
      shape = PartialShape();
    variables.push_back({node.name(), dtype, std::move(shape), IsResourceVariable(node)});
  }
  return variables;
}

// Names that no node of the graph has.
class NewNames {
 public:
  explicit NewNames(const GraphDef& graph) {
    for (const NodeDef& node : graph.node()) taken_.insert(node.name());
  }
  std::string Take(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !taken_.insert(name).second; ++i) name = absl::StrCat(wanted, "_", i);
    return name;
  }

 private:
  HashSet<std::string> taken_;
};

NodeDef* AddNode(const std::string& name, const char* op, std::vector<std::string> inputs,
                 GraphDef* graph) {
  NodeDef* const node = graph->add_node();
  node->set_name(name);
  node->set_op(op);
  for (std::string& input : inputs) node->add_input(std::move(input));
  return node;
}

template <typename T>
void Set(const char* attr, const T& value, NodeDef* node) {
  SetAttr(value, &(*node->mutable_attr())[attr]);
}

// "x" and 1 of "x:1"; 0 where none is said; -1 for a control input.
std::pair<absl::string_view, int> SourceOf(absl::string_view input) {
  if (absl::StartsWith(input, "^")) return {input.substr(1), -1};
  const size_t colon = input.rfind(':');
  int index = 0;
  if (colon != absl::string_view::npos && !absl::SimpleAtoi(input.substr(colon + 1), &index)) {
    index = 0;
  }
  return {input.substr(0, colon), index};
}

// Ops that pass their first (a Merge any) input on, and what they are for a value. Outputs beyond
// `outputs` are values of their own.
struct Passing {
  const char* op;
  int outputs;
};
const std::map<std::string, Passing, std::less<>>& PassingOps() {
  static const auto* const ops = new std::map<std::string, Passing, std::less<>>{
      {"Identity", {"Identity", 1}},
      {"Switch", {"Switch", 2}},
      {"Merge", {"Merge", 1}},
      {"Enter", {"Enter", 1}},
      {"Exit", {"Exit", 1}},
      {"NextIteration", {"NextIteration", 1}},
      {"RefIdentity", {"Identity", 1}},
      {"RefSwitch", {"Switch", 2}},
      {"RefMerge", {"Merge", 1}},
      {"RefEnter", {"Enter", 1}},
      {"RefExit", {"Exit", 1}},
      {"RefNextIteration", {"NextIteration", 1}},
  };
  return *ops;
}

// Rewrites the readers of variables that become constants.
class Freezer {
 public:
  // Writes of the nodes `off` may go: the variables stay as they are.
  Freezer(const std::vector<GraphVariable>& variables, HashSet<std::string> off, GraphDef* graph)
      : graph_(graph), off_(std::move(off)), names_(*graph) {
    for (const GraphVariable& variable : variables) by_name_[variable.name] = &variable;
  }

  // Nodes are added at the end: positions stay.
  Status RewriteReaders() {
    for (int i = 0; i < graph_->node_size(); ++i) {
      const NodeDef& node = graph_->node(i);
      for (int k = 0; k < node.input_size(); ++k) {
        const auto [source, output] = SourceOf(node.input(k));
        if (output >= 0) consumers_[std::string(source)].push_back({i, k, output});
      }
    }
    for (const auto& [name, variable] : by_name_) Follow(name, 0, variable);
    while (!open_.empty()) {
      const Use use = open_.back();
      open_.pop_back();
      MR_RETURN_IF_ERROR(Rewrite(use));
    }
    return CheckMerges();
  }

  bool has_dropped_writes() const { return !unchanged_.empty(); }

  void MakeConstant(const GraphVariable& variable, const Tensor& value, NodeDef* node) {
    NodeDef constant;
    constant.set_name(variable.name);
    constant.set_op("Const");
    constant.set_device(node->device());
    for (const std::string& input : node->input()) constant.add_input(input);
    Set("dtype", variable.dtype, &constant);
    Set("value", value, &constant);
    *node = std::move(constant);
  }

 private:
  struct Consumer {
    int node;
    int input;
    int output;  // of the source
  };
  struct Use {
    Consumer at;
    const GraphVariable* variable;
  };

  // A node that takes output `output` of `node` takes `variable`.
  void Follow(const std::string& node, int output, const GraphVariable* variable) {
    const auto found = consumers_.find(node);
    if (found == consumers_.end()) return;
    for (const Consumer& consumer : found->second) {
      if (consumer.output == output) open_.push_back({consumer, variable});
    }
  }

  Status Refuse(const NodeDef& node, const GraphVariable& variable) const {
    return InvalidArgument("FreezeGraph: ", node.op(), " '", node.name(),
                           "' must only read variable '", variable.name,
                           "', which is to become a constant; leave it out by other outputs or "
                           "keep the variable");
  }

  // A write that no step of the model's user makes, in the branch that a default turns off: the
  // value goes through it.
  bool IsWriteThatIsOff(const NodeDef& node, const GraphVariable& variable) const {
    if (off_.count(node.name()) == 0) return false;
    const OpEntry* const op = LookUpOp(node.op());
    if (op == nullptr) return false;
    const auto& outputs = op->def.output_arg();
    return variable.is_resource ? outputs.empty()
                                : outputs.empty() || (outputs.size() == 1 && outputs[0].is_ref());
  }
  Status LeaveUnchanged(const Use& use, NodeDef* node) {
    NodeDef identity;
    identity.set_name(node->name());
    identity.set_op("Identity");
    identity.set_device(node->device());
    identity.add_input(node->input(use.at.input));
    for (const std::string& input : node->input()) {
      if (absl::StartsWith(input, "^")) identity.add_input(input);
    }
    Set("T", use.variable->dtype, &identity);
    *node = std::move(identity);
    unchanged_.insert(use.at.node);
    Follow(node->name(), 0, use.variable);
    return absl::OkStatus();
  }

  Status Rewrite(const Use& use) {
    if (unchanged_.count(use.at.node) > 0) return absl::OkStatus();
    NodeDef* const node = graph_->mutable_node(use.at.node);
    const GraphVariable& variable = *use.variable;
    const auto passing = PassingOps().find(node->op());
    if (passing != PassingOps().end()) {
      const bool is_data = absl::StrContains(node->op(), "Merge") || use.at.input == 0;
      if (!is_data) return Refuse(*node, variable);
      // By value: nothing follows.
      if (!variable.is_resource && !absl::StartsWith(node->op(), "Ref")) {
        if (rewritten_.count(use.at.node) == 0) return absl::OkStatus();
      }
      passed_[use.at.node].insert(use.at.input);
      if (!rewritten_.insert(use.at.node).second) return absl::OkStatus();
      node->set_op(passing->second.op);
      Set("T", variable.dtype, node);
      for (int i = 0; i < passing->second.outputs; ++i) Follow(node->name(), i, &variable);
      return absl::OkStatus();
    }
    return variable.is_resource ? RewriteHandle(use, node) : RewriteReference(use, node);
  }

  Status RewriteHandle(const Use& use, NodeDef* node) {
    const GraphVariable& variable = *use.variable;
    if (IsWriteThatIsOff(*node, variable)) return LeaveUnchanged(use, node);
    // Each of them has the handle as its first input, and no other.
    if (use.at.input != 0) return Refuse(*node, variable);
    auto& attrs = *node->mutable_attr();
    const absl::string_view op = node->op();
    if (op == "ReadVariableOp") {
      node->set_op("Identity");
      attrs.erase("dtype");
      Set("T", variable.dtype, node);
    } else if (op == "ResourceGather") {
      node->set_op("GatherV2");
      attrs.erase("dtype");
      attrs.erase("validate_indices");
      Set("Tparams", variable.dtype, node);
      Set("Taxis", DT_INT32, node);
      // With leading dimensions in common the rows are of the dimension behind them.
      int64_t axis = 0;
      if (HasAttr(*node, "batch_dims")) {
        MR_ASSIGN_OR_RETURN(axis, GetAttr<int64_t>(*node, "batch_dims"));
        if (axis == 0) attrs.erase("batch_dims");
      }
      const std::string name = names_.Take(absl::StrCat(node->name(), "/axis"));
      const std::string device = node->device(), indices = node->input(1);
      MR_ASSIGN_OR_RETURN(const DType index_type, GetAttr<DType>(*node, "Tindices"));
      node->add_input(name);
      // Data inputs come before control inputs.
      for (int i = node->input_size() - 1; i > 2; --i) {
        node->mutable_input()->SwapElements(i, i - 1);
      }
      const auto constant = [&](const std::string& of) {
        NodeDef* const added = AddNode(of, "Const", {}, graph_);
        added->set_device(device);
        Set("dtype", DT_INT32, added);
        Set("value", Tensor::Scalar<int32_t>(static_cast<int32_t>(axis)), added);
      };
      if (axis >= 0) {
        constant(name);
      } else {
        // Dimensions in common are counted from the end of the indices, an axis from that of rows.
        const std::string rank = names_.Take(absl::StrCat(name, "/rank"));
        const std::string back = names_.Take(absl::StrCat(name, "/batch_dims"));
        constant(back);
        NodeDef* const rank_node = AddNode(rank, "Rank", {indices}, graph_);
        rank_node->set_device(device);
        Set("T", index_type, rank_node);
        NodeDef* const sum = AddNode(name, "Add", {rank, back}, graph_);
        sum->set_device(device);
        Set("T", DT_INT32, sum);
      }
    } else if (op == "ResourceGatherNd") {
      node->set_op("GatherNd");
      attrs.erase("dtype");
      Set("Tparams", variable.dtype, node);
    } else if (op == "VariableShape") {
      node->set_op("Shape");
      Set("T", variable.dtype, node);
    } else if (op == "VarIsInitializedOp") {
      MakeTrue(node);
    } else {
      return Refuse(*node, variable);
    }
    return absl::OkStatus();
  }

  Status RewriteReference(const Use& use, NodeDef* node) {
    if (absl::string_view(node->op()) == "IsVariableInitialized") {
      MakeTrue(node);
      return absl::OkStatus();
    }
    const OpEntry* const op = LookUpOp(node->op());
    if (op == nullptr) return absl::OkStatus();  // it takes a value, as far as anybody knows
    for (const auto& arg : op->def.input_arg()) {
      if (!arg.is_ref()) continue;
      MR_ASSIGN_OR_RETURN(const ArgRange range, InputArgRange(*node, op->def, arg.name()));
      if (range.begin <= use.at.input && use.at.input < range.end) {
        if (IsWriteThatIsOff(*node, *use.variable)) return LeaveUnchanged(use, node);
        return Refuse(*node, *use.variable);
      }
    }
    return absl::OkStatus();
  }

  // A constant has a value from the beginning.
  void MakeTrue(NodeDef* node) {
    NodeDef constant;
    constant.set_name(node->name());
    constant.set_op("Const");
    constant.set_device(node->device());
    for (const std::string& input : node->input()) {
      if (absl::StartsWith(input, "^")) constant.add_input(input);
    }
    Set("dtype", DT_BOOL, &constant);
    Set("value", Tensor::Scalar<bool>(true), &constant);
    *node = std::move(constant);
  }

  // What goes through a Merge is a value for all of its inputs, or for none.
  Status CheckMerges() const {
    for (const auto& [position, inputs] : passed_) {
      const NodeDef& node = graph_->node(position);
      if (NodeBody::KindOf(node.op()) != NodeBody::Kind::kMerge) continue;
      for (int i = 0; i < node.input_size(); ++i) {
        if (absl::StartsWith(node.input(i), "^") || inputs.count(i) > 0) continue;
        return InvalidArgument("FreezeGraph: Merge '", node.name(),
                               "' must have variables that become constants in all of its inputs, "
                               "got '",
                               node.input(i), "'");
      }
    }
    return absl::OkStatus();
  }

  GraphDef* const graph_;
  const HashSet<std::string> off_;
  NewNames names_;
  std::map<std::string, const GraphVariable*> by_name_;
  HashMap<std::string, std::vector<Consumer>> consumers_;
  std::vector<Use> open_;
  std::set<int> rewritten_;
  std::set<int> unchanged_;              // nodes whose write is dropped
  std::map<int, std::set<int>> passed_;  // node that passes variables on -> inputs with variables
};

// What calls compute, in their place: variables reach the nodes that read them.
Status InlineFunctions(const std::vector<std::string>& outputs, GraphDef* def) {
  if (def->library().function_size() == 0) return absl::OkStatus();
  Graph graph;
  ImportOptions options;
  options.allow_internal_names = true;
  MR_RETURN_IF_ERROR(ImportGraphDef(*def, options, &graph));
  std::vector<std::string> keep;
  for (const std::string& output : outputs) keep.emplace_back(SourceOf(output).first);
  MR_RETURN_IF_ERROR(Prefixed("FreezeGraph", InlineAllCalls(&graph, keep)));
  GraphDef inlined;
  graph.ToGraphDef(&inlined);
  MR_ASSIGN_OR_RETURN(*def, PrunedGraphDef(inlined, outputs));
  return absl::OkStatus();
}

// The values of the variables, as the session has them now.
StatusOr<std::vector<Tensor>> ValuesOf(Session* session, const GraphDef& graph,
                                       const std::vector<GraphVariable>& variables) {
  GraphDef readers;
  *readers.mutable_versions() = graph.versions();
  NewNames names(graph);
  std::vector<FetchName> fetches;
  for (const GraphVariable& variable : variables) {
    if (!variable.is_resource) {
      fetches.emplace_back(absl::StrCat(variable.name, ":0"));
      continue;
    }
    const std::string name = names.Take(absl::StrCat(kScope, "/", variable.name, "/read"));
    NodeDef* const node = AddNode(name, "ReadVariableOp", {variable.name}, &readers);
    Set("dtype", variable.dtype, node);
    fetches.emplace_back(absl::StrCat(name, ":0"));
  }
  if (readers.node_size() > 0) MR_RETURN_IF_ERROR(session->Extend(readers));
  if (fetches.empty()) return std::vector<Tensor>();
  return session->Run({}, fetches);
}

// A checkpoint of either format: the tensors that it has, and their dtypes.
StatusOr<std::map<std::string, DType>> TensorsOf(FileSystem* fs, const std::string& checkpoint) {
  std::map<std::string, DType> tensors;
  if (!fs->FileExists(BundleIndexPath(checkpoint)) && !CheckpointV1Files(fs, checkpoint).empty()) {
    MR_ASSIGN_OR_RETURN(const auto reader, CheckpointV1Reader::Open(fs, checkpoint));
    for (const auto& entry : reader->entries()) tensors[entry.name] = entry.dtype;
    return tensors;
  }
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs, checkpoint));
  for (const auto& entry : reader->entries()) tensors[entry.name] = entry.dtype;
  return tensors;
}

}  // namespace

StatusOr<FrozenGraph> FreezeGraph(Session* session, const GraphDef& graph,
                                  const FreezeOptions& options) {
  if (options.outputs.empty()) {
    return absl::InvalidArgumentError("FreezeGraph: outputs must name nodes, got none");
  }
  FrozenGraph frozen;
  MR_ASSIGN_OR_RETURN(frozen.graph, PrunedGraphDef(graph, options.outputs));
  MR_RETURN_IF_ERROR(InlineFunctions(options.outputs, &frozen.graph));
  MR_RETURN_IF_ERROR(RemoveDeadBranches(options.outputs, &frozen.graph));
  if (options.clear_devices) ClearDevices(&frozen.graph);
  const std::set<std::string> only(options.only.begin(), options.only.end());
  const std::set<std::string> except(options.except.begin(), options.except.end());
  MR_ASSIGN_OR_RETURN(std::vector<GraphVariable> variables, GraphVariables(frozen.graph));
  variables.erase(std::remove_if(variables.begin(), variables.end(),
                                 [&](const GraphVariable& variable) {
                                   return except.count(variable.name) > 0 ||
                                          (!only.empty() && only.count(variable.name) == 0);
                                 }),
                  variables.end());

  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values, ValuesOf(session, graph, variables));
  std::map<std::string, size_t> index;
  uint64_t bytes = 0;
  for (size_t i = 0; i < variables.size(); ++i) {
    index[variables[i].name] = i;
    bytes += static_cast<uint64_t>(values[i].TotalBytes());
    frozen.variables.push_back(variables[i].name);
  }
  std::sort(frozen.variables.begin(), frozen.variables.end());
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
    return InvalidArgument("FreezeGraph: constants must have less than 2 GiB together, got ", bytes,
                           " bytes");
  }

  Freezer freezer(variables, NodesOffByDefault(frozen.graph), &frozen.graph);
  MR_RETURN_IF_ERROR(freezer.RewriteReaders());
  for (NodeDef& node : *frozen.graph.mutable_node()) {
    const auto found = index.find(node.name());
    if (found == index.end()) continue;
    freezer.MakeConstant(variables[found->second], values[found->second], &node);
  }
  if (freezer.has_dropped_writes()) {
    // What was to be written is computed for nobody.
    MR_ASSIGN_OR_RETURN(frozen.graph, PrunedGraphDef(frozen.graph, options.outputs));
  }
  MR_ASSIGN_OR_RETURN(frozen.tables, FreezeTables(session, graph, &frozen.graph));
  return frozen;
}

StatusOr<int> RestoreByName(Session* session, const GraphDef& graph, const std::string& name,
                            FileSystem* file_system) {
  MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointNamed(file_system, name));
  using Tensors = std::map<std::string, DType>;
  MR_ASSIGN_OR_RETURN(const Tensors tensors, TensorsOf(file_system, checkpoint));
  MR_ASSIGN_OR_RETURN(const std::vector<GraphVariable> variables, GraphVariables(graph));
  NewNames names(graph);
  GraphDef writers;
  *writers.mutable_versions() = graph.versions();
  std::vector<std::string> stored;
  std::vector<DType> dtypes;
  std::vector<PartialShape> shapes;
  std::vector<std::string> fed;
  std::vector<FetchName> targets;
  for (const GraphVariable& variable : variables) {
    const auto found = tensors.find(variable.name);
    if (found == tensors.end()) continue;
    if (found->second != variable.dtype) {
      return InvalidArgument("Checkpoint '", checkpoint, "': '", variable.name, "' must be of ",
                             variable.dtype, " as the graph's variable, got ", found->second);
    }
    const std::string scope = absl::StrCat(kScope, "/", variable.name);
    const std::string value = names.Take(absl::StrCat(scope, "/value"));
    const std::string assign = names.Take(absl::StrCat(scope, "/assign"));
    Set("dtype", variable.dtype, AddNode(value, "Placeholder", {}, &writers));
    if (variable.is_resource) {
      Set("dtype", variable.dtype,
          AddNode(assign, "AssignVariableOp", {variable.name, value}, &writers));
    } else {
      NodeDef* const node = AddNode(assign, "Assign", {variable.name, value}, &writers);
      Set("T", variable.dtype, node);
      // A checkpoint may know a shape that the graph leaves open.
      Set("validate_shape", false, node);
    }
    stored.push_back(variable.name);
    dtypes.push_back(variable.dtype);
    shapes.push_back(variable.shape);
    fed.push_back(value);
    targets.emplace_back(assign);
  }
  if (stored.empty()) {
    return absl::NotFoundError(absl::StrCat("Checkpoint '", checkpoint,
                                            "': must have a value for a variable of the graph "
                                            "under its name, got ",
                                            tensors.size(), " tensors and ", variables.size(),
                                            " variables that have no name in common"));
  }
  const std::vector<std::string> whole(stored.size());
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values,
                      RestoreTensors(file_system, checkpoint, stored, whole, dtypes));
  std::vector<Feed> feeds;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!shapes[i].IsCompatibleWith(values[i].shape())) {
      return InvalidArgument("Checkpoint '", checkpoint, "': '", stored[i],
                             "' must have the shape of the graph's variable, ", shapes[i], ", got ",
                             values[i].shape());
    }
    feeds.emplace_back(fed[i], values[i]);
  }
  MR_RETURN_IF_ERROR(session->Extend(writers));
  MR_RETURN_IF_ERROR(session->Run(feeds, {}, targets).status());
  return static_cast<int>(stored.size());
}

}  // namespace millrace
