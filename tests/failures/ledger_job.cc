// SPDX-License-Identifier: Apache-2.0
#include "tests/failures/ledger_job.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/failures/ledger_train";
constexpr int kMaxPortTries = 3;
// Between two looks into a ledger.
constexpr absl::Duration kLookPeriod = absl::Milliseconds(50);

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

bool IsTrainer(const std::string& task) {
  return absl::StartsWith(task, "chief-") || absl::StartsWith(task, "worker-");
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Looks until `is_there` says so.
StatusOr<absl::Duration> Await(absl::string_view what,
                               absl::FunctionRef<StatusOr<bool>()> is_there) {
  const absl::Time begin = absl::Now();
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool there, is_there());
    const absl::Duration time = absl::Now() - begin;
    if (there) return time;
    if (time > kGuard) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " must come, got none in ", absl::FormatDuration(kGuard)));
    }
    Clock::Real()->SleepFor(kLookPeriod);
  }
}

}  // namespace

LedgerJob::LedgerJob(std::string name, LedgerJobOptions options)
    : name_(std::move(name)),
      options_(std::move(options)),
      directory_(JoinPath(::testing::TempDir(), absl::StrCat(name_, "_", RandomHexName()))) {
  FileSystem::Posix()->RecursivelyCreateDirectory(log_dir()).IgnoreError();
}

LedgerJob::~LedgerJob() {
  if (::testing::Test::HasFailure()) {
    for (const auto& [task, process] : processes_) {
      const std::vector<std::string> lines = process->lines();
      const size_t first = lines.size() > 40 ? lines.size() - 40 : 0;
      std::printf(
          "--- %s, %s:\n%s\n", name_.c_str(), task.c_str(),
          absl::StrJoin(lines.begin() + static_cast<ptrdiff_t>(first), lines.end(), "\n").c_str());
    }
  }
  processes_.clear();
  former_.clear();
  FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError();
}

std::string LedgerJob::log_dir() const { return JoinPath(directory_, "run"); }

std::string LedgerJob::LedgerPath(const std::string& task) const {
  return JoinPath(directory_, absl::StrCat("ledger-", task, ".txt"));
}

Status LedgerJob::Start() {
  Status status;
  for (int i = 0; i < kMaxPortTries; ++i) {
    processes_.clear();
    proxies_.clear();
    status = StartAll();
    if (status.ok()) return status;
    bool in_use = false;
    for (auto& [name, process] : processes_) in_use |= EndedBecausePortIsInUse(process.get());
    if (!in_use) return status;
  }
  return status;
}

Status LedgerJob::StartAll() {
  std::vector<std::string> tasks = {"ps-0", "chief-0"};
  for (int i = 0; i < options_.workers; ++i) tasks.push_back(absl::StrCat("worker-", i));
  for (const std::string& task : tasks) ports_[task] = dialled_[task] = FreePort();
  for (const std::string& task : tasks) {
    if (!IsTrainer(task)) continue;
    MR_ASSIGN_OR_RETURN(proxies_[std::make_pair(task, "ps-0")], TcpProxy::Start(ports_["ps-0"]));
    MR_ASSIGN_OR_RETURN(proxies_[std::make_pair("ps-0", task)], TcpProxy::Start(ports_[task]));
  }
  if (options_.evaluator) tasks.push_back("evaluator-0");
  for (const std::string& task : tasks) MR_RETURN_IF_ERROR(StartTask(task));
  return absl::OkStatus();
}

