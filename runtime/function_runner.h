// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_FUNCTION_RUNNER_H_
#define MILLRACE_RUNTIME_FUNCTION_RUNNER_H_

// FunctionRunner: how kernels run functions of the graph's library (calls, functional control flow,
// maps of datasets).
//
//   Status Init(KernelConstruction* c) override {
//     MR_ASSIGN_OR_RETURN(function_, c->Function("f"));
//     ...
//   void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
//     function_->Run(ctx->step(), arguments, results, std::move(done));
//
// A kernel finds its function when it is built, and errors of the call are found then; the body is
// compiled when it is first run. A run is a part of the step of the kernel that asks for it: it
// ends with that step's cancellation and deadline, and shares its resources and its error.
//
// Stateful kernels of a function's nodes belong to the place that it is called from: two calls have
// two random generators, two variables without a shared name.
//
// Thread-safety: all methods, from any thread.
// Lifetime: a runner outlives the kernels of its session, and so do the functions that it gives
// out; a holder that needs one longer (an iterator that outlives sessions) shares it.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/done_callback.h"

namespace tensorflow {
class NameAttrList;
}

namespace millrace {

class FunctionLibrary;
struct Device;
struct StepContext;

// Most calls that may be inside of each other: each takes stack.
inline constexpr int kMaxCallDepth = 200;

// A function as one node calls it.
class CalledFunction {
 public:
  virtual ~CalledFunction() = default;

  virtual absl::Span<const DType> argument_types() const = 0;
  virtual absl::Span<const DType> result_types() const = 0;

  // Runs the function once, in this thread as far as nothing has to be waited for. `arguments` are
  // as many as their types, and used up; `results` get the values. Both live until `done`, which is
  // called exactly once, here or on another thread; so does `step`.
  // ResourceExhausted when calls are more than kMaxCallDepth deep; else what compiling says, or
  // the nodes.
  virtual void Run(const StepContext& step, absl::Span<Tensor> arguments,
                   absl::Span<Tensor> results, DoneCallback done) = 0;

  // The same, kept alive with all that it needs, the devices among it.
  virtual std::shared_ptr<CalledFunction> Share() = 0;
};

class FunctionRunner {
 public:
  // Where a function is called from.
  struct Site {
    std::shared_ptr<const FunctionLibrary> library;
    std::string name;  // of the call's node, and which of its functions; see SiteOf
    Device* device = nullptr;
    int graph_producer = 0;
  };

  virtual ~FunctionRunner() = default;

  // The same for the same function, attrs and site.
  //   NotFound: a function that the library does not have.
  //   InvalidArgument: a missing or illegal attr.
  //   ResourceExhausted: too many calls that have been compiled.
  virtual StatusOr<CalledFunction*> Find(const tensorflow::NameAttrList& function,
                                         const Site& site) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_FUNCTION_RUNNER_H_
