// SPDX-License-Identifier: Apache-2.0
#include "graph/function_def.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "graph/attr.h"
#include "graph/function_body.h"
#include "graph/op_registry.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::FunctionDef;
using tensorflow::NodeDef;
using tensorflow::OpDef;

// One call of FunctionDefOf.
class Writer {
 public:
  Writer(const Graph& graph, const FunctionDefParts& parts)
      : graph_(graph), parts_(parts), def_(NewMessage<FunctionDef>()) {}

  StatusOr<std::shared_ptr<FunctionDef>> Write(absl::string_view name) {
    for (const OutputRef& argument : parts_.arguments) {
      argument_of_.emplace(std::pair(argument.node, argument.index), std::string());
    }
    MR_RETURN_IF_ERROR(FindNeeded());
    OpDef* const signature = def_->mutable_signature();
    signature->set_name(std::string(name));
    for (const Node* const node : needed_in_order_) taken_.insert(node->name());
    for (const OutputRef& argument : parts_.arguments) {
      OpDef::ArgDef* const arg = signature->add_input_arg();
      arg->set_name(FreeName(argument.node->name()));
      arg->set_type(static_cast<tensorflow::DataType>(
          WithoutRef(argument.node->output_type(argument.index))));
      argument_of_[{argument.node, argument.index}] = arg->name();
    }
    for (const Node* const node : needed_in_order_) MR_RETURN_IF_ERROR(AddNode(*node));
    for (size_t i = 0; i < parts_.results.size(); ++i) MR_RETURN_IF_ERROR(AddResult(i));
    for (const Node* const node : parts_.effects) {
      signature->add_control_output(node->name());
      (*def_->mutable_control_ret())[node->name()] = node->name();
    }
    return std::move(def_);
  }

 private:
  bool IsArgument(const OutputRef& tensor) const {
    return argument_of_.contains(std::pair<const Node*, int>(tensor.node, tensor.index));
  }
  bool MayBeWritten(const Node* node) const {
    return parts_.nodes == nullptr || parts_.nodes->contains(node);
  }

  Status FindNeeded() {
    HashSet<const Node*> needed;
    std::vector<const Node*> open;
    const auto need = [&](const Node* node) {
      if (node != nullptr && needed.insert(node).second) open.push_back(node);
    };
    for (const OutputRef& result : parts_.results) {
      if (!IsArgument(result)) need(result.node);
    }
    for (const Node* const node : parts_.effects) need(node);
    while (!open.empty()) {
      const Node* const node = open.back();
      open.pop_back();
      if (!MayBeWritten(node)) {
        return InvalidArgument("node '", node->name(),
                               "' must be one of the function or an argument, got neither");
      }
      for (const OutputRef& input : node->inputs()) {
        if (!IsArgument(input)) need(input.node);
      }
      for (const Node* const source : node->control_inputs()) {
        if (MayBeWritten(source) && !source->is_arg()) need(source);
      }
    }
    for (const auto& node : graph_.nodes()) {
      if (node != nullptr && needed.contains(node.get())) needed_in_order_.push_back(node.get());
    }
    return absl::OkStatus();
  }

  std::string FreeName(absl::string_view wanted) {
    std::string base;
    for (const char c : wanted) {
      const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
      base += plain ? absl::ascii_tolower(static_cast<unsigned char>(c)) : '_';
    }
    if (base.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(base[0]))) {
      base.insert(0, "arg");
    }
    std::string name = base;
    for (int k = 1; !taken_.insert(name).second; ++k) name = absl::StrCat(base, "_", k);
    return name;
  }

  // "arg", "node:output:k".
  StatusOr<std::string> Reference(const OutputRef& source) const {
    if (const auto it = argument_of_.find({source.node, source.index}); it != argument_of_.end()) {
      return it->second;
    }
    const Node& node = *source.node;
    if (node.op_entry() == nullptr) {
      return InvalidArgument("node '", node.name(), "' must be of an op that is known, got '",
                             node.op(), "'");
    }
    int begin = 0;
    for (const OpDef::ArgDef& arg : node.op_entry()->def.output_arg()) {
      MR_ASSIGN_OR_RETURN(const int size, ArgSize(node.def(), arg));
      if (source.index < begin + size) {
        return absl::StrCat(node.name(), ":", arg.name(), ":", source.index - begin);
      }
      begin += size;
    }
    return Internal("node '", node.name(), "' has no output ", source.index);
  }

  Status AddNode(const Node& node) {
    NodeDef* const def = def_->add_node_def();
    node.body()->WriteTo(def);
    def->set_name(node.name());
    if (!node.requested_device().empty()) def->set_device(node.requested_device());
    for (const OutputRef& input : node.inputs()) {
      if (input.node == nullptr) {
        return InvalidArgument("node '", node.name(), "' must have a source for each input");
      }
      MR_ASSIGN_OR_RETURN(*def->add_input(), Reference(input));
    }
    for (const Node* const source : node.control_inputs()) {
      const auto argument = argument_of_.find({source, 0});
      if (argument != argument_of_.end()) {
        def->add_input(absl::StrCat("^", argument->second));
      } else if (MayBeWritten(source)) {
        def->add_input(absl::StrCat("^", source->name()));
      }
    }
    if (node.is_stateful()) def_->mutable_signature()->set_is_stateful(true);
    return absl::OkStatus();
  }

  Status AddResult(size_t i) {
    const OutputRef& result = parts_.results[i];
    OpDef::ArgDef* const arg = def_->mutable_signature()->add_output_arg();
    arg->set_name(FreeName(result.node->name()));
    arg->set_type(
        static_cast<tensorflow::DataType>(WithoutRef(result.node->output_type(result.index))));
    MR_ASSIGN_OR_RETURN((*def_->mutable_ret())[arg->name()], Reference(result));
    return absl::OkStatus();
  }

  const Graph& graph_;
  const FunctionDefParts& parts_;
  std::shared_ptr<FunctionDef> def_;
  std::vector<const Node*> needed_in_order_;
  HashSet<std::string> taken_;  // names of nodes, arguments and results
  HashMap<std::pair<const Node*, int>, std::string> argument_of_;
};

}  // namespace

std::vector<const Node*> EffectsOf(const Graph& graph) {
  std::vector<const Node*> effects;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr && HasEffect(*node)) effects.push_back(node.get());
  }
  return effects;
}

StatusOr<std::shared_ptr<FunctionDef>> FunctionDefOf(const Graph& graph, absl::string_view name,
                                                     const FunctionDefParts& parts) {
  auto def = Writer(graph, parts).Write(name);
  if (!def.ok()) return Prefixed(absl::StrCat("Function '", name, "'"), def.status());
  return def;
}

}  // namespace millrace
