// SPDX-License-Identifier: Apache-2.0
#include "tools/slurm_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tools/run_program.h"
#include "tools/task_record.h"

namespace millrace {
namespace {

using Phase = JobState::Phase;

constexpr uint64_t kMaxStateFile = 4096;

// What runs: %words% are replaced. Ports: 64 for each of 300 jobs that follow each other, below the
// ports that systems give to connections.
constexpr char kScript[] = R"sh(#!/bin/bash
# Job %name%, written by submit. Its state and its logs are in %folder%.
#SBATCH --job-name=%name%
#SBATCH --ntasks=%ntasks%
#SBATCH --output=%logs%/slurm.log
#SBATCH --open-mode=append
#SBATCH --requeue
%sbatch%
folder=%quoted_folder%
logs=%quoted_logs%
stop="$folder/stop-%id%"
trainers="%trainers%"
evaluators="%evaluators%"
vital="%vital%"
restarts=%restarts%
grace=%grace%
export MILLRACE_CLUSTER=slurm MILLRACE_PS_TASKS=%ps% MILLRACE_EVALUATOR_TASKS=%num_evaluators%
export MILLRACE_CHIEF_JOB=%chief% MILLRACE_JOB_NAME=%name% MILLRACE_JOB_DIR=%quoted_job_dir%
export MILLRACE_PORT="${MILLRACE_PORT:-$((10000 + SLURM_JOB_ID % 300 * 64))}"
export MILLRACE_NUM_THREADS="${MILLRACE_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
unset TF_CONFIG

record() {
  printf '%s %s %s %s\n' "$1" "$2" "${SLURM_RESTART_COUNT:-0}" "$(date +%s)" >"$folder/slurm.new" &&
    mv "$folder/slurm.new" "$folder/slurm.state"
}
# The exit code of a rank; one that was killed with its shell has not said it.
code_of() {
  if [[ -e "$folder/ends/$1" ]]; then cut -d ' ' -f 1 "$folder/ends/$1"; else echo 137; fi
}
have_ended() {
  local rank
  for rank in $1; do [[ -e "$folder/ends/$rank" ]] || return 1; done
}
any_succeeded() {
  local rank
  for rank in $1; do [[ $(code_of "$rank") == 0 ]] && return 0; done
  return 1
}
was_killed() { [[ $1 == 137 || $1 == 143 || $1 == 130 ]]; }

stopped=
trap 'stopped=1' TERM INT
rm -rf "$folder/ends"
mkdir -p "$folder/ends" "$logs"
record RUNNING -
srun --output="$logs/task-%t.log" --open-mode=append bash -c '
  trap : TERM INT
  "$@"
  code=$?
  end="$MILLRACE_JOB_DIR/job/ends/$SLURM_PROCID"
  printf "%s %s\n" "$code" "$(date +%s)" >"$end.new" && mv "$end.new" "$end"
  exit "$code"' task %command% &
step=$!
reason=
while kill -0 "$step" 2>/dev/null; do
  if [[ -z $reason ]]; then
    for rank in $vital; do
      if [[ -e "$folder/ends/$rank" && $(code_of "$rank") != 0 ]]; then
        reason=$rank
        break
      fi
    done
    if [[ -n $stopped || -e "$stop" ]]; then
      reason=stopped
    elif [[ -z $reason ]] && have_ended "$trainers" &&
      { have_ended "$evaluators" || ! any_succeeded "$trainers"; }; then
      reason=done
    fi
    if [[ -n $reason ]]; then
      scancel --signal=TERM "$SLURM_JOB_ID.0"
      deadline=$((SECONDS + grace))
    fi
  elif ((SECONDS >= deadline)); then
    scancel --signal=KILL "$SLURM_JOB_ID.0"
  fi
  sleep 0.5
done
wait "$step"

code=$(code_of 0)
if [[ $reason =~ ^[0-9]+$ ]]; then
  code=$(code_of "$reason")
elif [[ $code == 0 ]]; then
  for rank in $trainers $evaluators; do
    other=$(code_of "$rank")
    if [[ $other != 0 ]] && ! was_killed "$other"; then
      code=$other
      break
    fi
  done
fi
if ((code == 0)); then
  record SUCCEEDED 0
elif [[ $reason == stopped || -n $stopped || -e "$stop" ]]; then
  record STOPPED "$code"
elif ((code >= 128 && ${SLURM_RESTART_COUNT:-0} < restarts)) &&
  record QUEUED "$code" && scontrol requeue "$SLURM_JOB_ID"; then
  echo "submit: ended with $code; goes on from the last checkpoint (restart" \
    "$((${SLURM_RESTART_COUNT:-0} + 1)) of $restarts)"
else
  record FAILED "$code"
fi
echo "submit: job ended with code $code"
exit "$code"
)sh";

// A word of a shell that stands for these bytes.
std::string Quoted(absl::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("-_./=:,+@").find(c) != absl::string_view::npos;
  });
  if (plain) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// What a line of #SBATCH, or of a comment, can hold.
