// SPDX-License-Identifier: Apache-2.0
#include "serving/server/hosted_models.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/logging.h"
#include "serving/batching/batch_parameters.h"
#include "serving/monitoring/access_log.h"
#include "serving/monitoring/replay_requests.h"
#include "serving/servable.h"
#include "serving/step_bounds.h"
#include "serving/warm_up.h"

namespace millrace {
namespace {

constexpr absl::Duration kMostReplayTime = absl::Minutes(1);

// Both may be null.
ModelVersions::Loader LoaderOf(const ServedModelOptions& chosen,
                               std::shared_ptr<const Batching> batching,
                               std::shared_ptr<ServerMetrics> metrics) {
  return [chosen, batching = std::move(batching), metrics = std::move(metrics)](
             const VersionToLoad& version,
             CancellationManager* cancellation) -> StatusOr<std::shared_ptr<Servable>> {
    const absl::Time began = absl::Now();
    ServedModelOptions options = chosen;
    if (batching != nullptr) {
      const std::string label =
          absl::StrCat("model '", version.model, "' version ", version.version);
      MR_ASSIGN_OR_RETURN(options.runner, batching->RunnerOf(label, version.directory));
    }
    MR_ASSIGN_OR_RETURN(
        std::unique_ptr<ServedModel> model,
        ServedModel::Load(version.model, version.version, version.directory, options));
    if (metrics != nullptr) model->set_note(metrics->NoteOf(*model, absl::Now() - began));
    // Between its parts: a load of a SavedModel cannot be stopped.
    if (cancellation->IsCancelled()) return absl::CancelledError("the load was told to end");
    return std::shared_ptr<Servable>(std::move(model));
  };
}

// What the exporter put next to the version; an error fails its load.
Status RunExportedRequests(const VersionToLoad& version, const ServedModel& model,
                           const WarmUpOptions& options, ServerMetrics* metrics) {
  const absl::Time began = absl::Now();
  const StatusOr<int64_t> run = WarmUp(model, version.directory, options);
  // A version without such a file was not warmed up.
  if (metrics != nullptr && (!run.ok() || *run > 0)) {
    metrics->WarmedUp(version, run.status(), absl::Now() - began, run.value_or(0));
  }
  MR_ASSIGN_OR_RETURN(const int64_t records, run);
  if (records > 0) {
    LogInfo("Model ", version.model, " version ", version.version, ": ran ", records,
            " warm-up requests");
  }
  return absl::OkStatus();
}

// What was asked last; errors are counted.
void RunLoggedRequests(const VersionToLoad& version, const ServedModel& model,
                       const ReplayOptions& options, ServerMetrics* metrics) {
  const ReplayedRequests replayed = ReplayRequests(model, version.request_log_prefix, options);
  if (metrics != nullptr) {
    for (const auto& [code, count] : replayed.by_code) {
      metrics->Replayed(version.model, code, count);
    }
  }
  const auto ok = replayed.by_code.find(absl::StatusCode::kOk);
  const int64_t num_ok = ok == replayed.by_code.end() ? 0 : ok->second;
  const std::string text =
      absl::StrCat("Model ", version.model, " version ", version.version, ": ran ",
                   replayed.num_run(), " logged requests, ", num_ok, " of them without an error");
  if (replayed.first_error.ok()) {
    if (replayed.num_run() > 0) LogInfo(text);
    return;
  }
  LogWarning(text, "; ", replayed.num_unreadable,
             " files and records could not be read; the first error is ",
             replayed.first_error.ToString());
}

// `metrics` may be null.
ModelVersions::WarmUp WarmUpOf(int iterations, int64_t num_logged, absl::Duration replay_time,
                               std::shared_ptr<ServerMetrics> metrics) {
  return [iterations, num_logged, replay_time, metrics = std::move(metrics)](
             const VersionToLoad& version, Servable* servable,
             CancellationManager* cancellation) -> Status {
    const auto& model = *static_cast<const ServedModel*>(servable);
    const StepBounds bounds = {.cancellation = cancellation};
    MR_RETURN_IF_ERROR(RunExportedRequests(
        version, model, {.iterations = iterations, .bounds = bounds}, metrics.get()));
    if (num_logged > 0) {
      const StepBounds of_replay = {.deadline = absl::Now() + replay_time,
                                    .cancellation = cancellation};
      RunLoggedRequests(version, model, {.max_requests = num_logged, .bounds = of_replay},
                        metrics.get());
    }
    return absl::OkStatus();
  };
}

}  // namespace

StatusOr<std::unique_ptr<HostedModels>> HostedModels::Create(const HostedModelsOptions& options) {
  std::unique_ptr<HostedModels> hosted(new HostedModels);
  ModelVersions::Options versions = options.versions;
  if (options.metrics) hosted->metrics_ = std::make_shared<ServerMetrics>();
  std::shared_ptr<const Batching> batching;
  if (options.batching) {
    BatchingOptions observed = *options.batching;
    if (hosted->metrics_ != nullptr) {
      observed.observer = hosted->metrics_->BatchingOf(
          observed.parameters.value_or(BatchParameters()).thread_pool_name);
    }
    MR_ASSIGN_OR_RETURN(batching, Batching::Create(observed));
  }
  versions.loader = LoaderOf(options.model, batching, hosted->metrics_);
  if (options.enable_warm_up) {
    // They must not make a load one that takes too long.
    const absl::Duration replay_time = std::min(versions.plan.max_load_time / 10, kMostReplayTime);
    versions.warm_up = WarmUpOf(options.warm_up_iterations, options.warm_up_from_request_log,
                                replay_time, hosted->metrics_);
  }
  hosted->polls_by_hand_ = versions.poll_period == absl::InfiniteDuration();
  MR_ASSIGN_OR_RETURN(hosted->versions_, ModelVersions::Create(std::move(versions)));
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<RequestObserver> observer, hosted->Observe(options));
  hosted->requests_ =
      std::make_shared<const ModelRequests>(hosted->versions_, absl::Minutes(10), observer);
  return hosted;
}

