// SPDX-License-Identifier: Apache-2.0
// ledger_train: a training program whose right weights are known whatever dies (ledger.h).
//
//   TF_CONFIG=... ledger_train --log_dir=run --ledger=run-worker-0.txt --enough=enough [--sync=3]
//
// Trainers step until the file --enough exists; the chief's end is that of the run. A task
// "evaluator" waits for checkpoints and leaves with the run's last one.

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_unary.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "run/run_file.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/failures/ledger.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"
#include "train/supervisor.h"
#include "train/sync_replicas.h"

ABSL_FLAG(std::string, log_dir, "", "directory of checkpoints");
ABSL_FLAG(std::string, ledger, "", "file of this trainer's lines");
ABSL_FLAG(std::string, enough, "", "training ends when this file exists");
ABSL_FLAG(int64_t, rows, 20000, "steps that one trainer can have");
ABSL_FLAG(int, trainers, 4, "that there can be");
ABSL_FLAG(double, steps_per_second, 40, "at most, of this task");
ABSL_FLAG(double, save_secs, 1, "between two checkpoints");
ABSL_FLAG(double, session_timeout_secs, 240, "how long to wait for other tasks");
ABSL_FLAG(double, stop_grace_secs, 120, "SupervisorOptions::stop_grace");
ABSL_FLAG(double, lease_secs, 60, "ServerOptions::lease");
ABSL_FLAG(double, lease_period_secs, 20, "ServerOptions::lease_period");
ABSL_FLAG(int64_t, step_timeout_ms, 0, "time limit of a step; 0: none");
ABSL_FLAG(int64_t, sync, 0, "trainers of a synchronous step; 0: training is asynchronous");
ABSL_FLAG(int, max_recoveries, 100, "new sessions without progress before giving up");

namespace millrace {
namespace {

constexpr absl::Duration kEvaluatorPeriod = absl::Milliseconds(100);

struct LedgerModel {
  Output row, amount, step_after;
};

Shape ShapeOfMarks() { return Shape{absl::GetFlag(FLAGS_rows) * absl::GetFlag(FLAGS_trainers)}; }

LedgerModel Inputs(const Scope& scope) {
  LedgerModel m;
  m.row = Placeholder(scope.WithName("row"), DT_INT64, {1});
  m.amount = Placeholder(scope.WithName("amount"), DT_INT64, {});
  return m;
}

// The mean of the trainers' marks and amounts is added, by gradient descent of rate 1.
LedgerModel BuildSyncLedgerModel(const Scope& scope) {
  LedgerModel m = Inputs(scope);
  const Variable marks =
      MakeVariable(scope.WithName(kMarksName), ShapeOfMarks(), DT_DOUBLE, ZerosInitializer());
  const Variable sum = MakeVariable(scope.WithName(kSumName), Const(scope, 0.0));
  const Variable step = GlobalStep(scope);
  const IndexedSlices mark = {
      .values = Const(scope, Tensor::Of<double>({-1})), .indices = m.row, .dense_shape = Output()};
  const Output amount = Neg(scope, Cast(scope, m.amount, DT_DOUBLE));
  SyncReplicasOptimizer optimizer(
      std::make_shared<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = 1}),
      {.replicas_to_aggregate = absl::GetFlag(FLAGS_sync)});
  const Operation train =
      optimizer.ApplyGradients(scope, {{mark, marks}, {amount, sum}}, {.global_step = step});
  m.step_after = StepAfter(scope.WithName("step_after"), train, step);
  return m;
}

// Mark, sum, count, in this order.
LedgerModel BuildLedgerModel(const Scope& scope) {
  LedgerModel m = Inputs(scope);
  const Variable marks =
      MakeVariable(scope.WithName(kMarksName), ShapeOfMarks(), DT_INT64, ZerosInitializer());
  const Variable sum = MakeVariable(scope.WithName(kSumName), Const(scope, int64_t{0}));
  const Variable step = GlobalStep(scope);
  const Scope beside = scope.ColocatedWith(marks.handle.op());
  const Operation mark =
      ResourceScatterAdd(beside.WithName("mark"), marks.handle, m.row, Const(beside, {int64_t{1}}));
  const Operation add = AssignAddVariableOp(
      scope.ColocatedWith(sum.handle.op()).WithControlDependencies({mark}).WithName("add"),
      sum.handle, m.amount);
  const Scope counting = scope.ColocatedWith(step.handle.op()).WithControlDependencies({add});
  const Operation count =
      AssignAddVariableOp(counting.WithName("count"), step.handle, Const(counting, int64_t{1}));
  m.step_after = StepAfter(scope.WithName("step_after"), count, step);
  return m;
}

