// SPDX-License-Identifier: Apache-2.0
#include "formats/graph_files.h"

#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// As Linux follows.
constexpr int kMaxLinks = 40;

Status Refused(const std::string& path, absl::string_view why) {
  return absl::PermissionDeniedError(
      absl::StrCat("File '", absl::CEscape(path),
                   "': graphs may use files of this server's roots only, got ", why,
                   "; start the server with MILLRACE_FILE_ROOTS or ServerOptions::file_roots that "
                   "hold it"));
}

// Where the system would go for this path: absolute, without ".", ".." and links. The end of it
// need not be there. (std::filesystem::weakly_canonical takes what cannot be looked up for what is
// not there; here a component that nobody may read refuses the file.)
StatusOr<std::string> Resolve(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return InvalidArgument("File '", absl::CEscape(path), "': a path must have no NUL, got one");
  }
  std::string current = "/";
  std::deque<std::string> rest;
  const auto put_first = [&rest](absl::string_view more) {
    const std::vector<std::string> parts = absl::StrSplit(more, '/', absl::SkipEmpty());
    rest.insert(rest.begin(), parts.begin(), parts.end());
  };
  put_first(path);
  if (!absl::StartsWith(path, "/")) {
    char directory[PATH_MAX];
    if (::getcwd(directory, sizeof(directory)) == nullptr) return Refused(path, "no directory");
    put_first(directory);
  }
  int links = 0;
  while (!rest.empty()) {
    const std::string part = std::move(rest.front());
    rest.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      // `current` has no links: its parent is the one before.
      current = Dirname(current);
      if (current.empty()) current = "/";
      continue;
    }
    const std::string next = JoinPath(current, part);
    char target[PATH_MAX];
    const ssize_t length = ::readlink(next.c_str(), target, sizeof(target));
    if (length < 0) {
      // No link, or nothing there.
      if (errno != EINVAL && errno != ENOENT && errno != ENOTDIR) {
        return Refused(path, std::strerror(errno));
      }
      current = next;
      continue;
    }
    if (++links > kMaxLinks || length == sizeof(target)) return Refused(path, "too many links");
    const absl::string_view link(target, static_cast<size_t>(length));
    put_first(link);
    if (absl::StartsWith(link, "/")) current = "/";
  }
  return current;
}

class ConfinedFiles final : public FileSystem {
 public:
  ConfinedFiles(FileSystem* base, std::vector<std::string> roots)
      : base_(base), roots_(std::move(roots)) {}

  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->NewWritableFile(path);
  }
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->NewAppendableFile(path);
  }
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->NewExclusiveFile(path);
  }
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->NewRandomAccessFile(path);
  }
  // Nobody hears what there is outside.
  bool FileExists(const std::string& path) override {
    return Check(path).ok() && base_->FileExists(path);
  }
  StatusOr<bool> IsDirectory(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->IsDirectory(path);
  }
  StatusOr<uint64_t> GetFileSize(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->GetFileSize(path);
  }
  StatusOr<double> GetModificationTime(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->GetModificationTime(path);
  }
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    MR_RETURN_IF_ERROR(Check(directory));
    return base_->GetChildren(directory);
  }
  Status CreateDirectory(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->CreateDirectory(path);
  }
  Status RecursivelyCreateDirectory(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->RecursivelyCreateDirectory(path);
  }
  Status DeleteFile(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->DeleteFile(path);
  }
  Status DeleteDirectory(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->DeleteDirectory(path);
  }
  Status RecursivelyDelete(const std::string& path) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->RecursivelyDelete(path);
  }
  Status RenameFile(const std::string& source, const std::string& target) override {
    MR_RETURN_IF_ERROR(Check(source));
    MR_RETURN_IF_ERROR(Check(target));
    return base_->RenameFile(source, target);
  }
  Status SyncDirectory(const std::string& directory) override {
    MR_RETURN_IF_ERROR(Check(directory));
    return base_->SyncDirectory(directory);
  }
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    MR_RETURN_IF_ERROR(Check(path));
    return base_->TryLockFile(path, holder);
  }

 private:
  Status Check(const std::string& path) const {
    MR_ASSIGN_OR_RETURN(const std::string resolved, Resolve(path));
    for (const std::string& root : roots_) {
      absl::string_view rest = resolved;
      // "/": everything.
      if (root == "/" || (absl::ConsumePrefix(&rest, root) && (rest.empty() || rest[0] == '/'))) {
        return absl::OkStatus();
      }
    }
    return Refused(path, "one outside");
  }

  FileSystem* const base_;
  const std::vector<std::string> roots_;  // resolved
};

// Files stay confined as they were when they were opened; a file system that was replaced is kept,
// since others may be using it.
struct ProcessRoots {
  Mutex mu;
  std::vector<std::unique_ptr<FileSystem>> all ABSL_GUARDED_BY(mu);
  FileSystem* current ABSL_GUARDED_BY(mu) = FileSystem::Default();
};
ProcessRoots& process_roots() {
  static ProcessRoots* const roots = new ProcessRoots;
  return *roots;
}

}  // namespace

StatusOr<std::unique_ptr<FileSystem>> ConfineFiles(FileSystem* base,
                                                   const std::vector<std::string>& roots) {
  std::vector<std::string> resolved;
  for (const std::string& root : roots) {
    MR_ASSIGN_OR_RETURN(const std::string real, Resolve(root));
    const StatusOr<bool> is_directory = FileSystem::Posix()->IsDirectory(real);
    if (root.empty() || !is_directory.ok() || !*is_directory) {
      return FailedPrecondition("File roots: each must be a directory that is there, got '",
                                absl::CEscape(root), "'");
    }
    resolved.push_back(real);
  }
  return std::unique_ptr<FileSystem>(std::make_unique<ConfinedFiles>(base, std::move(resolved)));
}

FileSystem* GraphFiles() {
  ProcessRoots& process = process_roots();
  MutexLock lock(&process.mu);
  return process.current;
}

Status SetGraphFileRoots(const std::vector<std::string>& roots) {
  ProcessRoots& process = process_roots();
  std::unique_ptr<FileSystem> confined;
  if (!roots.empty()) {
    // Only files of this machine: a link that leads out of a store cannot be followed from here.
    MR_ASSIGN_OR_RETURN(confined, ConfineFiles(FileSystem::Posix(), roots));
  }
  MutexLock lock(&process.mu);
  process.current = confined == nullptr ? FileSystem::Default() : confined.get();
  if (confined != nullptr) process.all.push_back(std::move(confined));
  return absl::OkStatus();
}

}  // namespace millrace
