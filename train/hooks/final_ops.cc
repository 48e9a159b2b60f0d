// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/final_ops.h"

namespace millrace {

Status FinalOpsHook::Begin(HookSetup*) {
  values_.clear();
  return absl::OkStatus();
}

Status FinalOpsHook::End(const LoopEnd& end) {
  MR_ASSIGN_OR_RETURN(values_,
                      end.session->Run(options_.feeds, options_.fetches, options_.targets));
  return absl::OkStatus();
}

}  // namespace millrace
