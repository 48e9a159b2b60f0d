// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/signature_compiler.h"

#include "graph/import_export.h"

namespace millrace {

void HeldBytesSum::Add(const HeldBytes& held) {
  shared_.reserve(shared_.size() + held.shared.size());  // all or nothing
  for (const auto& [address, bytes] : held.shared) {
    Shared& shared = shared_[address];
    if (shared.users++ > 0) continue;
    shared.bytes = bytes;
    total_ += bytes;
  }
  total_ += held.own;
}

void HeldBytesSum::Remove(const HeldBytes& held) {
  for (const auto& [address, bytes] : held.shared) {
    const auto it = shared_.find(address);
    if (it == shared_.end() || --it->second.users > 0) continue;
    total_ -= it->second.bytes;
    shared_.erase(it);
  }
  total_ -= held.own;
}

Status GrowingGraph::Extend(const tensorflow::GraphDef& def) {
  const int old_size = graph_->num_node_ids();
  const tensorflow::VersionDef old_versions = graph_->versions();
  Status failed;
  try {
    return ExtendGraph(def, graph_.get());
  } catch (...) {
    failed = StatusOfException("Extend");
  }
  // Anywhere between two nodes or edges: what was there before is made anew.
  MR_RETURN_IF_ERROR(NoExceptions("Extend", [&]() -> Status {
    tensorflow::GraphDef old;
    graph_->ToGraphDef(&old);
    int kept = 0;
    for (const auto& node : graph_->nodes().first(static_cast<size_t>(old_size))) {
      kept += node != nullptr;
    }
    old.mutable_node()->DeleteSubrange(kept, old.node_size() - kept);
    *old.mutable_versions() = old_versions;
    auto graph = std::make_unique<Graph>();
    MR_RETURN_IF_ERROR(ImportGraphDef(old, ImportOptions(), graph.get()));
    graph_ = std::move(graph);
    return absl::OkStatus();
  }));
  return failed;
}

}  // namespace millrace
