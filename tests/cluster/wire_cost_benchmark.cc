// SPDX-License-Identifier: Apache-2.0
//
// What a training step costs a cluster whose tasks are processes of their own: context switches and
// CPU time of the parameter servers and of the trainer, kernel included, and wall time.
//
//   bazel run -c opt //tests/cluster:wire_cost_benchmark -- --model=census --batch=1024
//   ... -- --model=linear --rounds=5 --pingpong=DIR/wire_pingpong
//   ... -- --model=census --ps=0                      # one process, nothing on a wire
//
// A round trains twice, for N steps and for 2 N, with new processes each time: what starts and ends
// a run is in both, so a step is their difference over N. Switches and CPU time are the kernel's
// count for each process, taken when it is waited for; on shared cores they say more than the wall.
// Wall time is the trainer's own, of all 3 N steps.
// With --pingpong a round begins with that program (round trips of two processes), whose lines are
// passed on: compare within one round only. Models: wire_model.h.
//
//   ... -- --model=census --workers=2 --seconds=4     # a chief and two workers train together
//
// With --seconds the trainers step for so long at the same time, and the figure is the steps of all
// of them per second: with --workers=0 --ps=0 that of one process.
//
// Printed for each round, and for the medians and worst of several: a sentence, and a line
// {"bench": "wire_cost", "variant": "linear b10 ps1 switches", "threads": ..., "value": ...} per
// figure. --smoke runs each model once, for few steps.
//
// Exit code 1 when a figure is not above zero: then N is too small for this machine.

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "tests/cluster/wire_model.h"

ABSL_FLAG(std::string, model, "linear", "linear, census, cnn or digits (that of examples/mnist)");
ABSL_FLAG(int64_t, batch, 0, "examples in a step; 0: 10, 40, 10 and 100");
ABSL_FLAG(int, ps, 1, "parameter servers; 0: one process trains alone");
ABSL_FLAG(int64_t, steps, 0, "N; 0: 2,000, 2,000, 1,000 and 30");
ABSL_FLAG(double, seconds, 0, "all trainers step for so long, and steps/s are printed; 0: N steps");
ABSL_FLAG(int, workers, 0, "with --seconds: trainers besides the chief");
ABSL_FLAG(int, rounds, 1, "how often");
ABSL_FLAG(std::string, pingpong, "", "a wire_pingpong to run before each round; empty: none");
ABSL_FLAG(int64_t, pingpong_messages, 600, "round trips of each of its ways");
ABSL_FLAG(bool, smoke, false, "each model but digits once, for few steps");
ABSL_FLAG(std::string, role, "", "of a process that this program starts: ps or trainer");

namespace millrace {
namespace {

// Plans, connections, measured kernels.
constexpr int kWarmUp = 50;
constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kTrain = absl::Minutes(30);
constexpr char kWall[] = "wall_us ";
constexpr char kReady[] = "ready to step";
constexpr char kRate[] = "steps_per_s ";

struct Work {
  std::string model;
  int64_t batch = 0, steps = 0;
  int num_ps = 0, num_workers = 0;

  std::string name() const {
    const std::string workers = num_workers == 0 ? "" : absl::StrCat(" workers", num_workers);
    return absl::StrCat(model, " b", batch, " ps", num_ps, workers);
  }
};

// With the model's own batch and steps where none are given.
Work WorkOf(const std::string& model, int64_t batch, int64_t steps, int num_ps) {
  struct Default {
    const char* model;
    int64_t batch, steps;
  };
  for (const Default& one : {Default{"linear", 10, 2000}, Default{"census", 40, 2000},
                             Default{"cnn", 10, 1000}, Default{"digits", 100, 30}}) {
    if (model != one.model) continue;
    if (batch == 0) batch = one.batch;
    if (steps == 0) steps = one.steps;
  }
  return {.model = model, .batch = batch, .steps = steps, .num_ps = num_ps};
}

// --- The processes that are started --------------------------------------------------------------

Status RunPs() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  return server->Join();
}

// Waits for the parent's SIGUSR1, which this thread and those that it started do not take, and
// steps until the time is over.
Status StepForSeconds(PreparedStep* step, const std::vector<Tensor>& batch, const sigset_t& go) {
  std::printf("%s\n", kReady);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&go, &signal);
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + absl::Seconds(absl::GetFlag(FLAGS_seconds));
  int64_t steps = 0;
  for (; absl::Now() < end; ++steps) MR_RETURN_IF_ERROR(step->Run(batch).status());
  std::printf("%s%.3f\n", kRate,
              static_cast<double>(steps) / absl::ToDoubleSeconds(absl::Now() - begin));
  std::fflush(stdout);
  return absl::OkStatus();
}

