// SPDX-License-Identifier: Apache-2.0
#include "graph/verify.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor_proto.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/frames.h"
#include "graph/function_library.h"
#include "graph/later_attrs.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::FunctionDef;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::OpDef;

std::atomic<int64_t> nodes_verified{0};  // relaxed: a count

bool IsOneOf(absl::string_view op, absl::string_view kind) {
  return op == kind || (absl::ConsumePrefix(&op, "Ref") && op == kind);
}

// ---- attrs -------------------------------------------------------------------------------------

Status CheckNesting(const AttrValue& value, int depth);

Status CheckFuncNesting(const tensorflow::NameAttrList& func, int depth) {
  for (const auto& [name, value] : func.attr()) MR_RETURN_IF_ERROR(CheckNesting(value, depth + 1));
  return absl::OkStatus();
}

Status CheckNesting(const AttrValue& value, int depth) {
  if (depth > kMaxAttrNesting) {
    return InvalidArgument("attrs must be nested at most ", kMaxAttrNesting, " deep, got more");
  }
  if (value.value_case() == AttrValue::kFunc) return CheckFuncNesting(value.func(), depth);
  if (value.value_case() == AttrValue::kList) {
    for (const auto& func : value.list().func()) MR_RETURN_IF_ERROR(CheckFuncNesting(func, depth));
  }
  return absl::OkStatus();
}

bool HasPlaceholder(const NodeDef& node) {
  for (const auto& [name, value] : node.attr()) {
    if (value.value_case() == AttrValue::kPlaceholder) return true;
  }
  return false;
}

Status CheckConst(const NodeDef& node) {
  auto value = node.attr().find("value");
  auto dtype = node.attr().find("dtype");
  if (value == node.attr().end() || value->second.value_case() != AttrValue::kTensor) {
    return InvalidArgument("attr 'value' must be a tensor, got none");
  }
  if (Status s = ValidateTensorProto(value->second.tensor()); !s.ok()) {
    return Prefixed("attr 'value'", s);
  }
  if (dtype != node.attr().end() && dtype->second.type() != value->second.tensor().dtype()) {
    return InvalidArgument("attr 'value' must be ",
                           DTypeName(static_cast<DType>(dtype->second.type())),
                           " as attr 'dtype' says, got ",
                           DTypeName(static_cast<DType>(value->second.tensor().dtype())));
  }
  return absl::OkStatus();
}

// The node with only what its types hang on, defaults filled in: never the tensor of a Const.
std::shared_ptr<const NodeDef> TypeAttrs(const NodeDef& node, const OpDef& op) {
  auto types = NewMessage<NodeDef>();
  types->set_name(node.name());
  types->set_op(node.op());
  for (const OpDef::AttrDef& attr : op.attr()) {
    if (attr.type() != "type" && attr.type() != "list(type)" && attr.type() != "int") continue;
    auto it = node.attr().find(attr.name());
    if (it != node.attr().end()) {
      (*types->mutable_attr())[attr.name()] = it->second;
    } else if (attr.has_default_value()) {
      (*types->mutable_attr())[attr.name()] = attr.default_value();
    }
  }
  return types;
}

// What one node's op and attrs say: the types of its inputs and outputs, when they are known.
struct Signature {
  bool known = false;
  int unknown_outputs = 0;  // of an unknown op: one more than the highest index referred to
  absl::Span<const DType> inputs, outputs;
};

// What holds for the attrs of any node. In a function body an attr may be a placeholder.
Status CheckAttrs(const NodeDef& node, bool in_function) {
  for (const auto& [name, value] : node.attr()) {
    if (value.value_case() == AttrValue::VALUE_NOT_SET) {
      return InvalidArgument("attr '", name, "' must have a value, got none");
    }
    MR_RETURN_IF_ERROR(CheckNesting(value, 1));
    if (value.value_case() == AttrValue::kPlaceholder && !in_function) {
      return InvalidArgument("attr '", name, "' must have a value, got the placeholder '",
                             value.placeholder(), "', which only a function may have");
    }
  }
  if (node.op() == "Const" && !(in_function && HasPlaceholder(node))) return CheckConst(node);
  return CheckLaterAttrs(node);
}

