// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/wire_load_work.h"

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "ops/training/training_ops.h"
#include "runtime/session.h"
#include "tests/cluster/step_times.h"

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/task:0";
constexpr absl::Duration kAwaitTasks = absl::Minutes(2);
// Links, measured kernels.
constexpr int kWarmUp = 100;
constexpr int kParams = 16;
// What a trainer sends back is this part of what it read: values stay what they are, and no
// kernel meets numbers that are slow.
constexpr float kBack = 1e-6f;

ProcessUse OwnUse() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return {.switches = static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw),
          .cpu_us = us(usage.ru_utime) + us(usage.ru_stime)};
}

// All digits: others take differences.
std::string TextOf(const ProcessUse& use) {
  return absl::StrCat(static_cast<int64_t>(use.switches), " ", static_cast<int64_t>(use.cpu_us));
}

void PrintLine(const std::string& line) {
  std::printf("%s%s\n", kLoadLine, line.c_str());
  std::fflush(stdout);
}

// This thread, and those that it starts from here on, leave SIGUSR1 to sigwait.
sigset_t BlockGo() {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &go, nullptr);
  return go;
}

void AwaitGo(const sigset_t& go) {
  int signal = 0;
  sigwait(&go, &signal);
}

// --- Sections ------------------------------------------------------------------------------------

struct SaidFigure {
  const char* name;
  const char* unit;
  double value;
};

class Sections {
 public:
  explicit Sections(const sigset_t& go) : go_(go) {}

  void Begin(absl::string_view name) {
    PrintLine(absl::StrCat("ready ", name));
    AwaitGo(go_);
    begun_ = absl::Now();
    use_ = OwnUse();
  }
  void End(int64_t steps, const StepTimes& times, const std::vector<SaidFigure>& figures = {}) {
    const ProcessUse use = OwnUse() - use_;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begun_);
    for (const SaidFigure& figure : figures) {
      PrintLine(absl::StrCat("figure ", figure.name, " ", figure.unit, " ", figure.value));
    }
    for (const std::string& line : times.ToLines()) PrintLine(absl::StrCat("times ", line));
    PrintLine(absl::StrCat("done ", steps, " ", seconds, " ", TextOf(use)));
  }

 private:
  const sigset_t go_;
  absl::Time begun_;
  ProcessUse use_;
};

struct Trainer {
  LoadWork work;
  std::string here;               // "/job:worker/task:0"
  std::string target, ps_target;  // its own master, and the ps'
  Sections* sections;
};

// --- Steps ---------------------------------------------------------------------------------------

Status RunStep(PreparedStep* step, absl::Span<const Tensor> feeds = {}) {
  return step->Run(feeds).status();
}

Status RunSteps(PreparedStep* step, int steps, absl::Span<const Tensor> feeds = {}) {
  for (int i = 0; i < steps; ++i) MR_RETURN_IF_ERROR(RunStep(step, feeds));
  return absl::OkStatus();
}

struct Stepped {
  double seconds = 0;
  StepTimes times;
};

// One step after the other until the time is over, and at least so many.
StatusOr<Stepped> StepFor(PreparedStep* step, double seconds, int64_t least,
                          absl::Span<const Tensor> feeds = {}) {
  Stepped stepped;
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + absl::Seconds(seconds);
  absl::Time before = begin;
  while (stepped.times.count() < least || before < end) {
    MR_RETURN_IF_ERROR(RunStep(step, feeds));
    const absl::Time after = absl::Now();
    stepped.times.Add(after - before);
    before = after;
  }
  stepped.seconds = absl::ToDoubleSeconds(before - begin);
  return stepped;
}

StatusOr<std::unique_ptr<Session>> OpenSession(const std::string& target, const Scope& graph,
                                               const std::vector<Operation>& initializers) {
  MR_RETURN_IF_ERROR(graph.status());
  SessionOptions options;
  options.target = target;
  options.creation_timeout = kAwaitTasks;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(graph));
  if (!initializers.empty()) MR_RETURN_IF_ERROR(session->Run({}, {}, initializers).status());
  return session;
}

// Where a tensor is used: its first element, which is copied, so that nobody keeps the rest.
Output FirstOf(const Scope& scope, const Output& tensor) {
  return Gather(scope, tensor, Const<int32_t>(scope, {0}));
}

Output Filled(const Scope& scope, const std::vector<int64_t>& shape) {
  std::vector<int32_t> dims;
  for (const int64_t dim : shape) dims.push_back(static_cast<int32_t>(dim));
  return Fill(scope, ConstVector<int32_t>(scope, dims), Const(scope, 1.0f));
}

int64_t NumFloats(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(float)); }

double GigabytesPerSecond(int64_t bytes, absl::Duration time) {
  return static_cast<double>(bytes) / absl::ToDoubleNanoseconds(time);
}