absl::string_view Name(Supervisor::Start start) {
  switch (start) {
    case Supervisor::Start::kInitialized:
      return "initialized";
    case Supervisor::Start::kRestored:
      return "restored";
    case Supervisor::Start::kAdopted:
      return "adopted";
    case Supervisor::Start::kWaited:
      return "waited";
  }
  return "?";
}

std::string InWords(const Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), " ", status.message());
}

bool IsEnough() { return FileSystem::Posix()->FileExists(absl::GetFlag(FLAGS_enough)); }

class Trainer {
 public:
  Trainer(const ClusterConfig& cluster, Ledger ledger)
      : cluster_(cluster), ledger_(std::move(ledger)) {}

  Status Run(const std::string& target) {
    ledger_.Write("start", absl::StrCat(cluster_.job(), "-", cluster_.task()));
    const Status status = Train(target);
    ledger_.Write("end", InWords(status));
    return status;
  }

 private:
  Status Train(const std::string& target) {
    Scope root;
    const Scope placed = root.WithDevice(ReplicaDeviceSetter(cluster_));
    model_ =
        absl::GetFlag(FLAGS_sync) > 0 ? BuildSyncLedgerModel(placed) : BuildLedgerModel(placed);
    // All of them are compared in the end.
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<Saver> saver,
                        Saver::Make(root, {.max_to_keep = 0, .write_meta_graph = false}));
    SupervisorOptions options = {.is_chief = cluster_.is_chief(),
                                 .logdir = absl::GetFlag(FLAGS_log_dir),
                                 .saver = saver.get(),
                                 .save_model_period = absl::ZeroDuration()};
    options.max_wait = absl::Seconds(absl::GetFlag(FLAGS_session_timeout_secs));
    options.stop_grace = absl::Seconds(absl::GetFlag(FLAGS_stop_grace_secs));
    options.session.config.operation_timeout_in_ms = absl::GetFlag(FLAGS_step_timeout_ms);
    Supervisor supervisor(root, options);
    MR_RETURN_IF_ERROR(supervisor.status());
    supervisor_ = &supervisor;
    const Status status = RunStepsWithRecovery(
        &supervisor, target, absl::GetFlag(FLAGS_max_recoveries),
        [this](Session*) { return Begin(); }, [this](Session* session) { return Step(session); });
    if (!status.ok()) supervisor.RequestStop(status);
    // The last checkpoint is Stop's.
    const bool saves = cluster_.is_chief() && status.ok() && step_ >= 0;
    if (saves) ledger_.Write("save", absl::StrCat(step_));
    const Status stopped = supervisor.Stop();
    if (saves && (stopped.ok() || ExitCode(stopped) == 128 + supervisor.signal())) {
      const auto latest = LatestCheckpoint(FileSystem::Posix(), absl::GetFlag(FLAGS_log_dir));
      if (latest) ledger_.Write("saved", *latest);
    }
    return status.ok() ? stopped : status;
  }

  Status Begin() {
    const std::string restored = supervisor_->restored_checkpoint();
    ledger_.Write("session",
                  absl::StrCat(Name(supervisor_->start()), " ", supervisor_->first_step(), " ",
                               restored.empty() ? "-" : restored));
    return absl::OkStatus();
  }

  StatusOr<bool> Step(Session* session) {
    if (IsEnough()) {
      supervisor_->RequestStop();
      return false;
    }
    if (!pending_) {
      MR_ASSIGN_OR_RETURN(pending_, ledger_.NextRow());
    }
    const int64_t row = *pending_;
    ledger_.Write("try", absl::StrCat(row));
    const auto out = session->Run({{model_.row, Tensor::Vector<int64_t>({row})},
                                   {model_.amount, Tensor::Scalar<int64_t>(AmountOf(row))}},
                                  {model_.step_after});
    if (!out.ok()) {
      ledger_.Write("lost", absl::StrCat(row, " ", InWords(out.status())));
      return out.status();
    }
    step_ = (*out)[0].scalar<int64_t>();
    ledger_.Write("ack", absl::StrCat(row, " ", step_));
    pending_.reset();
    if (cluster_.is_chief()) MR_RETURN_IF_ERROR(SaveNowAndThen());
    const absl::Time now = absl::Now();
    Clock::Real()->SleepFor(next_step_ - now);
    next_step_ =
        std::max(now, next_step_) + absl::Seconds(1 / absl::GetFlag(FLAGS_steps_per_second));
    return true;
  }

  Status SaveNowAndThen() {
    if (absl::Now() < next_save_) return absl::OkStatus();
    next_save_ = absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_save_secs));
    ledger_.Write("save", absl::StrCat(step_));
    const auto saved = supervisor_->Save(step_);
    if (!saved.ok()) {
      ledger_.Write("unsaved", InWords(saved.status()));
    } else if (saved->empty()) {
      ledger_.Write("unsaved", "and tried again");
    } else {
      ledger_.Write("saved", *saved);
    }
    return saved.status();
  }

  const ClusterConfig& cluster_;
  Ledger ledger_;
  LedgerModel model_;
  Supervisor* supervisor_ = nullptr;
  std::optional<int64_t> pending_;  // the row of the step that is next, or was lost
  int64_t step_ = -1;
  absl::Time next_step_ = absl::Now(), next_save_ = absl::Now();
};

