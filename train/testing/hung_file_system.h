// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_HUNG_FILE_SYSTEM_H_
#define MILLRACE_TRAIN_TESTING_HUNG_FILE_SYSTEM_H_

// HungFileSystem: storage on which a save hangs. Its files are real, but creating a meta graph
// notifies `hangs` and waits until the test notifies `open`.
//
// Thread-safety: one thread creates meta graphs until `hangs` is notified.

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/faulty_file_system.h"

namespace millrace {

class HungFileSystem : public FaultyFileSystem {
 public:
  explicit HungFileSystem(const std::string& root) : FaultyFileSystem(FileSystem::Posix(), root) {}
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    if (absl::StrContains(path, ".meta")) {
      if (!hangs.HasBeenNotified()) hangs.Notify();
      open.Wait();
    }
    return FaultyFileSystem::NewExclusiveFile(path);
  }
  Notification hangs, open;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_HUNG_FILE_SYSTEM_H_
