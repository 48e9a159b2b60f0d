// SPDX-License-Identifier: Apache-2.0
#include "estimator/distributed_predict.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/termination.h"
#include "data/dataset_variant.h"
#include "data/matching_files.h"
#include "distributed/cluster/cluster.h"
#include "estimator/estimator_parts.h"
#include "estimator/model_graph.h"
#include "graph/scope.h"
#include "proto/device_attributes.pb.h"  // IWYU pragma: keep
#include "run/run_file.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"

namespace millrace {
namespace {

constexpr char kName[] = "PredictOnCluster";
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
// Between two signs of life of who predicts a part.
constexpr absl::Duration kFlushPeriod = absl::Seconds(1);

// Where elements come from: one of the two.
struct Source {
  const InputFn* elements = nullptr;
  const InputFiles* files = nullptr;
};

Status CheckOptions(const Source& source, const ClusterPredictOptions& options) {
  if (source.elements != nullptr && !source.elements->valid()) {
    return InvalidArgument(kName, ": input_fn must be a function, got none");
  }
  if (source.files != nullptr && (!source.files->input_fn || source.files->patterns.empty())) {
    return InvalidArgument(kName, ": InputFiles must have patterns and an input_fn, got ",
                           source.files->input_fn ? "no pattern" : "no function");
  }
  if (options.output_dir.empty()) {
    return InvalidArgument(kName, ": output_dir must be given, got ''");
  }
  if (options.num_parts < 0 || options.num_parts > kMaxPredictionParts) {
    return InvalidArgument(kName, ": num_parts must be 0 to ", kMaxPredictionParts, ", got ",
                           options.num_parts);
  }
  for (const auto& [name, secs] :
       {std::pair<const char*, double>{"worker_grace_secs", options.worker_grace_secs},
        {"end_grace_secs", options.end_grace_secs}}) {
    if (secs >= 0) continue;
    return InvalidArgument(kName, ": ", name, " must be >= 0, got ", secs);
  }
  return CheckHooks(kName, options.hooks);
}

// The model, which remembers the features that are to be written.
ModelFn Forwarding(const ModelFn& model, const std::vector<std::string>& keys,
                   const std::shared_ptr<Predictions::Map>& forwarded) {
  return [model, keys, forwarded](const Scope& scope, const Features& features,
                                  const Labels& labels, Mode mode, const Params& params,
                                  const RunConfig& config) -> StatusOr<EstimatorSpec> {
    for (const std::string& key : keys) {
      const auto found = features.map().find(key);
      if (found != features.map().end()) {
        forwarded->insert(*found);
        continue;
      }
      return InvalidArgument(
          kName, ": forward_features must be among the features, and dense, ",
          absl::StrJoin(features.map(), ", ",
                        [](std::string* out, const auto& f) { *out += f.first; }),
          ", got '", key, "'");
    }
    return model(ModelFnCall{scope, features, labels, mode, params, config});
  };
}

// One task's part of the job, but a parameter server's.
class PredictingTask {
 public:
  PredictingTask(const EstimatorParts& parts, const Source& source,
                 const ClusterPredictOptions& options)
      : parts_(parts),
        config_(parts.config),
        clock_(parts.clock),
        source_(source),
        options_(options),
        on_servers_(config_.num_ps_replicas() > 0),
        files_(parts.file_system, options.output_dir) {
    const ClusterSpec& cluster = config_.cluster_spec();
    for (const char* job : {"chief", "master", "worker"}) {
      for (const int task : cluster.tasks(job)) {
        if (job == config_.task_type() && task == config_.task_id()) self_ = tasks_.size();
        tasks_.push_back({job, task});
      }
    }
    if (tasks_.empty()) tasks_.push_back({"", 0});  // one process
  }

