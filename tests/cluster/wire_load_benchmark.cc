// SPDX-License-Identifier: Apache-2.0
//
// What whole steps between a ps and trainers cost over the wire that MILLRACE_WIRE chooses, each
// task being a process of its own on this host.
//
//   bazel run -c opt //tests/cluster:wire_load_benchmark -- --work=null
//   MILLRACE_WIRE=grpc ... -- --work=tensor,params,rows --rounds=5 --peer='DIR/peer.sh'
//   ... -- --work=all
//
// Works, and what is to be reached on one host (in brackets: over gRPC):
//
//   null       a step of one NoOp on the ps, and one whose scalar is fetched: us, switches, CPU.
//              30 us, 40 us of CPU of the ps
//   tensor     a float tensor goes from the ps to the trainer: a variable that nobody changes
//              (tensor_read), and one that Fill makes in each step (tensor_fill; what Fill takes
//              without the wire is tensor_fill_alone). Time of the first step, of the tenth, and
//              the median of later ones, of which the rate is. --bytes=N; else 100 KB, 4 and
//              64 MB, each with new processes
//   params     64 MB of variables (--bytes) are read, and as much is sent back and subtracted
//              (ApplyGradientDescent): two trainers at once, bytes of both directions for each.
//              What is sent back is what was read times a number; the step has that product, too.
//              1.2 GB/s
//   rows       4,096 rows of 64 floats of a table of a million are looked up, and as many are sent
//              back and subtracted (ScatterSub). 4.5 million rows/s (2.5)
//   tables     the same of 26 tables of 20,000 rows, 1,000 of each in a step
//   sessions   --sessions=256 of the masters of --trainers=4 processes; each makes null steps in
//              a thread of its own, all at once. Times of their steps, CPU and memory of the ps.
//              1 MiB a session, p99 within five p50
//   clients    the same; the sessions are the ps' own, used over gRPC
//   beside     null steps alone, and while another session of the trainer moves 1 GB (--bytes)
//              from the ps, and to it: p99 within twice that alone
//
// Each section lasts --seconds. CPU and switches are the kernel's count of all processes (ps_: of
// the ps alone), per step.
//
// With --peer a round begins with that command (of the shell), whose output is passed on: compare
// within one round only. What it leaves running is killed:
//
//   --peer='(sleep 99 | DIR/grpc_bench server 18555 generic) & sleep 1;
//           DIR/grpc_bench qps 18555 1 64 64 generic'
//
// Printed for each round, and for the medians and worst of several: a sentence, and a line
// {"bench": "wire_load", "variant": "null step", "threads": ..., "wire": "unix", "unit": "us",
// "value": ...} per figure. --smoke makes each work once, with small tensors and few sessions.
//
// Memory: about 4 GB by default (beside).

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "distributed/cluster/link_environment.h"
#include "distributed/cluster/server_limits.h"
#include "tests/cluster/process.h"
#include "tests/cluster/process_state.h"
#include "tests/cluster/step_times.h"
#include "tests/cluster/wire_load_work.h"

ABSL_FLAG(
    std::string, work, "null",
    "null, tensor, params, rows, tables, sessions, clients, beside: some with commas, or all");
ABSL_FLAG(double, seconds, 0, "of a section; 0: 2 to 6, by the work");
ABSL_FLAG(int64_t, bytes, 0, "of tensor, params and beside, a multiple of 64; 0: the work's own");
ABSL_FLAG(int64_t, sessions, 256, "of sessions and clients");
ABSL_FLAG(int, trainers, 4, "processes that have them");
ABSL_FLAG(int, rounds, 1, "how often");
ABSL_FLAG(std::string, peer, "", "a command to run before each round; empty: none");
ABSL_FLAG(bool, smoke, false, "each work once, small");
// What this program tells those that it starts.
ABSL_FLAG(std::string, role, "", "of a process that this program starts: ps or trainer");
ABSL_FLAG(bool, filled, false, "of a trainer: LoadWork::is_filled");
ABSL_FLAG(bool, clients, false, "of a trainer: LoadWork::clients");
ABSL_FLAG(int64_t, tables, 0, "of a trainer: LoadWork::tables");
ABSL_FLAG(int64_t, rows, 0, "of a trainer: LoadWork::rows");
ABSL_FLAG(int64_t, table_rows, 0, "of a trainer: LoadWork::table_rows");
ABSL_FLAG(int64_t, width, 0, "of a trainer: LoadWork::width");

