// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TESTING_FAULTY_FILE_SYSTEM_H_
#define MILLRACE_CORE_TESTING_FAULTY_FILE_SYSTEM_H_

// FaultyFileSystem: real files, with failing operations and power cuts.
//
// Every operation that changes files (open for writing, append, write, sync, close, create, rename,
// delete, sync of a directory, lock) gets a number, from 1 on. A test runs once to learn how many
// there are, then once per number k with FailOperation(k, ...) or once per k and loss with
// RestoreCut().
//
//   FaultyFileSystem fs(FileSystem::Posix(), directory);
//   Save(&fs);
//   for (int64_t cut = 0; cut <= fs.num_operations(); ++cut) {
//     fs.RestoreCut(cut, Loss::kUnsyncedData, seed, other_directory);  // what the disk then has
//     CheckOldOrNew(other_directory);
//   }
//
// What a disk may forget: bytes appended after a file's last Sync, and names (create, rename,
// delete) that changed after the last SyncDirectory of their directory. A truncated file keeps
// its old bytes until it is synced. Links are not modelled, files of locks are forgotten.
//
// Thread-safety: all methods, from any thread. A file from it must not outlive it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/mutex.h"

namespace millrace {

enum class Loss {
  kEverythingUnsynced,  // only synced bytes and synced names
  kUnsyncedData,        // all names, but only synced bytes (a renamed file may be empty)
  kUnsyncedNames,       // all bytes, but only synced names
  kRandom,              // each name change and a random prefix of each file's bytes, by chance
};

class FaultyFileSystem : public FileSystem {
 public:
  // Records what happens to `root` (created when missing) and below, from its present state on;
  // that counts as synced. Operations elsewhere are passed on and counted. `base` must outlive
  // this.
  FaultyFileSystem(FileSystem* base, std::string root);
  ~FaultyFileSystem() override;

  // The k-th operation (counted from the start) and, if `sticky`, all later ones return `status`
  // instead of being done. An append that fails has written half of its bytes.
  void FailOperation(int64_t k, Status status, bool sticky = false);
  int64_t num_operations();
  // "append <path> <bytes>", ...: what operation k was, for messages. k from 1.
  std::string OperationText(int64_t k);

  // Makes `target` (replaced when it exists; may be the root itself) what `root` would be if the
  // power had failed after `cut` operations (0: none was done). The same seed gives the same.
  Status RestoreCut(int64_t cut, Loss loss, uint64_t seed, const std::string& target);

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
  Status SyncDirectory(const std::string& directory) override;
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override;

 private:
  class File;

  enum class Kind {
    kOther,
    kCreate,
    kTruncate,
    kAppend,
    kWriteAt,
    kSync,
    kMakeDirectory,
    kRemove,
    kRename,
    kSyncDirectory
  };
  static constexpr int kDirectoryInode = 0;

  struct Operation {
    Kind kind = Kind::kOther;
    std::string text;
    std::string path;    // below the root, without it; "" is the root
    std::string target;  // of a rename
    int inode = -1;
    std::string data;
    uint64_t offset = 0;  // of a write at a place
  };

  // Counts an operation; not OK: it must not be done.
  StatusOr<int64_t> BeginNumbered(const std::string& text);
  // What operation `number` did below the root.
  void Did(int64_t number, Operation operation);
  bool Below(const std::string& path, std::string* relative) const;
  Status Snapshot(const std::string& directory, const std::string& relative);
  StatusOr<std::unique_ptr<WritableFile>> Open(
      const std::string& path, const char* text, bool truncate,
      StatusOr<std::unique_ptr<WritableFile>> (FileSystem::*open)(const std::string&));

  FileSystem* const base_;
  const std::string root_;
  std::map<std::string, int> first_names_;     // at the start: path to inode
  std::map<int, std::string> first_contents_;  // at the start

  Mutex mu_;
  std::vector<Operation> operations_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> names_ ABSL_GUARDED_BY(mu_);  // as they are now
  int next_inode_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t fail_at_ ABSL_GUARDED_BY(mu_) = 0;  // 0: never
  bool fail_sticky_ ABSL_GUARDED_BY(mu_) = false;
  Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_CORE_TESTING_FAULTY_FILE_SYSTEM_H_
