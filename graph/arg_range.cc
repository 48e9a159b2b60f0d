// SPDX-License-Identifier: Apache-2.0
#include "graph/arg_range.h"

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "graph/attr.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {

// Declared in graph/graph.h: its type is nested in a message.
StatusOr<int> ArgSize(const tensorflow::NodeDef& node, const tensorflow::OpDef::ArgDef& arg);

namespace {

using tensorflow::NodeDef;
using tensorflow::OpDef;

template <typename Args>
StatusOr<ArgRange> FindRange(const NodeDef& node, const Args& args, absl::string_view name,
                             absl::string_view what) {
  ArgRange range;
  for (const OpDef::ArgDef& arg : args) {
    MR_ASSIGN_OR_RETURN(const int size, ArgSize(node, arg));
    range.end = range.begin + size;
    if (arg.name() == name) return range;
    range.begin = range.end;
  }
  return absl::NotFoundError(
      absl::StrCat(node.op(), " '", node.name(), "': has no ", what, " '", name, "'"));
}

}  // namespace

StatusOr<int> ArgSize(const NodeDef& node, const OpDef::ArgDef& arg) {
  if (!arg.type_list_attr().empty()) {
    auto it = node.attr().find(arg.type_list_attr());
    if (it != node.attr().end()) return it->second.list().type_size();
    return GetAttr<std::vector<DType>>(node, arg.type_list_attr()).status();  // says it is missing
  }
  if (arg.number_attr().empty()) return 1;
  MR_ASSIGN_OR_RETURN(const int64_t count, GetAttr<int64_t>(node, arg.number_attr()));
  if (count < 0 || count > kMaxNodeArgs) {
    return InvalidArgument(node.op(), " '", node.name(), "': attr '", arg.number_attr(),
                           "' must be in [0, ", kMaxNodeArgs, "], got ", count);
  }
  return static_cast<int>(count);
}

StatusOr<ArgRange> InputArgRange(const NodeDef& node, const OpDef& op, absl::string_view arg) {
  return FindRange(node, op.input_arg(), arg, "input");
}

StatusOr<ArgRange> OutputArgRange(const NodeDef& node, const OpDef& op, absl::string_view arg) {
  return FindRange(node, op.output_arg(), arg, "output");
}

}  // namespace millrace
