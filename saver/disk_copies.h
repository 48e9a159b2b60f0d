// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_DISK_COPIES_H_
#define MILLRACE_SAVER_DISK_COPIES_H_

// DiskCopies: copies on disk of files that are in memory, for ops that open paths by themselves.
//
// The copies are in a directory of their own below $TMPDIR (else /tmp), which only this user may
// read and which goes with the object.
//
// Thread-safety: thread-compatible. Failure: FailedPrecondition where no directory can be made,
// AlreadyExists for a name that is used; otherwise the file systems' errors.

#include <memory>
#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// Appends what `from` has to `to`, a piece at a time.
Status CopyBytes(const RandomAccessFile& from, WritableFile* to);

class DiskCopies {
 public:
  static StatusOr<std::unique_ptr<DiskCopies>> Make();
  ~DiskCopies();
  DiskCopies(const DiskCopies&) = delete;
  DiskCopies& operator=(const DiskCopies&) = delete;

  const std::string& directory() const { return directory_; }
  // Copies the file `path` of `files` to `name` in the directory.
  Status Add(FileSystem* files, const std::string& path, const std::string& name);

 private:
  explicit DiskCopies(std::string directory);
  const std::string directory_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_DISK_COPIES_H_
