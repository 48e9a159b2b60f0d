// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/transport/session_terms.h"
#include "distributed/worker/handles.h"
#include "graph/device_name.h"
#include "runtime/resource_manager.h"

namespace millrace {

SessionOpener SessionOpener::Of(const tensorflow::CreateWorkerSessionRequest& request) {
  SessionOpener opener;
  for (const tensorflow::DeviceAttributes& device : request.cluster_device_attributes()) {
    // A worker remembers it, with the run's, for longer than the session is open.
    if (device.name().size() > kMaxHandleBytes) return SessionOpener();
    const StatusOr<std::string> task = TaskOfDevice(device.name());
    if (!task.ok() || (!opener.task.empty() && *task != opener.task)) return SessionOpener();
    if (opener.task.empty()) opener = {*task, device.incarnation()};
  }
  return opener;
}

StatusOr<std::shared_ptr<WorkerSession>> WorkerSession::Of(
    const tensorflow::CreateWorkerSessionRequest& request, const WorkerOptions* options,
    SessionFrom from) {
  if (request.session_handle().size() > kMaxHandleBytes) {
    return InvalidArgument("CreateWorkerSession on ", options->task,
                           ": session_handle must have at most ", kMaxHandleBytes, " bytes, got ",
                           request.session_handle().size());
  }
  MR_ASSIGN_OR_RETURN(SessionTerms terms, SessionTermsOf(request));
  auto session = std::make_shared<WorkerSession>(options);
  session->handle = request.session_handle();
  session->opener = SessionOpener::Of(request);
  session->isolated = request.isolate_session_state();
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
