// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MODEL_VERSIONS_CORE_H_
#define MILLRACE_SERVING_MODEL_VERSIONS_CORE_H_

// What the threads of ModelVersions share: the states of all versions, under one lock. Private to
// serving/model_versions*.cc, which carry out one idea each:
//
//   model_versions_list    the list of models, and how another one takes its place
//   model_versions_polls   what the sources find becomes wanted
//   model_versions_plan    what the plan says becomes states, the table of requests, memories
//   model_versions_loads   loads, warm-ups and unloads, and when they took too long
//   model_versions_demand  models that load when a request asks, and rest when none does
//   model_versions_status  what others want to know
//   model_versions         the class, its threads and its end
//
// Lifetime: shared by the threads; lives until the last of them has ended.
//
// Without memory: what may throw comes first, then what changes the state of a version or a list,
// which does not. So a change is there or not; what it makes due is tried again (ProceedOrNot), and
// no exception leaves a thread.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "serving/available_versions.h"
#include "serving/model_versions.h"
#include "serving/servable.h"
#include "serving/step_bounds.h"
#include "serving/version_plan.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {

// Made before memory is short: copies need none.
inline const Status& OutOfMemory() {
  static const Status* const status = new Status(absl::ResourceExhaustedError("out of memory"));
  return *status;
}

// For what may be left out, as lines of the log.
template <typename Function>
void UnlessNoMemory(Function function) noexcept {
  try {
    function();
  } catch (const std::bad_alloc&) {
  }
}

// What a user's function says, or why it said nothing.
template <typename Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& e) {
    return Internal("unexpected exception: ", e.what());
  }
}

struct ModelVersions::Core {
  using State = VersionState;

  // One version. Its place in memory stays until it has ended, so threads that work on it and its
  // last request hold a pointer to it.
  struct Version {
    std::string model;
    int64_t number = 0;
    State state = State::kFound;
    bool wanted = false;
    std::string directory;
    uint64_t fingerprint = 0;        // of its files at the last poll; 0: not looked at
    uint64_t tried_fingerprint = 0;  // when the last load began
    int num_tries = 0;
    absl::Time failed_at = absl::InfinitePast();
    Status error;              // of the last try
    bool cancelled = false;    // the last load
    bool left_behind = false;  // its thread has not come back; the version stays in memory
    absl::Time load_began = absl::InfiniteFuture();
    std::shared_ptr<CancellationManager> cancellation;  // of the last load
    int64_t num_bytes = 0;  // that it took when it was loaded last; before, of its files
    std::shared_ptr<Servable> servable;                 // from available until it is unloaded
    std::shared_ptr<const AvailableVersion> available;  // while available
  };
  // A model of a list: what its base path has.
  struct Listed {
    ModelSettings settings;
    std::shared_ptr<VersionSource> source;
    bool polled = false;  // by this source
    Status source_status;
    std::vector<IncompleteVersion> incomplete;
    std::vector<FoundVersion> wanted;  // by its last poll, or by that of the source before it
  };
  struct KnownModel {
    std::string base_path;       // of the last list that had it
    std::optional<Listed> now;   // of the list that serves; none: not listed any more
    std::optional<Listed> next;  // of the list that a reload tries; what it wants is wanted, too
    std::map<int64_t, Version> versions;
    int64_t num_forgotten = 0;
    bool asked = false;      // as in PlannedModel
    size_t num_waiting = 0;  // requests
    absl::Time last_use = absl::InfinitePast();
  };

  // What a version becomes by what the sources found.
  struct WantedVersion {
    Version* version;
    std::string directory;
    uint64_t fingerprint;
    int64_t num_bytes;  // of its files
  };
  using Wants = std::vector<WantedVersion>;

  explicit Core(Options given) : options(std::move(given)), clock(options.source.clock) {
    (void)OutOfMemory();
  }
  ~Core();

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

  // Models need not be loaded while they are listed.
  bool MayRest() const {
    return options.load_on_demand || options.plan.idle_unload < absl::InfiniteDuration();
  }

  // Of the thread that calls it, at its begin.
  void NoteThread();
  // Something serves from now on: threads that are not paced take what requests leave.
  void BeNice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool is_paced() const { return options.load_cpu_share < 1; }
  // Of a change of num_available or nobody_asks, to the pace of this process.
  void NoteServing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // What the threads do.
  void RunPolls();
  void RunTimes();
  void RunLoads();
  void RunUnloads();

  void PollAll();
  void Load(Version* version);
  // That the files of a version are as they were; 0: nothing is known.
  Status CheckUnchanged(const VersionToLoad& version, uint64_t fingerprint) const;
  // The load as far as it goes without the version's states of after it.
  Status TryToLoad(Version* version, std::shared_ptr<Servable>* servable);
  Status LoadAndWarmUp(Version* version, const VersionToLoad& wanted, uint64_t fingerprint,
                       CancellationManager* cancellation, std::shared_ptr<Servable>* servable);
  void Unload(Version* version);

