// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/server_metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/process_metrics.h"
#include "saver/model_signature.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

using Labels = std::vector<std::string>;
using VersionKey = std::pair<std::string, int64_t>;

constexpr char kRuntime[] = "TF1";  // TensorFlow Serving's name for sessions
constexpr size_t kNumCodes = 17;    // of absl::StatusCode, OK and UNAUTHENTICATED included

size_t CodeIndex(absl::StatusCode code) {
  const int index = static_cast<int>(code);
  constexpr int kUnknown = static_cast<int>(absl::StatusCode::kUnknown);
  const bool is_known = index >= 0 && index < static_cast<int>(kNumCodes);
  return static_cast<size_t>(is_known ? index : kUnknown);
}

std::string CodeText(size_t index) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(index));
}

std::vector<double> InSeconds(std::vector<double> microseconds) {
  for (double& bound : microseconds) bound *= 1e-6;
  return microseconds;
}

// A cell that is made when it is first used: what was never asked for has no series.
template <typename Cell>
class LazyCell {
 public:
  template <typename LabelsOf>
  Cell& Get(MetricFamily<Cell>* family, const LabelsOf& labels_of) {
    Cell* cell = cell_.load(std::memory_order_acquire);
    return cell != nullptr ? *cell : Make(family, labels_of());
  }

 private:
  Cell& Make(MetricFamily<Cell>* family, const Labels& labels) {
    MutexLock lock(&mu_);
    if (owner_ == nullptr) {
      owner_ = family->Find(labels);
      cell_.store(owner_.get(), std::memory_order_release);
    }
    return *owner_;
  }

  std::atomic<Cell*> cell_{nullptr};  // released once, with what it points to
  Mutex mu_;
  std::shared_ptr<Cell> owner_ ABSL_GUARDED_BY(mu_);
};

// Of one model, for all its versions.
struct ModelMetrics {
  explicit ModelMetrics(std::string model_name) : name(std::move(model_name)) {}

  const std::string name;
  std::array<LazyCell<MetricValue>, kNumCodes> count;
  std::array<std::array<LazyCell<MetricHistogram>, kNumRequestEntrypoints>, kNumRequestApis>
      latency;
  std::array<LazyCell<MetricHistogram>, kNumRequestApis> run_time;
  LazyCell<MetricHistogram> example_counts;
  LazyCell<MetricValue> example_count_total;
};

struct SignatureMetrics {
  std::array<LazyCell<MetricValue>, kNumCodes> count;
  LazyCell<MetricHistogram> latency;
};

}  // namespace

struct ServerMetrics::State {
  State();

  std::shared_ptr<ModelMetrics> ModelOf(const std::string& name) {
    MutexLock lock(&mu);
    std::shared_ptr<ModelMetrics>& model = models[name];
    if (model == nullptr) model = std::make_shared<ModelMetrics>(name);
    return model;
  }
  // Of a request that found no version: the model when there is one of this name.
  std::shared_ptr<ModelMetrics> ModelThatFailed(const std::string& name) {
    {
      MutexLock lock(&mu);
      const auto found = models.find(name);
      if (found != models.end()) return found->second;
    }
    const std::shared_ptr<const ModelVersions> watched = versions.lock();
    const bool is_model = watched != nullptr && watched->GetStatus(name).ok();
    return ModelOf(is_model ? name : "");
  }
  std::vector<ModelStatus> Statuses() const {
    const std::shared_ptr<const ModelVersions> watched = versions.lock();
    return watched == nullptr ? std::vector<ModelStatus>() : watched->GetStatuses();
  }
  int64_t NumWaiting() const {
    std::vector<std::function<int64_t()>> fronts;
    {
      MutexLock lock(&mu);
      fronts = waiting;
    }
    int64_t sum = 0;
    for (const auto& front : fronts) sum += front();
    return sum;
  }
  void AddReaders();
  // Series of what is no longer there.
  void Sweep();

