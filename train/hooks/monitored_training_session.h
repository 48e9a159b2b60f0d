// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_MONITORED_TRAINING_SESSION_H_
#define MILLRACE_TRAIN_HOOKS_MONITORED_TRAINING_SESSION_H_

// MonitoredTrainingSession: a MonitoredSession for training, alone or as a task of a cluster.
//
//   MR_ASSIGN_OR_RETURN(auto session, MonitoredTrainingSession(root, {
//       .target = server->target(), .is_chief = cluster.is_chief(),
//       .checkpoint_dir = "run", .hooks = {&stop_at_step}}));
//   return session->Loop([&] { return session->Run({{x, Next()}}, {}, {train}).status(); });
//
//   task     its session                        hooks, in this order
//   chief    adopts, restores or initialises    chief_only_hooks, steps a second, summaries,
//                                               checkpoints, hooks
//   others   wait for the chief                 hooks
//
// All tasks give the same checkpoint_dir: it names the run, and those that wait see there whether
// it has ended. The chief's event files are there, too: they reach the disk with each checkpoint.
// Why training has ended is a line of the log, and MonitoredSession::end_reason.
//
// Failure: as MonitoredSession::Open; InvalidArgument for options that cannot work.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/every.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

struct MonitoredTrainingSessionOptions {
  std::string target = "";  // of the server: server->target(); "": in this process
  bool is_chief = true;
  std::string checkpoint_dir = "";  // "": nothing is kept, and nothing is gone on from
  // What errors call it, for callers that have another name for it.
  std::string directory_option = "checkpoint_dir";
  std::string begin_from = "";  // a checkpoint of elsewhere, as long as there is none here
  Scaffold scaffold = {};
  // Not owned; they outlive the session.
  std::vector<SessionRunHook*> hooks = {};
  std::vector<SessionRunHook*> chief_only_hooks = {};
  std::vector<CheckpointSaverListener*> saving_listeners = {};
  // 0: none, for a CheckpointSaverHook of one's own.
  Every save_checkpoint_every = absl::Minutes(10);
  // See SessionCreatorOptions.
  SaverOptions saver = {};
  // "global_step/sec" in the log; 0: not.
  Every log_step_count_every = 100;
  // Off: for the summaries alone, where a hook logs it (train/hooks/step_log.h).
  bool logs_step_count = true;
  // What the graph's summaries say (those that it has when the hooks begin); 0: not. As the former,
  // in event files of summary_dir ("": checkpoint_dir; no files where both are ""), or to `writer`.
  Every save_summaries_every = 100;
  std::string summary_dir = "";
  SummaryWriter* writer = nullptr;  // not owned; in place of the files
  int max_recoveries = 20;
  absl::Duration stop_grace = absl::Seconds(120);
  bool handle_signals = true;
  // See MonitoredSessionOptions.
  bool await_trainers = true;
  int num_trainers = 0;
  absl::Duration trainers_grace = absl::Seconds(20);
  absl::Duration max_wait = absl::Seconds(7200);
  absl::Duration recovery_wait = absl::Seconds(1);
  absl::Duration end_grace = absl::Seconds(20);
  SessionOptions session = {};
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

StatusOr<std::unique_ptr<MonitoredSession>> MonitoredTrainingSession(
    ScopeAt at, const MonitoredTrainingSessionOptions& options);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_MONITORED_TRAINING_SESSION_H_
