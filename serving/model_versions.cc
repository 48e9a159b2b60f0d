// SPDX-License-Identifier: Apache-2.0
#include "serving/model_versions.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <new>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/cached_memory.h"
#include "core/clock.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/mutex.h"

namespace millrace {
namespace {

using State = VersionState;

// What a user's function says, or why it said nothing.
template <typename Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return Internal("unexpected exception: ", e.what());
  }
}

std::string VersionText(absl::string_view model, int64_t version) {
  return absl::StrCat("Model '", model, "' version ", version);
}

Status CheckSettings(const std::vector<ModelSettings>& models) {
  std::set<std::string> names;
  for (const ModelSettings& model : models) {
    if (model.name.empty()) {
      return InvalidArgument("Model with base path '", model.base_path,
                             "': its name must not be empty");
    }
    // The texts of TensorFlow Serving.
    if (!names.insert(model.name).second) {
      return InvalidArgument("Illegal to list model ", model.name,
                             " multiple times in config list");
    }
    if (!absl::StartsWith(model.base_path, "/") && !absl::StrContains(model.base_path, "://")) {
      return InvalidArgument("Expected model ", model.name,
                             " to have an absolute path or URI; got base_path()=", model.base_path);
    }
  }
  return absl::OkStatus();
}

bool SameVersions(const VersionPolicy& a, const VersionPolicy& b) {
  return a.kind == b.kind && a.num_latest == b.num_latest && a.specific == b.specific;
}

}  // namespace

struct ModelVersions::Core {
  // One version. Its place in memory stays until it has ended, so threads that work on it and its
  // last request hold a pointer to it.
  struct Version {
    std::string model;
    int64_t number = 0;
    State state = State::kFound;
    bool wanted = false;
    std::string directory;
    uint64_t fingerprint = 0;        // of its files at the last poll
    uint64_t tried_fingerprint = 0;  // when the last load began
    int num_tries = 0;
    absl::Time failed_at = absl::InfinitePast();
    Status error;                                   // of the last try
    bool cancelled = false, took_too_long = false;  // the last load
    absl::Time load_began = absl::InfiniteFuture();
    std::shared_ptr<CancellationManager> cancellation;  // of the last load
    std::shared_ptr<Servable> servable;                 // from available until it is unloaded
    std::shared_ptr<const AvailableVersion> available;  // while available
  };
  struct Model {
    ModelSettings settings;
    std::shared_ptr<VersionSource> source;  // null: not listed any more
    bool polled = false;                    // by this source
    Status source_status;
    std::vector<IncompleteVersion> incomplete;
    std::map<int64_t, Version> versions;
    int64_t num_forgotten = 0;
  };

  explicit Core(Options given) : options(std::move(given)), clock(options.source.clock) {}

  // While it lives, a thread of this object is in functions of others.
  class Busy {
   public:
    explicit Busy(Core* core) : core_(core) { Add(1); }
    ~Busy() { Add(-1); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    void Add(int n) {
      MutexLock lock(&core_->mu);
      core_->num_busy += n;
      core_->changed.SignalAll();
    }
    Core* const core_;
  };

  // What the threads do.
  void RunPolls();
  void RunTimes();
  void RunLoads();
  void RunUnloads();

  void PollAll();
  void Load(Version* version);
  void Unload(Version* version);

