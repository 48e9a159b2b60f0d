// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/peer_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

Status Named(absl::string_view what, absl::string_view task, const Status& why) {
  if (why.ok() || IsDerived(why)) return why;
  Status result(why.code(), absl::StrCat(what, task, ": ", why.message()));
  why.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

}  // namespace

Status PushFromError(absl::string_view task, const Status& why) {
  return Named("Push from ", task, why);
}
Status PushToError(absl::string_view task, const Status& why) {
  return Named("Push to ", task, why);
}
Status RecvTensorError(absl::string_view task, const Status& why) {
  return Named("RecvTensor from ", task, why);
}

}  // namespace millrace
