// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_RUN_FINDER_H_
#define MILLRACE_DISTRIBUTED_MASTER_RUN_FINDER_H_

// Run finder: waits until the tasks that keep a run's variables know it, for a trainer that is not
// its chief.
//
// All of them are asked again and again, at most once a second, until each says that a chief has
// claimed one and the same run of the name (or with the id, when it is given). The log names those
// that do not, with their addresses, every 10 s. A run that has ended ends the wait at once; when
// the tasks disagree about that, after a few seconds: its chief may be on its way to tell them all.
//
// Thread-safety: from any thread. Blocks; never on a poller.
// Failure: RunEndedError; DeadlineExceeded names all tasks that did not know the run in time;
// Aborted when the run was superseded or the server stops; Cancelled when the client has gone.

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "core/status.h"
#include "distributed/master/task_connector.h"
#include "distributed/transport/worker_control.h"
#include "run/training_run.h"

namespace millrace {

// The id. `tasks` is not empty.
StatusOr<std::string> AwaitRun(absl::Span<const std::shared_ptr<WorkerControl>> tasks,
                               const TrainingRun& run, const AwaitOptions& options);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_RUN_FINDER_H_
