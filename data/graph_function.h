// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_GRAPH_FUNCTION_H_
#define MILLRACE_DATA_GRAPH_FUNCTION_H_

// GraphFunction: a function of a graph's library, as iterators call it: a dataset op's function
// with the tensors that it has captured.
//
// It is called between the steps of its session, and may outlive it. A call is a step of its own,
// which runs in the calling thread alone: loops of its kernels take no other thread, and what they
// would do on the I/O pool is done in place. Several calls at once are what parallel datasets are
// for. So a call never waits for a thread that waits for it, however deep datasets are in functions
// of datasets. It may wait for what other steps do (a queue); cancelling ends that.
//
// Variables, tables and iterators are those of the captured handles, and, by name, those of the
// device that the dataset op runs on.
//
// Thread-safety: a value, immutable; called from any thread, several at once.
// Lifetime: keeps the function and its devices alive (CalledFunction::Share).
// Failure: InvalidArgument for arguments that the function does not take, with attr and types; what
// the function's nodes say; Cancelled.

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"  // IWYU pragma: export
#include "data/element.h"

namespace millrace {
class CalledFunction;
class CancellationManager;
struct StepContext;
}  // namespace millrace

namespace millrace::data {

class GraphFunction {
 public:
  // The function of attr `attr`. `step`: of the kernel; its device and session are kept.
  // InvalidArgument unless `captured` is what the function's last arguments are.
  static StatusOr<GraphFunction> Make(absl::string_view attr, CalledFunction* function,
                                      Element captured, const StepContext& step);

  // Without those that are captured.
  absl::Span<const DType> argument_types() const;
  absl::Span<const DType> result_types() const;
  // InvalidArgument unless elements of `arguments` (empty: not known) can be given to it.
  Status CheckTakes(const ElementSpec& arguments) const;
  // InvalidArgument unless it returns these.
  Status CheckReturns(absl::Span<const DType> results) const;

  // The results. `cancellation` outlives the call; may be null.
  StatusOr<Element> Call(CancellationManager* cancellation, Element arguments) const;

 private:
  struct State;
  explicit GraphFunction(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_GRAPH_FUNCTION_H_
