// SPDX-License-Identifier: Apache-2.0
#include "core/testing/faulty_file_system.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "graph/scope.h"

namespace millrace {
namespace {

using Names = std::map<std::string, int>;

// Moves `source` and what is below it.
void MoveNames(const std::string& source, const std::string& target, int inode, Names* names) {
  Names moved;
  moved[target] = inode;
  const std::string below = source + "/";
  for (auto it = names->begin(); it != names->end();) {
    if (it->first == source) {
      it = names->erase(it);
    } else if (absl::StartsWith(it->first, below)) {
      moved[JoinPath(target, it->first.substr(below.size()))] = it->second;
      it = names->erase(it);
    } else {
      ++it;
    }
  }
  for (auto& [name, moved_inode] : moved) (*names)[name] = moved_inode;
}

}  // namespace

class FaultyFileSystem::File final : public WritableFile {
 public:
  // inode -1: not below the root.
  File(FaultyFileSystem* fs, std::string path, int inode, std::unique_ptr<WritableFile> base)
      : fs_(fs), path_(std::move(path)), inode_(inode), base_(std::move(base)) {}

  Status Append(absl::string_view data) override {
    MR_RETURN_IF_ERROR(error_);
    StatusOr<int64_t> number = fs_->BeginNumbered(absl::StrCat("append ", path_, " ", data.size()));
    if (!number.ok()) {  // a torn write, not counted again
      base_->Append(data.substr(0, data.size() / 2)).IgnoreError();
      return error_ = number.status();
    }
    const Status status = base_->Append(data);
    if (status.ok()) Record(*number, Kind::kAppend, data);
    return status;
  }
  Status WriteAt(uint64_t offset, absl::string_view data) override {
    MR_RETURN_IF_ERROR(error_);
    StatusOr<int64_t> number =
        fs_->BeginNumbered(absl::StrCat("write ", path_, " ", offset, " ", data.size()));
    if (!number.ok()) {
      base_->WriteAt(offset, data.substr(0, data.size() / 2)).IgnoreError();
      return error_ = number.status();
    }
    const Status status = base_->WriteAt(offset, data);
    if (status.ok()) Record(*number, Kind::kWriteAt, data, offset);
    return status;
  }
  Status Flush() override {
    MR_RETURN_IF_ERROR(error_);
    return base_->Flush();
  }
  Status Sync() override {
    MR_RETURN_IF_ERROR(error_);
    StatusOr<int64_t> number = fs_->BeginNumbered(absl::StrCat("sync ", path_));
    if (!number.ok()) return error_ = number.status();
    const Status status = base_->Flush();  // the cut is simulated: no need to wait for a disk
    if (status.ok()) Record(*number, Kind::kSync, "");
    return status;
  }
  Status Close() override {
    MR_RETURN_IF_ERROR(error_);
    StatusOr<int64_t> number = fs_->BeginNumbered(absl::StrCat("close ", path_));
    if (!number.ok()) return error_ = number.status();
    return base_->Close();
  }

 private:
  void Record(int64_t number, Kind kind, absl::string_view data, uint64_t offset = 0) {
    if (inode_ < 0) return;
    Operation operation;
    operation.kind = kind;
    operation.inode = inode_;
    operation.data = std::string(data);
    operation.offset = offset;
    fs_->Did(number, std::move(operation));
  }

  FaultyFileSystem* const fs_;
  const std::string path_;
  const int inode_;
  const std::unique_ptr<WritableFile> base_;
  Status error_;
};

FaultyFileSystem::FaultyFileSystem(FileSystem* base, std::string root)
    : base_(base), root_(std::move(root)) {
  base_->RecursivelyCreateDirectory(root_).IgnoreError();
  Snapshot(root_, "").IgnoreError();
  MutexLock lock(&mu_);
  names_ = first_names_;
  next_inode_ = static_cast<int>(first_contents_.size()) + 1;
}

FaultyFileSystem::~FaultyFileSystem() = default;

Status FaultyFileSystem::Snapshot(const std::string& directory, const std::string& relative) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> children, base_->GetChildren(directory));
  for (const std::string& child : children) {
    const std::string path = JoinPath(directory, child);
    const std::string name = JoinPath(relative, child);
    MR_ASSIGN_OR_RETURN(const bool is_directory, base_->IsDirectory(path));
    if (is_directory) {
      first_names_[name] = kDirectoryInode;
      MR_RETURN_IF_ERROR(Snapshot(path, name));
    } else {
      const int inode = static_cast<int>(first_contents_.size()) + 1;
      MR_ASSIGN_OR_RETURN(first_contents_[inode], ReadFileToString(base_, path));
      first_names_[name] = inode;
    }
  }
  return absl::OkStatus();
}

