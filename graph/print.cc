// SPDX-License-Identifier: Apache-2.0
#include "graph/print.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "graph/attr.h"

namespace millrace {
namespace {

using tensorflow::FunctionDef;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::OpDef;

template <typename Message, typename Name>
std::vector<const Message*> SortedBy(const google::protobuf::RepeatedPtrField<Message>& messages,
                                     Name name) {
  std::vector<const Message*> sorted;
  for (const Message& m : messages) sorted.push_back(&m);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Message* a, const Message* b) { return name(*a) < name(*b); });
  return sorted;
}

void AppendAttrs(const google::protobuf::Map<std::string, tensorflow::AttrValue>& attrs,
                 absl::string_view indent, const PrintOptions& options, std::string* out) {
  if (!options.attrs) return;
  std::vector<std::string> lines;
  for (const auto& [name, value] : attrs) {
    if (!options.internal_attrs && absl::StartsWith(name, "_")) continue;
    lines.push_back(absl::StrCat(indent, name, " = ", AttrToString(value), "\n"));
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) out->append(line);
}

void AppendNode(const NodeDef& node, absl::string_view indent, const PrintOptions& options,
                std::string* out) {
  std::vector<std::string> inputs(node.input().begin(), node.input().end());
  auto first_control = std::stable_partition(
      inputs.begin(), inputs.end(), [](const std::string& i) { return !absl::StartsWith(i, "^"); });
  std::sort(first_control, inputs.end());
  absl::StrAppend(out, indent, "node ", node.name(), " = ", node.op(), "(",
                  absl::StrJoin(inputs, ", "), ")");
  if (!node.device().empty()) absl::StrAppend(out, " @", node.device());
  out->append("\n");
  AppendAttrs(node.attr(), absl::StrCat(indent, "  "), options, out);
}

std::string ArgType(const OpDef::ArgDef& arg) {
  std::string type;
  if (!arg.type_list_attr().empty()) {
    type = arg.type_list_attr();
  } else if (!arg.type_attr().empty()) {
    type = arg.type_attr();
  } else {
    StatusOr<DType> known = DTypeFromNumber(arg.type());
    type = known.ok() ? DTypeName(*known) : absl::StrCat("<type ", arg.type(), ">");
  }
  if (!arg.number_attr().empty()) type = absl::StrCat(arg.number_attr(), " * ", type);
  return arg.is_ref() ? absl::StrCat("Ref(", type, ")") : type;
}

void AppendFunction(const FunctionDef& function, const PrintOptions& options, std::string* out) {
  const OpDef& signature = function.signature();
  auto args = [](const google::protobuf::RepeatedPtrField<OpDef::ArgDef>& list) {
    return absl::StrJoin(list, ", ", [](std::string* text, const OpDef::ArgDef& arg) {
      absl::StrAppend(text, arg.name(), ": ", ArgType(arg));
    });
  };
  absl::StrAppend(out, "function ", signature.name(), "(", args(signature.input_arg()), ") -> (",
                  args(signature.output_arg()), ")\n");
  AppendAttrs(function.attr(), "  ", options, out);
  for (const NodeDef* node :
       SortedBy(function.node_def(), [](const NodeDef& n) { return n.name(); })) {
    AppendNode(*node, "  ", options, out);
  }
  for (const OpDef::ArgDef& output : signature.output_arg()) {
    auto it = function.ret().find(output.name());
    absl::StrAppend(out, "  return ", output.name(), " = ",
                    it == function.ret().end() ? "<nothing>" : it->second, "\n");
  }
  std::vector<std::string> lines;
  for (const auto& [name, node] : function.control_ret()) {
    lines.push_back(absl::StrCat("  return ^", name, " = ", node, "\n"));
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) out->append(line);
}

}  // namespace

std::string GraphToText(const GraphDef& def, const PrintOptions& options) {
  std::string out = absl::StrCat("versions: producer ", def.versions().producer());
  if (def.versions().min_consumer() != 0) {
    absl::StrAppend(&out, " min_consumer ", def.versions().min_consumer());
  }
  if (def.versions().bad_consumers_size() > 0) {
    absl::StrAppend(&out, " bad_consumers ", absl::StrJoin(def.versions().bad_consumers(), ","));
  }
  out.append("\n");
  for (const NodeDef* node : SortedBy(def.node(), [](const NodeDef& n) { return n.name(); })) {
    AppendNode(*node, "", options, &out);
  }
  if (!options.functions) return out;
  for (const FunctionDef* function : SortedBy(
           def.library().function(), [](const FunctionDef& f) { return f.signature().name(); })) {
    AppendFunction(*function, options, &out);
  }
  for (const auto& gradient : def.library().gradient()) {
    absl::StrAppend(&out, "gradient of ", gradient.function_name(), " = ", gradient.gradient_func(),
                    "\n");
  }
  return out;
}

std::string GraphToText(const Graph& graph, const PrintOptions& options) {
  GraphDef def;
  graph.ToGraphDef(&def, /*first_id=*/0, /*assigned=*/true);
  return GraphToText(def, options);
}

}  // namespace millrace