  StatusOr<ClusterPrediction> Run() {
    MR_ASSIGN_OR_RETURN(std::optional<PredictionManifest> manifest, WhatIsThere());
    // A chief that died after the manifest has not told the end to the parameter servers.
    const bool tells_end = manifest && config_.is_chief() && on_servers_ && !EndIsTold();
    if (manifest && !tells_end) {
      LogInfo(kName, ": '", files_.directory(), "' has all predictions already: ", manifest->rows(),
              " rows of '", manifest->checkpoint, "'");
      return ClusterPrediction{.own_rows = 0, .manifest = std::move(manifest)};
    }
    std::unique_ptr<Server> server;
    if (on_servers_) {
      MR_ASSIGN_OR_RETURN(server, Server::Start(config_.cluster(), options_.server));
    }
    MR_RETURN_IF_ERROR(config_.is_chief() ? MakeJob() : AwaitJob());
    MR_RETURN_IF_ERROR(BuildGraph());
    const Status opened = Open(server.get());
    if (RunEndOf(opened)) {
      LogInfo(kName, ": ", opened.message());
      return ClusterPrediction();
    }
    MR_RETURN_IF_ERROR(opened);
    Status status;
    if (!manifest) {
      status = config_.is_chief() ? PredictAll(&manifest) : PredictOwn();
    }
    const bool is_whole = status.ok() && manifest.has_value();
    if (is_whole && on_servers_) status = OutOfRange("all rows are predicted");
    MR_RETURN_IF_ERROR(session_->Close(status));
    if (is_whole) files_.Sweep();
    return ClusterPrediction{.own_rows = own_rows_, .manifest = std::move(manifest)};
  }

 private:
  struct Task {
    std::string job;
    int index;
  };
  // "worker 1"; "worker 1 (host:2222)" for a task that is waited for.
  static std::string NameOf(const Task& task) {
    return task.job.empty() ? "this process" : absl::StrCat(task.job, " ", task.index);
  }
  std::string PlaceOf(const Task& task) const {
    const auto address = config_.cluster_spec().address(task.job, task.index);
    return absl::StrCat(NameOf(task), address.ok() ? absl::StrCat(" (", *address, ")") : "");
  }
  size_t OwnerOf(int64_t part) const { return static_cast<size_t>(part) % tasks_.size(); }

  // --- The job -----------------------------------------------------------------------------------

  StatusOr<std::optional<PredictionManifest>> WhatIsThere() const {
    MR_ASSIGN_OR_RETURN(std::optional<PredictionManifest> manifest,
                        ReadPredictionManifest(parts_.file_system, files_.directory()));
    if (!manifest) return manifest;
    MR_RETURN_IF_ERROR(CheckSame(manifest->checkpoint, manifest->format,
                                 static_cast<int64_t>(manifest->parts.size()), "predictions"));
    const StatusOr<std::string> latest = CheckpointToUse(parts_, options_.checkpoint_path);
    if (latest.ok() && *latest != manifest->checkpoint) {
      LogWarning(kName, ": the predictions in '", files_.directory(), "' are of '",
                 manifest->checkpoint, "', and '", *latest,
                 "' is the latest checkpoint; give another output_dir to predict anew");
    }
    return manifest;
  }

  // What is there is what was asked for.
  Status CheckSame(const std::string& checkpoint, PredictionFormat format, int64_t num_parts,
                   const char* what) const {
    const auto other = [&](const char* option, const auto& there, const auto& asked) {
      return FailedPrecondition(kName, ": output_dir '", files_.directory(), "' has ", what,
                                " with ", option, " ", there, ", got ", asked,
                                "; give another directory, or remove it");
    };
    if (format != options_.format) {
      return other("format", PredictionFormatName(format), PredictionFormatName(options_.format));
    }
    if (options_.num_parts != 0 && options_.num_parts != num_parts) {
      return other("num_parts", num_parts, options_.num_parts);
    }
    if (!options_.checkpoint_path.empty() && options_.checkpoint_path != checkpoint) {
      return other("checkpoint_path", checkpoint, options_.checkpoint_path);
    }
    return absl::OkStatus();
  }

  bool EndIsTold() const {
    const StatusOr<std::optional<RunEndFile>> end =
        ReadRunEnd(parts_.file_system, files_.job_directory());
    return !end.ok() || end->has_value();
  }