// Of a node in a function, whose attrs are given.
struct OwnedTypes {
  std::vector<DType> inputs, outputs;
};
Status CheckTypes(const NodeDef& node, const OpDef& op, OwnedTypes* types) {
  MR_RETURN_IF_ERROR(ValidateNodeAttrs(node, op));
  return NodeTypes(*TypeAttrs(node, op), op, &types->inputs, &types->outputs);
}

// ---- loops -------------------------------------------------------------------------------------

bool HasLoops(absl::string_view op) {
  return IsOneOf(op, "Enter") || IsOneOf(op, "Exit") || IsOneOf(op, "NextIteration") ||
         op == "LoopCond";
}

// ---- colocation --------------------------------------------------------------------------------

// `class_of` gives the `_class` attr of the i-th node, null when it has none; `where` names it.
Status CheckColocation(int num_nodes, const HashMap<absl::string_view, int>& index,
                       bool allow_missing, absl::FunctionRef<const AttrValue*(int)> class_of,
                       absl::FunctionRef<std::string(int)> where,
                       absl::FunctionRef<std::string(int)> name) {
  Dependencies colocated;
  bool any = false;
  for (int i = 0; i < num_nodes; ++i) {
    if (const AttrValue* const groups = class_of(i); groups != nullptr) {
      for (absl::string_view group : groups->list().s()) {
        if (!absl::ConsumePrefix(&group, "loc:@")) continue;
        auto target = index.find(group);
        if (target == index.end()) {
          if (allow_missing) continue;
          return InvalidArgument(where(i), ": attr '_class' must name a node, got 'loc:@", group,
                                 "', which is not in the graph");
        }
        // A node may name its own group.
        if (target->second != i) {
          colocated.AddInput(target->second);
          any = true;
        }
      }
    }
    colocated.EndNode();
  }
  if (!any) return absl::OkStatus();
  StatusOr<std::vector<int>> order = colocated.Order(name);
  if (order.ok()) return absl::OkStatus();
  absl::string_view text = order.status().message();
  return InvalidArgument("GraphDef: colocation ('_class') must not be circular, got ",
                         text.substr(text.find("the cycle")));
}

// ---- functions ---------------------------------------------------------------------------------

const OpDef* FindOpOrFunction(const std::string& op, const FunctionLibrary& functions) {
  if (const OpEntry* entry = LookUpOp(op); entry != nullptr) return &entry->def;
  const std::shared_ptr<const Function> function = functions.Find(op);
  return function == nullptr ? nullptr : &function->op().def;  // the library keeps it
}

Status CheckOpKind(const NodeDef& node, const OpDef* op, const VerifyOptions& options) {
  if (node.op().empty()) return InvalidArgument("op must be given, got none");
  if (op == nullptr && options.unknown_ops == UnknownOps::kRefuse) {
    return FindOp(node.op()).status();
  }
  return absl::OkStatus();
}

class FunctionChecker {
 public:
  FunctionChecker(const FunctionDef& function, const FunctionLibrary& functions,
                  const VerifyOptions& options)
      : function_(function), functions_(functions), options_(options) {}

