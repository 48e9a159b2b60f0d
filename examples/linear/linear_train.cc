// SPDX-License-Identifier: Apache-2.0
// linear_train: fits y = wx + b, in one process or on a cluster: the smallest whole program.
//
//   linear_train --max_steps=1000
//   launch --ps=1 --master --workers=1 -- linear_train --max_steps=1000 --log_dir=run

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/clock.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"
#include "train/supervisor.h"

ABSL_FLAG(int64_t, max_steps, 1000, "global steps of all workers together");
ABSL_FLAG(int64_t, batch_size, 10, "points in a step");
ABSL_FLAG(double, learning_rate, 0.1, "of gradient descent");
ABSL_FLAG(int64_t, checkpoint, 100, "global steps between checkpoints");
ABSL_FLAG(std::string, log_dir, "", "directory of checkpoints; empty: none");
ABSL_FLAG(std::string, model_dir, "", "directory of the exported SavedModel; empty: no export");
ABSL_FLAG(int, max_recoveries, 20, "new sessions after a lost parameter server before giving up");
ABSL_FLAG(double, session_timeout_secs, 7200, "how long to wait for other tasks");
ABSL_FLAG(double, steps_per_second, 0, "at most, of this task; 0: as fast as it goes");
ABSL_FLAG(double, nan_at_step, -1, "feeds a NaN from this step on, to see what the guard says");

namespace millrace {
namespace {

// What the model is to find out.
constexpr float kSlope = 3;
constexpr float kIntercept = -1;

struct LinearModel {
  Output x, y, loss;
  Output step_after;  // the global step with this step's own update in it
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
  const Output predicted = Add(scope, Mul(scope, m.w.value, m.x), m.b.value);
  m.loss = ReduceMean(scope.WithName("loss"), Square(scope, Sub(scope, predicted, m.y)));
  m.train = GradientDescentOptimizer({.learning_rate = absl::GetFlag(FLAGS_learning_rate)})
                .Minimize(scope, m.loss, {.global_step = m.global_step});
  m.step_after = StepAfter(scope, m.train, m.global_step);
  return m;
}

Status Export(const std::string& checkpoint) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
  const Variable b = MakeVariable(root.WithName("b"), Const(root, 0.0f));
  const Output y = Add(root.WithName("y"), Mul(root, w.value, x), b.value);
  MR_ASSIGN_OR_RETURN(auto saver, Saver::Make(root, {.sharded = false}));
  MR_RETURN_IF_ERROR(root.status());
  MR_ASSIGN_OR_RETURN(auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), checkpoint));
  MR_ASSIGN_OR_RETURN(auto builder, SavedModelBuilder::Open(absl::GetFlag(FLAGS_model_dir)));
  MR_ASSIGN_OR_RETURN(const auto signature, PredictSignatureDef(root, {{"x", x}}, {{"y", y}}));
  MR_RETURN_IF_ERROR(builder->AddMetaGraphAndVariables(
      session.get(), root, saver.get(), {.signatures = {{kDefaultServingSignature, signature}}}));
  return builder->Save();
}

