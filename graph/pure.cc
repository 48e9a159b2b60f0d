// SPDX-License-Identifier: Apache-2.0
#include "graph/pure.h"

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "graph/function_library.h"

namespace millrace {
namespace {

Status NotPure(const Node& node, absl::string_view why) {
  return Unimplemented(node.op(), " '", node.name(),
                       "' is not evaluated while the graph is built: ", why);
}

// Files change between two steps; TensorFlow's definitions do not call these stateful.
bool ReadsFiles(absl::string_view op) {
  return op == "ReadFile" || op == "WriteFile" || op == "MatchingFiles" || op == "ImmutableConst";
}

}  // namespace

Status CheckIsPure(const Node& node) {
  if (node.op_entry() == nullptr) return NotPure(node, "its op is not registered");
  if (node.is_stateful()) return NotPure(node, "it is stateful");
  if (node.body()->function() != nullptr || OnlyCallsFunctions(node.op())) {
    return NotPure(node, "it calls functions");
  }
  if (node.is_switch() || RunsOnDeadInputs(node) || node.is_enter() || node.is_exit() ||
      node.is_next_iteration() || node.is_send() || node.is_recv() || node.op() == "LoopCond") {
    return NotPure(node, "it is control flow");
  }
  if (ReadsFiles(node.op())) return NotPure(node, "it works on files");
  if (node.op() == "PlaceholderWithDefault") return NotPure(node, "another value may be fed");
  if (node.num_inputs() == 0 && node.op() != "Const") return NotPure(node, "it has no input");
  for (const absl::Span<const DType> types : {node.input_types(), node.output_types()}) {
    for (const DType type : types) {
      if (IsRef(type) || type == DT_RESOURCE || type == DT_VARIANT) {
        return NotPure(node, absl::StrCat("it works on ", DTypeName(type)));
      }
    }
  }
  if (node.num_outputs() == 0) return NotPure(node, "it has no output");
  return absl::OkStatus();
}

}  // namespace millrace