Status RunTrainer() {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &go, nullptr);
  const char* const text = std::getenv("TF_CONFIG");
  const std::string tf_config = text == nullptr ? "" : text;
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::Parse(tf_config));
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  MR_ASSIGN_OR_RETURN(const WireModel model, MakeWireModel(absl::GetFlag(FLAGS_model),
                                                           absl::GetFlag(FLAGS_batch), tf_config));
  MR_ASSIGN_OR_RETURN(const auto session, BeginWireModel(model, server->target()));
  MR_ASSIGN_OR_RETURN(const auto step, PrepareWireStep(model, session.get()));
  for (int i = 0; i < kWarmUp; ++i) MR_RETURN_IF_ERROR(step->Run(model.batch).status());
  if (absl::GetFlag(FLAGS_seconds) > 0) {
    MR_RETURN_IF_ERROR(StepForSeconds(step.get(), model.batch, go));
    return session->Close();
  }
  const absl::Time begin = absl::Now();
  const int64_t steps = absl::GetFlag(FLAGS_steps);
  for (int64_t i = 0; i < steps; ++i) MR_RETURN_IF_ERROR(step->Run(model.batch).status());
  std::printf("%s%.1f\n", kWall, absl::ToDoubleMicroseconds(absl::Now() - begin));
  std::fflush(stdout);
  return session->Close();
}

// --- One run -------------------------------------------------------------------------------------

struct Usage {
  double switches = 0, cpu_us = 0;

  Usage operator-(const Usage& other) const {
    return {.switches = switches - other.switches, .cpu_us = cpu_us - other.cpu_us};
  }
};

// Of all children that have been waited for.
Usage OfChildren() {
  rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return {.switches = static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw),
          .cpu_us = us(usage.ru_utime) + us(usage.ru_stime)};
}

// Of a whole run, or of a step.
struct Cost {
  Usage ps, trainer;
  double wall_us = 0;
};

StatusOr<std::unique_ptr<Process>> StartTask(const std::string& role, const Work& work,
                                             int64_t steps, const std::string& tf_config) {
  ProcessOptions options;
  options.name = role;
  options.program = "/proc/self/exe";
  options.args = {absl::StrCat("--role=", role), absl::StrCat("--model=", work.model),
                  absl::StrCat("--batch=", work.batch), absl::StrCat("--steps=", steps),
                  absl::StrCat("--seconds=", absl::GetFlag(FLAGS_seconds))};
  options.env = {{"TF_CONFIG", tf_config}};
  return Process::Start(options);
}