void FaultyFileSystem::FailOperation(int64_t k, Status status, bool sticky) {
  MutexLock lock(&mu_);
  fail_at_ = k;
  failure_ = std::move(status);
  fail_sticky_ = sticky;
}

int64_t FaultyFileSystem::num_operations() {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(operations_.size());
}

std::string FaultyFileSystem::OperationText(int64_t k) {
  MutexLock lock(&mu_);
  if (k < 1 || k > static_cast<int64_t>(operations_.size())) return "nothing";
  return operations_[static_cast<size_t>(k - 1)].text;
}

StatusOr<int64_t> FaultyFileSystem::BeginNumbered(const std::string& text) {
  MutexLock lock(&mu_);
  operations_.emplace_back();
  operations_.back().text = text;
  const int64_t number = static_cast<int64_t>(operations_.size());
  if (fail_at_ != 0 && (number == fail_at_ || (fail_sticky_ && number > fail_at_))) {
    return failure_;
  }
  return number;
}

void FaultyFileSystem::Did(int64_t number, Operation operation) {
  MutexLock lock(&mu_);
  Operation& slot = operations_[static_cast<size_t>(number - 1)];
  operation.text = slot.text;
  switch (operation.kind) {
    case Kind::kCreate:
      operation.inode = next_inode_++;
      names_[operation.path] = operation.inode;
      break;
    case Kind::kMakeDirectory:
      operation.inode = kDirectoryInode;
      names_[operation.path] = kDirectoryInode;
      break;
    case Kind::kRemove:
      names_.erase(operation.path);
      break;
    case Kind::kRename: {
      auto it = names_.find(operation.path);
      operation.inode = it == names_.end() ? kDirectoryInode : it->second;
      MoveNames(operation.path, operation.target, operation.inode, &names_);
      break;
    }
    default:
      break;
  }
  slot = std::move(operation);
}

bool FaultyFileSystem::Below(const std::string& path, std::string* relative) const {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, root_)) return false;
  if (!rest.empty() && rest[0] != '/') return false;
  while (absl::ConsumePrefix(&rest, "/")) {
  }
  while (absl::ConsumeSuffix(&rest, "/")) {
  }
  *relative = std::string(rest);
  return true;
}

StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Open(
    const std::string& path, const char* text, bool truncate,
    StatusOr<std::unique_ptr<WritableFile>> (FileSystem::*open)(const std::string&)) {
  MR_ASSIGN_OR_RETURN(const int64_t number, BeginNumbered(absl::StrCat(text, " ", path)));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> base, (base_->*open)(path));
  int inode = -1;
  Operation operation;
  if (Below(path, &operation.path)) {
    {
      MutexLock lock(&mu_);
      auto it = names_.find(operation.path);
      if (it != names_.end()) inode = it->second;
    }
    if (inode >= 0) {
      operation.kind = truncate ? Kind::kTruncate : Kind::kOther;
      operation.inode = inode;
      Did(number, std::move(operation));
    } else {
      operation.kind = Kind::kCreate;
      const std::string name = operation.path;
      Did(number, std::move(operation));
      MutexLock lock(&mu_);
      inode = names_[name];
    }
  }
  return std::make_unique<File>(this, path, inode, std::move(base));
}

StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::NewWritableFile(const std::string& path) {
  return Open(path, "create", /*truncate=*/true, &FileSystem::NewWritableFile);
}
StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::NewAppendableFile(
    const std::string& path) {
  return Open(path, "open", /*truncate=*/false, &FileSystem::NewAppendableFile);
}
StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::NewExclusiveFile(
    const std::string& path) {
  return Open(path, "create", /*truncate=*/false, &FileSystem::NewExclusiveFile);
}