  Status Check() {
    const OpDef& signature = function_.signature();
    if (LookUpOp(signature.name()) != nullptr) {
      return InvalidArgument("name must not be that of an op, got '", signature.name(), "'");
    }
    for (const OpDef::ArgDef& arg : signature.input_arg()) {
      if (arg.name().empty()) return InvalidArgument("argument must have a name, got none");
      if (!args_.emplace(arg.name(), &arg).second) {
        return InvalidArgument("argument '", arg.name(), "' must be declared once, got two");
      }
    }
    HashSet<absl::string_view> outputs;
    for (const OpDef::ArgDef& arg : signature.output_arg()) {
      if (!outputs.insert(arg.name()).second) {
        return InvalidArgument("output '", arg.name(), "' must be declared once, got two");
      }
    }
    HashSet<absl::string_view> attrs;
    for (const OpDef::AttrDef& attr : signature.attr()) {
      if (!attrs.insert(attr.name()).second) {
        return InvalidArgument("attr '", attr.name(), "' must be declared once, got two");
      }
    }
    for (const auto& [index, unused] : function_.arg_attr()) {
      if (index >= static_cast<uint32_t>(signature.input_arg_size())) {
        return InvalidArgument("arg_attr index must be in [0, ", signature.input_arg_size(),
                               "), got ", index);
      }
    }
    for (int i = 0; i < function_.node_def_size(); ++i) {
      const NodeDef& node = function_.node_def(i);
      if (!IsLegalNodeName(node.name(), /*internal=*/true)) {
        return InvalidArgument("node[", i,
                               "]: name must be letters, digits and any of '_./-', got '",
                               node.name(), "'");
      }
      if (args_.contains(node.name()) || !nodes_.emplace(node.name(), &node).second) {
        return InvalidArgument("node[", i, "] '", node.name(),
                               "': name must be unique, got a second one");
      }
    }
    for (int i = 0; i < function_.node_def_size(); ++i) {
      const NodeDef& node = function_.node_def(i);
      if (node.op() == "_Arg" || node.op() == "_Retval") {
        return InvalidArgument("node[", i, "] '", node.name(),
                               "': op must not be at the border of a step, got ", node.op());
      }
      MR_RETURN_IF_ERROR(
          Prefixed(absl::StrCat("node[", i, "] '", node.name(), "'"), CheckBody(node)));
    }
    for (const OpDef::ArgDef& arg : signature.output_arg()) {
      auto it = function_.ret().find(arg.name());
      if (it == function_.ret().end()) {
        return InvalidArgument("ret must say where output '", arg.name(), "' comes from, got none");
      }
      MR_RETURN_IF_ERROR(
          Prefixed(absl::StrCat("output '", arg.name(), "'"), CheckReference(it->second)));
    }
    for (const auto& [name, unused] : function_.ret()) {
      if (!outputs.contains(name))
        return InvalidArgument("ret must name outputs, got '", name, "'");
    }
    for (const auto& [name, node] : function_.control_ret()) {
      if (!nodes_.contains(node)) {
        return InvalidArgument("control output '", name, "' must name a node, got '", node, "'");
      }
    }
    return absl::OkStatus();
  }