// Unavailable when a port was taken by somebody else.
StatusOr<Cost> TrainOn(const ClusterPorts& ports, const Work& work, int64_t steps) {
  std::vector<std::unique_ptr<Process>> servers;
  for (int i = 0; i < work.num_ps; ++i) {
    MR_ASSIGN_OR_RETURN(servers.emplace_back(),
                        StartTask("ps", work, steps, TfConfig(ports, "ps", i)));
  }
  for (const auto& ps : servers) {
    const Status listens = ps->WaitForLine("listens on", kStart).status();
    if (listens.ok()) continue;
    return EndedBecausePortIsInUse(ps.get()) ? absl::UnavailableError(listens.message()) : listens;
  }
  const std::string tf_config = work.num_ps == 0 ? "" : TfConfig(ports, "chief", 0);
  MR_ASSIGN_OR_RETURN(const auto trainer, StartTask("trainer", work, steps, tf_config));
  // What a process has used is counted when it is waited for: the trainer first, alone.
  const Usage before = OfChildren();
  MR_ASSIGN_OR_RETURN(const int code, trainer->WaitForExit(kTrain));
  const Usage trained = OfChildren();
  for (const auto& ps : servers) {
    MR_RETURN_IF_ERROR(ps->Signal(SIGKILL));
    MR_RETURN_IF_ERROR(ps->WaitForExit(kStart).status());
  }
  if (EndedBecausePortIsInUse(trainer.get())) return absl::UnavailableError(trainer->output());
  const std::string line = trainer->FindLastLine(kWall).value_or("");
  Cost cost = {.ps = OfChildren() - trained, .trainer = trained - before};
  if (code != 0 || !absl::SimpleAtod(line.substr(line.find(' ') + 1), &cost.wall_us)) {
    return absl::InternalError(absl::StrCat("the trainer must end with 0 and print '", kWall,
                                            "', got ", code, " and\n", trainer->output()));
  }
  return cost;
}

StatusOr<Cost> Train(const Work& work, int64_t steps) {
  StatusOr<Cost> cost = absl::UnavailableError("not tried");
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3 && absl::IsUnavailable(cost.status()); ++tries) {
    ClusterPorts ports = FreeClusterPorts(work.num_ps + 1, 0, 0);
    ports.host = "127.0.0.1";
    ports.chief = {ports.ps.back()};
    ports.ps.pop_back();
    cost = TrainOn(ports, work, steps);
  }
  return cost;
}

// Steps per second of all trainers. Unavailable as TrainOn.
StatusOr<double> RateOn(const ClusterPorts& ports, const Work& work) {
  std::vector<std::unique_ptr<Process>> servers, trainers;
  const auto start = [&](std::vector<std::unique_ptr<Process>>* tasks, const std::string& role,
                         const std::string& tf_config, absl::string_view line) -> Status {
    MR_ASSIGN_OR_RETURN(tasks->emplace_back(), StartTask(role, work, 1, tf_config));
    Process* const task = tasks->back().get();
    const Status ready = task->WaitForLine(line, kStart).status();
    if (ready.ok()) return absl::OkStatus();
    return EndedBecausePortIsInUse(task) ? absl::UnavailableError(ready.message()) : ready;
  };
  for (int i = 0; i < work.num_ps; ++i) {
    MR_RETURN_IF_ERROR(start(&servers, "ps", TfConfig(ports, "ps", i), "listens on"));
  }
  // One after the other: each initialises the variables.
  const std::string chief = work.num_ps == 0 ? "" : TfConfig(ports, "chief", 0);
  MR_RETURN_IF_ERROR(start(&trainers, "trainer", chief, kReady));
  for (size_t i = 0; i < ports.worker.size(); ++i) {
    MR_RETURN_IF_ERROR(
        start(&trainers, "trainer", TfConfig(ports, "worker", static_cast<int>(i)), kReady));
  }
  for (const auto& trainer : trainers) MR_RETURN_IF_ERROR(trainer->Signal(SIGUSR1));
  double rate = 0;
  for (const auto& trainer : trainers) {
    MR_ASSIGN_OR_RETURN(const int code, trainer->WaitForExit(kTrain));
    const std::string line = trainer->FindLastLine(kRate).value_or("");
    double own = 0;
    if (code != 0 || !absl::SimpleAtod(line.substr(line.find(' ') + 1), &own)) {
      return absl::InternalError(absl::StrCat("a trainer must end with 0 and print '", kRate,
                                              "', got ", code, " and\n", trainer->output()));
    }
    rate += own;
  }
  for (const auto& ps : servers) {
    MR_RETURN_IF_ERROR(ps->Signal(SIGKILL));
    MR_RETURN_IF_ERROR(ps->WaitForExit(kStart).status());
  }
  return rate;
}

