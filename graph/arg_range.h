// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_ARG_RANGE_H_
#define MILLRACE_GRAPH_ARG_RANGE_H_

// ArgRange: where a named argument of an op stands among the flat inputs or outputs of a node: one
// tensor, or as many as a list argument (N * T, or a list of types) has.

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace tensorflow {
class NodeDef;
class OpDef;
}  // namespace tensorflow

namespace millrace {

// [begin, end).
struct ArgRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Most inputs or outputs that one node may have: a bound against counts that only an attack has.
inline constexpr int kMaxNodeArgs = 1 << 20;

// NotFound when the op has no such argument; InvalidArgument when the node lacks the attr that
// sizes a list.
StatusOr<ArgRange> InputArgRange(const tensorflow::NodeDef& node, const tensorflow::OpDef& op,
                                 absl::string_view arg);
StatusOr<ArgRange> OutputArgRange(const tensorflow::NodeDef& node, const tensorflow::OpDef& op,
                                  absl::string_view arg);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_ARG_RANGE_H_
