// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/step_objects.h"

#include <vector>

namespace millrace {

StatusOr<std::shared_ptr<StepObjects>> StepObjects::Of(const KernelContext& ctx) {
  ResourceManager* const resources = ctx.step_resources();
  if (resources == nullptr) return Internal("No per-step resource manager.");
  return resources->LookupOrCreate<StepObjects>("", kTypeName, [] {
    return StatusOr<std::shared_ptr<StepObjects>>(std::make_shared<StepObjects>());
  });
}

std::string StepObjects::UniqueName(absl::string_view name) {
  static std::atomic<int64_t> made{0};  // relaxed: only a number
  return absl::StrCat(name, "_", made.fetch_add(1, std::memory_order_relaxed));
}

StepObjects::~StepObjects() {
  for (auto& [name, entry] : entries_) {
    if (const std::shared_ptr<StepObject> object = entry.object.lock()) {
      object->Abandon();
      object->EndWithStep();
    }
  }
}

std::string StepObjects::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat("StepObjects[", entries_.size(), "]");
}

void StepObjects::Add(const std::string& name, const std::shared_ptr<StepObject>& object,
                      KeptBy kept_by) {
  MutexLock lock(&mu_);
  if (entries_.size() >= sweep_at_) {
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.object.expired() ? entries_.erase(it) : std::next(it);
    }
    sweep_at_ = std::max<size_t>(64, 2 * entries_.size());
  }
  entries_[name] = {object, kept_by == KeptBy::kStep ? object : nullptr};
}

std::shared_ptr<StepObject> StepObjects::Find(absl::string_view name) const {
  MutexLock lock(&mu_);
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : it->second.object.lock();
}

}  // namespace millrace