  MetricRegistry registry;
  // TensorFlow Serving's.
  MetricValues* const request_count;
  MetricHistograms* const request_latency;
  MetricHistograms* const runtime_latency;
  MetricHistograms* const example_counts;
  MetricValues* const example_count_total;
  MetricHistograms* const warm_up_latency;
  MetricValues* const warm_up_records;
  MetricValues* const log_count;
  MetricHistograms* const queuing_latency;
  MetricHistograms* const processed_batch_size;
  MetricHistograms* const padding_size;
  MetricHistograms* const input_batch_size;
  MetricValues* const wrapped_run_count;
  // Ours.
  MetricValues* const version_count;
  MetricHistograms* const version_latency;
  MetricValues* const replayed_count;

  std::weak_ptr<const ModelVersions> versions;  // set before the first page
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  mutable Mutex mu;
  std::map<std::string, std::shared_ptr<ModelMetrics>> models ABSL_GUARDED_BY(mu);
  std::map<VersionKey, VersionMetrics*> live ABSL_GUARDED_BY(mu);
  std::map<VersionKey, std::string> warmed ABSL_GUARDED_BY(mu);  // to their directories
  std::vector<std::function<int64_t()>> waiting ABSL_GUARDED_BY(mu);
};

// Of one loaded version.
class ServerMetrics::VersionMetrics final : public ServableNote {
 public:
  VersionMetrics(std::shared_ptr<State> state, const ServedModel& model, absl::Duration load_time)
      : load_time(load_time),
        state_(std::move(state)),
        key_(model.name(), model.version()),
        model_(state_->ModelOf(model.name())) {
    for (const auto& [name, signature] : model.signatures()) signatures_[name];
    signatures_[""];
    MutexLock lock(&state_->mu);
    state_->live[key_] = this;
  }
  ~VersionMetrics() override {
    MutexLock lock(&state_->mu);
    const auto found = state_->live.find(key_);
    // Another instance of the version may be there already.
    if (found == state_->live.end() || found->second != this) return;
    state_->live.erase(found);
    const Labels labels = {key_.first, absl::StrCat(key_.second)};
    state_->version_count->RemovePrefix(labels);
    state_->version_latency->RemovePrefix(labels);
  }

  ModelMetrics& model() const { return *model_; }

  void Count(const RequestRecord& record) {
    const absl::string_view asked =
        record.signature.empty() ? kDefaultServingSignature : record.signature;
    auto found = signatures_.find(asked);
    if (found == signatures_.end()) found = signatures_.find("");
    const auto labels = [&](std::initializer_list<std::string> more) {
      Labels all = {key_.first, absl::StrCat(key_.second), found->first};
      all.insert(all.end(), more);
      return all;
    };
    const size_t code = CodeIndex(record.status.code());
    found->second.count[code]
        .Get(state_->version_count, [&] { return labels({CodeText(code)}); })
        .Add();
    found->second.latency.Get(state_->version_latency, [&] { return labels({}); })
        .Observe(absl::ToDoubleSeconds(record.latency));
  }

  const absl::Duration load_time;
  std::atomic<int64_t> running{0};  // relaxed: a figure

 private:
  const std::shared_ptr<State> state_;
  const VersionKey key_;
  const std::shared_ptr<ModelMetrics> model_;
  // The keys are those of the model, and "" for what it does not have.
  std::map<std::string, SignatureMetrics, std::less<>> signatures_;
};