  Status SetModels(std::vector<ModelSettings> list);
  // Where `after` is set, as ReloadAfter.
  Status Reload(std::vector<ModelSettings> list, absl::Time deadline,
                std::optional<uint64_t> after = std::nullopt);
  StatusOr<std::shared_ptr<const AvailableVersion>> Ask(absl::string_view name,
                                                        std::optional<int64_t> version,
                                                        const StepBounds& bounds);
  void TryFailedAgain(KnownModel* model, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::optional<int64_t> VersionOfLabel(absl::string_view name, absl::string_view label);
  // The uses of the time since the last look.
  void CollectUses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // That it fits into the memory limit next to the others of its model.
  Status CheckMemory(const Version& version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void EndAll() noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool AllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // `next` of each model becomes the list's: with the source of `now` where that finds the same.
  // Of all models or of none.
  void SetNext(std::vector<ModelSettings> list) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // `next` becomes `now`, of all models at once.
  void TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // What is wanted then follows with the next Proceed.
  void DropNext() noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A reload need not wait for it any more.
  bool IsSettled(const KnownModel& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // What is found of a model, of two lists at most, is to be wanted. May throw; then versions may
  // be known that nothing wants.
  Wants PrepareWants(const std::string& name, KnownModel* model,
                     const std::vector<FoundVersion>* now, const std::vector<FoundVersion>* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // It is wanted, and nothing else of the model.
  void TakeWants(KnownModel* model, Wants wants) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // What `now` and `next` want is wanted, of all models.
  void WantAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void WakePolls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  bool PollSources();
  // Until the next change or the deadline, or earlier. Where no thread polls, it looks itself for
  // what settles, each settle_time after `*looked`: without `mu` meanwhile.
  void WaitForChange(absl::Time deadline, absl::Time* looked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool AnySettles() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void TakeFound(const std::string& name, const VersionSource* source, int64_t round,
                 StatusOr<FoundVersions> found);
  Status CheckLabels(const std::vector<ModelSettings>& list) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Plans and carries out until there is nothing to do now; publishes; wakes who waits for changes.
  // Called after every change.
  void Proceed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The same, where an exception may not leave: without memory it is tried again, by the next
  // change or a second later.
  void ProceedOrNot() noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool ProceedOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Carry(PlanAction action, Version* version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  static std::string TextOf(const Version& version) {
    return absl::StrCat("Model '", version.model, "' version ", version.number);
  }
  void Cancel(Version* version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Fail(Version* version, Status status) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Move(Version* version, State to) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::vector<VersionStatus> StatusOf(const KnownModel& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool AllThreadsAreLeftBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // It will be available, or fail its first try.
  bool IsOnItsWay(const Version& version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Is it so of one that `listed` wants, or may want soon?
  bool AnyOnItsWay(const KnownModel& model, const Listed& listed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Has an available version, or none is on its way.
  bool IsTried(const KnownModel& model, const Listed& listed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool HasAvailable(const KnownModel& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Why no version of it is available.
  Status WhyNone(const std::string& name, const KnownModel& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  Clock* const clock;
  std::atomic<uint64_t> lists_taken{0};  // release after a list, acquire before models()
  AvailableVersions available;
  const std::shared_ptr<DrainedVersions> drained = std::make_shared<DrainedVersions>();

  Mutex poll_mu;  // held by the one poll that runs, before mu

  mutable Mutex mu;
  mutable CondVar changed;  // some state
  CondVar poll_wanted, time_changed, load_queued;
  std::map<std::string, KnownModel, std::less<>> models ABSL_GUARDED_BY(mu);
  std::deque<Version*> loads ABSL_GUARDED_BY(mu);  // loading, and no thread has taken it
  std::vector<std::shared_ptr<CancellationManager>> to_cancel ABSL_GUARDED_BY(mu);
  absl::Time next_time ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();  // of the plan
  size_t num_waiting ABSL_GUARDED_BY(mu) = 0;                         // requests, of all models
  bool must_publish ABSL_GUARDED_BY(mu) = false;
  bool must_want ABSL_GUARDED_BY(mu) = false;  // WantAll comes first in Proceed
  bool must_poll ABSL_GUARDED_BY(mu) = false;
  bool poll_failed ABSL_GUARDED_BY(mu) = false;  // the last one, for want of memory
  int num_left_behind ABSL_GUARDED_BY(mu) = 0;   // threads, one per version
  bool ending ABSL_GUARDED_BY(mu) = false;       // everything unloads
  bool waits_end ABSL_GUARDED_BY(mu) = false;    // who waits for versions waits no longer
  bool stopped ABSL_GUARDED_BY(mu) = false;      // threads end
  int64_t num_lists ABSL_GUARDED_BY(mu) = 0;     // that were set or tried so far
  bool reloading ABSL_GUARDED_BY(mu) = false;    // a reload waits; there is one at most
  int num_threads ABSL_GUARDED_BY(mu) = 0;
  std::vector<pid_t> thread_ids ABSL_GUARDED_BY(mu);  // of those that run; has room for all
  bool is_nice ABSL_GUARDED_BY(mu) = false;
  int num_available ABSL_GUARDED_BY(mu) = 0;  // versions
  bool nobody_asks ABSL_GUARDED_BY(mu) = false;
  bool serves ABSL_GUARDED_BY(mu) = false;  // as the pace knows it
  // Those in functions of others: storage, loaders, what frees a model. They end when these do.
  int num_busy ABSL_GUARDED_BY(mu) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MODEL_VERSIONS_CORE_H_
