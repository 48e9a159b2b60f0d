// SPDX-License-Identifier: Apache-2.0
#include "tools/job_supervisor.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/random_bits.h"
#include "nlohmann/json.hpp"
#include "tools/slurm_job.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Phase = JobState::Phase;

constexpr char kProgram[] = "submit";
// How often the folder is looked at for requests: of files, and of objects in a store, whose every
// look is paid for.
constexpr absl::Duration kRequestPoll = absl::Milliseconds(250);
constexpr absl::Duration kStorePoll = absl::Seconds(5);
// After a state that could not be written.
constexpr absl::Duration kWriteRetry = absl::Seconds(1);
// How long the last state is tried: a disk may have room again.
constexpr absl::Duration kLastWrite = absl::Minutes(5);

// The first signal that came before the cluster took them, or after; 0 for none.
volatile sig_atomic_t early_signal = 0;
void KeepSignal(int signal) { early_signal = signal; }

// All of this thread's signals; the former mask is restored.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &former_, nullptr); }

 private:
  sigset_t former_;
};

// Keeps the job's state file, and takes requests to end the job. Both are done by a thread of its
// own: a disk that hangs stops neither the tasks nor the one that collects them.
class Reporter : public LocalClusterObserver {
 public:
  // `log_fd`: for a line that says what cannot be written.
  Reporter(FileSystem* files, JobState state, int log_fd)
      : files_(files),
        log_fd_(log_fd),
        stop_path_(JobStopPath(state.job_dir, state.id)),
        kill_path_(JobKillPath(state.job_dir, state.id)),
        poll_(PathScheme(state.job_dir).empty() ? kRequestPoll : kStorePoll),
        state_(std::move(state)) {}

  void Changed(const LocalClusterView& view) override {
    // Whoever asked before the first task starts gets none. SIGTERM is the cluster's by now.
    if (!thread_.joinable()) TakeRequests();
    {
      const MutexLock lock(&mu_);
      state_.tasks = view.tasks;
      for (const TaskRecord& task : view.tasks) {
        if (task.starts == 0 || state_.started) continue;
        state_.phase = Phase::kRunning;
        state_.started = absl::Now();
      }
      if (view.asked_to_end) state_.phase = Phase::kStopping;
      dirty_ = true;
      wake_.SignalAll();
    }
    StartThread();
  }

  // The job's end. Waits until its state is written, or given up.
  void Finish(int code, const std::string& why) {
    StartThread();
    const absl::Time deadline = absl::Now() + kLastWrite + absl::Minutes(1);
    MutexLock lock(&mu_);
    const bool stopped = state_.phase == Phase::kStopping;
    state_.phase = code == kExitOk ? Phase::kSucceeded : stopped ? Phase::kStopped : Phase::kFailed;
    state_.exit_code = code;
    state_.why = !why.empty() ? why : WhyEnded(stopped);
    state_.ended = absl::Now();
    dirty_ = true;
    give_up_ = absl::Now() + kLastWrite;
    wake_.SignalAll();
    while (!over_ && absl::Now() < deadline) {
      wake_.WaitWithTimeout(&mu_, deadline - absl::Now());
    }
    // A write that hangs goes with the process.
    thread_.detach();
  }

 private:
  std::string WhyEnded(bool stopped) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (state_.phase == Phase::kSucceeded) return "done";
    if (stopped) return "asked to end";
    // The first task, in the order of the table, that has the job's code.
    for (const TaskRecord& task : state_.tasks) {
      if (task.exit_code != state_.exit_code) continue;
      return absl::StrCat(task.job, " ", task.index, ": ", task.why);
    }
    return "";
  }

  void TakeRequests() {
    if (early_signal != 0 && !stopped_) {
      stopped_ = true;
      kill(getpid(), early_signal);
    }
    const bool kills = !killed_ && files_->FileExists(kill_path_);
    const bool stops = !stopped_ && (kills || files_->FileExists(stop_path_));
    if (stops) {
      stopped_ = true;
      kill(getpid(), SIGTERM);
    }
    if (kills) {
      killed_ = true;
      kill(getpid(), SIGINT);  // another signal: two equal ones count as one
    }
  }

  void StartThread() {
    if (thread_.joinable()) return;
    const BlockedSignals blocked;
    thread_ = std::thread([this] { Report(); });
  }

  void Report() {
    absl::Time next_write = absl::InfinitePast();  // of a state that is as before
    absl::Time retry = absl::InfinitePast();
    bool complained = false;
    for (;;) {
      TakeRequests();
      const absl::Time now = absl::Now();
      std::optional<JobState> state;
      {
        const MutexLock lock(&mu_);
        if (now >= retry && (dirty_ || now >= next_write)) {
          state = state_;
          dirty_ = false;
        }
      }
      if (state) {
        state->updated = now;
        const Status written = WriteJobState(files_, *state);
        if (written.ok()) {
          next_write = now + kJobHeartbeat;
          complained = false;
        } else {
          retry = absl::Now() + kWriteRetry;
          if (!complained) {
            const std::string line = absl::StrCat(
                kProgram, ": the job's state cannot be written; tries again: ", written.message(),
                "\n");
            [[maybe_unused]] const ssize_t n = write(log_fd_, line.data(), line.size());
          }
          complained = true;
        }
        const MutexLock lock(&mu_);
        if (!written.ok()) dirty_ = true;
        if (state->is_over() && (written.ok() || absl::Now() >= give_up_)) {
          over_ = true;
          wake_.SignalAll();
          return;
        }
      }
      MutexLock lock(&mu_);
      if (!dirty_ || absl::Now() < retry) wake_.WaitWithTimeout(&mu_, poll_);
    }
  }

  FileSystem* const files_;
  const int log_fd_;
  const std::string stop_path_, kill_path_;
  const absl::Duration poll_;
  // Of one thread: the cluster's until thread_ runs, then thread_.
  bool stopped_ = false, killed_ = false;
  std::thread thread_;
  Mutex mu_;
  CondVar wake_;
  JobState state_ ABSL_GUARDED_BY(mu_);
  bool dirty_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // the last state is written or given up
  absl::Time give_up_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

