// SPDX-License-Identifier: Apache-2.0
#include "data/graph_function.h"

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/dcheck.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/tensor.h"
#include "runtime/function_runner.h"
#include "runtime/resource_manager.h"
#include "runtime/step_context.h"

namespace millrace::data {
namespace {

// Runs loops in the thread that calls them.
class CallersArena : public Arena {
 public:
  int num_threads() const override { return 1; }
  // For what goes on after a wait.
  void Schedule(absl::AnyInvocable<void()> task) override {
    Arena::Default()->Schedule(std::move(task));
  }
  void ParallelFor(int64_t n, double, absl::FunctionRef<void(int64_t, int64_t)> body) override {
    if (n > 0) body(0, n);
  }
};

Arena* InCaller() {
  static Arena* const arena = new CallersArena;
  return arena;
}

std::string TypesText(absl::Span<const DType> types) {
  return absl::StrCat(
      "(",
      absl::StrJoin(types, ", ",
                    [](std::string* text, DType type) { text->append(DTypeName(type)); }),
      ")");
}

std::vector<DType> TypesOf(const Element& element) {
  std::vector<DType> types;
  for (const Tensor& tensor : element) types.push_back(tensor.dtype());
  return types;
}

// What one call needs besides its function; used again.
struct CallSpace {
  explicit CallSpace(const std::string& device) : resources(device) {}
  StepContext step;
  ResourceManager resources;  // of the call
  CancellationManager cancellation;
};

// The end of a call that one thread waits for.
class Ending {
 public:
  void Tell(Status status) {
    MutexLock lock(&mu_);
    MR_DCHECK(!over_, "a call ends once");
    status_ = std::move(status);
    over_ = true;
    changed_.Signal();  // with the lock: this is gone when it has been seen
  }
  Status Await() {
    MutexLock lock(&mu_);
    while (!over_) changed_.Wait(&mu_);
    return std::move(status_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Status status_ ABSL_GUARDED_BY(mu_);
};

int64_t NextStepId() {
  // Negative: steps of sessions count upwards.
  static std::atomic<int64_t> next{-2};  // relaxed: hands out numbers
  return next.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

struct GraphFunction::State {
  std::string attr;
  std::shared_ptr<CalledFunction> function;
  Element captured;
  Device* device = nullptr;
  std::string session_handle;

  std::unique_ptr<CallSpace> Take() {
    {
      MutexLock lock(&mu);
      if (!spaces.empty()) {
        std::unique_ptr<CallSpace> space = std::move(spaces.back());
        spaces.pop_back();
        return space;
      }
    }
    auto space = std::make_unique<CallSpace>(device->name);
    space->step.device = device;
    space->step.arena = InCaller();
    space->step.io_pool = IoPool::InCaller();
    space->step.step_resources = &space->resources;
    space->step.cancellation = &space->cancellation;
    space->step.session_handle = session_handle;
    return space;
  }
  void Release(std::unique_ptr<CallSpace> space) {
    space->resources.ClearAll();
    MutexLock lock(&mu);
    if (spaces.size() < kMostSpaces) spaces.push_back(std::move(space));
  }

  static constexpr size_t kMostSpaces = 16;
  Mutex mu;
  std::vector<std::unique_ptr<CallSpace>> spaces ABSL_GUARDED_BY(mu);
};

StatusOr<GraphFunction> GraphFunction::Make(absl::string_view attr, CalledFunction* function,
                                            Element captured, const StepContext& step) {
  const absl::Span<const DType> takes = function->argument_types();
  const std::vector<DType> types = TypesOf(captured);
  const size_t n = captured.size();
  if (takes.size() < n || takes.last(n) != absl::MakeConstSpan(types)) {
    return InvalidArgument("the function of attr '", attr,
                           "' must have the captured tensors as its last arguments, ",
                           TypesText(types), ", got arguments ", TypesText(takes));
  }
  auto state = std::make_shared<State>();
  state->attr = std::string(attr);
  state->function = function->Share();
  state->captured = std::move(captured);
  state->device = step.device;
  state->session_handle = step.session_handle;
  return GraphFunction(std::move(state));
}

absl::Span<const DType> GraphFunction::argument_types() const {
  return state_->function->argument_types().first(state_->function->argument_types().size() -
                                                  state_->captured.size());
}

absl::Span<const DType> GraphFunction::result_types() const {
  return state_->function->result_types();
}

Status GraphFunction::CheckTakes(const ElementSpec& arguments) const {
  if (arguments.empty()) return absl::OkStatus();
  std::vector<DType> types;
  for (const ComponentSpec& component : arguments) types.push_back(component.dtype);
  if (argument_types() == absl::MakeConstSpan(types)) return absl::OkStatus();
  return InvalidArgument("the function of attr '", state_->attr, "' must take elements ",
                         TypesText(types), ", got a function of ", TypesText(argument_types()));
}

Status GraphFunction::CheckReturns(absl::Span<const DType> results) const {
  if (result_types() == results) return absl::OkStatus();
  return InvalidArgument("the function of attr '", state_->attr, "' must return ",
                         TypesText(results), ", got a function that returns ",
                         TypesText(result_types()));
}

StatusOr<Element> GraphFunction::Call(CancellationManager* cancellation, Element arguments) const {
  const absl::Span<const DType> takes = argument_types();
  bool fits = arguments.size() == takes.size();
  for (size_t i = 0; fits && i < takes.size(); ++i) fits = arguments[i].dtype() == takes[i];
  if (!fits) {
    return InvalidArgument("the function of attr '", state_->attr, "' must be given ",
                           TypesText(takes), ", got ", TypesText(TypesOf(arguments)));
  }
  arguments.insert(arguments.end(), state_->captured.begin(), state_->captured.end());
  Element results(result_types().size());
  std::unique_ptr<CallSpace> space = state_->Take();
  MR_DCHECK(!space->cancellation.IsCancelled(), "only a call that ended well gives its space back");
  space->step.step_id = NextStepId();
  // A step that fails cancels what it is cancelled by: that is its own, not the iterator's.
  CancellationManager::Token token = 0;
  if (cancellation != nullptr &&
      !cancellation->Register(&token, [own = &space->cancellation] { own->StartCancel(); })) {
    return absl::CancelledError("Step was cancelled.");
  }
  Ending ending;
  state_->function->Run(space->step, absl::MakeSpan(arguments), absl::MakeSpan(results),
                        [&ending](Status status) { ending.Tell(std::move(status)); });
  const Status status = ending.Await();
  if (cancellation != nullptr) cancellation->Deregister(token);
  MR_RETURN_IF_ERROR(status);
  // Of a call that was cancelled nothing is used again.
  if (!space->cancellation.IsCancelled()) state_->Release(std::move(space));
  return results;
}

}  // namespace millrace::data