 private:
  Status CheckBody(const NodeDef& node) {
    const OpDef* op = FindOpOrFunction(node.op(), functions_);
    MR_RETURN_IF_ERROR(CheckOpKind(node, op, options_));
    MR_RETURN_IF_ERROR(CheckAttrs(node, /*in_function=*/true));
    const bool known = op != nullptr && !HasPlaceholder(node);
    OwnedTypes types;
    if (known) MR_RETURN_IF_ERROR(CheckTypes(node, *op, &types));
    bool control = false;
    size_t data = 0;
    for (absl::string_view input : node.input()) {
      if (absl::ConsumePrefix(&input, "^")) {
        control = true;
        if (!nodes_.contains(input) && !args_.contains(input)) {
          return InvalidArgument("control input must name a node, got '", input, "'");
        }
        continue;
      }
      if (control)
        return InvalidArgument("control inputs must come after all data inputs, got '", input, "'");
      MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("input ", data), CheckReference(input)));
      ++data;
    }
    // An argument that is a list may give several tensors: then the count is known only later.
    bool lists = false;
    for (const OpDef::ArgDef& arg : function_.signature().input_arg()) {
      lists |= !arg.number_attr().empty() || !arg.type_list_attr().empty();
    }
    if (known && !lists && data > types.inputs.size()) {
      return InvalidArgument("must have ", types.inputs.size(), " inputs, got ", data);
    }
    return absl::OkStatus();
  }

  // "arg", "arg:0", "node:output" or "node:output:k".
  Status CheckReference(absl::string_view text) {
    const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
    if (text.empty() || parts.size() > 3) {
      return InvalidArgument("must be 'argument' or 'node:output:index', got '", text, "'");
    }
    int index = 0;
    if (auto arg = args_.find(parts[0]); arg != args_.end()) {
      const bool is_list =
          !arg->second->number_attr().empty() || !arg->second->type_list_attr().empty();
      if (parts.size() == 3 || (parts.size() == 2 && (!absl::SimpleAtoi(parts[1], &index) ||
                                                      index < 0 || (index > 0 && !is_list)))) {
        return InvalidArgument("refers to '", text, "', but argument '", parts[0],
                               "' is one tensor");
      }
      return absl::OkStatus();
    }
    auto node = nodes_.find(parts[0]);
    if (node == nodes_.end()) {
      return InvalidArgument("refers to '", text, "', but the function has no node or argument '",
                             parts[0], "'");
    }
    if (parts.size() < 2) {
      return InvalidArgument("refers to '", text,
                             "', but must name an output as 'node:output:index'");
    }
    if (parts.size() == 3 && (!absl::SimpleAtoi(parts[2], &index) || index < 0)) {
      return InvalidArgument("refers to '", text, "', but the index must be a number, got '",
                             parts[2], "'");
    }
    const NodeDef& source = *node->second;
    const OpDef* op = FindOpOrFunction(source.op(), functions_);
    if (op == nullptr) return absl::OkStatus();
    const OpDef::ArgDef* output = nullptr;
    for (const OpDef::ArgDef& arg : op->output_arg()) {
      if (arg.name() == parts[1]) output = &arg;
    }
    if (output == nullptr) {
      return InvalidArgument("refers to '", text, "', but ", source.op(), " has no output '",
                             parts[1], "'");
    }
    if (HasPlaceholder(source)) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const int size, ArgSize(*TypeAttrs(source, *op), *output));
    if (index >= size) {
      return InvalidArgument("refers to '", text, "', but '", source.name(), ":", parts[1],
                             "' has ", size, size == 1 ? " tensor" : " tensors");
    }
    return absl::OkStatus();
  }

  const FunctionDef& function_;
  const FunctionLibrary& functions_;
  const VerifyOptions& options_;
  HashMap<absl::string_view, const OpDef::ArgDef*> args_;
  HashMap<absl::string_view, const NodeDef*> nodes_;
};

}  // namespace

Status VerifyVersions(const tensorflow::VersionDef& versions) {
  if (versions.min_consumer() > kGraphVersion) {
    return InvalidArgument("GraphDef min consumer version ", versions.min_consumer(),
                           " above current version ", kGraphVersion,
                           " for TensorFlow 1.15. Please upgrade TensorFlow.");
  }
  if (versions.producer() < kGraphMinProducer) {
    return InvalidArgument("GraphDef producer version ", versions.producer(),
                           " below min producer ", kGraphMinProducer,
                           " supported by TensorFlow 1.15. Please regenerate your graph.");
  }
  for (int bad : versions.bad_consumers()) {
    if (bad == kGraphVersion) {
      return InvalidArgument("GraphDef disallows consumer version ", bad,
                             ". Please upgrade TensorFlow: this version is likely buggy.");
    }
  }
  return absl::OkStatus();
}

Status VerifyFunctions(const FunctionLibrary& library, const FunctionLibrary& known,
                       const VerifyOptions& options) {
  for (const auto& function : library.functions()) {
    if (known.Find(function->name()) == function) continue;
    MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("Function '", function->name(), "'"),
                                FunctionChecker(function->def(), library, options).Check()));
  }
  return library.CheckNoRecursion();
}

int64_t NodesVerifiedForTesting() { return nodes_verified.load(std::memory_order_relaxed); }

namespace {

Status CheckGraphAttrs(const NodeDef& node) { return CheckAttrs(node, /*in_function=*/false); }

// Checks the nodes that come into a graph, and makes their bodies.
class NodeVerifier {
 public:
  // `with_values`: the bodies get the values of constants.
  NodeVerifier(const VerifyOptions& options, bool with_values, NodeBodies* bodies,
               IncomingNodes* incoming)
      : options_(options),
        with_values_(with_values),
        bodies_(bodies),
        incoming_(incoming),
        n_(static_cast<int>(incoming->indices.size())) {}

