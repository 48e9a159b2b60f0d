// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SESSION_RUN_H_
#define MILLRACE_SERVING_SESSION_RUN_H_

// SessionRun: runs any part of a loaded version's graph, by the names of its tensors and
// operations, or by the aliases of a signature.
//
// Whoever may call it may run each op of the graph: those that change variables, read files and
// write them, too. TensorFlow Serving has the messages, and its server does not offer the service.
//
// Thread-safety: from any thread. Failure: InvalidArgument for names and tensors that cannot be;
// else as Session::Prepare and the step. The response is empty then.

#include <cstdint>

#include "core/status.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace tensorflow::serving {
class SessionRunRequest;
class SessionRunResponse;
}  // namespace tensorflow::serving

namespace millrace {

// `max_splat_bytes` as in ServedModelOptions. With a trace level the response has metadata; such a
// step heeds the deadline alone.
Status SessionRun(const ServedModel& model, const tensorflow::serving::SessionRunRequest& request,
                  const StepBounds& bounds, int64_t max_splat_bytes,
                  tensorflow::serving::SessionRunResponse* response);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SESSION_RUN_H_