Status TrainInSession(const LinearModel& model, const ClusterConfig& cluster,
                      Supervisor* supervisor, Session* session, std::string* last_checkpoint) {
  std::mt19937 random(static_cast<unsigned>(cluster.task()) + (cluster.is_chief() ? 0u : 1000u));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const int64_t max_steps = absl::GetFlag(FLAGS_max_steps);
  const size_t n = static_cast<size_t>(absl::GetFlag(FLAGS_batch_size));
  const int64_t period = absl::GetFlag(FLAGS_checkpoint);
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> out, session->Run({}, {model.global_step.value}));
  int64_t step = out[0].scalar<int64_t>();
  std::printf("First step is %lld\n", static_cast<long long>(step));
  int64_t next = (step / period + 1) * period;
  const auto save = [&]() -> Status {
    if (!cluster.is_chief() || supervisor->saver() == nullptr) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(*last_checkpoint,
                        supervisor->saver()->Save(session, supervisor->save_path(), step));
    std::printf("Saved %s\n", last_checkpoint->c_str());
    return absl::OkStatus();
  };
  const double rate = absl::GetFlag(FLAGS_steps_per_second);
  absl::Time next_start = absl::Now();
  while (!supervisor->ShouldStop() && step < max_steps) {
    if (rate > 0) {
      Clock::Real()->SleepFor(next_start - absl::Now());
      next_start = std::max(absl::Now(), next_start + absl::Seconds(1 / rate));
    }
    std::vector<float> x(n), y(n);
    for (size_t i = 0; i < n; ++i) {
      x[i] = uniform(random);
      y[i] = kSlope * x[i] + kIntercept;
      const double nan_at = absl::GetFlag(FLAGS_nan_at_step);
      if (nan_at >= 0 && static_cast<double>(step) >= nan_at) {
        y[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    MR_ASSIGN_OR_RETURN(out, session->Run({{model.x, Tensor::Vector<float>(x)},
                                           {model.y, Tensor::Vector<float>(y)}},
                                          {model.loss, model.step_after}));
    step = std::max(step, out[1].scalar<int64_t>());
    MR_RETURN_IF_ERROR(CheckLossIsFinite(out[0], step));
    if (step < next) continue;
    next = (step / period + 1) * period;
    std::printf("Step: %lld, loss: %g\n", static_cast<long long>(step),
                static_cast<double>(out[0].scalar<float>()));
    if (step < max_steps) MR_RETURN_IF_ERROR(save());
  }
  MR_RETURN_IF_ERROR(save());
  MR_ASSIGN_OR_RETURN(out,
                      session->Run({}, {model.w.value, model.b.value, model.global_step.value}));
  std::printf(
      "Final step: %lld, w = %.4f, b = %.4f\n", static_cast<long long>(out[2].scalar<int64_t>()),
      static_cast<double>(out[0].scalar<float>()), static_cast<double>(out[1].scalar<float>()));
  return absl::OkStatus();
}

Status Train(const ClusterConfig& cluster, const std::string& target) {
  Scope root;
  const LinearModel model = BuildLinearModel(root.WithDevice(ReplicaDeviceSetter(cluster)));
  SupervisorOptions options;
  options.is_chief = cluster.is_chief();
  options.logdir = absl::GetFlag(FLAGS_log_dir);
  options.global_step = model.global_step;
  options.save_model_period = absl::ZeroDuration();
  options.max_wait = absl::Seconds(absl::GetFlag(FLAGS_session_timeout_secs));
  Supervisor supervisor(root, options);
  std::string last_checkpoint;
  MR_RETURN_IF_ERROR(RunWithRecovery(
      &supervisor, target, absl::GetFlag(FLAGS_max_recoveries), [&](Session* session) {
        return TrainInSession(model, cluster, &supervisor, session, &last_checkpoint);
      }));
  MR_RETURN_IF_ERROR(supervisor.Stop());
  if (!cluster.is_chief() || absl::GetFlag(FLAGS_model_dir).empty()) return absl::OkStatus();
  MR_RETURN_IF_ERROR(Export(last_checkpoint));
  std::printf("Exported %s\n", absl::GetFlag(FLAGS_model_dir).c_str());
  return absl::OkStatus();
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
  if (!absl::GetFlag(FLAGS_model_dir).empty() && absl::GetFlag(FLAGS_log_dir).empty()) {
    return absl::InvalidArgumentError("--model_dir: needs --log_dir, got none");
  }
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  if (cluster.is_local()) return Train(cluster, "");
  if (cluster.job() == "ps") HandleTerminationSignals();
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") return server->Join();
  return Train(cluster, server->target());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Fits y = wx + b, in one process or on a cluster (TF_CONFIG).");
  absl::ParseCommandLine(argc, argv);
  millrace::InitLogging(argv[0]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines come when they are written, also in a pipe
  const millrace::Status status = millrace::Main();
  if (status.ok()) return 0;
  std::fprintf(stderr, "linear_train: %s\n", status.ToString().c_str());
  return millrace::ExitCode(status);
}
