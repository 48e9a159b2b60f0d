// SPDX-License-Identifier: Apache-2.0
#include "graph/context_collections.h"

#include <algorithm>
#include <utility>

#include "core/deterministic_bytes.h"
#include "proto/control_flow.pb.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

using tensorflow::ControlFlowContextDef;
using tensorflow::ValuesDef;

constexpr char kConds[] = "cond_context", kWhiles[] = "while_context";

ValuesDef* MutableValues(ControlFlowContextDef* def) {
  return def->has_cond_ctxt() ? def->mutable_cond_ctxt()->mutable_values_def()
                              : def->mutable_while_ctxt()->mutable_values_def();
}

ControlFlowContextDef* AddNested(ControlFlowContextDef* def) {
  return def->has_cond_ctxt() ? def->mutable_cond_ctxt()->add_nested_contexts()
                              : def->mutable_while_ctxt()->add_nested_contexts();
}

}  // namespace

void ContextCollections::Update(
    const Graph& graph, const std::vector<std::unique_ptr<ControlFlowContext>>& contexts,
    const absl::flat_hash_map<const Node*, ControlFlowContext*>& context_of,
    std::map<std::string, tensorflow::CollectionDef>* collections) {
  // A context's values are those of the contexts in it, too.
  absl::flat_hash_map<const ControlFlowContext*, std::vector<std::string>> values;
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    const auto it = context_of.find(node.get());
    if (it == context_of.end()) continue;
    for (const ControlFlowContext* c = it->second; c != nullptr; c = c->outer()) {
      for (int i = 0; i < node->num_outputs(); ++i) {
        values[c].push_back(TensorNameString(*node, i));
      }
    }
  }
  absl::flat_hash_map<const ControlFlowContext*, std::vector<const ControlFlowContext*>> nested;
  for (const auto& context : contexts) nested[context->outer()].push_back(context.get());

  const auto write = [&](const auto& self, const ControlFlowContext& context,
                         ControlFlowContextDef* def) -> void {
    context.ToProto(def);
    ValuesDef* const to = MutableValues(def);
    for (const std::string& value : values[&context]) to->add_values(value);
    for (const auto& [outside, inside] : context.ExternalValues()) {
      (*to->mutable_external_values())[outside] = inside;
      to->add_values(outside);
    }
    for (const ControlFlowContext* inner : nested[&context]) self(self, *inner, AddNested(def));
  };
  std::map<std::string, std::vector<std::string>> fresh;
  for (const ControlFlowContext* context : nested[nullptr]) {
    ControlFlowContextDef def;
    write(write, *context, &def);
    if (def.has_cond_ctxt()) {
      fresh[kConds].push_back(DeterministicBytes(def.cond_ctxt()));
    } else {
      fresh[kWhiles].push_back(DeterministicBytes(def.while_ctxt()));
    }
  }
  for (const char* key : {kConds, kWhiles}) {
    std::vector<std::string>& old = written_[key];
    if (old.empty() && fresh[key].empty()) continue;
    tensorflow::CollectionDef& collection = (*collections)[key];
    std::vector<std::string> kept;
    for (const std::string& bytes : collection.bytes_list().value()) {
      if (std::find(old.begin(), old.end(), bytes) == old.end()) kept.push_back(bytes);
    }
    collection.mutable_bytes_list()->clear_value();
    for (const std::string& bytes : kept) collection.mutable_bytes_list()->add_value(bytes);
    for (const std::string& bytes : fresh[key]) collection.mutable_bytes_list()->add_value(bytes);
    old = std::move(fresh[key]);
  }
}

}  // namespace millrace