  Status Verify() {
    const GraphDef& def = *incoming_->def;
    MR_RETURN_IF_ERROR(VerifyVersions(def.versions()));
    if (def.node_size() > kMaxGraphNodes) {
      return InvalidArgument("GraphDef: must have at most ", kMaxGraphNodes, " nodes, got ",
                             def.node_size());
    }
    const std::shared_ptr<const FunctionLibrary> known = incoming_->library;
    MR_ASSIGN_OR_RETURN(incoming_->library, known->With(def.library()));
    functions_ = incoming_->library.get();
    bodies_->set_functions(functions_);
    MR_RETURN_IF_ERROR(VerifyFunctions(*functions_, *known, options_));
    nodes_verified.fetch_add(n_, std::memory_order_relaxed);
    index_.reserve(static_cast<size_t>(n_));
    signatures_.resize(static_cast<size_t>(n_));
    incoming_->bodies.resize(static_cast<size_t>(n_));
    for (int i = 0; i < n_; ++i) MR_RETURN_IF_ERROR(AddNode(i));
    incoming_->ends.reserve(static_cast<size_t>(n_));
    for (int i = 0; i < n_; ++i) MR_RETURN_IF_ERROR(AddInputs(i));
    return CheckWhole();
  }

 private:
  const NodeDef& NodeAt(int i) const {
    return incoming_->def->node(incoming_->indices[static_cast<size_t>(i)]);
  }
  std::string Where(int i) const {
    return absl::StrCat("GraphDef node[", incoming_->indices[static_cast<size_t>(i)], "] '",
                        NodeAt(i).name(), "'");
  }

  // Null: where the message has the value, if it is one of a Const.
  const Tensor* ValueOf(const NodeDef& node) const {
    if (incoming_->constants == nullptr || NodeBody::KindOf(node.op()) != NodeBody::Kind::kConst) {
      return nullptr;
    }
    const auto found = incoming_->constants->find(node.name());
    return found == incoming_->constants->end() ? nullptr : &found->second;
  }

  StatusOr<std::shared_ptr<const NodeBody>> MakeConst(const NodeDef& node, const Tensor& value) {
    NodeDef bare = node;  // it has a mark for the bytes
    const auto attr = bare.mutable_attr()->find("value");
    if (attr != bare.mutable_attr()->end() && attr->second.value_case() == AttrValue::kTensor) {
      attr->second.mutable_tensor()->clear_tensor_content();
    }
    MR_RETURN_IF_ERROR(CheckGraphAttrs(bare));
    return bodies_->MakeConst(bare, value);
  }

  // Name, op, attrs and numbers; makes the body.
  Status AddNode(int i) {
    const NodeDef& node = NodeAt(i);
    if (!IsLegalNodeName(node.name(), options_.allow_internal_names)) {
      return InvalidArgument(Where(i),
                             ": name must be letters, digits and any of '_./-' and begin with a "
                             "letter, a digit or '.', got '",
                             node.name(), "'");
    }
    auto [it, inserted] = index_.emplace(node.name(), i);
    if (!inserted) {
      return InvalidArgument(Where(i), ": name must be unique, got it at node[",
                             incoming_->indices[static_cast<size_t>(it->second)], "], too");
    }
    const OpDef* op = FindOpOrFunction(node.op(), *functions_);
    if (Status s = CheckOpKind(node, op, options_); !s.ok()) return Prefixed(Where(i), s);
    Signature& signature = signatures_[static_cast<size_t>(i)];
    has_colocation_ |= node.attr().contains("_class");
    NodeDef* const taken =
        incoming_->taken == nullptr
            ? nullptr
            : incoming_->taken->mutable_node(incoming_->indices[static_cast<size_t>(i)]);
    const Tensor* const value = ValueOf(node);
    StatusOr<std::shared_ptr<const NodeBody>> body =
        value != nullptr ? MakeConst(node, *value)
        : with_values_   ? bodies_->Make(node, taken, CheckGraphAttrs)
                         : bodies_->MakeWithoutValue(node, CheckGraphAttrs);
    const Status status = body.status();
    if (body.ok()) {
      if (op != nullptr) {
        signature.known = true;
        signature.inputs = (*body)->input_types();
        signature.outputs = (*body)->output_types();
      }
      incoming_->bodies[static_cast<size_t>(i)] = *std::move(body);
    }
    if (!status.ok()) {
      // NodeTypes names op and node itself.
      const std::string self = absl::StrCat(node.op(), " '", node.name(), "': ");
      absl::string_view text = status.message();
      absl::ConsumePrefix(&text, self);
      return absl::Status(status.code(), absl::StrCat(Where(i), ": ", text));
    }
    // Before the next node is looked at: no message declares more than it has inputs for.
    size_t data = 0;
    for (const std::string& input : node.input()) data += !absl::StartsWith(input, "^");
    if (signature.known && data != signature.inputs.size()) {
      return InvalidArgument(Where(i), ": ", node.op(), " must have ", signature.inputs.size(),
                             signature.inputs.size() == 1 ? " input" : " inputs", ", got ", data);
    }
    if (data > static_cast<size_t>(kMaxNodeArgs)) {
      return InvalidArgument(Where(i), ": number of inputs must be at most ", kMaxNodeArgs,
                             ", got ", data);
    }
    outputs_ += static_cast<int64_t>(signature.outputs.size());
    if (outputs_ > kMaxGraphOutputs) {
      return InvalidArgument(Where(i), ": nodes must have at most ", kMaxGraphOutputs,
                             " outputs in all, got more");
    }
    incoming_->has_loops |= HasLoops(node.op());
    return absl::OkStatus();
  }

