// SPDX-License-Identifier: Apache-2.0
#include "core/memory_files.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

using Bytes = std::shared_ptr<const std::string>;

Status Wrong(absl::StatusCode code, const std::string& path, absl::string_view what) {
  return Status(code, absl::StrCat("File '", path, "': ", what));
}

class MemoryFile final : public RandomAccessFile {
 public:
  MemoryFile(std::string path, Bytes bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}

  uint64_t size() const override { return bytes_->size(); }

  Status Read(uint64_t offset, size_t n, char* out) const override {
    if (offset > bytes_->size() || n > bytes_->size() - offset) {
      return Wrong(absl::StatusCode::kOutOfRange, path_,
                   absl::StrCat("read of ", n, " bytes at offset ", offset,
                                " must be within the file, got a file of ", bytes_->size()));
    }
    if (n > 0) std::memcpy(out, bytes_->data() + offset, n);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Bytes bytes_;
};

class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem(std::map<std::string, Bytes> files,
                   std::map<std::string, std::set<std::string>> children)
      : files_(std::move(files)), children_(std::move(children)) {}

  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    MR_ASSIGN_OR_RETURN(const Bytes bytes, Find(path));
    return std::make_unique<MemoryFile>(path, bytes);
  }
  bool FileExists(const std::string& path) override {
    return files_.count(path) > 0 || HasDirectory(path);
  }
  StatusOr<bool> IsDirectory(const std::string& path) override {
    if (files_.count(path) > 0) return false;
    if (HasDirectory(path)) return true;
    return Missing(path);
  }
  StatusOr<uint64_t> GetFileSize(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(const Bytes bytes, Find(path));
    return bytes->size();
  }
  StatusOr<double> GetModificationTime(const std::string& path) override {
    if (!FileExists(path)) return Missing(path);
    return 0.0;
  }
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    const auto found = children_.find(std::string(absl::StripSuffix(directory, "/")));
    if (found == children_.end()) return Missing(directory);
    return std::vector<std::string>(found->second.begin(), found->second.end());
  }

  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    return Refused(path);
  }
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override {
    return Refused(path);
  }
  Status CreateDirectory(const std::string& path) override { return Refused(path); }
  Status RecursivelyCreateDirectory(const std::string& path) override {
    return HasDirectory(path) ? absl::OkStatus() : Refused(path);
  }
  Status DeleteFile(const std::string& path) override { return Refused(path); }
  Status DeleteDirectory(const std::string& path) override { return Refused(path); }
  Status RecursivelyDelete(const std::string& path) override { return Refused(path); }
  Status RenameFile(const std::string& source, const std::string&) override {
    return Refused(source);
  }
  Status SyncDirectory(const std::string& directory) override { return Refused(directory); }

 private:
  static Status Missing(const std::string& path) {
    return Wrong(absl::StatusCode::kNotFound, path, "must be among the files in memory, got none");
  }
  static Status Refused(const std::string& path) {
    return Wrong(absl::StatusCode::kPermissionDenied, path,
                 "files in memory must stay as they are, got a change");
  }
  bool HasDirectory(const std::string& path) const {
    return children_.count(std::string(absl::StripSuffix(path, "/"))) > 0;
  }
  StatusOr<Bytes> Find(const std::string& path) const {
    const auto found = files_.find(path);
    if (found != files_.end()) return found->second;
    if (HasDirectory(path)) {
      return Wrong(absl::StatusCode::kFailedPrecondition, path,
                   "must be a regular file, got a directory");
    }
    return Missing(path);
  }

  const std::map<std::string, Bytes> files_;                     // by whole path
  const std::map<std::string, std::set<std::string>> children_;  // of each directory
};

}  // namespace

StatusOr<std::shared_ptr<FileSystem>> MemoryFiles(std::string root, NamedBytes files) {
  root = std::string(absl::StripSuffix(root, "/"));
  if (root.empty()) return InvalidArgument("MemoryFiles: the root must have a name, got none");
  std::map<std::string, Bytes> by_path;
  std::map<std::string, std::set<std::string>> children = {{root, {}}};
  for (auto& [name, bytes] : files) {
    std::string directory = root;
    const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].empty() || parts[i] == "." || parts[i] == "..") {
        return InvalidArgument("MemoryFiles: a name must be a relative path without '.' and '..', ",
                               "got '", name, "'");
      }
      children[directory].insert(std::string(parts[i]));
      directory = JoinPath(directory, parts[i]);
    }
    by_path.emplace(directory, std::make_shared<const std::string>(std::move(bytes)));
  }
  for (const auto& [path, bytes] : by_path) {
    if (children.count(path) > 0) {
      return InvalidArgument("MemoryFiles: '", path,
                             "' must be a file or a directory, got both in the names");
    }
  }
  return std::make_shared<MemoryFileSystem>(std::move(by_path), std::move(children));
}

}  // namespace millrace