struct TakenJob {
  JobState state;
  std::unique_ptr<FileLock> lock = {};  // null where files cannot be locked
};

// OK when nobody runs in the directory of `job`, nor under its name elsewhere.
Status CheckFree(const JobNames& names, FileSystem* files, const JobState& job,
                 const std::optional<JobState>& previous, bool is_locked, bool again) {
  if (previous) {
    // Who has the lock of a local job's directory knows that its supervisor is gone.
    const Phase seen = previous->backend == "local" && is_locked && !previous->is_over()
                           ? Phase::kLost
                           : previous->seen_phase();
    if (!previous->is_over() && seen != Phase::kLost) {
      return FailedPrecondition("directory '", job.job_dir, "' must be of no other job, got '",
                                previous->name, "', ", previous->text());
    }
    if (!again) {
      return absl::AlreadyExistsError(
          absl::StrCat("directory '", job.job_dir, "' must be of no other job, got '",
                       previous->name, "', ", PhaseName(seen), "; --again goes on there"));
    }
  }
  const StatusOr<std::string> other_dir = names.Find(job.name);
  if (absl::IsNotFound(other_dir.status())) return absl::OkStatus();
  MR_RETURN_IF_ERROR(other_dir.status());
  if (*other_dir == job.job_dir) return absl::OkStatus();
  const StatusOr<JobState> other = SeenJobState(files, *other_dir);
  // The name is free again: that directory is gone, or another job's by now.
  if (absl::IsNotFound(other.status()) || (other.ok() && other->name != job.name)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat("job '", job.name, "' must be one job, got another in '", *other_dir, "'",
                   other.ok() ? absl::StrCat(", ", other->text()) : "",
                   "; choose another name, or that directory"));
}

StatusOr<TakenJob> TakeJob(const JobNames& names, const JobState& job, bool again) {
  MR_RETURN_IF_ERROR(CheckJobName(job.name));
  MR_RETURN_IF_ERROR(CheckPathScheme(job.job_dir));
  FileSystem* const files = FileSystem::Default();
  const ProcessIdentity self = ProcessIdentity::OfThisProcess();
  const std::string holder = absl::StrCat("job ", job.name, ", pid ", self.pid, " on ", self.host);
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> names_lock, names.Lock(holder));
  MR_RETURN_IF_ERROR(files->RecursivelyCreateDirectory(JobFolder(job.job_dir)));
  StatusOr<std::unique_ptr<FileLock>> lock =
      files->TryLockFile(JoinPath(JobFolder(job.job_dir), "lock"), holder);
  if (absl::IsUnavailable(lock.status())) {
    const StatusOr<JobState> other = ReadJobState(files, job.job_dir);
    const bool known = other.ok() && !other->is_over();
    // Else it has just taken the directory, and not said more.
    return FailedPrecondition("directory '", job.job_dir, "' must be of no other job, got ",
                              known ? absl::StrCat("'", other->name, "', ", other->text())
                                    : std::string(lock.status().message()));
  }
  if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();

  TakenJob taken = {.state = job};
  if (lock.ok()) taken.lock = *std::move(lock);
  std::optional<JobState> previous;
  StatusOr<JobState> read = SeenJobState(files, job.job_dir);
  if (read.ok()) {
    previous = *std::move(read);
  } else if (!absl::IsNotFound(read.status()) && !(again && absl::IsDataLoss(read.status()))) {
    return read.status();
  }
  MR_RETURN_IF_ERROR(CheckFree(names, files, job, previous, taken.lock != nullptr, again));

  JobState& state = taken.state;
  state.id = RandomHexName();
  state.attempt = previous ? previous->attempt + 1 : 1;
  const std::string logs = state.attempt == 1 ? "logs" : absl::StrCat("logs.", state.attempt);
  // Logs grow line by line, which a store's objects do not.
  state.log_dir = PathScheme(job.job_dir).empty()
                      ? JoinPath(JobFolder(job.job_dir), logs)
                      : JoinPath(names.DefaultJobDir(job.name), absl::StrCat("job/", logs));
  state.submitted = state.updated = absl::Now();
  if (state.backend == "local") state.supervisor = self;
  MR_RETURN_IF_ERROR(WriteJobState(files, state));
  MR_RETURN_IF_ERROR(names.Set(job.name, job.job_dir));
  return taken;
}