StatusOr<double> Rate(const Work& work) {
  StatusOr<double> rate = absl::UnavailableError("not tried");
  for (int tries = 0; tries < 3 && absl::IsUnavailable(rate.status()); ++tries) {
    ClusterPorts ports = FreeClusterPorts(work.num_ps + 1, 0, work.num_workers);
    ports.host = "127.0.0.1";
    ports.chief = {ports.ps.back()};
    ports.ps.pop_back();
    rate = RateOn(ports, work);
  }
  return rate;
}

StatusOr<Cost> CostOfStep(const Work& work) {
  MR_ASSIGN_OR_RETURN(const Cost once, Train(work, work.steps));
  MR_ASSIGN_OR_RETURN(const Cost twice, Train(work, 2 * work.steps));
  const double steps = static_cast<double>(work.steps);
  const auto per_step = [steps](const Usage& usage) -> Usage {
    return {.switches = usage.switches / steps, .cpu_us = usage.cpu_us / steps};
  };
  return Cost{.ps = per_step(twice.ps - once.ps),
              .trainer = per_step(twice.trainer - once.trainer),
              .wall_us = (once.wall_us + twice.wall_us) / (3 * steps)};
}

// --- Figures -------------------------------------------------------------------------------------

struct Figure {
  const char* name;
  double value;
};

std::vector<Figure> FiguresOf(const Work& work, const Cost& cost) {
  std::vector<Figure> figures;
  if (work.num_ps > 0) {
    figures = {{"ps_switches", cost.ps.switches}, {"ps_cpu_us", cost.ps.cpu_us}};
  }
  figures.insert(figures.end(), {{"trainer_switches", cost.trainer.switches},
                                 {"trainer_cpu_us", cost.trainer.cpu_us},
                                 {"switches", cost.ps.switches + cost.trainer.switches},
                                 {"cpu_us", cost.ps.cpu_us + cost.trainer.cpu_us},
                                 {"wall_us", cost.wall_us}});
  return figures;
}

void Print(const Work& work, absl::string_view what, const std::vector<Figure>& figures) {
  std::printf("%s%s, per step:", work.name().c_str(), std::string(what).c_str());
  for (const Figure& figure : figures) std::printf(" %s %.1f", figure.name, figure.value);
  std::printf("\n");
  for (const Figure& figure : figures) {
    std::printf("{\"bench\": \"wire_cost\", \"variant\": \"%s %s%s\", \"threads\": %u, ",
                work.name().c_str(), figure.name, std::string(what).c_str(),
                std::thread::hardware_concurrency());
    std::printf("\"value\": %.2f}\n", figure.value);
  }
  std::fflush(stdout);
}

// Figures are differences of two runs: on a busy machine the shorter one may cost more. A thread of
// one process may train without a switch; all else costs something.
void WarnOfNoise(const Work& work, const std::vector<Figure>& figures) {
  for (const Figure& figure : figures) {
    if (figure.value > 0) continue;
    if (work.num_ps == 0 && absl::string_view(figure.name) != "wall_us") continue;
    LogWarning(absl::StrCat("wire_cost_benchmark: ", figure.name, " of a step of ", work.name(),
                            " must be > 0, got ", figure.value, "; raise --steps above ",
                            work.steps, " or wait for a quiet machine"));
  }
}

Status PingPong() {
  const std::string program = absl::GetFlag(FLAGS_pingpong);
  if (program.empty()) return absl::OkStatus();
  ProcessOptions options;
  options.program = program;
  options.args = {absl::StrCat(absl::GetFlag(FLAGS_pingpong_messages)), "1"};
  MR_ASSIGN_OR_RETURN(const auto process, Process::Start(options));
  MR_ASSIGN_OR_RETURN(const int code, process->WaitForExit(kTrain));
  std::printf("%s\n", process->output().c_str());
  std::fflush(stdout);
  if (code == 0) return absl::OkStatus();
  return FailedPrecondition("--pingpong: ", program, " must end with 0, got ", code);
}

