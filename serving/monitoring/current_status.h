// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_CURRENT_STATUS_H_
#define MILLRACE_SERVING_MONITORING_CURRENT_STATUS_H_

// What status_pages.h writes, of a server as it is now.
//
// Thread-safety: any thread. Failure: none.

#include "serving/model_versions.h"
#include "serving/monitoring/server_metrics.h"
#include "serving/monitoring/status_pages.h"

namespace millrace {

// Its `running_of` asks `metrics`, which must outlive it.
ServerStatus CurrentStatus(const ModelVersions& versions, const ServerMetrics& metrics);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_CURRENT_STATUS_H_
