// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/foreign_requests.h"

#include <string>
#include <utility>

#include "core/status.h"
#include "distributed/worker/handles.h"
#include "graph/device_name.h"

namespace millrace {
namespace {

SessionOpener OpenerOf(const tensorflow::CreateWorkerSessionRequest& request) {
  SessionOpener opener;
  for (const tensorflow::DeviceAttributes& device : request.cluster_device_attributes()) {
    if (device.name().size() > kMaxHandleBytes) return SessionOpener();
    const StatusOr<std::string> task = TaskOfDevice(device.name());
    if (!task.ok() || (!opener.task.empty() && *task != opener.task)) return SessionOpener();
    if (opener.task.empty()) opener = {*task, device.incarnation()};
  }
  return opener;
}

}  // namespace

SessionOrder OrderOf(const tensorflow::CreateWorkerSessionRequest& request) {
  return {.handle = request.session_handle(),
          .opener = OpenerOf(request),
          .isolated = request.isolate_session_state()};
}

PartOrder OrderOf(tensorflow::RegisterGraphRequest&& request) {
  PartOrder order;
  order.session_handle = request.session_handle();
  order.graph_def.Swap(request.mutable_graph_def());
  return order;
}

}  // namespace millrace
