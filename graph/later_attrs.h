// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_LATER_ATTRS_H_
#define MILLRACE_GRAPH_LATER_ATTRS_H_

// Later attrs: what later versions of TensorFlow have added to ops of 1.15.
//
// They are no part of an op's definition here: its signature is that of 1.15, and graphs that this
// program makes do not have them. Graphs of later programs do. An op says which of them change its
// meaning:
//
//   OpSpec("TopKV2", ...).With(LaterAttr("index_type: type = DT_INT32"))
//
// A node may have the default, which is what the op does in any case. Another value is refused,
// unless the op heeds the attr: then its shape function and its kernel read it where a node has it.
// Attrs that no op states are carried along: nothing tells what their default is.
//
// Thread-safety: any thread. Failure: CheckLaterAttrs.

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace tensorflow {
class NodeDef;
}  // namespace tensorflow

namespace millrace {

class OpSpec;  // graph/op_registry.h

class LaterAttr {
 public:
  enum Use { kDefaultOnly, kHeeded };
  // In the spec language of graph/op_registry.h, with a default.
  explicit LaterAttr(std::string spec, Use use = kDefaultOnly)
      : spec_(std::move(spec)), use_(use) {}
  void AddTo(OpSpec* op) const;  // for OpSpec::With

 private:
  std::string spec_;
  Use use_;
};

// Of the node's attrs those that its op states as later ones. InvalidArgument for one that has
// another kind, or another value than its default where the op does not heed it: "attr 'name' is
// unknown to this program and must have its default D, got V"; Internal for a spec that is wrong.
Status CheckLaterAttrs(const tensorflow::NodeDef& node);

// Does the op do what this attr says, whatever it says?
bool HeedsLaterAttr(absl::string_view op, absl::string_view attr);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_LATER_ATTRS_H_
