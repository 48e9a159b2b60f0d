// SPDX-License-Identifier: Apache-2.0
// linear_train: fits y = wx + b, in one process or on a cluster: the smallest whole program.
//
//   linear_train --max_steps=1000
//   launch --ps=1 --master --workers=1 -- linear_train --max_steps=1000 --log_dir=run
//   launch --ps=1 --master --workers=3 -- linear_train --sync=4 --log_dir=run2

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"
#include "train/sync_replicas.h"
#include "train/train.h"

ABSL_FLAG(int64_t, max_steps, 1000, "global steps of all workers together");
ABSL_FLAG(int64_t, batch_size, 10, "points in a step");
ABSL_FLAG(double, learning_rate, 0.1, "of gradient descent");
ABSL_FLAG(int64_t, checkpoint, 100, "global steps between checkpoints");
ABSL_FLAG(std::string, log_dir, "", "directory of checkpoints; empty: none");
ABSL_FLAG(std::string, model_dir, "", "directory of the exported SavedModel; empty: no export");
ABSL_FLAG(int, max_recoveries, 20, "new sessions after a lost parameter server before giving up");
ABSL_FLAG(double, session_timeout_secs, 7200, "how long to wait for other tasks");
ABSL_FLAG(bool, read_ahead, false,
          "on a cluster: variables come with the end of the step before (docs/training_runs.md)");
ABSL_FLAG(int64_t, sync, 0,
          "on a cluster: each global step applies the mean of so many trainers' gradients; 0: each "
          "trainer's by itself (docs/training_runs.md)");
ABSL_FLAG(double, steps_per_second, 0, "at most, of this task; 0: as fast as it goes");
ABSL_FLAG(double, nan_at_step, -1, "feeds a NaN from this step on, to see what the guard says");

namespace millrace {
namespace {

// What the model is to find out.
constexpr float kSlope = 3;
constexpr float kIntercept = -1;

struct LinearModel {
  Output x, y, predicted, loss;
  Variable w, b, global_step;
  Operation train;
};

LinearModel BuildLinearModel(const Scope& scope) {
  LinearModel m;
  m.x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
  m.y = Placeholder(scope.WithName("y"), DT_FLOAT, {-1});
  m.global_step = GlobalStep(scope);
  m.w = MakeVariable(scope.WithName("w"), Const(scope, 0.0f));
  m.b = MakeVariable(scope.WithName("b"), Const(scope, 0.0f));
  m.predicted = Add(scope.WithName("predicted"), Mul(scope, m.w.value, m.x), m.b.value);
  m.loss = ReduceMean(scope.WithName("loss"), Square(scope, Sub(scope, m.predicted, m.y)));
  std::shared_ptr<Optimizer> optimizer = std::make_shared<GradientDescentOptimizer>(
      GradientDescentOptions{.learning_rate = absl::GetFlag(FLAGS_learning_rate)});
  if (const int64_t sync = absl::GetFlag(FLAGS_sync); sync > 0) {
    optimizer = std::make_shared<SyncReplicasOptimizer>(
        std::move(optimizer), SyncReplicasOptions{.replicas_to_aggregate = sync});
  }
  m.train = optimizer->Minimize(scope, m.loss, {.global_step = m.global_step});
  return m;
}

// Points on the line, without end.
class Points {
 public:
  explicit Points(const ClusterConfig& cluster)
      : random_(static_cast<unsigned>(cluster.task()) + (cluster.is_chief() ? 0u : 1000u)) {}

  Feeds Next(const LinearModel& model) {
    const double rate = absl::GetFlag(FLAGS_steps_per_second);
    if (rate > 0) {
      Clock::Real()->SleepFor(next_start_ - absl::Now());
      next_start_ = std::max(absl::Now(), next_start_ + absl::Seconds(1 / rate));
    }
    const double nan_at = absl::GetFlag(FLAGS_nan_at_step);
    const bool is_nan = nan_at >= 0 && static_cast<double>(steps_++) >= nan_at;
    const size_t n = static_cast<size_t>(absl::GetFlag(FLAGS_batch_size));
    std::vector<float> x(n), y(n);
    for (size_t i = 0; i < n; ++i) {
      x[i] = uniform_(random_);
      y[i] = is_nan ? std::numeric_limits<float>::quiet_NaN() : kSlope * x[i] + kIntercept;
    }
    return {{model.x, Tensor::Vector<float>(x)}, {model.y, Tensor::Vector<float>(y)}};
  }

 private:
  std::mt19937 random_;
  std::uniform_real_distribution<float> uniform_{-1, 1};
  absl::Time next_start_ = absl::Now();
  int64_t steps_ = 0;
};

Status Run(const ClusterConfig& cluster, const std::string& target) {
  Scope root;
  const LinearModel model = BuildLinearModel(root.WithDevice(ReplicaDeviceSetter(cluster)));
  Points points(cluster);
  TrainOptions options = {.data = [&] { return points.Next(model); },
                          .steps = absl::GetFlag(FLAGS_max_steps),
                          .dir = absl::GetFlag(FLAGS_log_dir),
                          .target = target,
                          .is_chief = cluster.is_chief(),
                          .read_ahead = absl::GetFlag(FLAGS_read_ahead),
                          .loss = model.loss,
                          .eval = [&](Session* session) -> StatusOr<std::string> {
                            MR_ASSIGN_OR_RETURN(const auto out,
                                                session->Run({}, {model.w.value, model.b.value,
                                                                  model.global_step.value}));
                            std::printf("Final step: %lld, w = %.4f, b = %.4f\n",
                                        static_cast<long long>(out[2].scalar<int64_t>()),
                                        static_cast<double>(out[0].scalar<float>()),
                                        static_cast<double>(out[1].scalar<float>()));
                            return "";
                          },
                          .save_every = absl::GetFlag(FLAGS_checkpoint),
                          .report_every = absl::GetFlag(FLAGS_checkpoint),
                          .max_recoveries = absl::GetFlag(FLAGS_max_recoveries)};
  options.supervisor.max_wait = absl::Seconds(absl::GetFlag(FLAGS_session_timeout_secs));
  if (!absl::GetFlag(FLAGS_model_dir).empty()) {
    options.export_to = absl::GetFlag(FLAGS_model_dir);
    options.signature = {.inputs = {{"x", model.x}}, .outputs = {{"y", model.predicted}}};
  }
  return Train(root, model.train, options).status();
}

Status Main() {
  for (const auto& [flag, value] :
       {std::pair<const char*, int64_t>{"max_steps", absl::GetFlag(FLAGS_max_steps)},
        {"batch_size", absl::GetFlag(FLAGS_batch_size)},
        {"checkpoint", absl::GetFlag(FLAGS_checkpoint)}}) {
    if (value < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": must be >= 1, got ", value));
    }
  }
  if (absl::GetFlag(FLAGS_sync) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sync: must be >= 0, got ", absl::GetFlag(FLAGS_sync)));
  }
  if (absl::GetFlag(FLAGS_sync) > 0 && absl::GetFlag(FLAGS_read_ahead)) {
    return absl::InvalidArgumentError(
        "--sync: must be given without --read_ahead, got both; what is read ahead is of the step "
        "before");
  }
  if (!absl::GetFlag(FLAGS_model_dir).empty() && absl::GetFlag(FLAGS_log_dir).empty()) {
    return absl::InvalidArgumentError("--model_dir: needs --log_dir, got none");
  }
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = absl::GetFlag(FLAGS_log_dir)});
  }
  return Run(cluster, server->target());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Fits y = wx + b, in one process or on a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines come when they are written, also in a pipe
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
