// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MODEL_VERSIONS_H_
#define MILLRACE_SERVING_MODEL_VERSIONS_H_

// ModelVersions: the versions of all models of a server: found, loaded, pinned by requests,
// unloaded.
//
//   MR_ASSIGN_OR_RETURN(auto versions, ModelVersions::Create({.loader = Load}));
//   MR_RETURN_IF_ERROR(versions->SetModels({{.name = "census", .base_path = "/models/census"}}));
//   versions->WaitUntilTried(deadline);
//   MR_ASSIGN_OR_RETURN(const ModelVersions::Pin pin, versions->Get("census"));  // per request
//   static_cast<ServedModel*>(pin.servable())->Predict(...);
//
// What happens next is decided by NextSteps (serving/version_plan.h); threads carry it out. One
// polls the sources (serving/version_source.h), one waits for the times of next tries, up to
// PlanOptions::max_loads load and warm up (and up to max_left_behind more are in loads that took
// too long: such a version has failed, and what its load still returns is dropped), one unloads.
// While some version of this process is available they are paced (core/paced_thread.h): all their
// work together takes at most `load_cpu_share` of a core where it comes in small pieces: reading,
// copying, checksums. What is one long call is not bounded, but has a low priority: parsing,
// building and compiling graphs. Neither are kernels of init ops and warm-up requests, which run in
// the arena. Without an available version nobody asks, and the loads are what is waited for; so
// while SetNobodyAsks says so. A share of 1 is another way: from the first
// available version on all have the priority `nice`. (Threads that a loader starts inherit it.
// Those of the arena, which requests need, are started before; others that requests need must not
// be started by the loader.)
//
// Invariants:
//   * A request that pinned a version keeps it: the version is freed after its last pin has gone,
//   by
//     the unload thread, and its memory then goes back to the system (core/cached_memory.h).
//   * Get waits for no load, unload, poll or SetModels: it holds a lock of its thread's place only,
//     which others take for the exchange of one pointer.
//   * From one Get to the next of a thread the latest available version changes at once.
//   * An error of one model, or version, changes no other.
//
// More models than memory (Options::load_on_demand, PlanOptions): a model that nobody asks for is
// known but rests. The first request for it starts its load and waits for it, others join, each in
// its thread. A version that was never loaded is kFound (START for clients), one that rests again
// kEnded (END); both load when they are asked for. Labels may name them. A use is noted to about a
// second. What was used last stays when memory is short.
//
// A version keeps its number when the base path of its model changes: what is loaded under that
// number stays, as in TensorFlow Serving.
//
// Thread-safety: all methods, from any thread.
// Lifetime: the destructor cancels loads, waits until requests have let go of their pins and all is
// freed, `patience` at most. What has not ended then is left behind, as by BoundedCall
// (core/bounded_call.h), so loader, warm-up, clock and file system must live on. A pin may outlive
// the object: then its end frees the version.
// Failure: texts and codes of TensorFlow Serving where clients see them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "serving/available_versions.h"
#include "serving/servable.h"
#include "serving/step_bounds.h"
#include "serving/version_plan.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {

// Which requests of a model are logged, and where (serving/monitoring/request_log.h).
struct RequestLogSettings {
  double sampling_rate = 0;  // of each request, 0 to 1
  std::string filename_prefix = {};
};

// A model of the configuration.
struct ModelSettings {
  std::string name;
  std::string base_path;  // absolute, or a URI
  VersionPolicy policy = {};
  std::map<std::string, int64_t> labels = {};  // to versions
  RequestLogSettings request_log = {};
};

struct VersionToLoad {
  std::string model;
  int64_t version = 0;
  std::string directory;
  std::string request_log_prefix = {};  // of its model; "": it has no log
};

struct VersionStatus {
  int64_t version = 0;
  VersionState state = VersionState::kFound;
  Status status;          // why it failed, or is not complete
  int64_t num_bytes = 0;  // of an available one
};

struct ModelStatus {
  std::string name;
  std::string base_path;
  bool is_listed = false;  // in the last SetModels; else its versions end or have ended
  Status source;           // of the last poll of its base path
  std::vector<VersionStatus> versions;  // descending
  int64_t num_forgotten = 0;            // ended versions that are no longer in `versions`
  std::map<std::string, int64_t> labels;
};

class ModelVersions {
 public:
  // On a load thread. `cancellation` asks it to end early; then its result is not used. An
  // exception is an error. The result must have no other owner.
  using Loader = std::function<StatusOr<std::shared_ptr<Servable>>(
      const VersionToLoad& version, CancellationManager* cancellation)>;
  // On the same thread, before the version answers requests. An error fails the version.
  using WarmUp = std::function<Status(const VersionToLoad& version, Servable* servable,
                                      CancellationManager* cancellation)>;

  struct Options {
    Loader loader;
    WarmUp warm_up = nullptr;  // null: none
    PlanOptions plan = {};
    VersionSource::Options source = {};  // its clock is used for everything
    // Zero: once after each SetModels (and until new files have settled). Infinite: by Poll() only.
    absl::Duration poll_period = absl::Seconds(1);
    // Called after each change of a state that decides whether a model answers, under a lock: it
    // calls nothing of this object and does not wait.
    std::function<void()> on_change = nullptr;
    // A label that its model does not have yet may name a version that is not available.
    bool allow_labels_of_unavailable = false;
    size_t most_ended = 100;  // versions of a model, and models, whose end the status remembers
    absl::Duration patience = absl::Seconds(30);
    // Above 0, at most 1. One for the process: that of the last one that was made.
    double load_cpu_share = 0.15;
    int nice = 10;  // with a share of 1

