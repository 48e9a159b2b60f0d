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

}  // namespace

Status CheckIsPure(const Node& node) {
  if (node.op_entry() == nullptr) return NotPure(node, "its op is not registered");
  if (node.is_stateful()) return NotPure(node, "it is stateful");
  if (node.body()->function() != nullptr || OnlyCallsFunctions(node.op())) {
    return NotPure(node, "it calls functions");
  }
  if (node.is_switch() || RunsOnDeadInputs(node) || node.is_enter() || node.is_exit() ||
      node.is_next_iteration() || node.is_send() || node.is_recv() || node.is_loop_cond()) {
    return NotPure(node, "it is control flow");
  }
  // Files change between two steps; TensorFlow's definitions do not call such ops stateful.
  if (node.traits().uses_files) return NotPure(node, "it works on files");
  if (node.traits().feeding == Feeding::kOptional) return NotPure(node, "another value may be fed");
  if (node.num_inputs() == 0 && !node.is_const()) return NotPure(node, "it has no input");
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