  // The chief's: the one that a chief before it has begun, or another one.
  Status MakeJob() {
    MR_ASSIGN_OR_RETURN(const std::optional<PredictionJob> begun, files_.ReadJob());
    if (begun) {
      MR_RETURN_IF_ERROR(
          CheckSame(begun->checkpoint, begun->format, begun->num_parts, "a job under way"));
      LogInfo(kName, ": goes on with the job in '", files_.directory(), "', of '",
              begun->checkpoint, "'");
      job_ = *begun;
      return absl::OkStatus();
    }
    job_.format = options_.format;
    job_.num_parts =
        options_.num_parts > 0 ? options_.num_parts : static_cast<int64_t>(tasks_.size());
    job_.seed = config_.tf_random_seed() ? static_cast<uint64_t>(*config_.tf_random_seed())
                                         : RandomUint64();
    MR_ASSIGN_OR_RETURN(job_.checkpoint, CheckpointToUse(parts_, options_.checkpoint_path));
    if (job_.checkpoint.empty() && tasks_.size() > 1) {
      return FailedPrecondition(kName, ": model_dir '", parts_.model_dir,
                                "' must have a checkpoint, got none; train first");
    }
    if (source_.files != nullptr) {
      std::set<std::string> found;
      for (const std::string& pattern : source_.files->patterns) {
        MR_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                            data::MatchingFiles(parts_.file_system, pattern));
        found.insert(files.begin(), files.end());
      }
      job_.files.assign(found.begin(), found.end());
      if (job_.files.empty()) {
        return absl::NotFoundError(
            absl::StrCat(kName, ": patterns must match a file, got none for '",
                         absl::StrJoin(source_.files->patterns, "', '"), "'"));
      }
    }
    return files_.WriteJob(job_);
  }