// --- Works ---------------------------------------------------------------------------------------

Status RunNull(const Trainer& trainer) {
  const Scope root;
  const Scope ps = root.WithDevice(kPs);
  const Operation there = NoOp(ps.WithName("there"));
  const Variable one = MakeVariable(ps.WithName("one"), Const(ps, 1.0f));
  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, {one.initializer}));
  MR_ASSIGN_OR_RETURN(const auto null, session->Prepare({}, {}, {there}));
  MR_ASSIGN_OR_RETURN(const auto fetch, session->Prepare({}, {one.value}, {}));
  for (const auto& [name, step] : {std::pair("null", null.get()), {"null_fetch", fetch.get()}}) {
    MR_RETURN_IF_ERROR(RunSteps(step, kWarmUp));
    trainer.sections->Begin(name);
    MR_ASSIGN_OR_RETURN(const Stepped stepped, StepFor(step, trainer.work.seconds, 10));
    trainer.sections->End(stepped.times.count(), stepped.times);
  }
  return session->Close();
}

StatusOr<absl::Duration> TimeOf(PreparedStep* step) {
  const absl::Time begin = absl::Now();
  MR_RETURN_IF_ERROR(RunStep(step));
  return absl::Now() - begin;
}

// The plan of the step is made before, and the link stands: what the first step has more than
// others is the memory of its tensor.
Status RunTensor(const Trainer& trainer) {
  const LoadWork& work = trainer.work;
  const Scope root;
  const Scope ps = root.WithDevice(kPs);
  const Scope here = root.WithDevice(trainer.here);
  // What is filled is a variable's: a constant tensor would be made once.
  const Variable value = MakeVariable(ps.WithName("value"), Const(ps, 1.0f));
  std::vector<Operation> initializers = {value.initializer};
  const int64_t num_floats = NumFloats(work.bytes);
  Output sent;
  if (work.is_filled) {
    sent = Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(num_floats)}), value.value);
  } else {
    const Variable kept = MakeVariable(ps.WithName("kept"), Filled(ps, {num_floats}));
    initializers.push_back(kept.initializer);
    sent = kept.value;
  }
  const Output first_of = FirstOf(here, sent);
  const Output first_there = FirstOf(ps, sent);
  const Operation there = NoOp(ps.WithName("there"));
  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, initializers));
  MR_ASSIGN_OR_RETURN(const auto null, session->Prepare({}, {}, {there}));
  MR_ASSIGN_OR_RETURN(const auto step, session->Prepare({}, {first_of}, {}));
  MR_RETURN_IF_ERROR(RunSteps(null.get(), kWarmUp));

  trainer.sections->Begin(work.is_filled ? "tensor_fill" : "tensor_read");
  MR_ASSIGN_OR_RETURN(const absl::Duration first, TimeOf(step.get()));
  MR_RETURN_IF_ERROR(RunSteps(step.get(), 8));
  MR_ASSIGN_OR_RETURN(const absl::Duration tenth, TimeOf(step.get()));
  MR_ASSIGN_OR_RETURN(const Stepped stepped, StepFor(step.get(), work.seconds, 5));
  const absl::Duration median = stepped.times.Percentile(50);
  trainer.sections->End(10 + stepped.times.count(), stepped.times,
                        {{"first", "us", absl::ToDoubleMicroseconds(first)},
                         {"tenth", "us", absl::ToDoubleMicroseconds(tenth)},
                         {"first_to_tenth", "times", absl::FDivDuration(first, tenth)},
                         {"rate", "GB/s", GigabytesPerSecond(work.bytes, median)}});
  if (work.is_filled) {
    MR_ASSIGN_OR_RETURN(const auto without, session->Prepare({}, {first_there}, {}));
    MR_RETURN_IF_ERROR(RunSteps(without.get(), 10));
    trainer.sections->Begin("tensor_fill_alone");
    MR_ASSIGN_OR_RETURN(const Stepped filled, StepFor(without.get(), work.seconds / 4, 5));
    trainer.sections->End(filled.times.count(), filled.times);
  }
  return session->Close();
}

Status RunParams(const Trainer& trainer) {
  const LoadWork& work = trainer.work;
  const Scope root;
  const Scope ps = root.WithDevice(kPs);
  const Scope here = root.WithDevice(trainer.here);
  const Output rate = Const(ps, 1e-3f);
  const Output back = Const(here, kBack);
  std::vector<Operation> initializers;
  std::vector<FetchName> updates;
  for (int i = 0; i < kParams; ++i) {
    const Variable param = MakeVariable(ps.WithName(absl::StrCat("param", i)),
                                        Filled(ps, {NumFloats(work.bytes) / kParams}));
    initializers.push_back(param.initializer);
    updates.push_back(
        ResourceApplyGradientDescent(ps, param.handle, rate, Mul(here, param.value, back)));
  }
  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, initializers));
  MR_ASSIGN_OR_RETURN(const auto step, session->Prepare({}, {}, updates));
  MR_RETURN_IF_ERROR(RunSteps(step.get(), 3));
  trainer.sections->Begin("params");
  MR_ASSIGN_OR_RETURN(const Stepped stepped, StepFor(step.get(), work.seconds, 3));
  const int64_t bytes = 2 * work.bytes * stepped.times.count();
  trainer.sections->End(
      stepped.times.count(), stepped.times,
      {{"rate", "GB/s", GigabytesPerSecond(bytes, absl::Seconds(stepped.seconds))}});
  return session->Close();
}

