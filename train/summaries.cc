// SPDX-License-Identifier: Apache-2.0
#include "train/summaries.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/summary/image_summary.h"
#include "ops/summary/value_summary.h"
#include "proto/meta_graph.pb.h"
#include "proto/summary.pb.h"

namespace millrace {
namespace {

// What tags, and so names, may consist of.
std::string CleanName(absl::string_view name) {
  std::string clean(name);
  for (char& c : clean) {
    const bool is_good = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                         c == '-' || c == '.' || c == '/';
    if (!is_good) c = '_';
  }
  clean.erase(0, std::min(clean.find_first_not_of('/'), clean.size()));
  return clean;
}

// Where the nodes of a summary are, and its tag.
struct Place {
  Place(const ScopeAt& at, absl::string_view name, const std::string& family)
      : at(at),
        full_name(at.scope.UniqueName(family.empty()
                                          ? CleanName(name)
                                          : absl::StrCat(CleanName(family), "/", CleanName(name)))),
        tag(family.empty() ? full_name : absl::StrCat(CleanName(family), "/", full_name)),
        inside(at.scope.WithSubScope(full_name + "/")),
        named(at.scope.WithName(full_name + "/")) {}

  Output Constant(const char* name, const std::string& value) const {
    return Const({inside.WithName(name), at.where}, value);
  }
  ScopeAt node() const { return ScopeAt(named, at.where); }

  const ScopeAt& at;
  const std::string full_name, tag;
  const Scope inside, named;
};

Output Enter(const ScopeAt& at, Output summary, const SummaryAttrs& attrs) {
  if (!summary.valid()) return summary;
  for (const std::string& collection : attrs.collections) {
    at.scope.AddToNodeCollection(collection, summary.name());
  }
  return summary;
}

bool IsNamed(const ScopeAt& at, absl::string_view name) {
  if (!CleanName(name).empty()) return at.scope.ok();
  at.scope.UpdateStatus(InvalidArgument("Summary: the name must not be empty, got '", name, "'"),
                        at.where);
  return false;
}

}  // namespace

Output AddScalarSummary(ScopeAt at, absl::string_view name, Output value,
                        const SummaryAttrs& attrs) {
  if (!IsNamed(at, name)) return Output();
  const Place place(at, name, attrs.family);
  return Enter(at, ScalarSummary(place.node(), place.Constant("tags", place.tag), value), attrs);
}

Output AddHistogramSummary(ScopeAt at, absl::string_view name, Output values,
                           const SummaryAttrs& attrs) {
  if (!IsNamed(at, name)) return Output();
  const Place place(at, name, attrs.family);
  return Enter(at, HistogramSummary(place.node(), place.Constant("tag", place.tag), values), attrs);
}

Output AddImageSummary(ScopeAt at, absl::string_view name, Output images, int max_images,
                       const SummaryAttrs& attrs) {
  if (!IsNamed(at, name)) return Output();
  const Place place(at, name, attrs.family);
  return Enter(at,
               ImageSummary(place.node(), place.Constant("tag", place.tag), images,
                            {.max_images = max_images}),
               attrs);
}

Output AddTextSummary(ScopeAt at, absl::string_view name, Output text, const SummaryAttrs& attrs) {
  if (!IsNamed(at, name)) return Output();
  if (text.valid() && WithoutRef(text.dtype()) != DT_STRING) {
    at.scope.UpdateStatus(InvalidArgument("Summary '", name, "': text must be strings, got ",
                                          text.dtype(), " from '", text.name(), "'"),
                          at.where);
    return Output();
  }
  const Place place(at, name, attrs.family);
  tensorflow::SummaryMetadata metadata;
  metadata.mutable_plugin_data()->set_plugin_name("text");
  return Enter(
      at,
      TensorSummaryV2(place.node(), place.Constant("tag", place.tag), text,
                      place.Constant("serialized_summary_metadata", metadata.SerializeAsString())),
      attrs);
}

Output MergeAllSummaries(ScopeAt at, const std::string& collection) {
  std::vector<Output> summaries;
  const auto found = at.scope.collections()->find(collection);
  if (found == at.scope.collections()->end()) return Output();
  for (const std::string& name : found->second.node_list().value()) {
    const StatusOr<TensorName> parsed = ParseTensorName(name);
    Node* const node = parsed.ok() ? at.scope.graph()->FindNode(parsed->node) : nullptr;
    if (node == nullptr || parsed->index < 0 || parsed->index >= node->num_outputs()) {
      at.scope.UpdateStatus(InvalidArgument("Collection '", collection,
                                            "' must have tensors of the graph, got '", name, "'"),
                            at.where);
      return Output();
    }
    summaries.emplace_back(node, parsed->index);
  }
  if (summaries.empty()) return Output();
  const Scope merge = at.scope.CompositeScope("Merge");
  return MergeSummary({merge.WithName("MergeSummary"), at.where}, summaries);
}

}  // namespace millrace