StatusOr<std::shared_ptr<RequestObserver>> HostedModels::Observe(
    const HostedModelsOptions& options) {
  if (metrics_ != nullptr) metrics_->Watch(versions_);
  if (options.request_log) {
    MR_ASSIGN_OR_RETURN(
        request_log_,
        RequestLog::Start(versions_, metrics_ == nullptr ? nullptr : metrics_->request_log_count(),
                          options.request_log_options));
  }
  std::shared_ptr<RequestObserver> access_log;
  if (options.access_log_sampling > 0) {
    access_log = std::make_shared<AccessLog>(options.access_log_sampling);
  }
  return AllObservers({metrics_, request_log_, access_log});
}

namespace {

// Off when it ends, also by an exception.
class NobodyAsks {
 public:
  NobodyAsks(ModelVersions* versions, bool nobody_asks) : versions_(versions) {
    versions_->SetNobodyAsks(nobody_asks);
  }
  ~NobodyAsks() { versions_->SetNobodyAsks(false); }
  NobodyAsks(const NobodyAsks&) = delete;
  NobodyAsks& operator=(const NobodyAsks&) = delete;

 private:
  ModelVersions* const versions_;
};

std::vector<ModelSettings> WithoutLabels(std::vector<ModelSettings> models) {
  for (ModelSettings& model : models) model.labels.clear();
  return models;
}

}  // namespace

Status HostedModels::SetModels(const std::vector<ModelSettings>& models) {
  MR_RETURN_IF_ERROR(versions_->SetModels(WithoutLabels(models)));
  num_lists_ = versions_->num_lists();
  models_ = models;
  return absl::OkStatus();
}

Status HostedModels::Load(const std::vector<ModelSettings>& models, bool require_all,
                          absl::Duration timeout) {
  MR_RETURN_IF_ERROR(SetModels(models));
  return AwaitModels(require_all, timeout, /*nobody_asks=*/true);
}

Status HostedModels::AwaitModels(bool require_all, absl::Duration timeout, bool nobody_asks) {
  const absl::Time deadline = absl::Now() + timeout;
  const auto failed = [&] {
    const NobodyAsks until_tried(versions_.get(), nobody_asks);
    if (polls_by_hand_) versions_->Poll();
    return versions_->WaitUntilTried(deadline);
  }();
  for (const auto& [name, why] : failed) {
    LogWarning("Model ", name, " is not available: ", why.ToString());
  }
  if (!failed.empty() && (require_all || models_.size() == 1)) return ModelsNotAvailable(failed);
  // Each model's: those of one that is not available harm no other.
  std::vector<ModelSettings> listed = WithoutLabels(models_);
  for (size_t i = 0; i < listed.size(); ++i) {
    if (models_[i].labels.empty()) continue;
    std::vector<ModelSettings> labelled = listed;
    labelled[i].labels = models_[i].labels;
    const Status set = versions_->ReloadAfter(num_lists_, labelled, deadline);
    if (absl::IsAborted(set)) {
      LogWarning("The list of models of the start is not the one that serves: ", set.message());
      break;
    }
    if (set.ok()) {
      ++num_lists_;  // this one
      listed = std::move(labelled);
    } else {
      LogWarning("Model ", listed[i].name, " has no labels: ", set.message());
    }
  }
  return absl::OkStatus();
}

void HostedModels::Stop() {
  if (request_log_ != nullptr) request_log_->Stop();
}

}  // namespace millrace