// Stands in for an evaluator: looks at each checkpoint until the run has ended with one.
Status Evaluate() {
  FileSystem* const fs = FileSystem::Posix();
  const std::string directory = absl::GetFlag(FLAGS_log_dir);
  std::string last;
  while (true) {
    // Before the look at the checkpoints: none comes after an end.
    const auto end = ReadRunEnd(fs, directory);
    const auto latest = LatestCheckpoint(fs, directory);
    if (latest && *latest != last) {
      MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs, *latest));
      MR_ASSIGN_OR_RETURN(const Tensor step, reader->Read("global_step"));
      MR_ASSIGN_OR_RETURN(const Tensor sum, reader->Read(kSumName));
      std::printf("Evaluated step %lld: sum %g\n", static_cast<long long>(step.scalar<int64_t>()),
                  sum.dtype() == DT_DOUBLE ? sum.scalar<double>()
                                           : static_cast<double>(sum.scalar<int64_t>()));
      last = *latest;
    }
    MR_RETURN_IF_ERROR(end.status());
    if (end->has_value()) {
      std::printf("The run has ended at step %lld: %s\n",
                  static_cast<long long>((*end)->global_step), (*end)->reason.c_str());
      return absl::OkStatus();
    }
    Clock::Real()->SleepFor(kEvaluatorPeriod);
  }
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  if (cluster.is_local()) return InvalidArgument("ledger_train: TF_CONFIG must be set, got none");
  if (cluster.job() == "evaluator") return Evaluate();
  MR_ASSIGN_OR_RETURN(
      const auto server,
      Server::Start(cluster,
                    {.lease = absl::Seconds(absl::GetFlag(FLAGS_lease_secs)),
                     .lease_period = absl::Seconds(absl::GetFlag(FLAGS_lease_period_secs))}));
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = absl::GetFlag(FLAGS_log_dir)});
  }
  const int64_t rows = absl::GetFlag(FLAGS_rows);
  const int64_t trainer = cluster.is_chief() ? 0 : cluster.task() + 1;
  MR_ASSIGN_OR_RETURN(Ledger ledger,
                      Ledger::Open(absl::GetFlag(FLAGS_ledger), trainer * rows, rows));
  return Trainer(cluster, std::move(ledger)).Run(server->target());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains what a ledger can be compared with.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines come when they are written, also in a pipe
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