    // Models load when the first request asks for them. The memory limit of `plan` needs it; its
    // idle_unload may be without: then models load at first, and when they are asked for again.
    bool load_on_demand = false;
    size_t most_waiting = 16;  // requests that wait for loads at a time, each with its thread
    absl::Duration demand_patience = absl::Minutes(10);  // of a request without a deadline
  };

  // A request's hold on a version. Thread-compatible.
  class Pin {
   public:
    Pin() = default;  // of nothing
    explicit Pin(std::shared_ptr<const AvailableVersion> version) : version_(std::move(version)) {}
    explicit operator bool() const { return version_ != nullptr; }
    // Of a pin of something; valid as long as it.
    Servable* servable() const { return version_->servable(); }
    int64_t version() const { return version_->version(); }

   private:
    std::shared_ptr<const AvailableVersion> version_;
  };

  // ResourceExhausted when the system gives no threads; InvalidArgument without a loader, for a
  // memory limit without load_on_demand, or for a share that is none.
  static StatusOr<std::unique_ptr<ModelVersions>> Create(Options options);
  ~ModelVersions();
  ModelVersions(const ModelVersions&) = delete;
  ModelVersions& operator=(const ModelVersions&) = delete;

  // The highest available version, or that one. NotFound "Servable not found for request:
  // Latest(NAME)", "... Specific(NAME, V)".
  // Where models may rest it loads what is wanted and not available, and waits within `bounds`
  // (a cancellation is seen at the next change of some state): the error of a load that failed,
  // DeadlineExceeded, Cancelled, ResourceExhausted when most_waiting requests wait already.
  StatusOr<Pin> Get(absl::string_view model, std::optional<int64_t> version = std::nullopt,
                    const StepBounds& bounds = {}) const;
  // InvalidArgument "Unrecognized servable version label: L"; NotFound as above.
  StatusOr<Pin> GetLabelled(absl::string_view model, absl::string_view label,
                            const StepBounds& bounds = {}) const;

  // From now on these are the models: others unload, new ones are looked for by the next poll,
  // which it starts. After an error nothing has changed. Does not wait. InvalidArgument for empty
  // or doubled names and relative base paths; FailedPrecondition for labels to versions that are
  // not available (Options::allow_labels_of_unavailable); Unavailable while a reload runs.
  Status SetModels(std::vector<ModelSettings> models);
  // The same for clients, as one operation that waits: the versions of both lists are wanted until
  // those of the new one have been tried, or the deadline (by the clock of the options); then the
  // labels move and the list becomes this one, at once; then what only the old one wanted goes. So
  // labels may name versions that the list itself brings, and none is without its version in
  // between. After an error, one of a label among them, the old list is as before; a model that
  // does not load is no error of the list. Waited for: versions of models that are new or have
  // another base path or policy, and those that labels name. Unavailable, at once, while another
  // one runs; then SetModels is, too.
  Status Reload(std::vector<ModelSettings> models, absl::Time deadline);
  // The same, if the list that serves is still the one of that number (num_lists): else Aborted.
  // Waits for the end of another reload, until the deadline.
  Status ReloadAfter(uint64_t num_lists, std::vector<ModelSettings> models, absl::Time deadline);
  // For a server that stops: Reload, WaitUntilTried and requests that wait for loads return, and
  // later ones do not wait. Versions go on answering.
  void EndWaits();
  // For one that has stopped: the same, and all versions unload, also while a reload runs; no list
  // is taken any more by Reload, and nothing is looked for. Waits for nothing.
  void EndAll();
  std::vector<ModelSettings> models() const;
  // How many lists SetModels has taken: another number, another list. Takes no lock.
  uint64_t num_lists() const;

  // Loads need not be paced although versions are available: no request can come yet.
  void SetNobodyAsks(bool nobody_asks);

  // Looks into all base paths once, in this thread, after polls that run.
  void Poll();

  // Descending; ended ones remain, up to Options::most_ended. NotFound "Could not find version V of
  // model M", "Could not find any versions of model M".
  StatusOr<std::vector<VersionStatus>> GetStatus(
      absl::string_view model, std::optional<int64_t> version = std::nullopt) const;
  std::vector<ModelStatus> GetStatuses() const;  // by name

  // Until each listed model has an available version or nothing more to try for the first time, or
  // the deadline. With an infinite poll_period it polls itself while files settle, as Reload does.
  // Returns the models without an available version, by name, and why.
  std::vector<std::pair<std::string, Status>> WaitUntilTried(absl::Time deadline) const;
  // Until `reached` says so of the status of a model's versions; false when the deadline comes
  // first. `reached` is called at each change, under a lock: it calls nothing of this object.
  bool WaitFor(absl::string_view model,
               absl::FunctionRef<bool(absl::Span<const VersionStatus>)> reached,
               absl::Time deadline) const;

 private:
  struct Core;  // what the threads share, and may outlive this object

  explicit ModelVersions(std::shared_ptr<Core> core);
  static StatusOr<std::unique_ptr<ModelVersions>> CreateOrThrow(Options options);
  Status StartThreads();

  const std::shared_ptr<Core> core_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MODEL_VERSIONS_H_
