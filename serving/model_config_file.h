// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MODEL_CONFIG_FILE_H_
#define MILLRACE_SERVING_MODEL_CONFIG_FILE_H_

// ModelConfigFile: a server's list of models in a file that is read again and again: when its bytes
// have changed, and can be read, they become the server's list, whole or not at all.
//
// Thread-safety: all methods, from any thread; one look at a time.
// Lifetime: the destructor waits for the look that runs, a reload among it.
// Failure: is logged once for each content of the file, and leaves the list as it was; the same
// content is tried again when it has changed.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "serving/model_versions.h"

namespace millrace {

class ModelConfigFile {
 public:
  // Makes this list the server's; may wait for its models.
  using TakeModels = std::function<Status(std::vector<ModelSettings> models)>;
  struct Options {
    std::string path;
    absl::Duration period = absl::Seconds(1);  // infinite: by Look() only
    FileSystem* file_system = FileSystem::Default();
    Clock* clock = Clock::Real();
  };

  // `content`: what the file had when the present list was made of it. ResourceExhausted when the
  // system gives no thread.
  static StatusOr<std::unique_ptr<ModelConfigFile>> Create(Options options, std::string content,
                                                           TakeModels take);
  ~ModelConfigFile();
  ModelConfigFile(const ModelConfigFile&) = delete;
  ModelConfigFile& operator=(const ModelConfigFile&) = delete;

  // What came of it: OK, too, when nothing has changed.
  Status Look();

 private:
  ModelConfigFile(Options options, std::string content, TakeModels take);
  void Run();

  const Options options_;
  const TakeModels take_;
  Mutex look_mu_;                                  // held by the look that runs
  std::string content_ ABSL_GUARDED_BY(look_mu_);  // that was tried last
  bool is_missing_ ABSL_GUARDED_BY(look_mu_) = false;
  Mutex mu_;
  CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // the last: uses the others
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MODEL_CONFIG_FILE_H_
