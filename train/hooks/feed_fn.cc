// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/feed_fn.h"

#include <utility>

namespace millrace {

Status FeedFnHook::Begin(HookSetup* setup) {
  pending_.clear();
  group_ = setup->AddGroup({.feeds = tensors_});
  return absl::OkStatus();
}

StatusOr<GroupMask> FeedFnHook::BeforeRun(RunContext* context) {
  if (pending_.empty()) {
    MR_ASSIGN_OR_RETURN(pending_, make_());
    if (pending_.size() != tensors_.size()) {
      const size_t made = pending_.size();
      pending_.clear();
      return InvalidArgument("the function must give ", tensors_.size(), " values, got ", made);
    }
  }
  for (size_t i = 0; i < pending_.size(); ++i) {
    context->Feed(group_, static_cast<int>(i), pending_[i]);
  }
  return MaskOf(group_);
}

Status FeedFnHook::AfterRun(RunContext*, const RunValues&) {
  pending_.clear();
  return absl::OkStatus();
}

}  // namespace millrace
