// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_FUNCTION_RUNNER_H_
#define MILLRACE_RUNTIME_FUNCTION_RUNNER_H_

// FunctionRunner: runs functions of the graph's library from within a kernel (calls, maps of
// datasets, functional control flow).
//
// A function is instantiated once for its attrs and then run by handle. A run belongs to the step
// of the kernel that asks for it: it ends with that step's cancellation and shares its rendezvous
// and its resources.
//
// Thread-safety: all methods, from any thread.
// Lifetime: the runner outlives the kernels of its session; handles stay valid as long.
// Failure: NotFound for a function that the library does not have; InvalidArgument for other
// numbers or types of arguments; what its nodes say.

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"

namespace tensorflow {
class NameAttrList;
}

namespace millrace {

struct StepContext;

class FunctionRunner {
 public:
  using Handle = uint64_t;
  struct Signature {
    std::vector<DType> arguments;
    std::vector<DType> results;
  };
  using DoneCallback = absl::AnyInvocable<void(StatusOr<std::vector<Tensor>>)>;

  virtual ~FunctionRunner() = default;

  // The same handle for the same function and attrs.
  virtual StatusOr<Handle> Instantiate(const tensorflow::NameAttrList& function) = 0;
  virtual const Signature& signature(Handle handle) const = 0;
  // `done` is called exactly once, here or on another thread. `step` is that of the calling kernel
  // and outlives `done`.
  virtual void Run(const StepContext& step, Handle handle, absl::Span<const Tensor> arguments,
                   DoneCallback done) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_FUNCTION_RUNNER_H_