Status CheckLine(absl::string_view what, absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_iscntrl(static_cast<unsigned char>(c))) continue;
    return InvalidArgument(what, " must be one line for Slurm, got '", absl::CHexEscape(text), "'");
  }
  return absl::OkStatus();
}

// sbatch takes a quoted value, but no quote in it, and "%" is a pattern in names of files.
Status CheckPath(absl::string_view path) {
  MR_RETURN_IF_ERROR(CheckLine("the job's directory", path));
  if (!absl::StrContains(path, '"') && !absl::StrContains(path, '%') &&
      !absl::StrContains(path, '\\')) {
    return absl::OkStatus();
  }
  return InvalidArgument("the job's directory must have no '\"', '%' and '\\' for Slurm, got '",
                         path, "'");
}

std::vector<std::string> Ranks(int begin, int count) {
  std::vector<std::string> ranks;
  for (int rank = begin; rank < begin + count; ++rank) ranks.push_back(absl::StrCat(rank));
  return ranks;
}

// The words of a small file; none without it.
std::vector<std::string> WordsOf(FileSystem* files, const std::string& path) {
  const StatusOr<std::string> text = ReadFileToString(files, path, kMaxStateFile);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

std::optional<absl::Time> SecondsTime(const std::string& word) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(word, &seconds) || seconds < 0) return std::nullopt;
  return absl::FromUnixSeconds(seconds);
}

// The script's own word.
void ReadScriptState(FileSystem* files, JobState* state) {
  const std::vector<std::string> words =
      WordsOf(files, JoinPath(JobFolder(state->job_dir), "slurm.state"));
  if (words.size() != 4) return;
  for (const Phase phase :
       {Phase::kQueued, Phase::kRunning, Phase::kSucceeded, Phase::kFailed, Phase::kStopped}) {
    if (words[0] == PhaseName(phase)) state->phase = phase;
  }
  int number = 0;
  if (absl::SimpleAtoi(words[1], &number)) state->exit_code = number;
  const std::optional<absl::Time> time = SecondsTime(words[3]);
  state->updated = time;
  if (state->phase == Phase::kRunning) state->started = time;
  if (state->is_over()) state->ended = time;
  if (words[2] != "0") state->why = absl::StrCat("restarted ", words[2], " times");
}

void ReadTaskEnds(FileSystem* files, JobState* state) {
  const bool ran = state->phase != Phase::kQueued;
  for (size_t rank = 0; rank < state->tasks.size(); ++rank) {
    TaskRecord& task = state->tasks[rank];
    task.why = ran ? "" : "never started";
    if (!ran) continue;
    task.starts = 1;
    task.state = state->is_over() ? TaskRecord::State::kEnded : TaskRecord::State::kRunning;
    const std::vector<std::string> words =
        WordsOf(files, JoinPath(JobFolder(state->job_dir), absl::StrCat("ends/", rank)));
    int code = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &code)) {
      task.state = TaskRecord::State::kEnded;
      task.exit_code = code;
      task.why = code == 0 ? "done" : "";
    } else if (state->is_over()) {
      task.exit_code = 137;
      task.why = "killed with the job";
    }
  }
}

// Slurm's word for the state of a job; "" when it knows none; NotFound without squeue.
StatusOr<std::string> QueueState(const std::string& id) {
  MR_ASSIGN_OR_RETURN(const ProgramEnd end,
                      RunProgram({"squeue", "--noheader", "--jobs", id, "--format", "%T"}));
  if (end.code == 0) return std::string(absl::StripAsciiWhitespace(end.output));
  if (absl::StrContains(end.complaint, "Invalid job id")) return std::string();
  return absl::UnavailableError(
      absl::StrCat("squeue: ", absl::StripAsciiWhitespace(end.complaint)));
}

}  // namespace

std::vector<TaskRecord> TasksByRank(const JobTasks& tasks) {
  std::vector<TaskRecord> records;
  const auto add = [&records](const std::string& job, int count) {
    for (int i = 0; i < count; ++i) {
      records.push_back({.job = job, .index = i, .why = "never started"});
    }
  };
  add(tasks.chief, 1);
  add("evaluator", tasks.evaluator ? 1 : 0);
  add("ps", tasks.ps);
  add("worker", tasks.workers);
  return records;
}