  // Of the others.
  Status AwaitJob() {
    const absl::Time begin = clock_->Now();
    const absl::Duration most = absl::Seconds(config_.session_creation_timeout_secs());
    LogThrottle throttle(kReportPeriod, /*wait_first=*/true, clock_);
    const TerminationRequest request;
    while (true) {
      MR_ASSIGN_OR_RETURN(const std::optional<PredictionJob> job, files_.ReadJob());
      if (job) {
        MR_RETURN_IF_ERROR(
            CheckSame(job->checkpoint, job->format, job->num_parts, "a job under way"));
        job_ = *job;
        return absl::OkStatus();
      }
      const absl::Duration waited = clock_->Now() - begin;
      const std::string whom = absl::StrCat(PlaceOf(tasks_[0]), ", which has begun no job in '",
                                            files_.directory(), "'");
      if (waited >= most) {
        return WithExitCode(absl::DeadlineExceededError(absl::StrCat(
                                kName, ": waited ", absl::FormatDuration(most), " for ", whom)),
                            kExitRetryable);
      }
      if (throttle.ShouldLog()) {
        LogInfo(kName, ": waits for ", whom, " since ",
                absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))));
      }
      if (request.signal() != 0) {
        return WithExitCode(absl::CancelledError(absl::StrCat(kName, ": ended by a signal")),
                            128 + request.signal());
      }
      clock_->SleepFor(std::min(kPoll, most - waited));
    }
  }

  // --- The session -------------------------------------------------------------------------------

  Status BuildGraph() {
    EstimatorParts parts = parts_;
    const auto forwarded = std::make_shared<Predictions::Map>();
    parts.model_fn = Forwarding(parts_.model_fn, options_.forward_features, forwarded);
    const InputFn input_fn = source_.elements != nullptr
                                 ? *source_.elements
                                 : InputFn([this] { return source_.files->input_fn(job_.files); });
    MR_ASSIGN_OR_RETURN(graph_,
                        BuildModelGraph(parts, Mode::kPredict, input_fn,
                                        on_servers_ ? Placement::kCluster : Placement::kByMode));
    if (!graph_.dataset) {
      return InvalidArgument(kName, ": input_fn must return a Dataset, got tensors");
    }
    if (graph_.cardinality == data::kInfiniteCardinality) {
      return InvalidArgument(kName,
                             ": input_fn must return a Dataset that ends, got one without "
                             "an end");
    }
    // Each part initialises it.
    graph_.input_hooks.clear();
    MR_ASSIGN_OR_RETURN(Predictions::Map chosen,
                        PredictionsToGive(graph_.spec.predictions, options_.predict_keys));
    for (const auto& [name, output] : *forwarded) {
      if (!chosen.insert({name, output}).second) {
        return InvalidArgument(kName, ": forward_features must have other names than predictions, ",
                               "got '", name, "'");
      }
    }
    for (const auto& [name, output] : chosen) {
      names_.push_back(name);
      fetches_.emplace_back(output);
    }
    return absl::OkStatus();
  }

  Status Open(const Server* server) {
    SessionCreatorOptions creator;
    creator.scaffold = graph_.spec.scaffold;
    creator.session.config = config_.session_config();
    creator.clock = clock_;
    creator.file_system = parts_.file_system;
    MonitoredSessionOptions session;
    hooks_ = graph_.AllHooks({&options_.hooks, &graph_.spec.prediction_hooks});
    session.hooks = PointersOf(hooks_);
    // The chief waits for parts, whichever task predicts them.
    session.await_trainers = false;
    session.clock = clock_;
    const bool restores = config_.is_chief() || !on_servers_;
    if (on_servers_) {
      // A session_master of TF_CONFIG is another address than this task's.
      creator.target =
          config_.cluster().extras().session_master ? config_.master() : server->target();
      creator.checkpoint_dir = files_.job_directory();
      if (restores) creator.begin_from = job_.checkpoint;
      creator.end_grace = absl::Seconds(options_.end_grace_secs);
      creator.max_wait = absl::Seconds(config_.session_creation_timeout_secs());
      creator.session.creation_timeout = creator.max_wait;
    } else {
      creator.checkpoint_path = job_.checkpoint;
      creator.session.config.device_filters.clear();
    }
    std::unique_ptr<SessionCreator> made;
    if (restores) {
      made = std::make_unique<ChiefSessionCreator>(graph_.root, std::move(creator));
    } else {
      made = std::make_unique<WorkerSessionCreator>(graph_.root, std::move(creator));
    }
    MR_ASSIGN_OR_RETURN(session_,
                        MonitoredSession::Open(graph_.root, std::move(made), std::move(session)));
    opened_ = clock_->Now();
    return absl::OkStatus();
  }

  // --- Parts -------------------------------------------------------------------------------------

  // nullopt: there is nothing in it.
  StatusOr<std::optional<data::Dataset>> DatasetOfPart(int64_t part) const {
    if (source_.files == nullptr) {
      return std::optional<data::Dataset>(graph_.dataset->Shard(job_.num_parts, part));
    }
    std::vector<std::string> files;
    for (size_t i = static_cast<size_t>(part); i < job_.files.size();
         i += static_cast<size_t>(job_.num_parts)) {
      files.push_back(job_.files[i]);
    }
    if (files.empty()) return std::optional<data::Dataset>();
    MR_ASSIGN_OR_RETURN(const Input input, source_.files->input_fn(files));
    if (!input.dataset()) {
      return InvalidArgument(kName, ": input_fn must return a Dataset, got tensors");
    }
    return input.dataset();
  }

  // From its begin again with each session that is lost. Not done, and OK, after a stop.
  Status PredictPart(int64_t part) {
    MR_ASSIGN_OR_RETURN(const std::optional<data::Dataset> dataset, DatasetOfPart(part));
    return session_->RunStepFn([&](const StepContext& context) -> Status {
      MR_ASSIGN_OR_RETURN(PredictionFiles::Attempt attempt, files_.Begin(part, job_.format));
      own_tokens_.insert(attempt.token);
      Status status;
      if (dataset) status = PredictRows(context, *dataset, attempt.writer.get());
      if (!status.ok() || session_->ShouldStop()) {
        files_.Abandon(&attempt);
        return status;
      }
      MR_ASSIGN_OR_RETURN(const ShardContent content,
                          files_.Commit(&attempt, NameOf(tasks_[self_])));
      own_rows_ += content.rows;
      return absl::OkStatus();
    });
  }

  Status PredictRows(const StepContext& context, const data::Dataset& dataset,
                     PredictionShardWriter* writer) {
    const data::InitializableIterator& input = graph_.iterator;
    data::IteratorOptions options;
    options.seed = job_.seed;  // and no task: all see one order
    options.clock = clock_;
    options.file_system = parts_.file_system;
    const Tensor feed = data::DatasetFeed(dataset, options);
    MR_RETURN_IF_ERROR(
        context.session()->Run({{input.dataset, feed}}, {}, {input.initializer}).status());
    absl::Time flushed = clock_->Now();
    while (!session_->ShouldStop()) {
      const StatusOr<std::vector<Tensor>> values = context.RunWithHooks({}, fetches_);
      if (absl::IsOutOfRange(values.status())) return absl::OkStatus();
      MR_RETURN_IF_ERROR(values.status());
      MR_RETURN_IF_ERROR(writer->Write(names_, *values));
      const absl::Time now = clock_->Now();
      if (now - flushed < kFlushPeriod) continue;
      flushed = now;
      MR_RETURN_IF_ERROR(writer->Flush());
    }
    return absl::OkStatus();
  }

  // Those of this task that nobody has predicted.
  Status PredictOwn() {
    MR_ASSIGN_OR_RETURN(const auto seen, files_.Look());
    for (int64_t part = static_cast<int64_t>(self_); part < job_.num_parts;
         part += static_cast<int64_t>(tasks_.size())) {
      const auto found = seen.find(part);
      if (found != seen.end() && !found->second.whole.empty()) continue;
      if (session_->ShouldStop()) break;
      MR_RETURN_IF_ERROR(PredictPart(part));
    }
    return absl::OkStatus();
  }

  // The chief's: everything, and the manifest. None, and OK, after a stop.
  Status PredictAll(std::optional<PredictionManifest>* manifest) {
    MR_RETURN_IF_ERROR(PredictOwn());
    MR_ASSIGN_OR_RETURN(const bool all, AwaitParts());
    if (!all) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const auto seen, files_.Look());
    PredictionManifest made = {.checkpoint = job_.checkpoint, .format = job_.format};
    for (int64_t part = 0; part < job_.num_parts; ++part) {
      MR_ASSIGN_OR_RETURN(PredictedPart chosen, files_.Choose(part, seen.at(part), job_));
      made.parts.push_back(std::move(chosen));
    }
    MR_RETURN_IF_ERROR(files_.WriteManifest(made));
    LogInfo(kName, ": predicted ", made.rows(), " rows in ", job_.num_parts, " parts: '",
            files_.manifest_path(), "'");
    *manifest = std::move(made);
    return absl::OkStatus();
  }

  // What a task has shown of itself, and when it last showed something else.
  struct Life {
    std::string signs;
    absl::Time seen;
  };

  // Until all parts are there; does those whose task is silent. False after a stop.
  StatusOr<bool> AwaitParts() {
    std::vector<Life> lives(tasks_.size(), Life{"", opened_});
    LogThrottle throttle(kReportPeriod, /*wait_first=*/true, clock_);
    while (!session_->ShouldStop()) {
      MR_ASSIGN_OR_RETURN(const auto parts, files_.Look());
      std::vector<int64_t> missing;
      std::vector<std::string> signs(tasks_.size());
      for (int64_t part = 0; part < job_.num_parts; ++part) {
        const auto found = parts.find(part);
        if (found == parts.end() || found->second.whole.empty()) missing.push_back(part);
        if (found == parts.end()) continue;
        std::string& of_task = signs[OwnerOf(part)];
        for (const std::string& token : found->second.whole) absl::StrAppend(&of_task, token, " ");
        for (const auto& [token, bytes] : found->second.unended) {
          if (own_tokens_.count(token) == 0) absl::StrAppend(&of_task, token, ":", bytes, " ");
        }
      }
      if (missing.empty()) return true;
      const absl::Time now = clock_->Now();
      for (size_t i = 0; i < lives.size(); ++i) {
        if (signs[i] == lives[i].signs) continue;
        lives[i] = {signs[i], now};
      }
      const auto silent = std::find_if(missing.begin(), missing.end(), [&](int64_t part) {
        return now - lives[OwnerOf(part)].seen >= absl::Seconds(options_.worker_grace_secs);
      });
      if (silent != missing.end()) {
        LogWarning(kName, ": ", PlaceOf(tasks_[OwnerOf(*silent)]),
                   " has shown no sign of life for ", options_.worker_grace_secs,
                   " s; the chief predicts its part ", *silent);
        MR_RETURN_IF_ERROR(PredictPart(*silent));
        continue;
      }
      if (throttle.ShouldLog()) {
        std::set<size_t> owners;
        for (const int64_t part : missing) owners.insert(OwnerOf(part));
        LogInfo(kName, ": the chief waits for ", missing.size(), " of ", job_.num_parts,
                " parts, of ", absl::StrJoin(owners, ", ", [this](std::string* out, size_t owner) {
                  *out += PlaceOf(tasks_[owner]);
                }));
      }
      MR_RETURN_IF_ERROR(KeepSession());
      clock_->SleepFor(kPoll);
    }
    return false;
  }

  // Finds out whether the session is lost: others wait for this one to restore variables then.
  Status KeepSession() {
    return session_->RunStepFn([](const StepContext& context) {
      RunSession* const run = context.session()->run_session();
      return run == nullptr ? context.session()->ListDevices().status()
                            : run->OtherTrainers().status();
    });
  }

  const EstimatorParts& parts_;
  const RunConfig& config_;
  Clock* const clock_;
  const Source source_;
  const ClusterPredictOptions& options_;
  const bool on_servers_;
  const PredictionFiles files_;
  std::vector<Task> tasks_;  // that predict; the chief first
  size_t self_ = 0;

  PredictionJob job_;
  ModelGraph graph_;
  std::vector<std::string> names_;
  std::vector<FetchName> fetches_;
  Hooks hooks_;
  std::set<std::string> own_tokens_;
  int64_t own_rows_ = 0;
  absl::Time opened_;
  std::unique_ptr<MonitoredSession> session_;  // goes first
};