namespace millrace {
namespace {

constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kGuard = absl::Minutes(10);
constexpr const char* kWorks[] = {"null",   "tensor",   "params",  "rows",
                                  "tables", "sessions", "clients", "beside"};
// Sizes are int32 in the graph.
constexpr int64_t kMaxBytes = (int64_t{1} << 33) - 64;

// --- What is run ---------------------------------------------------------------------------------

// One cluster: a ps, and trainers that do the same.
struct Run {
  LoadWork work;  // of each trainer; sessions: of all together
  int trainers = 1;
  std::string size = "";  // after the names of sections

  std::string NameOf(absl::string_view section) const {
    // Works that are one for trainers.
    std::string name(section);
    if (work.tables > 1) name = "tables";
    if (work.clients) name = absl::StrReplaceAll(section, {{"sessions", "clients"}});
    return size.empty() ? name : absl::StrCat(name, " ", size);
  }
};

std::string SizeText(int64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, "M");
  if (bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, "K");
  return absl::StrCat(bytes, "B");
}

struct Sizes {
  double seconds = 0;  // 0: the work's own
  std::vector<int64_t> tensors = {100 << 10, 4 << 20, 64 << 20};
  int64_t params = 64 << 20, moved = int64_t{1} << 30;
  int64_t table_rows = 1'000'000, rows = 4096, rows_of_each = 1000, rows_of_tables = 20'000;
  int64_t sessions = 256;
  int trainers = 4;
};

Sizes SmallSizes() {
  Sizes sizes;
  sizes.seconds = 0.05;
  sizes.tensors = {100 << 10};
  sizes.params = 1 << 20;
  sizes.moved = 8 << 20;
  sizes.table_rows = sizes.rows_of_tables = 10'000;
  sizes.rows = 512;
  sizes.rows_of_each = 32;
  sizes.sessions = 9;  // one trainer has more
  sizes.trainers = 2;
  return sizes;
}

Sizes SizesOfFlags() {
  Sizes sizes;
  sizes.seconds = absl::GetFlag(FLAGS_seconds);
  sizes.sessions = absl::GetFlag(FLAGS_sessions);
  sizes.trainers = absl::GetFlag(FLAGS_trainers);
  if (const int64_t bytes = absl::GetFlag(FLAGS_bytes); bytes > 0) {
    sizes.tensors = {bytes};
    sizes.params = sizes.moved = bytes;
  }
  return sizes;
}

std::vector<Run> RunsOf(const std::string& work, const Sizes& sizes) {
  const auto seconds = [&sizes](double own) { return sizes.seconds > 0 ? sizes.seconds : own; };
  std::vector<Run> runs;
  if (work == "null") {
    runs.push_back({.work = {.work = work, .seconds = seconds(5)}});
  } else if (work == "tensor") {
    for (const bool is_filled : {false, true}) {
      for (const int64_t bytes : sizes.tensors) {
        runs.push_back(
            {.work = {.work = work, .seconds = seconds(2), .bytes = bytes, .is_filled = is_filled},
             .size = SizeText(bytes)});
      }
    }
  } else if (work == "params") {
    runs.push_back({.work = {.work = work, .seconds = seconds(6), .bytes = sizes.params},
                    .trainers = 2,
                    .size = SizeText(sizes.params)});
  } else if (work == "rows" || work == "tables") {
    const bool one = work == "rows";
    LoadWork rows = {.work = "rows", .seconds = seconds(5)};
    rows.tables = one ? 1 : 26;
    rows.rows = one ? sizes.rows : sizes.rows_of_each;
    rows.table_rows = one ? sizes.table_rows : sizes.rows_of_tables;
    rows.width = 64;
    const std::string size = absl::StrCat(rows.rows, "x", rows.width);
    runs.push_back({.work = rows, .size = one ? size : absl::StrCat(rows.tables, "x", size)});
  } else if (work == "sessions" || work == "clients") {
    LoadWork sessions = {.work = "sessions", .seconds = seconds(6)};
    sessions.sessions = sizes.sessions;
    sessions.clients = work == "clients";
    runs.push_back({.work = sessions,
                    .trainers = static_cast<int>(std::min<int64_t>(sizes.trainers, sizes.sessions)),
                    .size = absl::StrCat(sizes.sessions)});
  } else {
    runs.push_back({.work = {.work = work, .seconds = seconds(4), .bytes = sizes.moved},
                    .size = SizeText(sizes.moved)});
  }
  return runs;
}

// --- One cluster ---------------------------------------------------------------------------------

struct Figure {
  std::string name, unit;
  double value = 0;
};

// Of all trainers together.
struct Section {
  std::string name;
  int64_t steps = 0;
  double seconds = 0;  // of a trainer
  StepTimes times;
  ProcessUse trainers, ps;
  int64_t ps_before = 0, ps_after = 0;  // bytes of its memory
  std::vector<Figure> figures;          // that trainers gave: their means
};

struct Task {
  std::unique_ptr<Process> process;
  size_t from = 0;  // its next line
};

StatusOr<Task> StartTask(const std::string& role, const LoadWork& work,
                         const std::string& tf_config) {
  ProcessOptions options;
  options.name = role;
  options.program = "/proc/self/exe";
  options.args = {absl::StrCat("--role=", role),
                  absl::StrCat("--work=", work.work),
                  absl::StrCat("--seconds=", work.seconds),
                  absl::StrCat("--bytes=", work.bytes),
                  absl::StrCat("--filled=", work.is_filled ? "true" : "false"),
                  absl::StrCat("--clients=", work.clients ? "true" : "false"),
                  absl::StrCat("--tables=", work.tables),
                  absl::StrCat("--rows=", work.rows),
                  absl::StrCat("--table_rows=", work.table_rows),
                  absl::StrCat("--width=", work.width),
                  absl::StrCat("--sessions=", work.sessions)};
  options.env = {{"TF_CONFIG", tf_config}};
  Task task;
  MR_ASSIGN_OR_RETURN(task.process, Process::Start(options));
  return task;
}

LoadWork WorkOfFlags() {
  LoadWork work = {.work = absl::GetFlag(FLAGS_work),
                   .seconds = absl::GetFlag(FLAGS_seconds),
                   .bytes = absl::GetFlag(FLAGS_bytes),
                   .is_filled = absl::GetFlag(FLAGS_filled)};
  work.tables = absl::GetFlag(FLAGS_tables);
  work.rows = absl::GetFlag(FLAGS_rows);
  work.table_rows = absl::GetFlag(FLAGS_table_rows);
  work.width = absl::GetFlag(FLAGS_width);
  work.sessions = absl::GetFlag(FLAGS_sessions);
  work.clients = absl::GetFlag(FLAGS_clients);
  return work;
}

// The words of a task's next line to this program. Unavailable when somebody else has its port.
StatusOr<std::vector<std::string>> NextWords(Task* task) {
  const StatusOr<std::string> line = task->process->WaitForLine(kLoadLine, kGuard, &task->from);
  if (!line.ok()) {
    return EndedBecausePortIsInUse(task->process.get())
               ? absl::UnavailableError(line.status().message())
               : line.status();
  }
  const std::string text = line->substr(line->find(kLoadLine) + std::string(kLoadLine).size());
  return std::vector<std::string>(absl::StrSplit(text, ' '));
}

Status BadLine(const Task& task, const std::vector<std::string>& words) {
  return Internal(task.process->name(), ": must print lines as wire_load_work.h says, got '",
                  words[0], "' with ", words.size() - 1, " words");
}

StatusOr<ProcessUse> UseOf(Task* ps) {
  MR_RETURN_IF_ERROR(ps->process->Signal(SIGUSR1));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> words, NextWords(ps));
  ProcessUse use;
  if (words.size() != 3 || words[0] != "used" || !absl::SimpleAtod(words[1], &use.switches) ||
      !absl::SimpleAtod(words[2], &use.cpu_us)) {
    return BadLine(*ps, words);
  }
  return use;
}

