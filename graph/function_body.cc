// SPDX-License-Identifier: Apache-2.0
#include "graph/function_body.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/missing_op_hint.h"
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
using tensorflow::NameAttrList;
using tensorflow::NodeDef;
using tensorflow::OpDef;

// Functions with functions as attrs; what an import allows (graph/verify.h).
constexpr int kMaxDepth = 64;

// Puts the call's attrs in the places that stand for them.
class Substitution {
 public:
  explicit Substitution(const NodeDef& call) : call_(call) {}

  Status Apply(AttrValue* value, int depth) const {
    if (depth > kMaxDepth) {
      return InvalidArgument("attrs must be nested at most ", kMaxDepth, " deep, got more");
    }
    switch (value->value_case()) {
      case AttrValue::kPlaceholder: {
        const auto it = call_.attr().find(value->placeholder());
        if (it == call_.attr().end()) {
          return InvalidArgument("the placeholder '", value->placeholder(),
                                 "' must be an attr of the call, got none");
        }
        *value = it->second;
        return absl::OkStatus();
      }
      case AttrValue::kFunc:
        return ApplyTo(value->mutable_func(), depth);
      case AttrValue::kList:
        for (NameAttrList& function : *value->mutable_list()->mutable_func()) {
          MR_RETURN_IF_ERROR(ApplyTo(&function, depth));
        }
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

 private:
  Status ApplyTo(NameAttrList* function, int depth) const {
    for (auto& [name, inner] : *function->mutable_attr()) {
      MR_RETURN_IF_ERROR(Apply(&inner, depth + 1));
    }
    return absl::OkStatus();
  }
  const NodeDef& call_;
};

// Tensors that one name stands for: an argument, or a named output of a node.
struct Tensors {
  Node* node = nullptr;  // of outputs begin, begin + 1, ...; null: of arguments
  int begin = 0;
  int size = 0;
};

// One call of MakeFunctionBody.
class BodyMaker {
 public:
  BodyMaker(const FunctionLibrary& library, std::shared_ptr<const Function> function)
      : library_(library),
        def_(function->def()),
        graph_(std::make_unique<Graph>()),
        body_(std::make_shared<FunctionBody>()) {
    for (const NodeDef& node : def_.node_def()) def_names_.insert(node.name());
    body_->function = std::move(function);
  }

  StatusOr<std::shared_ptr<const FunctionBody>> Make(const NodeDef& call) {
    graph_->set_library(library_.shared_from_this());
    MR_RETURN_IF_ERROR(
        NodeTypes(call, def_.signature(), &body_->argument_types, &body_->result_types));
    for (const OpDef::ArgDef& arg : def_.signature().input_arg()) {
      MR_ASSIGN_OR_RETURN(const int size, ArgSize(call, arg));
      MR_RETURN_IF_ERROR(AddArguments(arg, size));
    }
    MR_RETURN_IF_ERROR(AddNodes(call));
    for (int i = 0; i < def_.node_def_size(); ++i) {
      MR_RETURN_IF_ERROR(Prefixed(Where(i), AddInputs(def_.node_def(i), nodes_[AsSize(i)])));
    }
    for (const OpDef::ArgDef& arg : def_.signature().output_arg()) {
      MR_ASSIGN_OR_RETURN(const int size, ArgSize(call, arg));
      MR_RETURN_IF_ERROR(
          Prefixed(absl::StrCat("output '", arg.name(), "'"), AddResults(arg, size)));
    }
    MR_ASSIGN_OR_RETURN(const std::vector<Node*> order, TopologicalOrder(*graph_));
    body_->order.assign(order.begin(), order.end());
    MR_RETURN_IF_ERROR(FindEffects());
    graph_->set_library(FunctionLibrary::Empty());
    body_->graph = std::move(graph_);
    return std::shared_ptr<const FunctionBody>(std::move(body_));
  }

 private:
  static size_t AsSize(int i) { return static_cast<size_t>(i); }
  std::string Where(int i) const {
    return absl::StrCat("node[", i, "] '", def_.node_def(i).name(), "'");
  }

  StatusOr<Node*> AddBoundaryNode(const char* op, const std::string& name, DType type,
                                  size_t index) {
    const auto def = NewMessage<NodeDef>();
    def->set_op(op);
    def->set_name(name);
    SetAttr(type, &(*def->mutable_attr())["T"]);
    SetAttr(static_cast<int64_t>(index), &(*def->mutable_attr())["index"]);
    MR_RETURN_IF_ERROR(FindOp(op).status());  // of graph/internal_ops.cc: to be linked
    return graph_->AddNode(*def);
  }

  Status AddArguments(const OpDef::ArgDef& arg, int size) {
    const bool is_list = !arg.number_attr().empty() || !arg.type_list_attr().empty();
    Tensors tensors;
    tensors.begin = static_cast<int>(body_->arguments.size());
    tensors.size = size;
    for (int k = 0; k < size; ++k) {
      const size_t index = body_->arguments.size();
      const DType type = body_->argument_types[index];
      if (IsRef(type)) {
        return Unimplemented("argument '", arg.name(), "' must not be a reference, got ", type);
      }
      const std::string name = is_list ? absl::StrCat(arg.name(), "_", k) : arg.name();
      MR_ASSIGN_OR_RETURN(Node * node, AddBoundaryNode("_Arg", FreeName(name), type, index));
      body_->arguments.push_back(node);
      argument_nodes_.push_back(node);
    }
    arguments_.emplace(arg.name(), tensors);
    return absl::OkStatus();
  }

  // Names of nodes of the function are theirs, whatever arguments and results are called.
  std::string FreeName(const std::string& name) {
    std::string free = name;
    for (int k = 1; def_names_.contains(free) || graph_->FindNode(free) != nullptr; ++k) {
      free = absl::StrCat(name, "_", k);
    }
    return free;
  }

  Status AddNodes(const NodeDef& call) {
    const Substitution substitution(call);
    graph_->ReserveNodes(def_.node_def_size() + static_cast<int>(argument_nodes_.size()));
    for (int i = 0; i < def_.node_def_size(); ++i) {
      const auto node = NewMessage<NodeDef>();
      *node = def_.node_def(i);
      for (auto& [name, value] : *node->mutable_attr()) {
        if (Status s = substitution.Apply(&value, 1); !s.ok()) {
          return Prefixed(absl::StrCat(Where(i), ": attr '", name, "'"), s);
        }
      }
      StatusOr<Node*> added = graph_->AddNode(*node);
      if (!added.ok()) return Prefixed(Where(i), added.status());
      if ((*added)->op_entry() == nullptr) {
        return Prefixed(
            Where(i), Unimplemented("op kind '", node->op(), "' is not registered in this program",
                                    kMissingOpHint));
      }
      if ((*added)->is_arg() || (*added)->is_retval() || (*added)->is_send() ||
          (*added)->is_recv()) {
        return Prefixed(
            Where(i), InvalidArgument("op must not be at the border of a step, got ", node->op()));
      }
      nodes_.push_back(*added);
    }
    return absl::OkStatus();
  }

  // "arg", "arg:k", "node:output" (all tensors of a list), "node:output:k".
  StatusOr<Tensors> Resolve(absl::string_view text) const {
    const auto none = [&](const auto&... why) {
      return InvalidArgument("refers to '", text, "', but ", why...);
    };
    const size_t colon = text.find(':');
    const absl::string_view name = text.substr(0, colon);
    absl::string_view rest = colon == absl::string_view::npos ? "" : text.substr(colon + 1);
    Tensors tensors;
    absl::string_view index;  // "" for all of them
    if (const auto argument = arguments_.find(name); argument != arguments_.end()) {
      tensors = argument->second;
      index = rest;
    } else {
      Node* const node = graph_->FindNode(name);
      if (node == nullptr || !def_names_.contains(name)) {
        return none("the function has no node or argument '", name, "'");
      }
      const size_t second = rest.find(':');
      const absl::string_view output = rest.substr(0, second);
      if (second != absl::string_view::npos) index = rest.substr(second + 1);
      const StatusOr<ArgRange> range = OutputArgRange(node->def(), node->op_entry()->def, output);
      if (!range.ok()) return none(node->op(), " has no output '", output, "'");
      tensors = {node, range->begin, range->size()};
    }
    if (index.empty()) return tensors;
    int k = 0;
    if (!absl::SimpleAtoi(index, &k) || k < 0) {
      return none("the index must be a number, got '", index, "'");
    }
    if (k >= tensors.size) {
      return none("'", text.substr(0, text.size() - index.size() - 1), "' has ", tensors.size,
                  tensors.size == 1 ? " tensor" : " tensors");
    }
    return Tensors{tensors.node, tensors.begin + k, 1};
  }

  OutputRef At(const Tensors& tensors, int k) const {
    if (tensors.node == nullptr) return {argument_nodes_[AsSize(tensors.begin + k)], 0};
    return {tensors.node, tensors.begin + k};
  }

  Status AddInputs(const NodeDef& def, Node* node) {
    int slot = 0;
    bool control = false;
    for (absl::string_view input : def.input()) {
      if (absl::ConsumePrefix(&input, "^")) {
        control = true;
        Node* source = nullptr;
        if (const auto argument = arguments_.find(input); argument != arguments_.end()) {
          if (argument->second.size == 0) continue;
          source = argument_nodes_[AsSize(argument->second.begin)];
        } else if (def_names_.contains(input)) {
          source = graph_->FindNode(input);
        }
        if (source == nullptr) {
          return InvalidArgument("control input must name a node, got '", input, "'");
        }
        graph_->AddControlEdge(source, node);
        continue;
      }
      if (control) {
        return InvalidArgument("control inputs must come after all data inputs, got '", input, "'");
      }
      StatusOr<Tensors> tensors = Resolve(input);
      if (!tensors.ok()) return Prefixed(absl::StrCat("input ", slot), tensors.status());
      for (int k = 0; k < tensors->size && slot + k < node->num_inputs(); ++k) {
        const OutputRef source = At(*tensors, k);
        MR_RETURN_IF_ERROR(graph_->AddEdge(source.node, source.index, node, slot + k));
      }
      slot = std::min(slot + tensors->size, kMaxNodeArgs + 1);
    }
    if (slot != node->num_inputs()) {
      return InvalidArgument(node->op(), " must have ", node->num_inputs(),
                             node->num_inputs() == 1 ? " input" : " inputs", ", got ", slot);
    }
    return absl::OkStatus();
  }

  Status AddResults(const OpDef::ArgDef& arg, int size) {
    const auto ret = def_.ret().find(arg.name());
    if (ret == def_.ret().end()) {
      return InvalidArgument("ret must say where it comes from, got none");
    }
    MR_ASSIGN_OR_RETURN(const Tensors tensors, Resolve(ret->second));
    if (tensors.size != size) {
      return InvalidArgument("must have ", size, size == 1 ? " tensor" : " tensors", ", got ",
                             tensors.size, " from '", ret->second, "'");
    }
    for (int k = 0; k < size; ++k) {
      const size_t index = body_->results.size();
      const OutputRef source = At(tensors, k);
      const std::string name =
          size == 1 ? absl::StrCat(arg.name(), "_RetVal") : absl::StrCat(arg.name(), "_RetVal_", k);
      MR_ASSIGN_OR_RETURN(Node * node, AddBoundaryNode("_Retval", FreeName(name),
                                                       body_->result_types[index], index));
      MR_RETURN_IF_ERROR(graph_->AddEdge(source.node, source.index, node, 0));
      body_->results.push_back(node);
    }
    return absl::OkStatus();
  }

  Status FindEffects() {
    HashSet<const Node*> effects;
    const auto add = [&](const Node* node) {
      if (effects.insert(node).second) body_->effects.push_back(node);
    };
    for (const Node* const node : nodes_) {
      if (HasEffect(*node)) add(node);
    }
    for (const std::string& output : def_.signature().control_output()) {
      const auto named = def_.control_ret().find(output);
      const Node* const node =
          named == def_.control_ret().end() || !def_names_.contains(named->second)
              ? nullptr
              : graph_->FindNode(named->second);
      if (node == nullptr) {
        return InvalidArgument("control_ret must name a node for control output '", output,
                               "', got none");
      }
      add(node);
    }
    return absl::OkStatus();
  }

  const FunctionLibrary& library_;
  const FunctionDef& def_;
  std::unique_ptr<Graph> graph_;
  std::shared_ptr<FunctionBody> body_;
  std::vector<Node*> argument_nodes_, nodes_;
  HashMap<absl::string_view, Tensors> arguments_;
  HashSet<std::string> def_names_;
};

}  // namespace

StatusOr<std::string> IdentityOf(const NodeAttrs& node) {
  if (!HasAttr(node.node(), kIdentityAttr)) return std::string(node.name());
  return GetAttr<std::string>(node, kIdentityAttr);
}

bool HasEffect(const Node& node) {
  if (!node.is_stateful() || node.is_arg() || node.is_retval()) return false;
  if (node.num_inputs() > 0 || node.num_outputs() == 0) return true;
  // It makes a handle, or a reference, of what is there.
  return !std::all_of(node.output_types().begin(), node.output_types().end(),
                      [](DType type) { return type == DT_RESOURCE || IsRef(type); });
}

StatusOr<std::shared_ptr<const FunctionBody>> MakeFunctionBody(const FunctionLibrary& library,
                                                               const NameAttrList& call) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const Function> function, library.Get(call.name()));
  const std::string where = absl::StrCat("Function '", call.name(), "'");
  // The call as a node of its kind, to be checked and filled in as one.
  const auto node = NewMessage<NodeDef>();
  node->set_name(call.name());
  node->set_op(call.name());
  *node->mutable_attr() = call.attr();
  const OpDef& signature = function->def().signature();
  if (Status s = ValidateNodeAttrs(*node, signature); !s.ok()) return Prefixed(where, s);
  AddDefaultAttrs(signature, node.get());
  auto body = BodyMaker(library, std::move(function)).Make(*node);
  if (!body.ok()) return Prefixed(where, body.status());
  return body;
}

}  // namespace millrace