  // Resolves the inputs of a node.
  Status AddInputs(int i) {
    const NodeDef& node = NodeAt(i);
    bool control = false;
    size_t data = 0;
    for (const std::string& input : node.input()) {
      absl::string_view source_name;
      int source_index = 0;
      if (!SplitTensorName(input, &source_name, &source_index)) {
        return Prefixed(absl::StrCat(Where(i), ": input ", data), ParseTensorName(input).status());
      }
      if (source_index != kControlSlot && control) {
        return InvalidArgument(Where(i), ": control inputs must come after all data inputs, got '",
                               input, "' after one");
      }
      control |= source_index == kControlSlot;
      const size_t slot = data;
      data += source_index != kControlSlot;
      auto source = index_.find(source_name);
      incoming_->sources.push_back({source == index_.end() ? -1 : source->second, source_index});
      if (source == index_.end()) {
        if (options_.allow_missing_inputs) continue;
        return InvalidArgument(
            Where(i), control ? std::string(": control input") : absl::StrCat(": input ", slot),
            " refers to '", input, "', but the graph has no node '", source_name, "'");
      }
      if (source_index != kControlSlot) {
        MR_RETURN_IF_ERROR(CheckSource(i, slot, input, source->second, source_index));
      }
      if (source_index != kControlSlot && IsOneOf(node.op(), "Merge") &&
          IsOneOf(NodeAt(source->second).op(), "NextIteration")) {
        back_edges_.push_back({source->second, i});
      } else {
        dependencies_.AddInput(source->second);
      }
    }
    dependencies_.EndNode();
    incoming_->ends.push_back(incoming_->sources.size());
    return absl::OkStatus();
  }