  Status SetModels(std::vector<ModelSettings> list);
  void EndAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool AllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  void TakeFound(const std::string& name, const VersionSource* source,
                 StatusOr<FoundVersions> found);
  Status CheckLabels(const std::vector<ModelSettings>& list) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Plans and carries out until there is nothing to do now; publishes; wakes who waits for changes.
  // Called after every change.
  void Proceed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool ProceedOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Carry(PlanAction action, Version* version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Move(Version* version, State to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::vector<VersionStatus> StatusOf(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Has an available version, or nothing more to try for the first time.
  bool IsTried(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Why no version of it is available.
  Status WhyNone(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  Clock* const clock;
  AvailableVersions available;
  const std::shared_ptr<DrainedVersions> drained = std::make_shared<DrainedVersions>();

  Mutex poll_mu;  // held by the one poll that runs, before mu

  mutable Mutex mu;
  mutable CondVar changed;  // some state
  CondVar poll_wanted, time_changed, load_queued;
  std::map<std::string, Model, std::less<>> models ABSL_GUARDED_BY(mu);
  std::deque<Version*> loads ABSL_GUARDED_BY(mu);  // loading, and no thread has taken it
  std::vector<std::shared_ptr<CancellationManager>> to_cancel ABSL_GUARDED_BY(mu);
  absl::Time next_time ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();  // of the plan
  bool must_publish ABSL_GUARDED_BY(mu) = false;
  bool must_poll ABSL_GUARDED_BY(mu) = false;
  bool ending ABSL_GUARDED_BY(mu) = false;   // everything unloads
  bool stopped ABSL_GUARDED_BY(mu) = false;  // threads end
  int num_threads ABSL_GUARDED_BY(mu) = 0;
  // Those in functions of others: storage, loaders, what frees a model. They end when these do.
  int num_busy ABSL_GUARDED_BY(mu) = 0;
};

// ---- The plan carried out.

void ModelVersions::Core::Move(Version* version, State to) {
  MR_DCHECK(IsLegalTransition(version->state, to),
            "a version goes along the arrows of version_state.h only");
  version->state = to;
}

void ModelVersions::Core::Carry(PlanAction action, Version* version) {
  switch (action) {
    case PlanAction::kQueue:
      version->num_tries = 0;
      version->error = absl::OkStatus();
      Move(version, State::kQueued);
      break;
    case PlanAction::kRetry:
      Move(version, State::kQueued);
      break;
    case PlanAction::kLoad:
      MR_DCHECK(version->servable == nullptr, "a version is loaded once at a time");
      ++version->num_tries;
      version->tried_fingerprint = version->fingerprint;
      version->cancelled = version->took_too_long = false;
      version->load_began = clock->Now();
      version->cancellation = std::make_shared<CancellationManager>();
      Move(version, State::kLoading);
      loads.push_back(version);
      load_queued.Signal();
      break;
    case PlanAction::kWait:
      Move(version, State::kWaiting);
      break;
    case PlanAction::kCancel:
      // By the thread of the times, without the lock: callbacks are the loader's.
      version->cancelled = true;
      version->took_too_long = version->wanted;
      to_cancel.push_back(version->cancellation);
      time_changed.SignalAll();
      break;
    case PlanAction::kDrain:
      Move(version, State::kDraining);
      version->available.reset();
      must_publish = true;
      break;
    case PlanAction::kEnd:
      Move(version, State::kEnded);
      break;
  }
}

bool ModelVersions::Core::ProceedOnce() {
  std::vector<PlannedModel> planned;
  std::vector<std::vector<Version*>> places;
  for (auto& [name, model] : models) {
    planned.emplace_back();
    places.emplace_back();
    for (auto& [number, v] : model.versions) {
      planned.back().versions.push_back({.version = number,
                                         .state = v.state,
                                         .wanted = v.wanted,
                                         .cancelled = v.cancelled,
                                         .load_began = v.load_began,
                                         .num_tries = v.num_tries,
                                         .failed_at = v.failed_at,
                                         .files_changed = v.fingerprint != v.tried_fingerprint});
      places.back().push_back(&v);
    }
  }
  const Plan plan = NextSteps(planned, options.plan, clock->Now());
  for (const PlanStep& step : plan.steps) Carry(step.action, places[step.model][step.version]);
  if (next_time != plan.next_time) {
    next_time = plan.next_time;
    time_changed.SignalAll();
  }
  return !plan.steps.empty();
}

void ModelVersions::Core::Proceed() {
  while (ProceedOnce()) {
  }
  // What is new and what is old change at once.
  if (must_publish) Publish();
  Forget();
  changed.SignalAll();
  if (options.on_change) options.on_change();
}

void ModelVersions::Core::Publish() {
  must_publish = false;
  auto table = std::make_shared<AvailableVersions::Table>();
  for (const auto& [name, model] : models) {
    AvailableVersions::Model entry;
    for (const auto& [number, v] : model.versions) {
      if (v.available != nullptr) entry.versions[number] = v.available;
    }
    entry.labels.insert(model.settings.labels.begin(), model.settings.labels.end());
    if (!entry.versions.empty() || !entry.labels.empty()) (*table)[name] = std::move(entry);
  }
  available.Publish(std::move(table));
}

void ModelVersions::Core::Forget() {
  size_t num_gone = 0;
  for (auto& [name, model] : models) {
    auto& versions = model.versions;
    const auto is_over = [](const auto& entry) {
      return entry.second.state == State::kEnded && !entry.second.wanted;
    };
    auto num_over = static_cast<size_t>(std::count_if(versions.begin(), versions.end(), is_over));
    if (model.source == nullptr && num_over == versions.size()) ++num_gone;
    for (auto it = versions.begin(); num_over > options.most_ended;) {
      if (!is_over(*it)) {
        ++it;
        continue;
      }
      it = versions.erase(it);
      ++model.num_forgotten;
      --num_over;
    }
  }
  for (auto it = models.begin(); num_gone > options.most_ended;) {
    const Model& model = it->second;
    const bool is_gone =
        model.source == nullptr &&
        std::all_of(model.versions.begin(), model.versions.end(),
                    [](const auto& entry) { return entry.second.state == State::kEnded; });
    it = is_gone ? models.erase(it) : std::next(it);
    num_gone -= is_gone;
  }
}

// ---- Loads and unloads.

void ModelVersions::Core::Load(Version* version) {
  std::string text;
  VersionToLoad wanted;
  std::shared_ptr<CancellationManager> cancellation;
  bool cancelled;
  {
    MutexLock lock(&mu);
    text = VersionText(version->model, version->number);
    wanted = {version->model, version->number, version->directory};
    cancellation = version->cancellation;
    cancelled = version->cancelled;
  }
  std::shared_ptr<Servable> servable;
  Status status = absl::CancelledError("no longer wanted");
  if (!cancelled) {
    status = Guarded([&]() -> Status {
      MR_ASSIGN_OR_RETURN(servable, options.loader(wanted, cancellation.get()));
      return servable == nullptr ? Internal("the loader must return a model, got none")
                                 : absl::OkStatus();
    });
  }
  if (status.ok()) {
    {
      MutexLock lock(&mu);
      Move(version, State::kWarming);
      cancelled = version->cancelled;
      changed.SignalAll();
    }
    if (options.warm_up && !cancelled) {
      status = Prefixed("warm-up", Guarded([&]() -> Status {
                          return options.warm_up(wanted, servable.get(), cancellation.get());
                        }));
    }
  }
  if (status.ok()) {
    MutexLock lock(&mu);
    if (!version->cancelled) {
      version->available =
          std::make_shared<const AvailableVersion>(version->number, servable, version, drained);
      version->servable = std::move(servable);
      version->error = absl::OkStatus();
      Move(version, State::kAvailable);
      must_publish = true;
      Proceed();
      LogInfo(text, ": available");
      return;
    }
  }
  // Freed before a next try may begin.
  servable.reset();
  ReleaseCachedMemory();
  status = Prefixed(text, status);
  MutexLock lock(&mu);
  if (version->took_too_long) {
    status = absl::DeadlineExceededError(
        absl::StrCat(text, ": a load must end within ",
                     absl::FormatDuration(options.plan.max_load_time), "; it was told to end"));
  }
  if (version->cancelled && !version->took_too_long) {
    Move(version, State::kEnded);
  } else {
    LogWarning("Loading failed: ", status.ToString());
    version->error = status;
    version->failed_at = clock->Now();
    Move(version, State::kFailed);
  }
  Proceed();
}

void ModelVersions::Core::Unload(Version* version) {
  std::shared_ptr<Servable> servable;
  std::string text;
  {
    MutexLock lock(&mu);
    Move(version, State::kUnloading);
    servable = std::move(version->servable);
    version->servable = nullptr;
    text = VersionText(version->model, version->number);
    changed.SignalAll();
  }
  servable.reset();
  ReleaseCachedMemory();
  LogInfo(text, ": unloaded");
  MutexLock lock(&mu);
  Move(version, State::kEnded);
  Proceed();
}

void ModelVersions::Core::RunLoads() {
  for (;;) {
    Version* version;
    {
      MutexLock lock(&mu);
      while (loads.empty() && !stopped) load_queued.Wait(&mu);
      if (loads.empty()) return;
      version = loads.front();
      loads.pop_front();
    }
    const Busy busy(this);
    Load(version);
  }
}

void ModelVersions::Core::RunUnloads() {
  while (void* const version = drained->Next()) {
    const Busy busy(this);
    Unload(static_cast<Version*>(version));
  }
}

void ModelVersions::Core::RunTimes() {
  mu.Lock();
  while (!stopped || !to_cancel.empty()) {
    if (!to_cancel.empty()) {
      const auto loads_to_end = std::exchange(to_cancel, {});
      mu.Unlock();
      {
        const Busy busy(this);
        for (const auto& cancellation : loads_to_end) cancellation->StartCancel();
      }
      mu.Lock();
    } else if (clock->Now() >= next_time) {
      Proceed();
    } else {
      clock->WaitUntil(&time_changed, &mu, next_time);
    }
  }
  mu.Unlock();
}

// ---- Polls.

void ModelVersions::Core::TakeFound(const std::string& name, const VersionSource* source,
                                    StatusOr<FoundVersions> found) {
  MutexLock lock(&mu);
  const auto entry = models.find(name);
  // The list may have changed meanwhile.
  if (entry == models.end() || entry->second.source.get() != source) return;
  Model& model = entry->second;
  model.polled = true;
  if (!found.ok()) {
    // What it wanted it still wants.
    if (model.source_status != found.status()) LogWarning(found.status().ToString());
    model.source_status = found.status();
    changed.SignalAll();
    return;
  }
  model.source_status = absl::OkStatus();
  model.incomplete = std::move(found->incomplete);
  for (auto& [number, v] : model.versions) v.wanted = false;
  for (FoundVersion& one : found->wanted) {
    Version& v = model.versions[one.version];
    v.model = name;
    v.number = one.version;
    v.wanted = true;
    v.directory = std::move(one.directory);
    v.fingerprint = one.fingerprint;
  }
  Proceed();
}

void ModelVersions::Core::PollAll() {
  struct Task {
    std::string name;
    std::shared_ptr<VersionSource> source;
    std::vector<int64_t> loaded;
  };
  MutexLock poll_lock(&poll_mu);
  std::vector<Task> tasks;
  {
    MutexLock lock(&mu);
    for (const auto& [name, model] : models) {
      if (model.source == nullptr) continue;
      tasks.push_back({name, model.source, {}});
      for (const auto& [number, v] : model.versions) {
        if (v.state == State::kAvailable) tasks.back().loaded.push_back(number);
      }
    }
  }
  for (const Task& task : tasks) {
    TakeFound(task.name, task.source.get(),
              Guarded([&]() -> StatusOr<FoundVersions> { return task.source->Poll(task.loaded); }));
  }
}

void ModelVersions::Core::RunPolls() {
  const absl::Duration period = options.poll_period;
  if (period == absl::InfiniteDuration()) return;
  mu.Lock();
  while (!ending && !stopped) {
    must_poll = false;
    mu.Unlock();
    {
      const Busy busy(this);
      PollAll();
    }
    mu.Lock();
    const absl::Time begin = clock->Now();
    absl::Time next = begin + period;
    if (period <= absl::ZeroDuration()) {
      next = absl::InfiniteFuture();
      for (const auto& [name, model] : models) {
        for (const IncompleteVersion& v : model.incomplete) {
          if (v.settles) next = begin + options.source.settle_time;
        }
      }
    }
    for (;;) {
      const absl::Time now = clock->Now();
      // A clock that went back must not hold up polls.
      if (ending || stopped || must_poll || now >= next || now < begin) break;
      clock->WaitUntil(&poll_wanted, &mu, next);
    }
  }
  mu.Unlock();
}

// ---- The list of models.

Status ModelVersions::Core::CheckLabels(const std::vector<ModelSettings>& list) const {
  for (const ModelSettings& settings : list) {
    const auto entry = models.find(settings.name);
    const Model* const model =
        entry == models.end() || entry->second.source == nullptr ? nullptr : &entry->second;
    for (const auto& [label, number] : settings.labels) {
      bool is_moved = false, is_available = false;
      if (model != nullptr) {
        const auto old = model->settings.labels.find(label);
        is_moved = old != model->settings.labels.end() && old->second != number;
        const auto version = model->versions.find(number);
        is_available =
            version != model->versions.end() && version->second.state == State::kAvailable;
      }
      if (is_available || (options.allow_labels_of_unavailable && !is_moved)) continue;
      return FailedPrecondition("Request to assign label to version ", number, " of model ",
                                settings.name, ", which is not currently available for inference");
    }
  }
  return absl::OkStatus();
}

Status ModelVersions::Core::SetModels(std::vector<ModelSettings> list) {
  MR_RETURN_IF_ERROR(CheckSettings(list));
  MutexLock lock(&mu);
  MR_RETURN_IF_ERROR(CheckLabels(list));
  std::set<std::string> names;
  for (ModelSettings& settings : list) {
    names.insert(settings.name);
    Model& model = models[settings.name];
    if (model.source == nullptr || model.settings.base_path != settings.base_path ||
        !SameVersions(model.settings.policy, settings.policy)) {
      model.source = std::make_shared<VersionSource>(settings.name, settings.base_path,
                                                     settings.policy, options.source);
      model.polled = false;
      model.source_status = absl::OkStatus();
      model.incomplete.clear();
    }
    model.settings = std::move(settings);
  }
  for (auto& [name, model] : models) {
    if (names.contains(name)) continue;
    model.source = nullptr;
    model.incomplete.clear();
    model.settings.labels.clear();
    for (auto& [number, v] : model.versions) v.wanted = false;
  }
  must_publish = true;  // the labels
  must_poll = true;
  poll_wanted.SignalAll();
  Proceed();
  return absl::OkStatus();
}

void ModelVersions::Core::EndAll() {
  ending = true;
  poll_wanted.SignalAll();
  for (auto& [name, model] : models) {
    model.source = nullptr;
    model.incomplete.clear();
    for (auto& [number, v] : model.versions) v.wanted = false;
  }
  Proceed();
}

bool ModelVersions::Core::AllEnded() const {
  for (const auto& [name, model] : models) {
    for (const auto& [number, v] : model.versions) {
      if (v.state != State::kEnded) return false;
    }
  }
  return true;
}

// ---- What others want to know.

std::vector<VersionStatus> ModelVersions::Core::StatusOf(const Model& model) const {
  std::vector<VersionStatus> statuses;
  for (const auto& [number, v] : model.versions) {
    statuses.push_back({number, v.state, v.error, v.servable ? v.servable->num_bytes() : 0});
  }
  for (const IncompleteVersion& v : model.incomplete) {
    const auto known = model.versions.find(v.version);
    if (known == model.versions.end()) {
      statuses.push_back({v.version, State::kFound, v.reason, 0});
    } else if (known->second.state == State::kEnded) {
      for (VersionStatus& status : statuses) {
        if (status.version == v.version) status = {v.version, State::kFound, v.reason, 0};
      }
    }
  }
  std::sort(statuses.begin(), statuses.end(),
            [](const VersionStatus& a, const VersionStatus& b) { return a.version > b.version; });
  return statuses;
}

bool ModelVersions::Core::IsTried(const Model& model) const {
  bool is_trying = !model.polled;
  for (const auto& [number, v] : model.versions) {
    if (v.state == State::kAvailable) return true;
    const bool is_first = v.num_tries == 0 || (IsLoad(v.state) && v.num_tries == 1);
    is_trying |= v.wanted && is_first && !v.cancelled && v.state != State::kFailed &&
                 v.state != State::kWaiting;
  }
  if (!model.source_status.ok()) return !is_trying;
  for (const IncompleteVersion& v : model.incomplete) is_trying |= v.settles;
  return !is_trying;
}

Status ModelVersions::Core::WhyNone(const Model& model) const {
  const std::string where = absl::StrCat("Model '", model.settings.name, "'");
  if (!model.polled) return absl::UnavailableError(absl::StrCat(where, ": not looked for yet"));
  if (!model.source_status.ok()) return model.source_status;
  // The highest that has something to say.
  const std::vector<VersionStatus> statuses = StatusOf(model);
  for (const VersionStatus& v : statuses) {
    if (!v.status.ok() && v.state != State::kEnded) return v.status;
  }
  for (const VersionStatus& v : statuses) {
    if (v.state != State::kEnded) {
      return absl::UnavailableError(
          absl::StrCat(where, ": version ", v.version, " is ", VersionStateName(v.state)));
    }
  }
  return absl::NotFoundError(
      absl::StrCat(where, ": its base path '", model.settings.base_path, "' has no version"));
}

// ---- The class.

ModelVersions::ModelVersions(std::shared_ptr<Core> core) : core_(std::move(core)) {}

StatusOr<std::unique_ptr<ModelVersions>> ModelVersions::Create(Options options) {
  if (!options.loader) return InvalidArgument("ModelVersions: loader must not be null");
  options.plan.max_loads = std::max(options.plan.max_loads, 1);
  std::unique_ptr<ModelVersions> versions(
      new ModelVersions(std::make_shared<Core>(std::move(options))));
  MR_RETURN_IF_ERROR(versions->StartThreads());
  return versions;
}

Status ModelVersions::StartThreads() {
  const auto start = [this](void (Core::*run)()) {
    {
      MutexLock lock(&core_->mu);
      ++core_->num_threads;
    }
    const auto end = [](Core* core) {
      MutexLock lock(&core->mu);
      --core->num_threads;
      core->changed.SignalAll();
    };
    try {
      threads_.emplace_back([core = core_, run, end] {
        // Fails where the priority is this low already.
        (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), core->options.nice);
        (core.get()->*run)();
        end(core.get());
      });
    } catch (const std::system_error&) {
      end(core_.get());
      throw;
    }
  };
  try {
    start(&Core::RunPolls);
    start(&Core::RunTimes);
    start(&Core::RunUnloads);
    for (int i = 0; i < core_->options.plan.max_loads; ++i) start(&Core::RunLoads);
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ModelVersions: the system must give threads, got ", e.what()));
  }
  return absl::OkStatus();
}

ModelVersions::~ModelVersions() {
  bool all_ended, no_threads;
  {
    Core& core = *core_;
    MutexLock lock(&core.mu);
    const absl::Time deadline = core.clock->Now() + core.options.patience;
    const auto wait = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core.mu) {
      return core.clock->Now() < deadline &&
             !core.clock->WaitUntil(&core.changed, &core.mu, deadline);
    };
    core.EndAll();
    while (!core.AllEnded() && wait()) {
    }
    all_ended = core.AllEnded();
    core.stopped = true;
    core.poll_wanted.SignalAll();
    core.time_changed.SignalAll();
    core.load_queued.SignalAll();
    core.drained->Stop();
    // The others end by themselves.
    while (core.num_threads > core.num_busy) core.changed.Wait(&core.mu);
    while (core.num_threads > 0 && wait()) {
    }
    no_threads = core.num_threads == 0;
  }
  if (!all_ended || !no_threads) {
    LogWarning("ModelVersions: after ", absl::FormatDuration(core_->options.patience),
               " requests, loads or unloads still run; they are left behind");
  }
  for (std::thread& thread : threads_) no_threads ? thread.join() : thread.detach();
}

StatusOr<ModelVersions::Pin> ModelVersions::Get(absl::string_view model,
                                                std::optional<int64_t> version) const {
  MR_ASSIGN_OR_RETURN(auto found, core_->available.Find(model, version));
  return Pin(std::move(found));
}

StatusOr<ModelVersions::Pin> ModelVersions::GetLabelled(absl::string_view model,
                                                        absl::string_view label) const {
  MR_ASSIGN_OR_RETURN(auto found, core_->available.FindLabelled(model, label));
  return Pin(std::move(found));
}

Status ModelVersions::SetModels(std::vector<ModelSettings> models) {
  return core_->SetModels(std::move(models));
}

std::vector<ModelSettings> ModelVersions::models() const {
  MutexLock lock(&core_->mu);
  std::vector<ModelSettings> list;
  for (const auto& [name, model] : core_->models) {
    if (model.source != nullptr) list.push_back(model.settings);
  }
  return list;
}

void ModelVersions::Poll() { core_->PollAll(); }

StatusOr<std::vector<VersionStatus>> ModelVersions::GetStatus(
    absl::string_view model, std::optional<int64_t> version) const {
  std::vector<VersionStatus> statuses;
  {
    MutexLock lock(&core_->mu);
    const auto entry = core_->models.find(model);
    if (entry != core_->models.end()) statuses = core_->StatusOf(entry->second);
  }
  if (version) {
    std::erase_if(statuses, [&](const VersionStatus& v) { return v.version != *version; });
    if (statuses.empty()) {
      return absl::NotFoundError(
          absl::StrCat("Could not find version ", *version, " of model ", model));
    }
  }
  if (statuses.empty()) {
    return absl::NotFoundError(absl::StrCat("Could not find any versions of model ", model));
  }
  return statuses;
}

std::vector<ModelStatus> ModelVersions::GetStatuses() const {
  MutexLock lock(&core_->mu);
  std::vector<ModelStatus> statuses;
  for (const auto& [name, model] : core_->models) {
    statuses.push_back({.name = name,
                        .base_path = model.settings.base_path,
                        .is_listed = model.source != nullptr,
                        .source = model.source_status,
                        .versions = core_->StatusOf(model),
                        .num_forgotten = model.num_forgotten,
                        .labels = model.settings.labels});
  }
  return statuses;
}

std::vector<std::pair<std::string, Status>> ModelVersions::WaitUntilTried(
    absl::Time deadline) const {
  MutexLock lock(&core_->mu);
  for (;;) {
    bool all = true;
    for (const auto& [name, model] : core_->models) {
      all &= model.source == nullptr || core_->IsTried(model);
    }
    if (all || core_->clock->Now() >= deadline) break;
    core_->clock->WaitUntil(&core_->changed, &core_->mu, deadline);
  }
  std::vector<std::pair<std::string, Status>> missing;
  for (const auto& [name, model] : core_->models) {
    const bool has_available =
        std::any_of(model.versions.begin(), model.versions.end(),
                    [](const auto& entry) { return entry.second.state == State::kAvailable; });
    if (model.source != nullptr && !has_available) {
      missing.push_back({name, core_->WhyNone(model)});
    }
  }
  return missing;
}

bool ModelVersions::WaitFor(absl::string_view model,
                            absl::FunctionRef<bool(absl::Span<const VersionStatus>)> reached,
                            absl::Time deadline) const {
  MutexLock lock(&core_->mu);
  for (;;) {
    const auto entry = core_->models.find(model);
    if (reached(entry == core_->models.end() ? std::vector<VersionStatus>()
                                             : core_->StatusOf(entry->second))) {
      return true;
    }
    if (core_->clock->Now() >= deadline) return false;
    core_->clock->WaitUntil(&core_->changed, &core_->mu, deadline);
  }
}

}  // namespace millrace