std::string LedgerJob::TfConfigOf(const std::string& task) {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const auto& [other, port] : ports_) {
    const std::vector<std::string> parts = absl::StrSplit(other, '-');
    const auto found = proxies_.find(std::make_pair(task, other));
    const int dialled = found != proxies_.end() ? found->second->port() : dialled_[other];
    jobs[parts[0]].push_back(absl::StrCat("\"127.0.0.1:", other == task ? port : dialled, "\""));
  }
  std::vector<std::string> entries;
  for (const auto& [job, addresses] : jobs) {
    entries.push_back(absl::StrCat("\"", job, "\": [", absl::StrJoin(addresses, ", "), "]"));
  }
  const std::vector<std::string> parts = absl::StrSplit(task, '-');
  return absl::StrCat("{\"cluster\": {", absl::StrJoin(entries, ", "), "}, \"task\": {\"type\": \"",
                      parts[0], "\", \"index\": ", parts[1], "}}");
}

Status LedgerJob::StartTask(const std::string& task, bool beside) {
  const auto before = processes_.find(task);
  if (before != processes_.end() && beside) former_.push_back(std::move(before->second));
  ProcessOptions options;
  options.name = absl::StrCat(name_, " ", task);
  options.program = kProgram;
  options.args = {
      absl::StrCat("--log_dir=", log_dir()),
      absl::StrCat("--ledger=", LedgerPath(beside ? absl::StrCat(task, "-beside") : task)),
      absl::StrCat("--enough=", JoinPath(directory_, "enough"))};
  if (options_.sync > 0) options.args.push_back(absl::StrCat("--sync=", options_.sync));
  options.args.insert(options.args.end(), options_.args.begin(), options_.args.end());
  const std::vector<std::string>& own = options_.args_of[task];
  options.args.insert(options.args.end(), own.begin(), own.end());
  const auto env = options_.env.find(task);
  if (env != options_.env.end()) options.env = env->second;
  options.env["TF_CONFIG"] = TfConfigOf(task);
  MR_ASSIGN_OR_RETURN(processes_[task], Process::Start(options));
  if (absl::StartsWith(task, "evaluator")) return absl::OkStatus();
  return processes_[task]->WaitForLine("listens on", kGuard).status();
}

void LedgerJob::MoveTask(const std::string& task, bool through_proxies) {
  ports_[task] = FreePort();
  if (!through_proxies) return;
  for (const auto& [pair, proxy] : proxies_) {
    if (pair.second == task) proxy->SetTarget(ports_[task]);
  }
}

void LedgerJob::Kill(const std::string& name) {
  EXPECT_OK(task(name)->Signal(SIGKILL));
  const auto code = task(name)->WaitForExit(kGuard);
  EXPECT_OK(code.status());
  EXPECT_EQ(code.value_or(0), 128 + SIGKILL)
      << name_ << ": " << name << " ended before it was killed:\n"
      << task(name)->output();
}

void LedgerJob::Terminate(const std::string& name) { EXPECT_OK(task(name)->Signal(SIGTERM)); }

void LedgerJob::Pause(const std::string& name) { EXPECT_OK(task(name)->Signal(SIGSTOP)); }

void LedgerJob::Continue(const std::string& name) { EXPECT_OK(task(name)->Signal(SIGCONT)); }

void LedgerJob::KillAll() {
  for (const auto& [name, process] : processes_) process->Signal(SIGKILL).IgnoreError();
  for (const auto& [name, process] : processes_) {
    EXPECT_OK(process->WaitForExit(kGuard).status());
  }
}

TcpProxy* LedgerJob::proxy(const std::string& viewer, const std::string& target) {
  return proxies_.at(std::make_pair(viewer, target)).get();
}

void LedgerJob::Set(const std::string& from, const std::string& to, TcpProxy::Flow flow) {
  proxy(from, to)->Set(TcpProxy::Way::kIn, flow);
  proxy(to, from)->Set(TcpProxy::Way::kOut, flow);
}

void LedgerJob::SetBoth(const std::string& a, const std::string& b, TcpProxy::Flow flow) {
  Set(a, b, flow);
  Set(b, a, flow);
}

void LedgerJob::Heal() {
  for (const auto& [pair, proxy] : proxies_) proxy->Heal();
}

