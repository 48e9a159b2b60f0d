// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_WATCHED_SAVER_H_
#define MILLRACE_TRAIN_TESTING_WATCHED_SAVER_H_

// WatchedSaver: a Saver whose saves a test makes fail and waits for.
//
// Thread-safety: that of the Saver it owns; FailWith, FailInTurn and AwaitSave from any thread.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

class WatchedSaver : public Saver {
 public:
  explicit WatchedSaver(std::unique_ptr<Saver> saver) : saver_(std::move(saver)) {}
  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> step) override {
    Status error;
    {
      MutexLock lock(&mu_);
      error = error_;
      if (error.ok() && !errors_.empty()) {
        error = errors_.front();
        errors_.pop_front();
      }
    }
    StatusOr<std::string> path =
        error.ok() ? saver_->Save(session, prefix, step) : StatusOr<std::string>(error);
    MutexLock lock(&mu_);
    paths_.push_back(path.ok() ? *path : "");
    changed_.SignalAll();
    return path;
  }
  Status Restore(Session* session, const std::string& path) override {
    return saver_->Restore(session, path);
  }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    return saver_->RecoverLastCheckpoints(paths);
  }
  std::vector<std::string> last_checkpoints() const override { return saver_->last_checkpoints(); }
  const tensorflow::SaverDef& def() const override { return saver_->def(); }

  // From now on every save fails with this; OK ends that.
  void FailWith(const Status& error) {
    MutexLock lock(&mu_);
    error_ = error;
  }
  // The next saves fail with these, one each; OK entries save.
  void FailInTurn(std::deque<Status> errors) {
    MutexLock lock(&mu_);
    errors_ = std::move(errors);
  }
  // Waits for the end of save `number`, counted from 1: its path, "" when it failed.
  std::string AwaitSave(size_t number) {
    MutexLock lock(&mu_);
    while (paths_.size() < number) changed_.Wait(&mu_);
    return paths_[number - 1];
  }

 private:
  const std::unique_ptr<Saver> saver_;
  Mutex mu_;
  CondVar changed_;
  Status error_ ABSL_GUARDED_BY(mu_);
  std::deque<Status> errors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> paths_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_WATCHED_SAVER_H_