StatusOr<std::unique_ptr<RandomAccessFile>> FaultyFileSystem::NewRandomAccessFile(
    const std::string& path) {
  return base_->NewRandomAccessFile(path);
}
bool FaultyFileSystem::FileExists(const std::string& path) { return base_->FileExists(path); }
StatusOr<bool> FaultyFileSystem::IsDirectory(const std::string& path) {
  return base_->IsDirectory(path);
}
StatusOr<uint64_t> FaultyFileSystem::GetFileSize(const std::string& path) {
  return base_->GetFileSize(path);
}
StatusOr<double> FaultyFileSystem::GetModificationTime(const std::string& path) {
  return base_->GetModificationTime(path);
}
StatusOr<std::vector<std::string>> FaultyFileSystem::GetChildren(const std::string& directory) {
  return base_->GetChildren(directory);
}

Status FaultyFileSystem::CreateDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const int64_t number, BeginNumbered(absl::StrCat("mkdir ", path)));
  MR_RETURN_IF_ERROR(base_->CreateDirectory(path));
  Operation operation;
  operation.kind = Kind::kMakeDirectory;
  if (Below(path, &operation.path)) Did(number, std::move(operation));
  return absl::OkStatus();
}

// One operation for each directory made.
Status FaultyFileSystem::RecursivelyCreateDirectory(const std::string& path) {
  if (path.empty() || base_->FileExists(path)) return base_->RecursivelyCreateDirectory(path);
  const std::string parent = Dirname(path);
  if (parent != path) MR_RETURN_IF_ERROR(RecursivelyCreateDirectory(parent));
  if (base_->FileExists(path)) return absl::OkStatus();  // "a/b/" after "a/b"
  return CreateDirectory(path);
}

Status FaultyFileSystem::DeleteFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const int64_t number, BeginNumbered(absl::StrCat("delete ", path)));
  MR_RETURN_IF_ERROR(base_->DeleteFile(path));
  Operation operation;
  operation.kind = Kind::kRemove;
  if (Below(path, &operation.path)) Did(number, std::move(operation));
  return absl::OkStatus();
}

Status FaultyFileSystem::DeleteDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const int64_t number, BeginNumbered(absl::StrCat("rmdir ", path)));
  MR_RETURN_IF_ERROR(base_->DeleteDirectory(path));
  Operation operation;
  operation.kind = Kind::kRemove;
  if (Below(path, &operation.path)) Did(number, std::move(operation));
  return absl::OkStatus();
}

// One operation for each file and directory.
Status FaultyFileSystem::RecursivelyDelete(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const bool is_directory, base_->IsDirectory(path));
  if (!is_directory) return DeleteFile(path);
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> children, base_->GetChildren(path));
  for (const std::string& child : children) {
    MR_RETURN_IF_ERROR(RecursivelyDelete(JoinPath(path, child)));
  }
  return DeleteDirectory(path);
}