// Adds what one of `num` trainers says to the section, until it is ready for one or has ended it.
// False when no section follows.
StatusOr<bool> Listen(Task* trainer, double num, Section* section) {
  for (;;) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> words, NextWords(trainer));
    double value = 0, seconds = 0;
    int64_t steps = 0;
    ProcessUse use;
    if (words.size() == 1 && words[0] == "over") return false;
    if (words.size() == 2 && words[0] == "ready") {
      section->name = words[1];
      return true;
    }
    if (words.size() == 2 && words[0] == "times") {
      MR_RETURN_IF_ERROR(section->times.AddLine(words[1]));
    } else if (words.size() == 4 && words[0] == "figure" && absl::SimpleAtod(words[3], &value)) {
      auto figure = std::find_if(section->figures.begin(), section->figures.end(),
                                 [&words](const Figure& f) { return f.name == words[1]; });
      if (figure == section->figures.end()) {
        figure = section->figures.insert(figure, {.name = words[1], .unit = words[2]});
      }
      figure->value += value / num;
    } else if (words.size() == 5 && words[0] == "done" && absl::SimpleAtoi(words[1], &steps) &&
               absl::SimpleAtod(words[2], &seconds) && absl::SimpleAtod(words[3], &use.switches) &&
               absl::SimpleAtod(words[4], &use.cpu_us)) {
      section->steps += steps;
      section->seconds += seconds / num;
      section->trainers.switches += use.switches;
      section->trainers.cpu_us += use.cpu_us;
      return true;
    } else {
      return BadLine(*trainer, words);
    }
  }
}

