// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_LIBRARY_H_
#define MILLRACE_GRAPH_FUNCTION_LIBRARY_H_

// FunctionLibrary: the functions that the nodes of a graph may call: an immutable snapshot, shared
// by all graphs that have the same ones.
//
// A function is asked for wherever an op kind is: its signature is the OpDef of nodes whose op is
// the function's name (NodeBody::function). Others name it in an attr of type func. A graph that
// gets further functions gets another snapshot; what a name stands for never changes.
//
// Invariants: names are unique and not those of registered ops; functions keep the order in which
// they came, so that exporting an imported library gives the message again.
//
// A body (FunctionBody, graph/function_body.h) is made once for a function and its attrs and kept,
// the last used ones up to kMaxKeptBodyNodes nodes.
//
// Thread-safety: all methods, from any thread. Lifetime: functions and bodies outlive the library
// as long as somebody has them.
// Failure: InvalidArgument and NotFound with the function's name; nothing is made then.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/op_registry.h"

namespace tensorflow {
class AttrValue;
class FunctionDef;
class FunctionDefLibrary;
class NameAttrList;
class NodeDef;
}  // namespace tensorflow

namespace millrace {

class Graph;
struct FunctionBody;

// Bounds against sizes that only an attack or a mistake has.
inline constexpr int kMaxFunctions = 1'000'000;  // in one library
inline constexpr int64_t kMaxKeptBodyNodes = 1'000'000;

// One function. Immutable.
class Function {
 public:
  // Keeps `def`, which nobody changes any more.
  explicit Function(std::shared_ptr<const tensorflow::FunctionDef> def);
  ~Function();
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  const std::string& name() const;
  const tensorflow::FunctionDef& def() const { return *def_; }
  // What nodes have whose op is the function's name. Its shape function knows nothing: shapes go
  // through a call by ShapeRefiner.
  const OpEntry& op() const { return op_; }
  // Calls of it are never put into the graph of the caller (attr _noinline).
  bool is_no_inline() const { return no_inline_; }

 private:
  const std::shared_ptr<const tensorflow::FunctionDef> def_;
  OpEntry op_;
  bool no_inline_ = false;
};

class FunctionLibrary : public std::enable_shared_from_this<FunctionLibrary> {
 public:
  // The library without functions.
  static const std::shared_ptr<const FunctionLibrary>& Empty();
  ~FunctionLibrary();
  FunctionLibrary(const FunctionLibrary&) = delete;
  FunctionLibrary& operator=(const FunctionLibrary&) = delete;

  // This one and the functions of `more`; itself when nothing is new. A function of a name that is
  // here must be equal, and so must what is the gradient of a function.
  StatusOr<std::shared_ptr<const FunctionLibrary>> With(
      const tensorflow::FunctionDefLibrary& more) const;
  // Those that the nodes of `graph` call, directly or through others; itself when these are all.
  std::shared_ptr<const FunctionLibrary> ReachableFrom(const Graph& graph) const;

  bool empty() const { return functions_.empty() && gradients_.empty(); }
  const std::vector<std::shared_ptr<const Function>>& functions() const { return functions_; }
  // Null when there is none of this name.
  std::shared_ptr<const Function> Find(absl::string_view name) const;
  // The same, or NotFound "Function 'f' must be in the graph's library, ...".
  StatusOr<std::shared_ptr<const Function>> Get(absl::string_view name) const;
  // The function that a GradientDef names as the gradient of `name`; "" when none does.
  absl::string_view GradientOf(absl::string_view name) const;
  void WriteTo(tensorflow::FunctionDefLibrary* def) const;

  // InvalidArgument when a function can reach itself by calls, with the cycle.
  Status CheckNoRecursion() const;
  // Whether a call may change or keep state, or gives another result each time: its own nodes or
  // those of what it calls do, or are of an op kind that nobody knows.
  bool IsStateful(const Function& function) const;

  // The body of `call` with its attrs filled in.
  //   NotFound: a function that is not here.
  //   InvalidArgument: a missing or illegal attr; what is wrong about the body with these attrs.
  //   Unimplemented: a node of an op kind that nobody knows.
  StatusOr<std::shared_ptr<const FunctionBody>> Body(const tensorflow::NameAttrList& call) const;

 private:
  struct CallGraph;
  struct Kept;

  FunctionLibrary();
  // When functions_ and gradients_ are complete.
  void Index();
  const CallGraph& call_graph() const;

  std::vector<std::shared_ptr<const Function>> functions_;
  std::vector<std::pair<std::string, std::string>> gradients_;  // function, its gradient
  HashMap<absl::string_view, size_t> by_name_, gradient_of_;    // positions
  const std::unique_ptr<Kept> kept_;
};

// Calls `fn` with every function that `value` names, at any depth.
void ForEachFunction(const tensorflow::AttrValue& value,
                     absl::FunctionRef<void(const tensorflow::NameAttrList&)> fn);
// Whether a node of this op does nothing but call the functions that its attrs name, and is as
// stateful as these, whatever its OpDef says: PartitionedCall, If, While, ...
bool OnlyCallsFunctions(absl::string_view op);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_LIBRARY_H_