Status Measure(const Work& work, int rounds) {
  std::vector<std::vector<Figure>> all;
  for (int round = 0; round < rounds; ++round) {
    MR_RETURN_IF_ERROR(PingPong());
    if (absl::GetFlag(FLAGS_seconds) > 0) {
      MR_ASSIGN_OR_RETURN(const double rate, Rate(work));
      all.push_back({{"steps_per_s", rate}});
    } else {
      MR_ASSIGN_OR_RETURN(const Cost cost, CostOfStep(work));
      all.push_back(FiguresOf(work, cost));
    }
    Print(work, "", all.back());
    WarnOfNoise(work, all.back());
  }
  if (rounds == 1) return absl::OkStatus();
  std::vector<Figure> medians = all[0], worst = all[0];
  for (size_t i = 0; i < medians.size(); ++i) {
    std::vector<double> values;
    for (const std::vector<Figure>& figures : all) values.push_back(figures[i].value);
    std::sort(values.begin(), values.end());
    medians[i].value = values[values.size() / 2];
    const bool is_rate = absl::string_view(worst[i].name) == "steps_per_s";
    worst[i].value = is_rate ? values.front() : values.back();
  }
  Print(work, " median", medians);
  Print(work, " worst", worst);
  return absl::OkStatus();
}

Status CheckFlags() {
  for (const auto& [flag, value, least] :
       {std::tuple<const char*, int64_t, int64_t>{"batch", absl::GetFlag(FLAGS_batch), 0},
        {"ps", absl::GetFlag(FLAGS_ps), 0},
        {"steps", absl::GetFlag(FLAGS_steps), 0},
        {"rounds", absl::GetFlag(FLAGS_rounds), 1},
        {"pingpong_messages", absl::GetFlag(FLAGS_pingpong_messages), 1}}) {
    if (value < least) return InvalidArgument("--", flag, ": must be >= ", least, ", got ", value);
  }
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds >= 0 && seconds <= 3600)) {
    return InvalidArgument("--seconds: must be in [0, 3600], got ", seconds);
  }
  const int workers = absl::GetFlag(FLAGS_workers);
  if (workers < 0 || (workers > 0 && (seconds == 0 || absl::GetFlag(FLAGS_ps) == 0))) {
    return InvalidArgument("--workers: must be 0, or > 0 with --seconds and a ps, got ", workers);
  }
  const std::string role = absl::GetFlag(FLAGS_role);
  if (!role.empty() && role != "ps" && role != "trainer") {
    return InvalidArgument("--role: must be ps or trainer, got '", role, "'");
  }
  const std::string model = absl::GetFlag(FLAGS_model);
  if (WorkOf(model, 0, 0, 1).steps == 0) {
    return InvalidArgument("--model: must be linear, census, cnn or digits, got '", model, "'");
  }
  return absl::OkStatus();
}

Status Main() {
  MR_RETURN_IF_ERROR(CheckFlags());
  if (absl::GetFlag(FLAGS_role) == "ps") return RunPs();
  if (absl::GetFlag(FLAGS_role) == "trainer") return RunTrainer();
  if (absl::GetFlag(FLAGS_smoke)) {
    for (const auto& [model, steps] :
         {std::pair<const char*, int64_t>{"linear", 400}, {"census", 300}, {"cnn", 300}}) {
      MR_RETURN_IF_ERROR(Measure(WorkOf(model, 0, steps, 1), 1));
    }
    return absl::OkStatus();
  }
  Work work = WorkOf(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_batch),
                     absl::GetFlag(FLAGS_steps), absl::GetFlag(FLAGS_ps));
  work.num_workers = absl::GetFlag(FLAGS_workers);
  return Measure(work, absl::GetFlag(FLAGS_rounds));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Context switches, CPU and wall time of a training step on processes of their own.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