ServerMetrics::State::State()
    : request_count(registry.AddCounter({":tensorflow:serving:request_count",
                                         "The total number of requests.",
                                         {"model_name", "status"}})),
      request_latency(
          registry.AddHistogram({":tensorflow:serving:request_latency",
                                 "Microseconds from a request that succeeded to its reply.",
                                 {"model_name", "API", "entrypoint"}},
                                LatencyBounds())),
      runtime_latency(registry.AddHistogram({":tensorflow:serving:runtime_latency",
                                             "Microseconds in the model.",
                                             {"model_name", "API", "runtime"}},
                                            LatencyBounds())),
      example_counts(registry.AddHistogram(
          {":tensorflow:serving:request_example_counts", "Examples per request.", {"model"}},
          ExponentialBounds(1, 2, 15))),
      example_count_total(registry.AddCounter({":tensorflow:serving:request_example_count_total",
                                               "The total number of examples.",
                                               {"model"}})),
      warm_up_latency(registry.AddHistogram({":tensorflow:serving:model_warmup_latency",
                                             "Microseconds that the warm-up of a version took.",
                                             {"model_path", "status"}},
                                            LatencyBounds())),
      warm_up_records(registry.AddCounter({":tensorflow:serving:model_warmup_records_read",
                                           "Warm-up requests that were run.",
                                           {"model_path"}})),
      log_count(registry.AddCounter({":tensorflow:serving:request_log_count",
                                     "Requests that were to be logged, and what came of it.",
                                     {"model_name", "status_code"}})),
      queuing_latency(registry.AddHistogram({":tensorflow:serving:batching_session:queuing_latency",
                                             "Microseconds that requests waited for their batch.",
                                             {"thread_pool_name"}},
                                            ExponentialBounds(100, 1.2, 52))),
      processed_batch_size(
          registry.AddHistogram({":tensorflow:serving:batching_session:processed_batch_size",
                                 "Rows of a batch, with those that were added.",
                                 {"thread_pool_name"}},
                                ExponentialBounds(1, 2, 15))),
      padding_size(registry.AddHistogram({":tensorflow:serving:batching_session:padding_size",
                                          "Rows that were added to a batch.",
                                          {"thread_pool_name"}},
                                         ExponentialBounds(1, 2, 15))),
      input_batch_size(
          registry.AddHistogram({":tensorflow:serving:batching_session:input_batch_size",
                                 "Rows of a request.",
                                 {"thread_pool_name"}},
                                ExponentialBounds(1, 2, 15))),
      wrapped_run_count(registry.AddCounter(
          {":tensorflow:serving:batching_session:wrapped_run_count", "Batches that were run."})),
      version_count(registry.AddCounter({"millrace_requests_total",
                                         "Requests of a loaded version.",
                                         {"model_name", "version", "signature", "status"}})),
      version_latency(registry.AddHistogram({"millrace_request_latency_seconds",
                                             "Seconds from a request to its reply.",
                                             {"model_name", "version", "signature"}},
                                            InSeconds(LatencyBounds()))),
      replayed_count(registry.AddCounter({"millrace_replayed_requests_total",
                                          "Logged requests that warmed versions up.",
                                          {"model_name", "status"}})) {}