StatusOr<std::string> SlurmScript(const JobState& job, const JobTasks& tasks,
                                  const SlurmScriptOptions& options) {
  MR_RETURN_IF_ERROR(CheckPath(job.job_dir));
  MR_RETURN_IF_ERROR(CheckPath(job.log_dir));
  std::string sbatch;
  for (const std::string& option : options.sbatch) {
    MR_RETURN_IF_ERROR(CheckLine("--sbatch", option));
    if (!absl::StartsWith(option, "-")) {
      return InvalidArgument("--sbatch must be an option of sbatch, got '", option, "'");
    }
    absl::StrAppend(&sbatch, "#SBATCH ", option, "\n");
  }
  const int evaluators = tasks.evaluator ? 1 : 0;
  std::vector<std::string> trainers = Ranks(1 + evaluators + tasks.ps, tasks.workers);
  trainers.insert(trainers.begin(), "0");
  std::vector<std::string> vital = Ranks(1 + evaluators, tasks.ps);
  vital.insert(vital.begin(), "0");
  std::vector<std::string> command;
  for (const std::string& word : job.command) command.push_back(Quoted(word));
  const std::string folder = JobFolder(job.job_dir);
  // A path with a blank is one value of #SBATCH in quotes.
  const std::string logs =
      absl::StrContains(job.log_dir, ' ') ? absl::StrCat("\"", job.log_dir) : job.log_dir;
  std::string script = absl::StrReplaceAll(
      kScript, {{"#SBATCH --output=%logs%/slurm.log",
                 absl::StrCat("#SBATCH --output=", logs, "/slurm.log", logs[0] == '"' ? "\"" : "")},
                {"%sbatch%\n", sbatch},
                {"%name%", job.name},
                {"%folder%", folder},
                {"%ntasks%", absl::StrCat(tasks.trainers() + tasks.ps + evaluators)},
                {"%quoted_folder%", Quoted(folder)},
                {"%quoted_logs%", Quoted(job.log_dir)},
                {"%quoted_job_dir%", Quoted(job.job_dir)},
                {"%id%", job.id},
                {"%trainers%", absl::StrJoin(trainers, " ")},
                {"%evaluators%", tasks.evaluator ? "1" : ""},
                {"%num_evaluators%", absl::StrCat(evaluators)},
                {"%vital%", absl::StrJoin(vital, " ")},
                {"%restarts%", absl::StrCat(options.restarts)},
                {"%grace%", absl::StrCat(options.grace_secs)},
                {"%ps%", absl::StrCat(tasks.ps)},
                {"%chief%", tasks.chief},
                {"%command%", absl::StrJoin(command, " ")}});
  return script;
}

StatusOr<std::string> SubmitToSlurm(const JobState& job, const std::string& script) {
  FileSystem* const files = FileSystem::Posix();
  MR_RETURN_IF_ERROR(files->RecursivelyCreateDirectory(job.log_dir));
  const std::string path = JoinPath(JobFolder(job.job_dir), "slurm.sh");
  MR_RETURN_IF_ERROR(WriteFileAtomically(files, path, script));
  // An earlier attempt's.
  for (const char* name : {"slurm.state", "ends"}) {
    const std::string old = JoinPath(JobFolder(job.job_dir), name);
    if (files->FileExists(old)) MR_RETURN_IF_ERROR(files->RecursivelyDelete(old));
  }
  MR_ASSIGN_OR_RETURN(const ProgramEnd end, RunProgram({"sbatch", "--parsable", path}));
  // "4711" or "4711;cluster".
  const std::string id =
      std::string(absl::StripAsciiWhitespace(end.output.substr(0, end.output.find(';'))));
  int64_t number = 0;
  if (end.code != 0 || !absl::SimpleAtoi(id, &number)) {
    return FailedPrecondition("sbatch must take the job, got code ", end.code, ": ",
                              absl::StripAsciiWhitespace(end.complaint), "; the script is '", path,
                              "'");
  }
  return id;
}

JobState RefreshedFromSlurm(FileSystem* files, JobState state) {
  ReadScriptState(files, &state);
  if (!state.is_over() && !state.backend_id.empty()) {
    const StatusOr<std::string> word = QueueState(state.backend_id);
    if (word.ok() && (word->empty() || *word == "CANCELLED" || *word == "FAILED" ||
                      *word == "COMPLETED" || *word == "TIMEOUT" || *word == "NODE_FAIL" ||
                      *word == "OUT_OF_MEMORY" || *word == "BOOT_FAIL" || *word == "DEADLINE")) {
      // The script may have said its end in between.
      ReadScriptState(files, &state);
      if (!state.is_over()) {
        const bool asked = files->FileExists(JobStopPath(state.job_dir, state.id)) ||
                           files->FileExists(JobKillPath(state.job_dir, state.id)) ||
                           *word == "CANCELLED";
        state.phase = asked ? Phase::kStopped : Phase::kLost;
        state.exit_code = 143;
        state.why = absl::StrCat("Slurm says: ", word->empty() ? "no such job" : *word);
      }
    } else if (word.ok() && *word == "PENDING") {
      state.phase = Phase::kQueued;
    }
  }
  ReadTaskEnds(files, &state);
  return state;
}

StatusOr<JobState> SeenJobState(FileSystem* files, const std::string& job_dir) {
  StatusOr<JobState> state = ReadJobState(files, job_dir);
  if (!state.ok() || state->backend != "slurm") return state;
  return RefreshedFromSlurm(files, *std::move(state));
}

Status CancelInSlurm(const JobState& state, bool kills) {
  std::vector<std::string> argv = {"scancel"};
  if (kills) argv.push_back("--signal=KILL");
  if (kills) argv.push_back("--full");
  argv.push_back(state.backend_id);
  MR_ASSIGN_OR_RETURN(const ProgramEnd end, RunProgram(argv));
  if (end.code == 0) return absl::OkStatus();
  return FailedPrecondition("scancel must take job ", state.backend_id, ", got code ", end.code,
                            ": ", absl::StripAsciiWhitespace(end.complaint));
}

}  // namespace millrace