  // Input `slot` of node i, `input`, is an output of node `source`: is it there, and of the type?
  Status CheckSource(int i, size_t slot, const std::string& input, int source, int output_index) {
    const NodeDef& src = NodeAt(source);
    const Signature& signature = signatures_[static_cast<size_t>(i)];
    Signature& from = signatures_[static_cast<size_t>(source)];
    const size_t output = static_cast<size_t>(output_index);
    if (!from.known && output < static_cast<size_t>(kMaxUnknownOutputs)) {
      // An unknown op has the outputs that the graph refers to.
      outputs_ += std::max<int64_t>(0, output_index + 1 - from.unknown_outputs);
      from.unknown_outputs = std::max(from.unknown_outputs, output_index + 1);
      if (outputs_ > kMaxGraphOutputs) {
        return InvalidArgument(Where(i), ": nodes must have at most ", kMaxGraphOutputs,
                               " outputs in all, got more");
      }
    } else if (!from.known) {
      return InvalidArgument(Where(i), ": input ", slot, " refers to '", input,
                             "', but an unknown op ('", src.op(), "') has at most ",
                             kMaxUnknownOutputs, " outputs");
    } else if (output >= from.outputs.size()) {
      return InvalidArgument(Where(i), ": input ", slot, " refers to '", input, "', but '",
                             src.name(), "' has ", from.outputs.size(),
                             from.outputs.size() == 1 ? " output" : " outputs");
    }
    if (from.known && signature.known && slot < signature.inputs.size()) {
      const DType got = from.outputs[output];
      const DType want = signature.inputs[slot];
      if (got != want && !(IsRef(got) && WithoutRef(got) == want)) {
        return InvalidArgument(Where(i), ": input ", slot, " must be ", DTypeName(want), ", got ",
                               DTypeName(got), " from '", input, "'");
      }
    }
    return absl::OkStatus();
  }

  // Colocation, cycles and loops.
  Status CheckWhole() {
    const auto name_at = [&](int i) { return NodeAt(i).name(); };
    const std::function<std::string(int)> where = [&](int i) { return Where(i); };
    const auto attrs_of = [&](int i) -> const NodeDef& {
      return incoming_->taken == nullptr ? NodeAt(i)
                                         : incoming_->bodies[static_cast<size_t>(i)]->def();
    };
    if (has_colocation_) {
      MR_RETURN_IF_ERROR(CheckColocation(
          n_, index_, options_.allow_missing_inputs,
          [&](int i) -> const AttrValue* {
            const auto& attrs = attrs_of(i).attr();
            const auto it = attrs.find("_class");
            return it == attrs.end() ? nullptr : &it->second;
          },
          where, name_at));
    }
    MR_ASSIGN_OR_RETURN(const std::vector<int> order, dependencies_.Order(name_at));
    // Where inputs are missing it is unknown which frame they come from.
    if (!incoming_->has_loops || options_.allow_missing_inputs) return absl::OkStatus();
    const auto flow_node = [&](int i) {
      const NodeDef& node = NodeAt(i);
      return FlowNode{node.name(), node.op(), &attrs_of(i)};
    };
    return Prefixed("GraphDef", Frames::Of(order, dependencies_, back_edges_, flow_node).status());
  }

  const VerifyOptions& options_;
  const bool with_values_;
  NodeBodies* const bodies_;
  IncomingNodes* const incoming_;
  const int n_;
  const FunctionLibrary* functions_ = nullptr;
  HashMap<absl::string_view, int> index_;
  std::vector<Signature> signatures_;
  Dependencies dependencies_;
  std::vector<BackEdge> back_edges_;
  int64_t outputs_ = 0;
  bool has_colocation_ = false;
};

}  // namespace

Status VerifyNodes(const VerifyOptions& options, NodeBodies* bodies, IncomingNodes* nodes) {
  return NodeVerifier(options, /*with_values=*/true, bodies, nodes).Verify();
}

Status VerifyGraphDef(const GraphDef& def, const VerifyOptions& options) {
  IncomingNodes nodes;
  nodes.def = &def;
  nodes.indices.resize(static_cast<size_t>(def.node_size()));
  std::iota(nodes.indices.begin(), nodes.indices.end(), 0);
  NodeBodies bodies;
  return NodeVerifier(options, /*with_values=*/false, &bodies, &nodes).Verify();
}

Status VerifyGraph(const Graph& graph) {
  nodes_verified.fetch_add(graph.num_nodes(), std::memory_order_relaxed);
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (node->input(i).node != nullptr) continue;
      return InvalidArgument(node->op(), " '", node->name(), "': input ", i,
                             " must have a source, got none");
    }
  }
  if (!graph.has_loops()) return TopologicalOrder(graph).status();
  const Status frames = Frames::Of(graph).status();
  // Of a cycle the message says that it is the graph's.
  return absl::StartsWith(frames.message(), "Graph: ") ? frames : Prefixed("Graph", frames);
}

}  // namespace millrace