void ServerMetrics::State::AddReaders() {
  using Emit = MetricRegistry::Emit;
  const auto gauge = [this](const char* name, const char* help, Labels labels,
                            MetricRegistry::Reader reader) {
    registry.AddReader({name, help, std::move(labels)}, MetricKind::kGauge, std::move(reader));
  };
  AddProcessReaders(&registry);
  gauge("millrace_uptime_seconds", "Since the server began.", {}, [this](Emit emit) {
    emit({}, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  });
  gauge("millrace_requests_running", "Requests that run now.", {"model_name", "version"},
        [this](Emit emit) {
          MutexLock lock(&mu);
          for (const auto& [key, version] : live) {
            emit({key.first, absl::StrCat(key.second)},
                 static_cast<double>(version->running.load(std::memory_order_relaxed)));
          }
        });
  gauge("millrace_requests_waiting", "Requests that wait to run.", {},
        [this](Emit emit) { emit({}, static_cast<double>(NumWaiting())); });
  gauge("millrace_version_load_seconds", "What the load of a version took.",
        {"model_name", "version"}, [this](Emit emit) {
          MutexLock lock(&mu);
          for (const auto& [key, version] : live) {
            emit({key.first, absl::StrCat(key.second)}, absl::ToDoubleSeconds(version->load_time));
          }
        });
  gauge("millrace_version_loaded_bytes", "Sizes of the files of an available version.",
        {"model_name", "version"}, [this](Emit emit) {
          for (const ModelStatus& model : Statuses()) {
            for (const VersionStatus& version : model.versions) {
              if (version.state != VersionState::kAvailable) continue;
              emit({model.name, absl::StrCat(version.version)},
                   static_cast<double>(version.num_bytes));
            }
          }
        });
  gauge("millrace_version_state", "1, for the state that a version is in; none when it has ended.",
        {"model_name", "version", "state"}, [this](Emit emit) {
          for (const ModelStatus& model : Statuses()) {
            for (const VersionStatus& version : model.versions) {
              if (version.state == VersionState::kEnded) continue;
              emit({model.name, absl::StrCat(version.version),
                    std::string(VersionStateName(version.state))},
                   1);
            }
          }
        });
}

void ServerMetrics::State::Sweep() {
  std::set<std::string> listed;
  std::set<VersionKey> there;
  for (const ModelStatus& model : Statuses()) {
    if (model.is_listed) listed.insert(model.name);
    for (const VersionStatus& version : model.versions) {
      if (version.state != VersionState::kEnded) there.insert({model.name, version.version});
    }
  }
  MutexLock lock(&mu);
  std::erase_if(models, [&](const auto& entry) {
    const auto& [name, model] = entry;
    // Loaded versions hold theirs.
    if (name.empty() || listed.contains(name) || model.use_count() > 1) return false;
    for (MetricValues* const family :
         {request_count, example_count_total, log_count, replayed_count}) {
      family->RemovePrefix({name});
    }
    for (MetricHistograms* const family : {request_latency, runtime_latency, example_counts}) {
      family->RemovePrefix({name});
    }
    return true;
  });
  std::erase_if(warmed, [&](const auto& entry) {
    if (there.contains(entry.first)) return false;
    warm_up_latency->RemovePrefix({entry.second});
    warm_up_records->RemovePrefix({entry.second});
    return true;
  });
}

ServerMetrics::ServerMetrics() : state_(std::make_shared<State>()) { state_->AddReaders(); }
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::Watch(std::weak_ptr<const ModelVersions> versions) {
  state_->versions = std::move(versions);
}

void ServerMetrics::AddWaiting(std::function<int64_t()> waiting) {
  MutexLock lock(&state_->mu);
  state_->waiting.push_back(std::move(waiting));
}

std::unique_ptr<ServableNote> ServerMetrics::NoteOf(const ServedModel& model,
                                                    absl::Duration load_time) {
  return std::make_unique<VersionMetrics>(state_, model, load_time);
}

void ServerMetrics::WarmedUp(const VersionToLoad& version, const Status& status,
                             absl::Duration time, int64_t num_records) {
  {
    MutexLock lock(&state_->mu);
    state_->warmed[{version.model, version.version}] = version.directory;
  }
  state_->warm_up_latency->Find({version.directory, CodeText(CodeIndex(status.code()))})
      ->Observe(absl::ToDoubleMicroseconds(time));
  state_->warm_up_records->Find({version.directory})->Add(num_records);
}

void ServerMetrics::Replayed(const std::string& model, absl::StatusCode code, int64_t count) {
  state_->replayed_count->Find({model, CodeText(CodeIndex(code))})->Add(count);
}

namespace {

class PoolMetrics : public BatchingObserver {
 public:
  PoolMetrics(std::shared_ptr<MetricHistogram> waited, std::shared_ptr<MetricHistogram> input,
              std::shared_ptr<MetricHistogram> processed, std::shared_ptr<MetricHistogram> padding,
              std::shared_ptr<MetricValue> runs)
      : waited_(std::move(waited)),
        input_(std::move(input)),
        processed_(std::move(processed)),
        padding_(std::move(padding)),
        runs_(std::move(runs)) {}
  void LeftQueue(int64_t size, absl::Duration waited) override {
    waited_->Observe(absl::ToDoubleMicroseconds(waited));
    input_->Observe(static_cast<double>(size));
  }
  void RanBatch(int64_t size, int64_t padding) override {
    processed_->Observe(static_cast<double>(size));
    padding_->Observe(static_cast<double>(padding));
    runs_->Add();
  }

 private:
  const std::shared_ptr<MetricHistogram> waited_, input_, processed_, padding_;
  const std::shared_ptr<MetricValue> runs_;
};

}  // namespace

std::shared_ptr<BatchingObserver> ServerMetrics::BatchingOf(const std::string& thread_pool_name) {
  const Labels labels = {thread_pool_name};
  return std::make_shared<PoolMetrics>(
      state_->queuing_latency->Find(labels), state_->input_batch_size->Find(labels),
      state_->processed_batch_size->Find(labels), state_->padding_size->Find(labels),
      state_->wrapped_run_count->Find({}));
}

MetricValues* ServerMetrics::request_log_count() const { return state_->log_count; }

void ServerMetrics::Began(const ServedModel& served) {
  if (auto* const version = dynamic_cast<VersionMetrics*>(served.note())) {
    version->running.fetch_add(1, std::memory_order_relaxed);
  }
}

void ServerMetrics::Ended(const RequestRecord& record) {
  State& state = *state_;
  auto* const version =
      record.served == nullptr ? nullptr : dynamic_cast<VersionMetrics*>(record.served->note());
  std::shared_ptr<ModelMetrics> failed;
  if (version != nullptr) {
    version->running.fetch_sub(1, std::memory_order_relaxed);
    version->Count(record);
  } else {
    failed = state.ModelThatFailed(std::string(record.model));
  }
  ModelMetrics& model = version != nullptr ? version->model() : *failed;
  const auto api = static_cast<size_t>(record.api);
  const size_t code = CodeIndex(record.status.code());
  model.count[code]
      .Get(state.request_count,
           [&] {
             return Labels{model.name, CodeText(code)};
           })
      .Add();
  // As TensorFlow Serving: only of those that succeeded.
  if (record.status.ok()) {
    model.latency[api][static_cast<size_t>(record.origin.entrypoint)]
        .Get(state.request_latency,
             [&] {
               return Labels{model.name, std::string(RequestApiName(record.api)),
                             std::string(RequestEntrypointName(record.origin.entrypoint))};
             })
        .Observe(absl::ToDoubleMicroseconds(record.latency));
  }
  if (record.run_time > absl::ZeroDuration()) {
    model.run_time[api]
        .Get(state.runtime_latency,
             [&] {
               return Labels{model.name, std::string(RequestApiName(record.api)), kRuntime};
             })
        .Observe(absl::ToDoubleMicroseconds(record.run_time));
  }
  if (record.num_examples > 0) {
    const auto labels = [&] { return Labels{model.name}; };
    model.example_counts.Get(state.example_counts, labels)
        .Observe(static_cast<double>(record.num_examples));
    model.example_count_total.Get(state.example_count_total, labels).Add(record.num_examples);
  }
}

int64_t ServerMetrics::num_running() const {
  MutexLock lock(&state_->mu);
  int64_t sum = 0;
  for (const auto& [key, version] : state_->live) {
    sum += version->running.load(std::memory_order_relaxed);
  }
  return sum;
}

int64_t ServerMetrics::num_running(absl::string_view model, int64_t version) const {
  MutexLock lock(&state_->mu);
  const auto found = state_->live.find({std::string(model), version});
  return found == state_->live.end() ? 0 : found->second->running.load(std::memory_order_relaxed);
}

int64_t ServerMetrics::num_waiting() const { return state_->NumWaiting(); }

absl::Duration ServerMetrics::uptime() const {
  return absl::FromChrono(std::chrono::steady_clock::now() - state_->began);
}

std::string ServerMetrics::Page() const {
  state_->Sweep();
  return state_->registry.Page();
}

}  // namespace millrace