Status RunRows(const Trainer& trainer) {
  const LoadWork& work = trainer.work;
  const Scope root;
  const Scope ps = root.WithDevice(kPs);
  const Scope here = root.WithDevice(trainer.here);
  const Output back = Const(here, kBack);
  std::vector<Operation> initializers;
  std::vector<FetchName> ids, updates;
  for (int64_t i = 0; i < work.tables; ++i) {
    const Variable table = MakeVariable(ps.WithName(absl::StrCat("table", i)),
                                        Filled(ps, {work.table_rows, work.width}));
    initializers.push_back(table.initializer);
    const Output some =
        Placeholder(here.WithName(absl::StrCat("ids", i)), DT_INT64, PartialShape{work.rows});
    const Output rows = ResourceGather(ps, table.handle, some, DT_FLOAT);
    ids.push_back(some);
    updates.push_back(ResourceScatterSub(ps, table.handle, some, Mul(here, rows, back)));
  }
  // All over the table, and none twice while 7919 and its rows have no common factor.
  Tensor some = *Tensor::Zeros(DT_INT64, Shape{work.rows});
  const absl::Span<int64_t> values = some.mutable_flat<int64_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int64_t>(i) * 7919 % work.table_rows;
  }
  const std::vector<Tensor> fed(ids.size(), some);

  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, initializers));
  MR_ASSIGN_OR_RETURN(const auto step, session->Prepare(ids, {}, updates));
  MR_RETURN_IF_ERROR(RunSteps(step.get(), 10, fed));
  trainer.sections->Begin("rows");
  MR_ASSIGN_OR_RETURN(const Stepped stepped, StepFor(step.get(), work.seconds, 5, fed));
  const auto rows = static_cast<double>(work.tables * work.rows * stepped.times.count());
  trainer.sections->End(stepped.times.count(), stepped.times,
                        {{"rate", "Mrows/s", rows / stepped.seconds / 1e6}});
  return session->Close();
}