StatusOr<std::vector<LedgerEvent>> LedgerJob::EventsSince(const std::string& task,
                                                          int64_t ns) const {
  MR_ASSIGN_OR_RETURN(std::vector<LedgerEvent> events, ReadLedger(LedgerPath(task)));
  const auto is_older = [ns](const LedgerEvent& event) { return event.time_ns < ns; };
  events.erase(events.begin(), std::find_if_not(events.begin(), events.end(), is_older));
  return events;
}

StatusOr<absl::Duration> LedgerJob::AwaitSteps(const std::string& trainer, int steps) {
  const int64_t since = NowNs();
  return Await(absl::StrCat(name_, ": ", steps, " steps of ", trainer), [&]() -> StatusOr<bool> {
    MR_ASSIGN_OR_RETURN(const auto events, EventsSince(trainer, since));
    int begun = 0, done = 0;
    for (const LedgerEvent& event : events) {
      if (event.what == "try") ++begun;
      if (event.what == "ack" && done < begun) ++done;
    }
    return done >= steps;
  });
}

StatusOr<absl::Duration> LedgerJob::AwaitSaved(const std::string& chief) {
  const int64_t since = NowNs();
  return Await(absl::StrCat(name_, ": a checkpoint of ", chief), [&]() -> StatusOr<bool> {
    MR_ASSIGN_OR_RETURN(const auto events, EventsSince(chief, since));
    bool begun = false;
    for (const LedgerEvent& event : events) {
      if (event.what == "saved" && begun) return true;
      if (event.what == "save") begun = true;
    }
    return false;
  });
}

StatusOr<std::string> LedgerJob::AwaitLost(const std::string& trainer) {
  const int64_t since = NowNs();
  std::string line;
  MR_RETURN_IF_ERROR(
      Await(absl::StrCat(name_, ": a lost step of ", trainer), [&]() -> StatusOr<bool> {
        MR_ASSIGN_OR_RETURN(const auto events, EventsSince(trainer, since));
        for (const LedgerEvent& event : events) {
          if (event.what == "lost") line = absl::StrJoin(event.fields, " ");
        }
        return !line.empty();
      }).status());
  return line;
}

Status LedgerJob::AwaitSession(const std::string& trainer, absl::string_view how) {
  return Await(absl::StrCat(name_, ": a session of ", trainer, " that ", how),
               [&]() -> StatusOr<bool> {
                 MR_ASSIGN_OR_RETURN(const auto events, ReadLedger(LedgerPath(trainer)));
                 // The newest one: nobody asks before something has happened.
                 for (auto it = events.rbegin(); it != events.rend(); ++it) {
                   if (it->what == "start" || it->what == "lost") return false;
                   if (it->what == "session") return it->fields[0] == how;
                 }
                 return false;
               })
      .status();
}

int64_t LedgerJob::StepsOf(const std::string& trainer) const {
  const auto events = ReadLedger(LedgerPath(trainer));
  if (!events.ok()) return 0;
  return std::count_if(events->begin(), events->end(),
                       [](const LedgerEvent& event) { return event.what == "ack"; });
}

void LedgerJob::ExpectOutput(const std::string& name, absl::string_view text) {
  EXPECT_TRUE(absl::StrContains(task(name)->output(), text))
      << name_ << ": " << name << " must say '" << text << "', got\n"
      << task(name)->output();
}

void LedgerJob::SayEnough() {
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(directory_, "enough"), "enough"));
}

absl::Duration LedgerJob::ExpectExit(const std::string& name, int code) {
  const absl::Time begin = absl::Now();
  const auto got = task(name)->WaitForExit(kGuard);
  EXPECT_OK(got.status());
  EXPECT_EQ(got.value_or(-1), code) << name_ << ": " << name << ":\n" << task(name)->output();
  return absl::Now() - begin;
}

void LedgerJob::ExpectEndsWell(const std::vector<std::string>& gone) {
  SayEnough();
  // The ps last: nobody tells it but the chief.
  for (const bool is_ps : {false, true}) {
    for (const auto& [name, process] : processes_) {
      if (absl::StartsWith(name, "ps-") != is_ps || Contains(gone, name)) continue;
      ExpectExit(name);
      EXPECT_FALSE(process->left_processes()) << name_ << ": " << name;
    }
  }
}

