// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_STEP_OPS_H_
#define MILLRACE_RUNTIME_TESTING_STEP_OPS_H_

// step_ops: what tests and benchmarks of plan, executor and session use: op kinds whose kernels are
// functions of the test, and a short way to write graphs.
//
//   TestProbe       N float inputs, M float outputs: calls the hook named by attr `hook`
//   TestProbeAsync  the same, asynchronous
//   TestSource      a new float scalar of attr `value`
//   TestBools       a bool scalar of attr `value`
//   TestVariable    a reference to the float variable that the test put under attr `name`
//   TestAssign      (reference, value) -> reference; the reference may be uninitialised
//   TestUseRef      (reference) -> nothing; must be initialised
//   TestSpin        keeps a core busy for attr `cycles` of the time stamp counter
//   TestNoKernel, TestThrowsInInit   cannot be planned
// The kernel of a hook that nobody set returns Internal. NoOp, Identity and the ops of control flow
// are those of //ops.
//
// Thread-safety: hooks are set before steps run and stay until ClearHooks().

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "graph/graph.h"
#include "proto/attr_value.pb.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/step_context.h"
#include "runtime/variable_storage.h"

namespace millrace::testing {

using ProbeHook = std::function<Status(KernelContext*)>;
using AsyncProbeHook = std::function<void(KernelContext*, AsyncKernel::DoneCallback)>;
void SetHook(absl::string_view name, ProbeHook hook);
void SetAsyncHook(absl::string_view name, AsyncProbeHook hook);
void SetTestVariable(absl::string_view name, std::shared_ptr<VariableStorage> variable);
void ClearHooks();

// A graph written down node by node. Errors fail the test by aborting it.
class TestGraph {
 public:
  struct In {
    In(Node* n) : node(n) {}                    // NOLINT
    In(Node* n, int o) : node(n), output(o) {}  // NOLINT
    Node* node;
    int output = 0;
  };
  Node* Add(absl::string_view op, absl::string_view name, const std::vector<In>& inputs = {},
            const std::vector<std::pair<std::string, tensorflow::AttrValue>>& attrs = {},
            const std::vector<Node*>& controls = {});

  Node* NoOp(absl::string_view name, const std::vector<Node*>& controls = {});
  Node* Source(absl::string_view name, float value, const std::vector<Node*>& controls = {});
  Node* Bool(absl::string_view name, bool value);
  Node* Identity(absl::string_view name, In input, const std::vector<Node*>& controls = {});
  Node* Switch(absl::string_view name, In data, In pred);
  Node* Merge(absl::string_view name, const std::vector<In>& inputs,
              const std::vector<Node*>& controls = {});
  Node* Probe(absl::string_view name, const std::vector<In>& inputs, int outputs,
              absl::string_view hook, const std::vector<Node*>& controls = {});
  Node* ProbeAsync(absl::string_view name, const std::vector<In>& inputs, int outputs,
                   absl::string_view hook, const std::vector<Node*>& controls = {});

  // A loop: LoopMerge is a Merge whose second input Close gives it, through a NextIteration
  // "<merge>/next", which it returns.
  Node* Enter(absl::string_view name, In input, absl::string_view frame, bool is_constant = false,
              int64_t parallel_iterations = 10);
  Node* LoopMerge(absl::string_view name, In enter, const std::vector<Node*>& controls = {});
  Node* Close(Node* merge, In back);
  Node* LoopCond(absl::string_view name, In input);
  Node* Exit(absl::string_view name, In input);

  Graph* graph() { return &graph_; }

 private:
  Graph graph_;
};

template <typename T>
tensorflow::AttrValue AttrOf(const T& value) {
  tensorflow::AttrValue attr;
  SetAttr(value, &attr);
  return attr;
}

// What a step needs, in one place.
struct TestStep {
  explicit TestStep(int num_threads = 1);
  ~TestStep();
  Device device;
  std::unique_ptr<Arena> arena;
  CancellationManager cancellation;
  StepContext context;
};

}  // namespace millrace::testing

#endif  // MILLRACE_RUNTIME_TESTING_STEP_OPS_H_
