// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_S3_FILE_SYSTEM_H_
#define MILLRACE_STORES_S3_FILE_SYSTEM_H_

// S3FileSystem: objects of a store as files, "s3://bucket/key".
//
// A directory is what the keys say: "a/b" is in "a" as long as an object is. None is made for a
// directory; one that was created in this process, and has no object, exists in this process alone.
// The bucket must be there.
//
//   NewWritableFile     appears whole at Close (stores/s3_file.h); FilesAppearWhole is true
//   NewExclusiveFile    AlreadyExists when opened, and at Close when another was faster
//   RenameFile          copies in the store, then deletes. A directory's files are copied the
//                       deepest first, and deleted the other way round: what stands at the top,
//                       as saved_model.pb, is there only while everything below it is
//   GetChildren         may lack what was written a moment ago, if the store says so; FileExists
//                       of a file never does
//   TryLockFile         Unimplemented: stores have no locks that end with their holder
//
// What is not part of `options` is read from the environment at the first call.
//
// Thread-safety: all methods, from any thread.
// Failure: as core/file_system.h and stores/s3_service.h say.

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "stores/s3_service.h"

namespace millrace {

class S3FileSystem final : public FileSystem {
 public:
  S3FileSystem() = default;  // all by the environment
  explicit S3FileSystem(S3Options options) : options_(std::move(options)) {}

  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override;
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override;
  bool FileExists(const std::string& path) override;
  StatusOr<bool> IsDirectory(const std::string& path) override;
  StatusOr<uint64_t> GetFileSize(const std::string& path) override;
  StatusOr<double> GetModificationTime(const std::string& path) override;
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override;
  Status CreateDirectory(const std::string& path) override;
  Status RecursivelyCreateDirectory(const std::string& path) override;
  Status DeleteFile(const std::string& path) override;
  Status DeleteDirectory(const std::string& path) override;
  Status RecursivelyDelete(const std::string& path) override;
  Status RenameFile(const std::string& source, const std::string& target) override;
  Status SyncDirectory(const std::string&) override { return absl::OkStatus(); }
  bool FilesAppearWhole(const std::string&) override { return true; }

 private:
  S3Service* Service();
  // Whether an object's key goes on after "<key>/".
  StatusOr<bool> HasObjects(const S3Path& path);
  // The keys below a directory, without "<key>/".
  StatusOr<std::vector<std::string>> AllBelow(const S3Path& path);
  // Deletes what `names` are below `path`: by depth, what is nearest first.
  Status DeleteBelow(const S3Path& path, std::vector<std::string> names);
  // The object of a path; FailedPrecondition for a directory.
  StatusOr<S3Object> Find(const S3Path& path);
  bool WasMade(const S3Path& path);
  void Forget(const S3Path& path);

  const std::optional<S3Options> options_;
  std::once_flag once_;
  std::unique_ptr<S3Service> service_;  // after once_
  Mutex mu_;
  // Directories of this process: bucket/key/. Each begins with its parents, so they lie together.
  std::set<std::string> made_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_STORES_S3_FILE_SYSTEM_H_