// From the supervisor to the one who submits: the state's text, or the error's.
void Tell(int fd, const StatusOr<TakenJob>& taken) {
  const Json message =
      taken.ok()
          ? Json{{"state",
                  Json::parse(
                      ToJson(taken->state).dump(-1, ' ', false, Json::error_handler_t::replace))}}
          : Json{{"code", static_cast<int>(taken.status().code())},
                 {"message", std::string(taken.status().message())}};
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (absl::string_view rest = text; !rest.empty();) {
    const ssize_t n = write(fd, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

StatusOr<JobState> Hear(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Internal("the job's supervisor must say what it does, got its end");
  }
  if (json.contains("state")) return JobStateFromJson(json["state"].dump(), "the supervisor");
  return Status(static_cast<absl::StatusCode>(json.value("code", 2)),
                json.value("message", std::string()));
}

// In the supervisor: runs the job to its end. The exit code.
int RunJob(const TakenJob& taken, const LocalClusterOptions& given) {
  const JobState& state = taken.state;
  LocalClusterOptions options = given;
  options.name = kProgram;
  options.log_dir = state.log_dir;
  options.needs_logs = false;
  options.environment.push_back(absl::StrCat("MILLRACE_JOB_NAME=", state.name));
  options.environment.push_back(absl::StrCat("MILLRACE_JOB_DIR=", state.job_dir));
  FileSystem::Posix()->RecursivelyCreateDirectory(state.log_dir).IgnoreError();
  OwnedFd log(open(JoinPath(state.log_dir, "all.log").c_str(),
                   O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  // The job runs without its log, too.
  options.output_fd = log.open() ? log.get() : 1;
  Reporter reporter(FileSystem::Default(), state, options.output_fd);
  options.observer = &reporter;
  const StatusOr<int> code = RunLocalCluster(options);
  const int exit_code = code.ok() ? *code : ExitCode(code.status());
  if (!code.ok()) {
    const std::string line = absl::StrCat(code.status().message(), "\n");
    [[maybe_unused]] const ssize_t n = write(options.output_fd, line.data(), line.size());
  }
  reporter.Finish(exit_code, std::string(code.status().message()));
  for (const std::string& path :
       {JobStopPath(state.job_dir, state.id), JobKillPath(state.job_dir, state.id)}) {
    FileSystem::Default()->DeleteFile(path).IgnoreError();
  }
  return exit_code;
}

// Leaves terminal, session and files of the one who submits; `keep`: the file that stays, whose
// new number this is.
int Detach(int keep) {
  const int null = open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) dup2(null, standard);
  constexpr int kKept = 3;
  if (keep != kKept) dup2(keep, kKept);
  fcntl(kKept, F_SETFD, FD_CLOEXEC);
  close_range(kKept + 1, ~0U, 0);
  return kKept;
}

}  // namespace

StatusOr<JobState> RegisterJob(const JobNames& names, const JobState& job, bool again) {
  MR_ASSIGN_OR_RETURN(TakenJob taken, TakeJob(names, job, again));
  return std::move(taken.state);
}

StatusOr<JobState> StartJob(const JobNames& names, const JobOrder& order) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Internal("pipe: ", std::strerror(errno));
  OwnedFd reader(ends[0]), writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return Internal("fork: ", std::strerror(errno));
  if (child == 0) {
    // Twice: the first in a session could get a terminal again.
    setsid();
    const pid_t supervisor = fork();
    if (supervisor != 0) _exit(supervisor > 0 ? 0 : 1);
    const int report = Detach(writer.get());
    // What the cluster does not take must not end this process. A task has the default again.
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) signal(number, KeepSignal);
    signal(SIGPIPE, SIG_IGN);  // the one who submits may be gone
    StatusOr<TakenJob> taken = TakeJob(names, order.job, order.again);
    Tell(report, taken);
    close(report);
    if (!taken.ok()) _exit(1);
    const int code = RunJob(*taken, order.cluster);
    taken->lock.reset();
    _exit(code);
  }
  writer.Close();
  StatusOr<JobState> state = Hear(reader.get());
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return state;
}

}  // namespace millrace
