// SPDX-License-Identifier: Apache-2.0
#include "serving/model_config_file.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "serving/model_config.h"

namespace millrace {

StatusOr<std::unique_ptr<ModelConfigFile>> ModelConfigFile::Create(Options options,
                                                                   std::string content,
                                                                   TakeModels take) {
  std::unique_ptr<ModelConfigFile> file(
      new ModelConfigFile(std::move(options), std::move(content), std::move(take)));
  if (file->options_.period == absl::InfiniteDuration()) return file;
  try {
    file->thread_ = std::thread([self = file.get()] { self->Run(); });
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ModelConfigFile: a thread must start, got: ", e.what()));
  }
  return file;
}

ModelConfigFile::ModelConfigFile(Options options, std::string content, TakeModels take)
    : options_(std::move(options)), take_(std::move(take)), content_(std::move(content)) {}

ModelConfigFile::~ModelConfigFile() {
  {
    MutexLock lock(&mu_);
    ends_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status ModelConfigFile::Look() {
  MutexLock lock(&look_mu_);
  const Status status = NoExceptions("ModelConfigFile", [&]() -> Status {
    StatusOr<std::string> content = ReadFileToString(options_.file_system, options_.path);
    if (!content.ok()) {
      // An editor may be between two names.
      if (!std::exchange(is_missing_, true)) {
        LogWarning("'", options_.path, "' stays as it was: ", content.status().ToString());
      }
      return content.status();
    }
    is_missing_ = false;
    if (*content == content_) return absl::OkStatus();
    const std::string before = std::exchange(content_, *std::move(content));
    StatusOr<std::vector<ModelSettings>> models = ReadModelConfig(content_);
    const Status applied = models.ok() ? take_(*std::move(models)) : models.status();
    if (absl::IsUnavailable(applied)) content_ = before;  // another reload runs: the next look
    if (applied.ok()) {
      LogInfo("'", options_.path, "' is the list of models now");
    } else {
      LogWarning("'", options_.path, "' is not taken: ", applied.ToString());
    }
    return applied;
  });
  return status;
}

void ModelConfigFile::Run() {
  absl::Time next = options_.clock->Now() + options_.period;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!ends_ && options_.clock->Now() < next) {
        options_.clock->WaitUntil(&changed_, &mu_, next);
      }
      if (ends_) return;
    }
    Look().IgnoreError();
    next = options_.clock->Now() + options_.period;
  }
}

}  // namespace millrace
