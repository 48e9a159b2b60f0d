// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_FILE_SYSTEM_H_
#define MILLRACE_CORE_FILE_SYSTEM_H_

// FileSystem: the files that checkpoints, models and logs live in.
//
// One interface over POSIX files, stores of objects ("s3://bucket/name") and a fake that forgets
// what was not synced (for power-cut tests). Paths are plain strings; `~` and variables are not
// expanded; "" as a directory is the current one.
//
// What a program gets from its user is opened by Default(): the scheme of a path ("s3" in
// "s3://bucket/name", "" without "://") chooses the file system. A store registers its scheme from
// a library that a program links; an unknown scheme is Unimplemented and names the known ones.
//
// Thread-safety: a FileSystem may be used from any thread; a file object from one at a time,
// except RandomAccessFile, which any thread may read.
// Failure: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (disk full),
// FailedPrecondition (a directory where a file is expected, directory not empty) or
// Unknown with the system's reason; the message names the path and the operation.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// After an error every further operation fails with the first error.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes, ignoring errors
  virtual Status Append(absl::string_view data) = 0;
  // Writes at a place in the file, or beyond its end (bytes between are zeros); Append goes on
  // after the furthest byte written. FailedPrecondition for a file of NewAppendableFile.
  virtual Status WriteAt(uint64_t offset, absl::string_view data);
  // A wish: nobody will read this file soon. From here on large writes go to the device past the
  // page cache, where the file system lets them: they wait for the device, and cost the processor a
  // fraction of a copy into the cache and its writing back. Sync is needed all the same.
  virtual void WillNotBeReadSoon() {}
  // Hands everything to the operating system.
  virtual Status Flush() = 0;
  // Flush, then the data is on the device (fsync).
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual uint64_t size() const = 0;
  // Reads exactly `n` bytes at `offset` into `out`. OutOfRange when the file ends before.
  virtual Status Read(uint64_t offset, size_t n, char* out) const = 0;
  // A wish: these bytes will be read soon, in smaller pieces. What is not in memory is fetched from
  // here on, all at once.
  virtual void WillRead(uint64_t /*offset*/, size_t /*n*/) const {}
};

// While it lives, its path is locked: for all threads of all processes that ask for the lock. The
// end of the process ends it, however that comes.
class FileLock {
 public:
  virtual ~FileLock() = default;  // unlocks
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates or truncates.
  virtual StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) = 0;
  virtual StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) = 0;
  // AlreadyExists when it does: for temporary files. The default asks FileExists first.
  virtual StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path);
  // A regular file; its size is the one at this moment.
  virtual StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) = 0;

  virtual bool FileExists(const std::string& path) = 0;  // files and directories
  virtual StatusOr<bool> IsDirectory(const std::string& path) = 0;
  virtual StatusOr<uint64_t> GetFileSize(const std::string& path) = 0;
  // Seconds since the epoch of the last change, with fraction.
  virtual StatusOr<double> GetModificationTime(const std::string& path) = 0;
  // Names without the directory, sorted, without "." and "..".
  virtual StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) = 0;
  virtual Status CreateDirectory(const std::string& path) = 0;  // AlreadyExists when it does
  virtual Status RecursivelyCreateDirectory(const std::string& path) = 0;  // OK when it exists
  virtual Status DeleteFile(const std::string& path) = 0;
  virtual Status DeleteDirectory(const std::string& path) = 0;  // empty ones only
  virtual Status RecursivelyDelete(const std::string& path) = 0;
  // Replaces `target` atomically when it exists.
  virtual Status RenameFile(const std::string& source, const std::string& target) = 0;
  // Makes the names in `directory` durable (fsync of the directory).
  virtual Status SyncDirectory(const std::string& directory) = 0;
  // Whether a file of NewWritableFile comes into being, or replaces another, only when Close
  // succeeds, and then whole: so do stores of objects, whose RenameFile copies and is not atomic.
  // There, a file is written in its place; elsewhere under another name, and renamed.
  virtual bool FilesAppearWhole(const std::string& /*path*/) { return false; }
  // Locks `path`: a file of its own, which is there while the lock is held, names its holder
  // (`holder`), and may stay, unlocked, when that one is killed. Never waits: Unavailable, with
  // what the holder says, when somebody has the lock. Unimplemented when files here cannot be
  // locked (the default; on NFS when the server has no lock service. Where its client is mounted
  // with local locks, processes of other machines are not seen).
  virtual StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                          absl::string_view holder);

  static FileSystem* Posix();  // the files of this machine; "://" in a path means nothing
  // Each path goes to the file system of its scheme: no scheme and file:// to Posix, others to the
  // registered one. RenameFile refuses two schemes with InvalidArgument.
  static FileSystem* Default();
};

// "s3" for "s3://bucket/name"; "" for "a/b" and for what is no scheme (a letter, then letters,
// digits, "+", "-", ".").
absl::string_view PathScheme(absl::string_view path);
// Paths with `scheme` go to `file_system`, which lives for ever and gets them whole, scheme and
// all. Call it before main (a static of the store's library); the last one registered for a scheme
// wins.
void RegisterFileScheme(absl::string_view scheme, FileSystem* file_system);
// OK where Default() knows the scheme of `path`; otherwise Unimplemented, with the schemes that it
// knows. For programs that check their flags before anything starts.
Status CheckPathScheme(absl::string_view path);

// The whole file. `max_bytes` guards against files that are no such file: ResourceExhausted.
StatusOr<std::string> ReadFileToString(FileSystem* fs, const std::string& path,
                                       uint64_t max_bytes = uint64_t{2} << 30);
// Writes `<path>.tmp<random>`, syncs, renames, syncs the directory: old or new, never between.
Status WriteFileAtomically(FileSystem* fs, const std::string& path, absl::string_view data);

// Whether `path` stands for itself wherever it is read: "/a", "s3://bucket/a".
bool IsAbsolutePath(absl::string_view path);
// "a/b" + "c" -> "a/b/c"; an absolute second part wins.
std::string JoinPath(absl::string_view a, absl::string_view b);
// "a/b/c" -> "a/b"; "c" -> ""; "s3://bucket/a" -> "s3://bucket" -> "s3://bucket"
std::string Dirname(absl::string_view path);
std::string Basename(absl::string_view path);  // "a/b/c" -> "c"

}  // namespace millrace

#endif  // MILLRACE_CORE_FILE_SYSTEM_H_
