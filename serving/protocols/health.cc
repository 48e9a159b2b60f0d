// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/health.h"

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "serving/version_state.h"

namespace millrace {

Health HealthOfModel(Readiness::Phase phase, const ModelStatus* model) {
  if (model == nullptr) return Health::kServiceUnknown;
  bool answers = false, holds_something = model->is_listed;
  for (const VersionStatus& version : model->versions) {
    answers |= version.state == VersionState::kAvailable;
    holds_something |= version.state != VersionState::kEnded;
  }
  if (!holds_something) return Health::kServiceUnknown;
  return answers && phase != Readiness::Phase::kStopping ? Health::kServing : Health::kNotServing;
}

Health HealthOfServer(Readiness::Phase phase) {
  return phase == Readiness::Phase::kReady ? Health::kServing : Health::kNotServing;
}

ModelHealth::ModelHealth(const Options& options)
    : readiness_(options.readiness),
      service_(HealthService::Create(
          {.look =
               [options] {
                 return [phase = options.readiness->phase(), services = options.services,
                         models = options.versions->GetStatuses()](absl::string_view name) {
                   if (name.empty() ||
                       std::find(services.begin(), services.end(), name) != services.end()) {
                     return HealthOfServer(phase);
                   }
                   const auto model =
                       std::find_if(models.begin(), models.end(),
                                    [&](const ModelStatus& m) { return m.name == name; });
                   return HealthOfModel(phase, model == models.end() ? nullptr : &*model);
                 };
               },
           .known_names = "one of this server or a model that it serves"})) {}

StatusOr<std::unique_ptr<ModelHealth>> ModelHealth::Create(Options options) {
  std::unique_ptr<ModelHealth> health(new ModelHealth(options));
  try {
    MutexLock lock(&health->thread_mu_);
    health->thread_ = std::thread(&ModelHealth::Run, health.get());
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Health: the system must give a thread, got ", e.what()));
  }
  return health;
}

ModelHealth::~ModelHealth() { Stop(); }

void ModelHealth::Run() {
  int64_t seen = 0;
  for (;;) {
    seen = readiness_->AwaitChange(seen);
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
    }
    service_->NoteChange();
  }
}

void ModelHealth::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  readiness_->NoteChange();
  {
    MutexLock lock(&thread_mu_);
    if (thread_.joinable()) thread_.join();
  }
  service_->End();
}

}  // namespace millrace
