// SPDX-License-Identifier: Apache-2.0
#include "runtime/signature_compiler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "graph/graph_extension.h"
#include "graph/rewrite/rewrite.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

// "x" and "x:0" name one tensor; names that do not parse stay as they are, for the error.
std::string CanonicalTensorName(const std::string& name) {
  const StatusOr<TensorName> parsed = ParseTensorName(name);
  if (!parsed.ok() || parsed->index == kControlSlot) return name;
  return absl::StrCat(parsed->node, ":", parsed->index);
}

}  // namespace

SignatureCompiler::SignatureCompiler(absl::Span<const std::unique_ptr<Device>> devices,
                                     const tensorflow::ConfigProto& config, size_t max_kept)
    : devices_(devices),
      allow_soft_placement_(config.allow_soft_placement()),
      log_device_placement_(config.log_device_placement()),
      max_kept_(max_kept),
      graph_options_(config.graph_options()) {
  for (const std::unique_ptr<Device>& device : devices_) {
    device_infos_.push_back({device->name, device->type, device->incarnation});
  }
}

StatusOr<GraphPartitions> SignatureCompiler::Partitions(const RunSignature& signature) {
  MutexLock lock(&mu_);
  return MakePartitions(signature, nullptr);
}

// --- The graph -----------------------------------------------------------------------------------

Status SignatureCompiler::Extend(const tensorflow::GraphDef& def) {
  MutexLock lock(&mu_);
  return ExtendGraph(def, &graph_);
}

// What is known of a tensor's shape: the placeholder's, or what shape inference finds.
PartialShape SignatureCompiler::FeedShape(const std::string& name) const {
  const StatusOr<TensorName> parsed = ParseTensorName(name);
  if (!parsed.ok()) return PartialShape();
  const Node* node = graph_.FindNode(parsed->node);
  if (node == nullptr) return PartialShape();
  if (node->op() == "Placeholder" || node->op() == "PlaceholderV2" ||
      node->op() == "PlaceholderWithDefault") {
    const StatusOr<PartialShape> shape = GetAttr<PartialShape>(node->def(), "shape");
    if (!shape.ok()) return PartialShape();
    // Up to producer 21 a scalar meant "unknown".
    const bool old = graph_.versions().producer() <= 21;
    if (old && shape->has_rank() && shape->rank() == 0) return PartialShape();
    return *shape;
  }
  // Inputs first; a node that inference refuses (or a loop) leaves its consumers unknown.
  ShapeRefiner refiner;
  absl::flat_hash_set<const Node*> seen;
  std::vector<std::pair<const Node*, int>> stack = {{node, 0}};
  seen.insert(node);
  while (!stack.empty()) {
    auto& [top, next_input] = stack.back();
    if (next_input < top->num_inputs()) {
      const Node* source = top->input(next_input++).node;
      if (source != nullptr && seen.insert(source).second) stack.emplace_back(source, 0);
      continue;
    }
    refiner.AddNode(*top).IgnoreError();
    stack.pop_back();
  }
  return refiner.OutputShape(*node, parsed->index);
}

// --- Compiling -----------------------------------------------------------------------------------

StatusOr<GraphPartitions> SignatureCompiler::MakePartitions(const RunSignature& signature,
                                                            RewrittenSignature* rewritten) {
  MR_ASSIGN_OR_RETURN(RunGraph run, BuildRunGraph(graph_, signature));
  PlacementOptions placement;
  placement.allow_soft_placement = allow_soft_placement_;
  placement.warned_of_missing_gpu = &warned_of_missing_gpu_;
  placement.log_device_placement = log_device_placement_;
  placement.default_device = devices_[0]->name;
  placement.stateful_placements = &placements_;
  MR_RETURN_IF_ERROR(PlaceGraph(run.graph.get(), device_infos_, &kernel_support_, placement));
  MR_RETURN_IF_ERROR(RewriteRunGraph(&run, &evaluator_, graph_options_).status());
  PartitionOptions partition;
  partition.get_incarnation = [this](absl::string_view name) -> uint64_t {
    for (const DeviceInfo& info : device_infos_) {
      if (info.name == name) return info.incarnation;
    }
    return 0;
  };
  MR_ASSIGN_OR_RETURN(GraphPartitions partitions, PartitionGraph(std::move(run.graph), partition));
  if (rewritten != nullptr) *rewritten = std::move(run.signature);
  return partitions;
}