std::map<std::string, std::string> LedgerJob::Ledgers() const {
  std::map<std::string, std::string> files;
  for (const auto& [name, process] : processes_) {
    if (!IsTrainer(name)) continue;
    files[name] = LedgerPath(name);
    files[name + "-beside"] = LedgerPath(name + "-beside");
  }
  return files;
}

StatusOr<int64_t> LedgerJob::StepsAtStake() const {
  int64_t newest_begin = 0, at_stake = 0;
  std::vector<int64_t> acks;
  for (const auto& [name, path] : Ledgers()) {
    MR_ASSIGN_OR_RETURN(const std::vector<LedgerEvent> events, ReadLedger(path));
    if (!events.empty()) ++at_stake;
    int64_t begun = 0;
    for (const LedgerEvent& event : events) {
      if (event.what == "save") begun = event.time_ns;
      if (event.what == "saved") newest_begin = std::max(newest_begin, begun);
      if (event.what == "ack") acks.push_back(event.time_ns);
    }
  }
  for (const int64_t ack : acks) at_stake += ack > newest_begin ? 1 : 0;
  return at_stake;
}

StatusOr<LedgerReport> LedgerJob::Audit() const {
  return AuditLedger(log_dir(), Ledgers(), options_.sync);
}

LedgerReport LedgerJob::ExpectLedgerHolds(int64_t rolled_back) {
  const StatusOr<LedgerReport> report = Audit();
  EXPECT_OK(report.status());
  if (!report.ok()) return {};
  std::printf("LEDGER %s: %s\n", name_.c_str(), report->ToString().c_str());
  EXPECT_LE(report->rolled_back, rolled_back) << name_;
  return *report;
}

void LedgerJob::ExpectAcknowledgedAreSaved() const {
  const auto latest = LatestCheckpoint(FileSystem::Posix(), log_dir());
  ASSERT_TRUE(latest.has_value()) << name_;
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(FileSystem::Posix(), *latest));
  ASSERT_OK_AND_ASSIGN(const Tensor marks, reader->Read(kMarksName));
  ASSERT_OK_AND_ASSIGN(const Tensor step, reader->Read("global_step"));
  for (const auto& [name, path] : Ledgers()) {
    ASSERT_OK_AND_ASSIGN(const std::vector<LedgerEvent> events, ReadLedger(path));
    for (const LedgerEvent& event : events) {
      if (event.what != "ack") continue;
      EXPECT_GE(marks.flat<int64_t>()[static_cast<size_t>(event.row())], 1)
          << name_ << ": " << *latest << " must have row " << event.row() << " of " << name;
      int64_t counted = 0;
      EXPECT_TRUE(absl::SimpleAtoi(event.fields[1], &counted));
      EXPECT_LE(counted, step.scalar<int64_t>()) << name_ << ": " << *latest << ", " << name;
    }
  }
}

void LedgerJob::Measured(absl::string_view what, absl::Duration time) const {
  std::printf("MEASURED %s: %s %.1f s\n", name_.c_str(), std::string(what).c_str(),
              absl::ToDoubleSeconds(time));
}

void RunAtOnce(const std::vector<LedgerCase>& cases, int at_once) {
  std::atomic<size_t> next{0};  // relaxed: a number only
  std::vector<std::thread> threads;
  for (int i = 0; i < at_once; ++i) {
    threads.emplace_back([&] {
      while (true) {
        const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
        if (mine >= cases.size()) return;
        const absl::Time begin = absl::Now();
        SCOPED_TRACE(cases[mine].name);
        cases[mine].run(cases[mine].name);
        std::printf("CASE %s: %.1f s\n", cases[mine].name,
                    absl::ToDoubleSeconds(absl::Now() - begin));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace millrace