// False when there is no other one.
StatusOr<bool> RunSection(Task* ps, std::vector<Task>* trainers, Section* section) {
  const auto num = static_cast<double>(trainers->size());
  for (Task& trainer : *trainers) {
    MR_ASSIGN_OR_RETURN(const bool follows, Listen(&trainer, num, section));
    if (!follows) return false;
  }
  section->ps_before = RssBytes(ps->process->pid());
  MR_ASSIGN_OR_RETURN(const ProcessUse before, UseOf(ps));
  for (Task& trainer : *trainers) MR_RETURN_IF_ERROR(trainer.process->Signal(SIGUSR1));
  for (Task& trainer : *trainers) {
    MR_RETURN_IF_ERROR(Listen(&trainer, num, section).status());
  }
  MR_ASSIGN_OR_RETURN(const ProcessUse after, UseOf(ps));
  section->ps = after - before;
  section->ps_after = RssBytes(ps->process->pid());
  return true;
}

// Unavailable when a port was taken by somebody else.
StatusOr<std::vector<Section>> RunOn(const ClusterPorts& ports, const Run& run) {
  MR_ASSIGN_OR_RETURN(Task ps, StartTask("ps", run.work, TfConfig(ports, "ps", 0)));
  const Status listens = ps.process->WaitForLine("listens on", kStart).status();
  if (!listens.ok()) {
    return EndedBecausePortIsInUse(ps.process.get()) ? absl::UnavailableError(listens.message())
                                                     : listens;
  }
  std::vector<Task> trainers;
  for (int i = 0; i < run.trainers; ++i) {
    LoadWork work = run.work;
    // The first ones have one more.
    work.sessions = (run.work.sessions + run.trainers - 1 - i) / run.trainers;
    MR_ASSIGN_OR_RETURN(trainers.emplace_back(),
                        StartTask("trainer", work, TfConfig(ports, "worker", i)));
  }
  std::vector<Section> sections;
  for (;;) {
    Section section;
    MR_ASSIGN_OR_RETURN(const bool ran, RunSection(&ps, &trainers, &section));
    if (!ran) break;
    sections.push_back(std::move(section));
  }
  for (const Task& trainer : trainers) {
    MR_ASSIGN_OR_RETURN(const int code, trainer.process->WaitForExit(kGuard));
    if (code != 0) {
      return Internal("a trainer must end with 0, got ", code, " and\n", trainer.process->output());
    }
  }
  MR_RETURN_IF_ERROR(ps.process->Signal(SIGKILL));
  MR_RETURN_IF_ERROR(ps.process->WaitForExit(kStart).status());
  return sections;
}

StatusOr<std::vector<Section>> RunOnFreePorts(const Run& run) {
  StatusOr<std::vector<Section>> sections = absl::UnavailableError("not tried");
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3 && absl::IsUnavailable(sections.status()); ++tries) {
    ClusterPorts ports = FreeClusterPorts(1, 0, run.trainers);
    ports.host = "127.0.0.1";
    sections = RunOn(ports, run);
  }
  return sections;
}

// --- Figures -------------------------------------------------------------------------------------

constexpr char kRateUnits[] = "GB/s Mrows/s steps/s";  // more is better