StatusOr<std::shared_ptr<const CompiledSignature>> SignatureCompiler::FindOrCompile(
    RunSignature signature) {
  const std::string key = SignatureKey(signature);
  if (auto it = compiled_.find(key); it != compiled_.end()) {
    if (std::shared_ptr<const CompiledSignature> found = it->second.lock()) return found;
  }

  auto compiled = std::make_shared<CompiledSignature>();
  RewrittenSignature rewritten;
  MR_ASSIGN_OR_RETURN(const GraphPartitions partitions, MakePartitions(signature, &rewritten));
  for (const auto& [location, graph] : partitions) {
    auto device = std::find_if(devices_.begin(), devices_.end(),
                               [&loc = location](const auto& d) { return d->name == loc; });
    if (device == devices_.end()) {
      return absl::InternalError(absl::StrCat("DirectSession: no device '", location, "'"));
    }
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                        Plan::Build(*graph, device->get(), &kernels_));
    compiled->has_transfers |= plan->has_transfers();
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, Executor::Make(std::move(plan)));
    compiled->parts.push_back({device->get(), std::move(executor)});
  }
  compiled->feed_types = std::move(rewritten.feed_types);
  for (const std::string& feed : signature.feeds) {
    compiled->feed_shapes.push_back(FeedShape(feed));
  }
  compiled->signature = std::move(signature);
  compilations_.fetch_add(1, std::memory_order_relaxed);
  // Entries whose plan is gone would add up.
  if (compiled_.size() > 2 * max_kept_) {
    absl::erase_if(compiled_, [](const auto& entry) { return entry.second.expired(); });
  }
  compiled_[key] = compiled;
  return std::shared_ptr<const CompiledSignature>(std::move(compiled));
}

StatusOr<std::shared_ptr<const SignatureBinding>> SignatureCompiler::Bind(
    absl::Span<const std::string> feeds, absl::Span<const std::string> fetches,
    absl::Span<const std::string> targets) {
  if (fetches.empty() && targets.empty()) {
    return absl::InvalidArgumentError("Must specify at least one target to fetch or execute.");
  }
  MutexLock lock(&mu_);
  auto binding = std::make_shared<SignatureBinding>();
  binding->num_feeds = feeds.size();
  absl::flat_hash_map<std::string, size_t> fed;
  for (size_t i = 0; i < feeds.size(); ++i) {
    std::string name = CanonicalTensorName(feeds[i]);
    if (!fed.emplace(name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("Endpoint \"", name, "\" fed more than once."));
    }
    binding->feed_names.push_back(std::move(name));
  }
  std::set<std::string> wanted_fetches, wanted_targets;
  for (const std::string& target : targets) {
    // A target may be given by a tensor's name, too.
    const StatusOr<TensorName> name = ParseTensorName(target);
    wanted_targets.insert(name.ok() && graph_.FindNode(target) == nullptr ? name->node : target);
  }
  for (const std::string& fetch : fetches) {
    const Node* node = graph_.FindNode(fetch);
    if (node != nullptr && node->num_outputs() == 0 && node->op_entry() != nullptr) {
      wanted_targets.insert(fetch);
      continue;
    }
    std::string name = CanonicalTensorName(fetch);
    if (fed.count(name) == 0) wanted_fetches.insert(name);
    binding->result_names.push_back(std::move(name));
  }

  RunSignature signature;
  signature.fetches.assign(wanted_fetches.begin(), wanted_fetches.end());
  signature.targets.assign(wanted_targets.begin(), wanted_targets.end());
  signature.feeds = binding->feed_names;
  std::sort(signature.feeds.begin(), signature.feeds.end());
  const auto index_of = [](const std::vector<std::string>& sorted, const std::string& name) {
    return static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), name) -
                               sorted.begin());
  };
  for (const std::string& name : binding->feed_names) {
    binding->feed_to.push_back(index_of(signature.feeds, name));
  }
  for (const std::string& name : binding->result_names) {
    auto it = fed.find(name);
    if (it != fed.end()) {
      binding->results.push_back({true, it->second});
    } else {
      binding->results.push_back({false, index_of(signature.fetches, name)});
    }
  }
  if (!signature.fetches.empty() || !signature.targets.empty()) {
    MR_ASSIGN_OR_RETURN(binding->compiled, FindOrCompile(std::move(signature)));
  } else {
    for (const std::string& name : signature.feeds) {
      MR_ASSIGN_OR_RETURN(const TensorName parsed, ParseTensorName(name));
      const Node* node = graph_.FindNode(parsed.node);
      if (node == nullptr || parsed.index == kControlSlot || parsed.index >= node->num_outputs()) {
        return absl::NotFoundError(absl::StrCat("FeedInputs: unable to find feed output ", name));
      }
    }
  }
  return std::shared_ptr<const SignatureBinding>(std::move(binding));
}

}  // namespace millrace
