// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_S3_FILE_H_
#define MILLRACE_STORES_S3_FILE_H_

// Files of a store of objects. All borrow their S3Service.
//
//   S3WritableFile    is there when Close succeeds, whole. Up to one part it is one PUT; beyond, an
//                     upload in parts, each sent when all of its bytes have been written. WriteAt
//                     goes anywhere but into a part that was sent: Unimplemented. A file that is
//                     dropped before Close leaves no object and no upload, unless the process ends.
//                     Flush and Sync promise nothing.
//   S3AppendableFile  keeps its bytes and puts the whole object again: at Sync and Close whenever
//                     there are more, at Flush when so long a time has passed since the last put as
//                     append_period says, and ten times as long as that put took.
//   S3RandomAccessFile reads the object that it was opened on, or fails: FailedPrecondition when
//                     another one has its name now. Reads in order fetch ahead, up to 8 MB.
//
// Thread-safety and failure: as core/file_system.h says.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "stores/s3_service.h"

namespace millrace {

class S3WritableFile final : public WritableFile {
 public:
  S3WritableFile(S3Service* service, S3Path path, bool exclusive);
  ~S3WritableFile() override;

  Status Append(absl::string_view data) override;
  Status WriteAt(uint64_t offset, absl::string_view data) override;
  Status Flush() override { return error_; }
  Status Sync() override { return error_; }
  Status Close() override;

 private:
  // Bytes of the file that are not sent.
  struct Part {
    std::string bytes;                     // zeros where nothing was written
    std::map<uint64_t, uint64_t> written;  // begin -> end, apart from each other
  };

  Status Write(uint64_t offset, absl::string_view data);
  Status WriteInto(int number, uint64_t at, absl::string_view data);
  Status Send(int number, absl::string_view bytes);
  Status Finish();
  Status Failed(Status status);

  S3Service* const service_;
  const S3Path path_;
  const bool exclusive_;
  std::map<int, Part> parts_;  // from 1
  std::optional<S3Service::Upload> upload_;
  uint64_t end_ = 0;   // the furthest byte written
  uint64_t held_ = 0;  // bytes of parts_
  bool closed_ = false;
  Status error_;
};

class S3AppendableFile final : public WritableFile {
 public:
  // `bytes`: what the object has.
  S3AppendableFile(S3Service* service, S3Path path, std::string bytes);
  ~S3AppendableFile() override;

  Status Append(absl::string_view data) override;
  Status Flush() override;
  Status Sync() override { return Put(); }
  Status Close() override;

 private:
  Status Put();

  S3Service* const service_;
  const S3Path path_;
  std::string bytes_;
  std::optional<uint64_t> put_bytes_;  // of the last put
  absl::Time next_put_ = absl::InfinitePast();
  bool closed_ = false;
  Status error_;
};

class S3RandomAccessFile final : public RandomAccessFile {
 public:
  S3RandomAccessFile(S3Service* service, S3Path path, S3Object object);

  uint64_t size() const override { return object_.size; }
  Status Read(uint64_t offset, size_t n, char* out) const override;

 private:
  struct Block {
    uint64_t begin;
    std::shared_ptr<const std::string> bytes;
  };
  // A block that has the byte at `offset`, or null.
  std::shared_ptr<const std::string> Cached(uint64_t offset, uint64_t* begin) const;

  S3Service* const service_;
  const S3Path path_;
  const S3Object object_;
  mutable Mutex mu_;
  mutable std::deque<Block> blocks_ ABSL_GUARDED_BY(mu_);  // the last one is the newest
  mutable uint64_t next_offset_ ABSL_GUARDED_BY(mu_) = 0;  // where reading in order goes on
  mutable uint64_t ahead_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the next fetch; grows
};

}  // namespace millrace

#endif  // MILLRACE_STORES_S3_FILE_H_