Status FaultyFileSystem::RenameFile(const std::string& source, const std::string& target) {
  MR_ASSIGN_OR_RETURN(const int64_t number,
                      BeginNumbered(absl::StrCat("rename ", source, " ", target)));
  MR_RETURN_IF_ERROR(base_->RenameFile(source, target));
  Operation operation;
  operation.kind = Kind::kRename;
  const bool from = Below(source, &operation.path), to = Below(target, &operation.target);
  if (from != to) {
    return absl::UnimplementedError(absl::StrCat("FaultyFileSystem: rename from '", source,
                                                 "' to '", target, "' must stay in '", root_, "'"));
  }
  if (from) Did(number, std::move(operation));
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<FileLock>> FaultyFileSystem::TryLockFile(const std::string& path,
                                                                  absl::string_view holder) {
  MR_RETURN_IF_ERROR(BeginNumbered(absl::StrCat("lock ", path)).status());
  return base_->TryLockFile(path, holder);
}

Status FaultyFileSystem::SyncDirectory(const std::string& directory) {
  MR_ASSIGN_OR_RETURN(const int64_t number, BeginNumbered(absl::StrCat("syncdir ", directory)));
  MR_ASSIGN_OR_RETURN(const bool is_directory, base_->IsDirectory(directory));
  if (!is_directory) return base_->SyncDirectory(directory);  // says why not
  Operation operation;
  operation.kind = Kind::kSyncDirectory;
  if (Below(directory, &operation.path)) Did(number, std::move(operation));
  return absl::OkStatus();
}

Status FaultyFileSystem::RestoreCut(int64_t cut, Loss loss, uint64_t seed,
                                    const std::string& target) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(cut));
  const auto coin = [&] { return (random() & 1) != 0; };

  struct Content {
    std::string synced, now;
  };
  std::map<int, Content> contents;
  for (const auto& [inode, bytes] : first_contents_) contents[inode] = {bytes, bytes};
  Names names = first_names_;       // what survives
  std::vector<Operation> unsynced;  // changes of names, oldest first
  const auto apply = [&names](const Operation& operation) {
    switch (operation.kind) {
      case Kind::kCreate:
      case Kind::kMakeDirectory:
        names[operation.path] = operation.inode;
        break;
      case Kind::kRemove:
        names.erase(operation.path);
        break;
      case Kind::kRename:
        MoveNames(operation.path, operation.target, operation.inode, &names);
        break;
      default:
        break;
    }
  };
  {
    MutexLock lock(&mu_);
    for (int64_t i = 0; i < cut && i < static_cast<int64_t>(operations_.size()); ++i) {
      const Operation& operation = operations_[static_cast<size_t>(i)];
      switch (operation.kind) {
        case Kind::kOther:
          break;
        case Kind::kTruncate:
          contents[operation.inode].now.clear();
          break;
        case Kind::kAppend:
          contents[operation.inode].now += operation.data;
          break;
        case Kind::kWriteAt: {
          std::string& now = contents[operation.inode].now;
          now.resize(std::max<size_t>(now.size(), operation.offset + operation.data.size()));
          now.replace(operation.offset, operation.data.size(), operation.data);
          break;
        }
        case Kind::kSync:
          contents[operation.inode].synced = contents[operation.inode].now;
          break;
        case Kind::kSyncDirectory: {
          std::vector<Operation> others;
          for (Operation& change : unsynced) {
            // A rename between directories is one change of the file system's journal.
            const bool here =
                Dirname(change.path) == operation.path ||
                (change.kind == Kind::kRename && Dirname(change.target) == operation.path);
            if (here) {
              apply(change);
            } else {
              others.push_back(std::move(change));
            }
          }
          unsynced = std::move(others);
          break;
        }
        default:
          unsynced.push_back(operation);
      }
    }
  }
  for (const Operation& change : unsynced) {
    if (loss == Loss::kUnsyncedData || (loss == Loss::kRandom && coin())) apply(change);
  }

  if (base_->FileExists(target)) MR_RETURN_IF_ERROR(base_->RecursivelyDelete(target));
  MR_RETURN_IF_ERROR(base_->RecursivelyCreateDirectory(target));
  // Parents come before what is below them ("a" < "a/b"); what lost its parent is lost.
  std::set<std::string> directories = {""};
  for (const auto& [name, inode] : names) {
    if (directories.count(Dirname(name)) == 0) continue;
    const std::string path = JoinPath(target, name);
    if (inode == kDirectoryInode) {
      directories.insert(name);
      MR_RETURN_IF_ERROR(base_->CreateDirectory(path));
      continue;
    }
    const Content& content = contents[inode];
    std::string bytes = content.synced;
    if (loss == Loss::kUnsyncedNames) bytes = content.now;
    if (loss == Loss::kRandom && coin()) {
      // More than what was synced of a growing file; any prefix of a truncated one.
      const size_t least =
          absl::StartsWith(content.now, content.synced) ? content.synced.size() : 0;
      bytes = content.now.substr(0, least + random() % (content.now.size() - least + 1));
    }
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, base_->NewWritableFile(path));
    MR_RETURN_IF_ERROR(file->Append(bytes));
    MR_RETURN_IF_ERROR(file->Close());
  }
  return absl::OkStatus();
}

}  // namespace millrace
