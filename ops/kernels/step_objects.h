// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_STEP_OBJECTS_H_
#define MILLRACE_OPS_KERNELS_STEP_OBJECTS_H_

// StepObjects: what ops make for one step: tensor arrays and stacks.
//
// A handle keeps its object itself, so what a loop makes in each iteration is gone as soon as no
// tensor of the step has its handle any more. What the ops of old graphs name by a string has no
// handle: the step keeps it. With the step all of them end: their memory is freed, and a caller
// that has kept a handle beyond it (by fetching it) is told that the object does not exist.
//
// Thread-safety: all functions, from any thread.
// Lifetime: StepObjects is a resource of the step (KernelContext::step_resources), which drops it
// at its end; objects outlive it as long as a handle does, empty.

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {

class StepObject : public Resource {
 public:
  // The step has ended: frees what it holds. Called once, when no kernel of the step runs any more.
  virtual void EndWithStep() = 0;
};

// Who keeps an object alive.
enum class KeptBy {
  kHandles,
  kStep,  // named by strings
};

class StepObjects : public Resource {
 public:
  static constexpr const char* kTypeName = "StepObjects";

  // Those of the step of `ctx`.
  static StatusOr<std::shared_ptr<StepObjects>> Of(const KernelContext& ctx);
  // `name` with a number that no other object of this process has had.
  static std::string UniqueName(absl::string_view name);

  ~StepObjects() override;
  std::string DebugString() const override;

  // `name` is unique.
  void Add(const std::string& name, const std::shared_ptr<StepObject>& object, KeptBy kept_by);
  // Null when there is none (any more).
  std::shared_ptr<StepObject> Find(absl::string_view name) const;

 private:
  struct Entry {
    std::weak_ptr<StepObject> object;
    std::shared_ptr<StepObject> kept;  // null: handles keep it
  };
  mutable Mutex mu_;
  HashMap<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // Entries whose objects are gone are looked for when there are so many.
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

// A handle of `object` (T has a kTypeName), to be output.
template <typename T>
Tensor StepObjectHandle(const KernelContext& ctx, absl::string_view container,
                        absl::string_view name, std::shared_ptr<T> object) {
  return Tensor::Scalar<ResourceHandle>(
      ctx.resources()->MakeHandle<T>(container, name, std::move(object)));
}

// What the handle at input i refers to. NotFound when it is of another step; InvalidArgument when
// it is of another kind or device.
template <typename T>
StatusOr<std::shared_ptr<T>> StepObjectInput(const KernelContext& ctx, int i) {
  const Tensor& handle = ctx.input(i);
  if (handle.dtype() == DT_RESOURCE && handle.num_elements() == 1 &&
      handle.raw_scalar<ResourceHandle>().resource == nullptr &&
      handle.raw_scalar<ResourceHandle>().type_name == T::kTypeName) {
    // It has been to another process.
    MR_ASSIGN_OR_RETURN(const auto objects, StepObjects::Of(ctx));
    if (auto found =
            std::dynamic_pointer_cast<T>(objects->Find(handle.raw_scalar<ResourceHandle>().name))) {
      return found;
    }
  }
  return ctx.ResourceInput<T>(i);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_STEP_OBJECTS_H_