// `alone`: the first section of the same run.
std::vector<Figure> FiguresOf(const Run& run, const Section& section, const Section& alone) {
  const auto steps = static_cast<double>(section.steps);
  const auto us = [](const StepTimes& times, double percent) {
    return absl::ToDoubleMicroseconds(times.Percentile(percent));
  };
  std::vector<Figure> figures;
  if (run.work.work == "null") figures.push_back({"step", "us", 1e6 * section.seconds / steps});
  const double p50 = us(section.times, 50), p99 = us(section.times, 99);
  figures.insert(figures.end(), {{"p50", "us", p50}, {"p99", "us", p99}});
  figures.insert(figures.end(), section.figures.begin(), section.figures.end());
  if (run.work.work == "beside") {
    if (section.name == alone.name) return figures;
    figures.push_back({"p50_ratio", "times", p50 / us(alone.times, 50)});
    figures.push_back({"p99_ratio", "times", p99 / us(alone.times, 99)});
    return figures;
  }
  if (run.work.work == "sessions") {
    const auto grown = static_cast<double>(section.ps_after - alone.ps_before);
    figures.push_back({"ps_memory", "KiB", grown / 1024 / static_cast<double>(run.work.sessions)});
    if (section.name != alone.name) {
      figures.push_back({"p99_to_p50", "times", p99 / p50});
      figures.push_back({"rate", "steps/s", steps / section.seconds});
    }
  }
  const ProcessUse& ps = section.ps;
  figures.insert(figures.end(),
                 {{"switches", "switches", (ps.switches + section.trainers.switches) / steps},
                  {"cpu", "us", (ps.cpu_us + section.trainers.cpu_us) / steps},
                  {"ps_switches", "switches", ps.switches / steps},
                  {"ps_cpu", "us", ps.cpu_us / steps}});
  return figures;
}

// As the tasks see it, too: they have the same environment.
StatusOr<std::string> WireName() {
  MR_ASSIGN_OR_RETURN(const bool is_unix, UnixLinksOfEnvironment());
  if (!is_unix) return std::string("grpc");
  MR_ASSIGN_OR_RETURN(const int64_t shared,
                      LinkSharedBytesOfEnvironment(ServerLimits().max_link_shared_bytes));
  return std::string(shared > 0 ? "unix+shared" : "unix");
}

// Of one section.
struct Result {
  std::string name;
  std::vector<Figure> figures;
};

void Print(const std::string& wire, const Result& result, const char* which) {
  std::printf("%s%s over %s:", result.name.c_str(), which, wire.c_str());
  const char* between = "";
  for (const Figure& figure : result.figures) {
    std::printf("%s %s %.4g %s", between, figure.name.c_str(), figure.value, figure.unit.c_str());
    between = ",";
  }
  std::printf("\n");
  for (const Figure& figure : result.figures) {
    std::printf("{\"bench\": \"wire_load\", \"variant\": \"%s %s%s\", \"threads\": %u, ",
                result.name.c_str(), figure.name.c_str(), which,
                std::thread::hardware_concurrency());
    std::printf("\"wire\": \"%s\", \"unit\": \"%s\", \"value\": %.6g}\n", wire.c_str(),
                figure.unit.c_str(), figure.value);
  }
  std::fflush(stdout);
}

Status RunPeer() {
  const std::string command = absl::GetFlag(FLAGS_peer);
  if (command.empty()) return absl::OkStatus();
  ProcessOptions options;
  options.name = "the peer";
  options.program = "/bin/sh";
  options.args = {"-c", command};
  MR_ASSIGN_OR_RETURN(const auto process, Process::Start(options));
  MR_ASSIGN_OR_RETURN(const int code, process->WaitForExit(kGuard));
  std::printf("%s\n", process->output().c_str());
  std::fflush(stdout);
  if (code == 0) return absl::OkStatus();
  return FailedPrecondition("--peer: '", command, "' must end with 0, got ", code);
}

// All sections of one round.
StatusOr<std::vector<Result>> RunRound(const std::vector<std::string>& works, const Sizes& sizes,
                                       const std::string& wire) {
  std::vector<Result> results;
  for (const std::string& work : works) {
    for (const Run& run : RunsOf(work, sizes)) {
      MR_ASSIGN_OR_RETURN(const std::vector<Section> sections, RunOnFreePorts(run));
      for (const Section& section : sections) {
        results.push_back({run.NameOf(section.name), FiguresOf(run, section, sections[0])});
        Print(wire, results.back(), "");
      }
    }
  }
  return results;
}

