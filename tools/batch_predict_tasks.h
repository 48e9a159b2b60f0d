// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_PREDICT_TASKS_H_
#define MILLRACE_TOOLS_BATCH_PREDICT_TASKS_H_

// One task's share of a batch prediction that several do: processes that share nothing but the
// output directory, and the same inputs. No task is above the others.
//
//   1. It reads the rows from the first on. Rows [k * part_rows, (k + 1) * part_rows) are part k:
//      it asks about the parts that it can claim (tools/batch_claims.h), and passes over those of
//      others. So a slow task does less.
//   2. When it has seen the last row it knows which parts are missing, waits for those of the tasks
//      that live, and does those of a task that is silent or has given up.
//   3. When no part is missing, one task claims the shards, and writes them, alone where the file
//      system has locks. The others wait for their end.
//
// Every row is in the shards once, whoever is killed, comes again or wakes up late: a part has one
// name, and who has it done as the second leaves the first one's file. A task that fails because
// the job has ended without it, its parts cleared away, has nothing to do: that is success.
//
// Each task reads all files; that is little next to asking a model.
//
// Thread-safety: a function. Failure: see batch_predict_job.h.

#include "core/status.h"
#include "tools/batch_directory.h"
#include "tools/batch_predict_job.h"
#include "tools/local_model.h"

namespace millrace {

// `options.task` is set, and all of them are valid.
StatusOr<BatchPredictSummary> RunBatchPredictTask(const BatchPredictOptions& options,
                                                  const LocalModel& model,
                                                  const BatchDirectory& directory);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_PREDICT_TASKS_H_
