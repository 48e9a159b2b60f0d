// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_NODE_BODY_H_
#define MILLRACE_GRAPH_NODE_BODY_H_

// NodeBody: what a node is apart from its name, its place and its edges: op, attrs and types.
//
// A body is made and validated once, when a node comes into a graph; every copy of the node (in the
// graphs of a run, in partitions, in a plan) shares it. The value of a Const is parsed once, into a
// tensor that the body holds and kernels share. The bytes of a large value are in that tensor only:
// in def() a mark stands for them, which no reader takes for a value and which differs between
// bodies, so that equal messages mean equal constants. WriteTo puts the bytes back.
//
// Thread-safety: immutable, any thread. Lifetime: the last node that has it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/op_registry.h"
#include "graph/op_traits.h"

namespace tensorflow {
class AttrValue;
class NodeDef;
}  // namespace tensorflow

namespace millrace {

class Function;         // graph/function_library.h
class FunctionLibrary;  // graph/function_library.h

// Bytes of a Const's value from which on only the tensor holds them.
inline constexpr size_t kDetachedConstantBytes = 1024;

class NodeBody {
 public:
  // Which of the ops it is that the runtime itself is made of; each also with "Ref" in front.
  enum class Kind : uint8_t {
    kOther,
    kConst,
    kArg,  // the argument and the result of a function
    kRetval,
    kSwitch,
    kMerge,
    kEnter,
    kExit,
    kNextIteration,
    kLoopCond,
    kSend,  // also _HostSend
    kRecv,  // also _HostRecv
  };
  // Of a node that is not part of a graph.
  static Kind KindOf(absl::string_view op);

  // What a body is made of; the accessors below say what each part is. `def` is not null and the
  // other parts agree with it: NodeBodies validates that. Nodes get bodies of NodeBodies, and those
  // that WithAttr makes of them.
  struct Parts {
    std::shared_ptr<tensorflow::NodeDef> def;
    const OpEntry* op_entry = nullptr;  // of the registry, or of `function`
    std::shared_ptr<const Function> function;
    Kind kind = Kind::kOther;
    bool is_detached = false;  // the bytes of attr `value` are in `value` only
    std::vector<DType> input_types, output_types;
    Tensor value;
  };
  explicit NodeBody(Parts parts);
  ~NodeBody();
  NodeBody& operator=(const NodeBody&) = delete;

  const std::string& op() const;
  // Null for an op kind that is neither registered nor a function of the graph.
  const OpEntry* op_entry() const { return parts_.op_entry; }
  // Of its op; none of them where op_entry() is null.
  const OpTraits& traits() const;
  // The function that a node of this op calls by its name; null for other nodes.
  const std::shared_ptr<const Function>& function() const { return parts_.function; }
  // Op and attrs, defaults filled in; without name, device and inputs.
  const tensorflow::NodeDef& def() const { return *parts_.def; }
  // Of an unknown op: DT_INVALID for each input, and no outputs.
  absl::Span<const DType> input_types() const { return parts_.input_types; }
  absl::Span<const DType> output_types() const { return parts_.output_types; }
  // Attr `value` of a Const; null for other ops, for a value that is no legal tensor and for one
  // that would take far more memory than its message (few numbers that stand for many).
  const Tensor* value() const { return parts_.value.has_value() ? &parts_.value : nullptr; }
  Kind kind() const { return parts_.kind; }

  // Puts op and attrs, all bytes in their places, into `*def`, which is empty.
  void WriteTo(tensorflow::NodeDef* def) const;

  // A body of its own whose attr `name` is what `edit` makes of this one's. For attrs that no types
  // hang on. `edit` keeps no pointer: nobody writes to a body that a node has.
  std::shared_ptr<const NodeBody> WithAttr(
      absl::string_view name, absl::FunctionRef<void(tensorflow::AttrValue*)> edit) const;
  // Was an attr edited since all of them were validated?
  bool is_edited() const { return edited_; }

 private:
  NodeBody(const NodeBody& other);

  // The attr that is to be written, its value's bytes put back if they are detached.
  tensorflow::AttrValue* MutableAttr(absl::string_view name);

  Parts parts_;
  bool edited_ = false;  // by WithAttr
};

// Makes bodies and keeps those whose attrs are plain values, so that equal nodes share one.
//
// Thread-safety: thread-compatible.
class NodeBodies {
 public:
  // Called for a node whose body is not known yet, before its attrs are validated.
  using Check = absl::FunctionRef<Status(const tensorflow::NodeDef&)>;

  NodeBodies();
  ~NodeBodies();

  // Where op kinds are looked up that nobody registered. `functions` outlives this object or the
  // next call.
  void set_functions(const FunctionLibrary* functions) { functions_ = functions; }

  // The body of `node`. `taken` is null, or the same message: then it loses its attrs once they are
  // in the body (unless a known body is found). Each known op's attrs are validated.
  // InvalidArgument: missing or illegal attr ("attr 'x' must ...", or beginning with op and node).
  StatusOr<std::shared_ptr<const NodeBody>> Make(const tensorflow::NodeDef& node,
                                                 tensorflow::NodeDef* taken, Check check);
  // The body of a Const whose value is `value`, whose buffer it shares. Attr `value` of `node` has
  // its dtype and shape, without content. Requires CanShare(value).
  StatusOr<std::shared_ptr<const NodeBody>> MakeConst(const tensorflow::NodeDef& node,
                                                      const Tensor& value);
  // Can a body hold the tensor as it is? kDetachedConstantBytes and more that a message has as raw
  // content, in memory of this program, at least half of which is the tensor's.
  static bool CanShare(const Tensor& value);
  // As Make, but for the types alone: constants get no value.
  StatusOr<std::shared_ptr<const NodeBody>> MakeWithoutValue(const tensorflow::NodeDef& node,
                                                             Check check);

 private:
  StatusOr<std::shared_ptr<const NodeBody>> FindOrMake(const tensorflow::NodeDef& node,
                                                       tensorflow::NodeDef* taken, bool with_value,
                                                       Check check, const Tensor* shared = nullptr);

  struct Known;
  const std::unique_ptr<Known> known_;
  const FunctionLibrary* functions_ = nullptr;
  std::string key_;  // of the node at hand; kept for its memory
};

// How often attrs of a node have been validated against an OpDef in this process. For tests that
// count.
int64_t AttrValidationsForTesting();

}  // namespace millrace

#endif  // MILLRACE_GRAPH_NODE_BODY_H_