// Of each figure its median, or its worst value.
std::vector<Result> OfRounds(const std::vector<std::vector<Result>>& rounds, bool worst) {
  std::vector<Result> results = rounds[0];
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t j = 0; j < results[i].figures.size(); ++j) {
      Figure& figure = results[i].figures[j];
      std::vector<double> values;
      for (const std::vector<Result>& round : rounds) values.push_back(round[i].figures[j].value);
      std::sort(values.begin(), values.end());
      const bool is_rate = absl::StrContains(kRateUnits, figure.unit);
      figure.value = !worst ? values[values.size() / 2] : is_rate ? values.front() : values.back();
    }
  }
  return results;
}

Status Measure(const std::vector<std::string>& works, const Sizes& sizes, int num_rounds) {
  MR_ASSIGN_OR_RETURN(const std::string wire, WireName());
  std::vector<std::vector<Result>> rounds;
  for (int round = 0; round < num_rounds; ++round) {
    MR_RETURN_IF_ERROR(RunPeer());
    MR_ASSIGN_OR_RETURN(rounds.emplace_back(), RunRound(works, sizes, wire));
  }
  if (num_rounds == 1) return absl::OkStatus();
  const std::vector<Result> medians = OfRounds(rounds, false), worst = OfRounds(rounds, true);
  for (size_t i = 0; i < medians.size(); ++i) {
    Print(wire, medians[i], " median");
    Print(wire, worst[i], " worst");
  }
  return absl::OkStatus();
}

// --- Flags ---------------------------------------------------------------------------------------

StatusOr<std::vector<std::string>> WorksOf(const std::string& names) {
  const std::vector<std::string> all(std::begin(kWorks), std::end(kWorks));
  if (names == "all") return all;
  std::vector<std::string> works = absl::StrSplit(names, ',');
  for (const std::string& work : works) {
    if (std::find(all.begin(), all.end(), work) != all.end()) continue;
    return InvalidArgument("--work: must be all or some of ", absl::StrJoin(all, ","), ", got '",
                           work, "'");
  }
  return works;
}

Status CheckFlags() {
  struct Case {
    const char* flag;
    int64_t value, least, most;
  };
  for (const Case& c : {Case{"sessions", absl::GetFlag(FLAGS_sessions), 1, 10'000},
                        Case{"trainers", absl::GetFlag(FLAGS_trainers), 1, 100},
                        Case{"rounds", absl::GetFlag(FLAGS_rounds), 1, 1000}}) {
    if (c.value >= c.least && c.value <= c.most) continue;
    return InvalidArgument("--", c.flag, ": must be in [", c.least, ", ", c.most, "], got ",
                           c.value);
  }
  const int64_t bytes = absl::GetFlag(FLAGS_bytes);
  if (bytes < 0 || bytes > kMaxBytes || bytes % 64 != 0) {
    return InvalidArgument("--bytes: must be a multiple of 64 from 0 to ", kMaxBytes, ", got ",
                           bytes);
  }
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds >= 0 && seconds <= 600)) {
    return InvalidArgument("--seconds: must be in [0, 600], got ", seconds);
  }
  const std::string role = absl::GetFlag(FLAGS_role);
  if (!role.empty() && role != "ps" && role != "trainer") {
    return InvalidArgument("--role: must be ps or trainer, got '", role, "'");
  }
  return absl::OkStatus();
}

Status Main() {
  if (absl::GetFlag(FLAGS_role) == "ps") return ServeLoad();
  if (absl::GetFlag(FLAGS_role) == "trainer") return TrainLoad(WorkOfFlags());
  MR_RETURN_IF_ERROR(CheckFlags());
  if (absl::GetFlag(FLAGS_smoke)) {
    MR_ASSIGN_OR_RETURN(const auto all, WorksOf("all"));
    return Measure(all, SmallSizes(), 1);
  }
  MR_ASSIGN_OR_RETURN(const auto works, WorksOf(absl::GetFlag(FLAGS_work)));
  return Measure(works, SizesOfFlags(), absl::GetFlag(FLAGS_rounds));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "What whole steps between a ps and trainers, as processes of their own, cost on the wire.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
