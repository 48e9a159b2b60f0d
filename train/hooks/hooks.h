// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_HOOKS_H_
#define MILLRACE_TRAIN_HOOKS_HOOKS_H_

// All hooks of training loops.

#include "train/hooks/checkpoint_saver.h"         // IWYU pragma: export
#include "train/hooks/early_stopping.h"           // IWYU pragma: export
#include "train/hooks/event_summary_writer.h"     // IWYU pragma: export
#include "train/hooks/feed_fn.h"                  // IWYU pragma: export
#include "train/hooks/final_ops.h"                // IWYU pragma: export
#include "train/hooks/global_step_waiter.h"       // IWYU pragma: export
#include "train/hooks/in_memory_evaluator.h"      // IWYU pragma: export
#include "train/hooks/logging_tensor.h"           // IWYU pragma: export
#include "train/hooks/nan_tensor.h"               // IWYU pragma: export
#include "train/hooks/profiler.h"                 // IWYU pragma: export
#include "train/hooks/progress_hook.h"            // IWYU pragma: export
#include "train/hooks/read_ahead_hook.h"          // IWYU pragma: export
#include "train/hooks/share_out_hook.h"           // IWYU pragma: export
#include "train/hooks/step_counter.h"             // IWYU pragma: export
#include "train/hooks/step_log.h"                 // IWYU pragma: export
#include "train/hooks/stop_at_checkpoint_step.h"  // IWYU pragma: export
#include "train/hooks/stop_at_step.h"             // IWYU pragma: export
#include "train/hooks/summary_saver.h"            // IWYU pragma: export
#include "train/session_run_hook.h"               // IWYU pragma: export
#include "train/summary_writer.h"                 // IWYU pragma: export

#endif  // MILLRACE_TRAIN_HOOKS_HOOKS_H_
