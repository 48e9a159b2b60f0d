// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/crossings.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "proto/config.pb.h"

namespace millrace {
namespace {

constexpr absl::string_view kArrow = " -> ";

std::string JobOf(const std::string& device) {
  const auto name = DeviceName::Parse(device);
  if (!name.ok() || !name->job || !name->task) return device;
  return *name->job == "ps" ? absl::StrCat("ps", *name->task) : *name->job;
}

Crossings CrossingsOf(const tensorflow::RunMetadata& metadata) {
  Crossings result;
  for (const tensorflow::GraphDef& graph : metadata.partition_graphs()) {
    std::map<std::string, const tensorflow::NodeDef*> nodes;
    for (const auto& node : graph.node()) nodes[node.name()] = &node;
    for (const auto& node : graph.node()) {
      if (node.op() != "_Send" && node.op() != "_HostSend") continue;
      const auto device = [&](const char* attr) {
        return JobOf(*GetAttr<std::string>(node, attr));
      };
      const std::string way =
          absl::StrCat(" ", device("send_device"), kArrow, device("recv_device"));
      const std::string& sent = node.input(0);
      const auto source = nodes.find(sent);
      bool is_control = false;
      if (source != nodes.end() && source->second->op() == "Const") {
        const auto value = GetAttr<Tensor>(*source->second, "value");
        is_control = value.ok() && value->num_elements() == 0;
      }
      // The constant is named after what it waits for: "<node>/ctrl/_S12".
      const std::string name = is_control ? sent.substr(0, sent.rfind("/ctrl/")) : sent;
      (is_control ? result.controls : result.tensors).push_back(absl::StrCat(name, way));
    }
  }
  std::sort(result.tensors.begin(), result.tensors.end());
  std::sort(result.controls.begin(), result.controls.end());
  return result;
}

// Whether "<name> ps0 -> worker" goes from such a task to such a one.
bool Goes(absl::string_view crossing, absl::string_view from, absl::string_view to) {
  const size_t arrow = crossing.rfind(kArrow);
  if (arrow == absl::string_view::npos) return false;
  const absl::string_view sender = crossing.substr(0, arrow);
  return absl::StartsWith(sender.substr(sender.rfind(' ') + 1), from) &&
         absl::StartsWith(crossing.substr(arrow + kArrow.size()), to);
}

}  // namespace

int64_t Crossings::Count(absl::string_view from, absl::string_view to) const {
  const auto goes = [&](const std::string& crossing) { return Goes(crossing, from, to); };
  return std::count_if(tensors.begin(), tensors.end(), goes) +
         std::count_if(controls.begin(), controls.end(), goes);
}

StatusOr<Crossings> CrossingsOfRun(Session* session, absl::Span<const Feed> feeds,
                                   absl::Span<const FetchName> fetches,
                                   absl::Span<const FetchName> targets) {
  tensorflow::RunOptions options;
  options.set_output_partition_graphs(true);
  tensorflow::RunMetadata metadata;
  MR_RETURN_IF_ERROR(session->Run(options, feeds, fetches, targets, &metadata).status());
  return CrossingsOf(metadata);
}

}  // namespace millrace
