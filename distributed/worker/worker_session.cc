// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/transport/session_terms.h"
#include "distributed/worker/handles.h"
#include "graph/device_name.h"
#include "runtime/resource_manager.h"

namespace millrace {

StatusOr<std::shared_ptr<WorkerSession>> WorkerSession::Of(const SessionOrder& order,
                                                           const WorkerOptions* options,
                                                           SessionFrom from) {
  if (order.handle.size() > kMaxHandleBytes) {
    return InvalidArgument("CreateWorkerSession on ", options->task,
                           ": session_handle must have at most ", kMaxHandleBytes, " bytes, got ",
                           order.handle.size());
  }
  MR_ASSIGN_OR_RETURN(
      SessionTerms terms,
      KeptTerms(absl::StrCat("CreateWorkerSession on ", options->task), order.terms));
  auto session = std::make_shared<WorkerSession>(options);
  session->handle = order.handle;
  // A worker remembers it, with the run's, for longer than the session is open.
  if (order.opener.task.size() <= kMaxHandleBytes) {
    const StatusOr<std::string> task = TaskOfDevice(order.opener.task);
    if (task.ok()) session->opener = {*task, order.opener.incarnation};
  }
  session->isolated = order.isolated;
  // A master that does not say who the chief is, is it itself.
  if (terms.run.is_chief && terms.run.chief.empty()) {
    terms.run.chief =
        absl::StrCat(session->opener.task, ", incarnation ", session->opener.incarnation);
  }
  session->run = std::move(terms.run);
  session->lease_time = terms.lease;
  session->from = from;
  return session;
}

void WorkerSession::DropAll() {
  // Plans may hold what belongs to the session.
  graphs.Clear();
  for (const auto& device : devices) device->resources->TellSessionEnded(handle);
}

}  // namespace millrace
