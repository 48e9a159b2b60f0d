// SPDX-License-Identifier: Apache-2.0
#include "tools/job_names.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/did_you_mean.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxName = 100;
constexpr uint64_t kMaxFile = 64 << 10;
constexpr char kSuffix[] = ".json";
constexpr absl::Duration kLockWait = absl::Seconds(10);
constexpr absl::Duration kLockPoll = absl::Milliseconds(20);

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

const std::vector<std::string>& SubmitCommands() {
  static const auto* const commands =
      new std::vector<std::string>{"list", "describe", "logs", "stop", "wait"};
  return *commands;
}

Status CheckJobName(absl::string_view name) {
  const auto& commands = SubmitCommands();
  if (std::find(commands.begin(), commands.end(), name) != commands.end()) {
    return InvalidArgument("a job's name must be none of ", absl::StrJoin(commands, ", "),
                           ", which are commands of submit, got '", name, "'");
  }
  const bool right =
      !name.empty() && name.size() <= kMaxName &&
      absl::ascii_isalpha(static_cast<unsigned char>(name[0])) &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
      });
  if (right) return absl::OkStatus();
  return InvalidArgument("a job's name must be a letter and at most ", kMaxName - 1,
                         " letters, digits, '_' or '-', got '",
                         absl::CHexEscape(name.substr(0, kMaxName)), "'");
}

StatusOr<JobNames> JobNames::Open(const std::string& directory) {
  std::string path = directory.empty() ? Environment("MILLRACE_JOBS_DIR") : directory;
  if (path.empty()) {
    const std::string state = Environment("XDG_STATE_HOME"), home = Environment("HOME");
    if (state.empty() && home.empty()) {
      return FailedPrecondition(
          "the directory of jobs must be known, got neither MILLRACE_JOBS_DIR nor HOME");
    }
    path = JoinPath(state.empty() ? JoinPath(home, ".local/state") : state, "millrace/jobs");
  }
  if (!PathScheme(path).empty()) {
    return InvalidArgument("the directory of jobs must be of this machine, got '", path, "'");
  }
  MR_RETURN_IF_ERROR(FileSystem::Posix()->RecursivelyCreateDirectory(path));
  return JobNames(std::move(path));
}

std::string JobNames::DefaultJobDir(const std::string& name) const {
  return JoinPath(directory_, name);
}

std::string JobNames::PathOf(const std::string& name) const {
  return JoinPath(directory_, absl::StrCat(name, kSuffix));
}

StatusOr<std::unique_ptr<FileLock>> JobNames::Lock(const std::string& holder) const {
  const absl::Time deadline = absl::Now() + kLockWait;
  for (;;) {
    StatusOr<std::unique_ptr<FileLock>> lock =
        FileSystem::Posix()->TryLockFile(JoinPath(directory_, "lock"), holder);
    if (lock.ok()) return lock;
    if (absl::IsUnimplemented(lock.status())) return std::unique_ptr<FileLock>();
    if (!absl::IsUnavailable(lock.status()) || absl::Now() >= deadline) return lock.status();
    absl::SleepFor(kLockPoll);
  }
}

StatusOr<std::string> JobNames::Find(const std::string& name) const {
  MR_RETURN_IF_ERROR(CheckJobName(name));
  StatusOr<std::string> job_dir = Read(name);
  if (!absl::IsNotFound(job_dir.status())) return job_dir;
  const auto all = List();
  DidYouMean best(name);
  if (all.ok()) {
    for (const auto& [other, other_dir] : *all) best.Consider(other);
  }
  return absl::NotFoundError(absl::StrCat("job '", name, "' must have been submitted, got no ",
                                          "such job in '", directory_, "'", best.Hint()));
}

StatusOr<std::string> JobNames::Read(const std::string& name) const {
  const std::string path = PathOf(name);
  MR_ASSIGN_OR_RETURN(const std::string text,
                      ReadFileToString(FileSystem::Posix(), path, kMaxFile));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto job_dir = json.is_object() ? json.find("job_dir") : json.end();
  if (!json.is_object() || job_dir == json.end() || !job_dir->is_string()) {
    return absl::DataLossError(
        absl::StrCat("File '", path, "': must say where a job is, got something else"));
  }
  return job_dir->get<std::string>();
}

Status JobNames::Set(const std::string& name, const std::string& job_dir) const {
  const Json json = {{"job_dir", job_dir}};
  return WriteFileAtomically(
      FileSystem::Posix(), PathOf(name),
      absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n"));
}

StatusOr<std::vector<std::pair<std::string, std::string>>> JobNames::List() const {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                      FileSystem::Posix()->GetChildren(directory_));
  std::vector<std::pair<std::string, std::string>> jobs;
  for (const std::string& file : files) {
    absl::string_view name = file;
    if (!absl::ConsumeSuffix(&name, kSuffix) || !CheckJobName(name).ok()) continue;
    const StatusOr<std::string> job_dir = Read(std::string(name));
    if (job_dir.ok()) jobs.emplace_back(name, *job_dir);
  }
  return jobs;
}

}  // namespace millrace