StatusOr<ClusterPrediction> Predict(const Estimator& estimator, const Source& source,
                                    const ClusterPredictOptions& options) {
  MR_RETURN_IF_ERROR(CheckOptions(source, options));
  MR_RETURN_IF_ERROR(estimator.status());
  const EstimatorParts& parts = estimator.parts();
  const RunConfig& config = parts.config;
  if (config.task_type() == "evaluator") {
    LogInfo(kName, ": an evaluator has nothing to do");
    return ClusterPrediction();
  }
  if (!config.cluster().is_local() && config.task_type() == "ps") {
    MR_ASSIGN_OR_RETURN(const auto server, Server::Start(config.cluster(), options.server));
    JoinOptions join;
    join.exit_when_done = true;
    join.logdir = PredictionFiles(parts.file_system, options.output_dir).job_directory();
    // A chief may begin as late as the others believe.
    join.stale_grace = 3 * absl::Seconds(options.end_grace_secs);
    MR_RETURN_IF_ERROR(server->Join(join));
    return ClusterPrediction();
  }
  return PredictingTask(parts, source, options).Run();
}

}  // namespace

StatusOr<ClusterPrediction> PredictOnCluster(const Estimator& estimator, const InputFn& input_fn,
                                             const ClusterPredictOptions& options) {
  return Predict(estimator, {.elements = &input_fn}, options);
}

StatusOr<ClusterPrediction> PredictOnCluster(const Estimator& estimator, const InputFiles& files,
                                             const ClusterPredictOptions& options) {
  return Predict(estimator, {.files = &files}, options);
}

}  // namespace millrace