// All steps at once, each again and again.
StatusOr<StepTimes> StepTogether(absl::Span<const std::unique_ptr<PreparedStep>> steps,
                                 double seconds) {
  std::vector<StatusOr<Stepped>> stepped(steps.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < steps.size(); ++i) {
    threads.emplace_back([step = steps[i].get(), result = &stepped[i], seconds] {
      *result = StepFor(step, seconds, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  StepTimes times;
  for (const StatusOr<Stepped>& one : stepped) {
    MR_RETURN_IF_ERROR(one.status());
    times.Add(one->times);
  }
  return times;
}

Status RunSessions(const Trainer& trainer) {
  const Scope root;
  const Operation there = NoOp(root.WithDevice(kPs).WithName("there"));
  const std::string target = trainer.work.clients ? trainer.ps_target : trainer.target;
  // What belongs to the tasks, whatever the number of sessions.
  MR_ASSIGN_OR_RETURN(const auto before, OpenSession(target, root, {}));
  MR_ASSIGN_OR_RETURN(const auto warm, before->Prepare({}, {}, {there}));
  MR_RETURN_IF_ERROR(RunSteps(warm.get(), kWarmUp));

  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<PreparedStep>> steps;
  StepTimes openings;
  trainer.sections->Begin("sessions_open");
  for (int64_t i = 0; i < trainer.work.sessions; ++i) {
    const absl::Time begin = absl::Now();
    MR_ASSIGN_OR_RETURN(sessions.emplace_back(), OpenSession(target, root, {}));
    MR_ASSIGN_OR_RETURN(steps.emplace_back(), sessions.back()->Prepare({}, {}, {there}));
    MR_RETURN_IF_ERROR(RunStep(steps.back().get()));
    openings.Add(absl::Now() - begin);
  }
  trainer.sections->End(trainer.work.sessions, openings);
  trainer.sections->Begin("sessions");
  MR_ASSIGN_OR_RETURN(const StepTimes times, StepTogether(steps, trainer.work.seconds));
  trainer.sections->End(times.count(), times);
  for (const auto& session : sessions) MR_RETURN_IF_ERROR(session->Close());
  return before->Close();
}

// Makes one step after the other, in a thread of its own, until it is stopped: one at least.
class Mover {
 public:
  explicit Mover(PreparedStep* step)
      : thread_([this, step] {
          do {
            const absl::Time begin = absl::Now();
            status_ = RunStep(step);
            times_.Add(absl::Now() - begin);
          } while (status_.ok() && !stop_.load(std::memory_order_relaxed));
        }) {}
  ~Mover() { Stop().IgnoreError(); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // What its steps came to.
  Status Stop() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  // When it has stopped.
  const StepTimes& times() const { return times_; }

 private:
  std::atomic<bool> stop_{false};  // relaxed: what the thread made is read after its end
  Status status_;                  // of the thread, until it ends; the times too
  StepTimes times_;
  std::thread thread_;  // last: it uses the others
};

// Null steps of one session while another one moves a variable of `owner` to `taker`, which is
// there for that long only.
Status RunBesideMoves(const Trainer& trainer, PreparedStep* null, const char* section,
                      const std::string& owner, const std::string& taker) {
  const Scope root;
  const Scope from = root.WithDevice(owner);
  const Variable large =
      MakeVariable(from.WithName(section), Filled(from, {NumFloats(trainer.work.bytes)}));
  const Output moved = FirstOf(root.WithDevice(taker), large.value);
  const Operation drop = DestroyResourceOp(from, large.handle);
  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, {large.initializer}));
  {
    MR_ASSIGN_OR_RETURN(const auto move, session->Prepare({}, {moved}, {}));
    MR_RETURN_IF_ERROR(RunSteps(move.get(), 1));
    Mover mover(move.get());
    trainer.sections->Begin(section);
    MR_ASSIGN_OR_RETURN(const Stepped stepped, StepFor(null, trainer.work.seconds, 10));
    MR_RETURN_IF_ERROR(mover.Stop());
    const absl::Duration median = mover.times().Percentile(50);
    trainer.sections->End(stepped.times.count(), stepped.times,
                          {{"moved", "GB/s", GigabytesPerSecond(trainer.work.bytes, median)}});
  }
  MR_RETURN_IF_ERROR(session->Run({}, {}, {drop}).status());
  return session->Close();
}

Status RunBeside(const Trainer& trainer) {
  const Scope root;
  const Operation there = NoOp(root.WithDevice(kPs).WithName("there"));
  MR_ASSIGN_OR_RETURN(const auto session, OpenSession(trainer.target, root, {}));
  MR_ASSIGN_OR_RETURN(const auto null, session->Prepare({}, {}, {there}));
  MR_RETURN_IF_ERROR(RunSteps(null.get(), kWarmUp));
  trainer.sections->Begin("beside_nothing");
  MR_ASSIGN_OR_RETURN(const Stepped alone, StepFor(null.get(), trainer.work.seconds, 10));
  trainer.sections->End(alone.times.count(), alone.times);
  MR_RETURN_IF_ERROR(RunBesideMoves(trainer, null.get(), "beside_move_from_ps", kPs, trainer.here));
  MR_RETURN_IF_ERROR(RunBesideMoves(trainer, null.get(), "beside_move_to_ps", trainer.here, kPs));
  return session->Close();
}

// What is measured is to travel in each step, also where it does not change.
ServerOptions OptionsOfTasks() {
  ServerOptions options;
  options.limits.max_kept_bytes = 0;
  return options;
}

}  // namespace

Status ServeLoad() {
  const sigset_t go = BlockGo();
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster, OptionsOfTasks()));
  std::thread([go] {
    for (;;) {
      AwaitGo(go);
      PrintLine(absl::StrCat("used ", TextOf(OwnUse())));
    }
  }).detach();  // it ends with the process, which is killed
  return server->Join();
}

Status TrainLoad(const LoadWork& work) {
  Sections sections(BlockGo());
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster, OptionsOfTasks()));
  MR_ASSIGN_OR_RETURN(const std::string ps, cluster.cluster().address("ps", 0));
  const Trainer trainer = {.work = work,
                           .here = cluster.task_device(),
                           .target = server->target(),
                           .ps_target = absl::StrCat("grpc://", ps),
                           .sections = &sections};
  struct Named {
    const char* work;
    Status (*run)(const Trainer&);
  };
  for (const Named& named : {Named{"null", RunNull},
                             {"tensor", RunTensor},
                             {"params", RunParams},
                             {"rows", RunRows},
                             {"sessions", RunSessions},
                             {"beside", RunBeside}}) {
    if (work.work != named.work) continue;
    MR_RETURN_IF_ERROR(named.run(trainer));
    PrintLine("over");
    return absl::OkStatus();
  }
  return InvalidArgument("TrainLoad: work must be null, tensor, params, rows, sessions or beside, ",
                         "got '", work.work, "'");
}

}  // namespace millrace
