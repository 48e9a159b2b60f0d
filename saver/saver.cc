// SPDX-License-Identifier: Apache-2.0
#include "saver/saver.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "proto/saver.pb.h"
#include "saver/bundle_place.h"
#include "saver/checkpoint_name.h"
#include "saver/checkpoint_v1.h"
#include "saver/leftovers.h"
#include "saver/meta_graph.h"
#include "saver/save_graph.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr char kStateFile[] = "checkpoint";
constexpr char kMetaSuffix[] = "meta";

std::string MetaGraphPath(absl::string_view checkpoint, absl::string_view suffix) {
  return absl::StrCat(checkpoint, ".", suffix);
}

// Why a restore has failed, as far as names, types and shapes say: with the variable and the line
// that made it. OK when they fit.
template <typename Reader>
Status CompareWithCheckpoint(const Reader& reader, const std::string& checkpoint,
                             absl::Span<const Expected> expected, const Status& restored) {
  Status found;
  int others = 0;
  std::string built;
  for (const Expected& one : expected) {
    const auto entry = reader.Find(one.name);
    if (!entry.ok()) {
      if (!absl::IsNotFound(restored)) continue;
      return Suffixed(restored, absl::StrCat("; variable '", one.name, "' is not in checkpoint '",
                                             checkpoint, "'", one.built()));
    }
    if (entry->dtype == one.dtype && one.shape.IsCompatibleWith(PartialShape(entry->shape))) {
      continue;
    }
    if (!found.ok()) {
      ++others;
      continue;
    }
    found = InvalidArgument("Checkpoint '", checkpoint, "': variable '", one.name, "' must be ",
                            one.dtype, " ", one.shape, ", as in the graph, got ", entry->dtype, " ",
                            entry->shape);
    built = one.built();
  }
  if (others > 0) {
    found = Suffixed(found, absl::StrCat(" (and ", others, " more that differ)"));
  }
  return Suffixed(found, built);
}

template <typename Reader>
CheckpointDifference DifferenceOf(const Reader& reader, absl::Span<const Expected> expected) {
  CheckpointDifference difference;
  difference.num_expected = static_cast<int64_t>(expected.size());
  std::set<absl::string_view> wanted;
  for (const Expected& one : expected) {
    wanted.insert(one.name);
    const auto entry = reader.Find(one.name);
    if (!entry.ok()) {
      difference.missing.push_back(absl::StrCat("'", one.name, "'", one.built()));
    } else if (entry->dtype != one.dtype ||
               !one.shape.IsCompatibleWith(PartialShape(entry->shape))) {
      difference.changed.push_back(absl::StrCat(
          "'", one.name, "' must be ", MessagePart(one.dtype), " ", MessagePart(one.shape),
          ", got ", MessagePart(entry->dtype), " ", MessagePart(entry->shape), one.built()));
    }
  }
  for (const auto& entry : reader.entries()) {
    if (wanted.count(entry.name) == 0) difference.unwanted.push_back(entry.name);
  }
  return difference;
}

// --- Running -------------------------------------------------------------------------------------

// Makes the directory, durably: the names of new directories are synced, too.
Status MakeDirectory(FileSystem* fs, const std::string& directory) {
  if (directory.empty() || fs->FileExists(directory)) return absl::OkStatus();
  MR_RETURN_IF_ERROR(MakeDirectory(fs, Dirname(directory)));
  const Status made = fs->CreateDirectory(directory);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return fs->SyncDirectory(Dirname(directory));
}

class GraphSaver : public Saver {
 public:
  // Of options only what is asked for after the nodes were made is looked at. Of nodes, `expected`
  // is of a checkpoint, as far as it is known; it is empty with a `def` without names when there is
  // nothing to save. `temp_suffix` is "" when the graph was not made here, or is not sharded.
  // `graph`: whose meta graph is written next to each checkpoint.
  GraphSaver(SaveNodes nodes, std::optional<Scope> graph, const SaverOptions& options)
      : def_(std::move(nodes.def)),
        expected_(std::move(nodes.expected)),
        temp_suffix_tensor_(std::move(nodes.temp_suffix)),
        save_tensor_(std::move(nodes.save_tensor)),
        restore_op_(std::move(nodes.restore_op)),
        graph_(std::move(graph)),
        fs_(options.file_system),
        clock_(options.clock),
        may_commit_(options.may_commit),
        may_be_empty_(options.allow_empty),
        pads_step_(options.pad_step_number),
        relative_paths_(options.save_relative_paths),
        keep_period_s_(options.keep_checkpoint_every_n_hours * 3600),
        next_keep_s_(NowSeconds() + keep_period_s_),
        leftovers_(fs_) {}

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    return SaveAs(session, prefix, global_step, SaveOptions());
  }

  StatusOr<std::string> SaveAs(Session* session, const std::string& prefix,
                               std::optional<int64_t> global_step,
                               const SaveOptions& options) override {
    MR_RETURN_IF_ERROR(CheckNames(options));
    const std::string path = !global_step ? prefix
                             : pads_step_ ? absl::StrFormat("%s-%08d", prefix, *global_step)
                                          : absl::StrCat(prefix, "-", *global_step);
    if (Basename(path).empty() || Basename(path) == options.latest_filename) {
      return InvalidArgument("Saver: the prefix must name a file other than the state file '",
                             options.latest_filename, "', got '", path, "'");
    }
    // First, because it fails without having changed anything.
    std::optional<tensorflow::MetaGraphDef> meta;
    if (graph_ && options.write_meta_graph) {
      MetaGraphOptions wanted;
      wanted.strip_default_attrs = options.strip_default_attrs;
      if (!is_empty()) wanted.saver_def = def_;
      MR_ASSIGN_OR_RETURN(meta, ExportMetaGraph(*graph_, wanted));
    }
    const std::string directory = Dirname(path);
    MR_RETURN_IF_ERROR(MakeDirectory(fs_, directory));
    const std::string meta_path = MetaGraphPath(path, options.meta_graph_suffix);
    if (is_empty()) {
      if (meta) MR_RETURN_IF_ERROR(WriteMetaGraph(fs_, meta_path, *meta));
      return std::string();
    }
    state_file_ = options.latest_filename;
    const std::string family = JoinPath(directory, Basename(prefix));
    const bool first_of_family = global_step && family != leftovers_family_;
    if (first_of_family) {
      leftovers_family_.clear();
      leftovers_.Note(Family(directory, Basename(prefix)),
                      [this](const std::string& path) { return IsKept(path); });
    }
    MR_RETURN_IF_ERROR(FailPoint("saver/before_save"));
    MR_RETURN_IF_ERROR(RunSave(session, path));
    const Status described = [&]() -> Status {
      MR_RETURN_IF_ERROR(FailPoint("saver/after_save"));
      if (!meta) return absl::OkStatus();
      MR_RETURN_IF_ERROR(FailPoint("saver/before_meta"));
      return WriteMetaGraph(fs_, meta_path, *meta);
    }();
    if (!described.ok()) {
      Remember(path, described);
      return described;
    }
    if (!options.write_state) return path;
    MR_RETURN_IF_ERROR(CommitCheckpoint(path, options));
    if (first_of_family) {
      leftovers_family_ = family;
    } else {
      leftovers_.Delete([this](const std::string& path) { return IsKept(path); });
    }
    return path;
  }

  Status Restore(Session* session, const std::string& name) override {
    if (is_empty()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointNamed(fs_, name));
    if (!fs_->FileExists(BundleIndexPath(checkpoint)) &&
        CheckpointV1Files(fs_, checkpoint).empty()) {
      return absl::NotFoundError(absl::StrCat("Saver: checkpoint '", checkpoint,
                                              "' must exist, got no file '",
                                              BundleIndexPath(checkpoint), "'"));
    }
    const std::vector<Feed> feeds = {
        {def_.filename_tensor_name(), Tensor::Scalar<std::string>(checkpoint)}};
    const Status restored = RunTakingUp(
        [&](const FetchName& restore) { return session->Run(feeds, {}, {restore}).status(); },
        def_.restore_op_name(), restore_op_);
    if (absl::IsNotFound(restored) &&
        absl::StrContains(restored.message(), "not found in checkpoint")) {
      return Prefixed("Saver: restoring from a checkpoint that lacks a variable of the graph",
                      Explain(checkpoint, restored));
    }
    if (absl::IsInvalidArgument(restored)) return Explain(checkpoint, restored);
    if (absl::IsDataLoss(restored)) {
      const std::optional<std::string> intact = OtherIntact(checkpoint);
      if (intact) {
        return Suffixed(restored, absl::StrCat("; the newest other checkpoint is '", *intact, "'"));
      }
    }
    return restored;
  }

  StatusOr<CheckpointDifference> Compare(const std::string& checkpoint) override {
    if (expected_.empty()) return CheckpointDifference();
    const auto bundle = BundleReader::Open(fs_, checkpoint);
    if (bundle.ok()) return DifferenceOf(**bundle, expected_);
    const auto v1 = CheckpointV1Reader::Open(fs_, checkpoint);
    if (v1.ok()) return DifferenceOf(**v1, expected_);
    return bundle.status();
  }

  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    std::vector<Kept> kept;
    std::set<std::pair<std::string, std::string>> families;  // directory and base name
    for (const std::string& path : paths) {
      if (!CheckpointExists(fs_, path)) continue;
      const StatusOr<double> time = fs_->GetModificationTime(BundleIndexPath(path));
      kept.push_back({path, time.ok() ? *time : NowSeconds()});
      const std::string name = Basename(path);
      const size_t dash = name.rfind('-');
      if (dash == std::string::npos) continue;
      families.emplace(Dirname(path), name.substr(0, dash));
    }
    kept_ = std::move(kept);
    for (const auto& [directory, base] : families) leftovers_.Sweep(Family(directory, base));
    return absl::OkStatus();
  }

  void SetRunId(const std::string& id) override {
    if (!temp_suffix_tensor_.empty() && IsHex(id, kTempDigits))
      run_digits_ = id.substr(0, kHexDigits);
  }

  std::vector<std::string> last_checkpoints() const override {
    std::vector<std::string> paths;
    for (const Kept& k : kept_) paths.push_back(k.path);
    return paths;
  }

  std::vector<TimedCheckpoint> last_checkpoints_with_time() const override {
    std::vector<TimedCheckpoint> timed;
    for (const Kept& k : kept_) timed.push_back({k.path, k.time_s});
    return timed;
  }

  Status SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints) override {
    kept_.clear();
    for (TimedCheckpoint& one : checkpoints) kept_.push_back({std::move(one.path), one.time_s});
    return absl::OkStatus();
  }

  const tensorflow::SaverDef& def() const override { return def_; }

 private:
  struct Kept {
    std::string path;
    double time_s = 0;  // when it was written, since the epoch
    std::string meta_suffix = kMetaSuffix;
    bool is_unfinished = false;  // had no index when it was last looked at
  };

  bool is_empty() const { return may_be_empty_ && def_.save_tensor_name().empty(); }

  double NowSeconds() const { return absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()); }

  Status MayCommit() const { return may_commit_ ? may_commit_() : absl::OkStatus(); }

  bool IsKept(const std::string& path) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.path == path; });
  }

  Leftovers::Family Family(const std::string& directory, const std::string& base) const {
    return {directory, base, state_file_, run_digits_, def_.max_to_keep() > 0};
  }

  // --- Parts of SaveAs ---

  static Status CheckNames(const SaveOptions& options) {
    for (const auto& [name, what] : {std::pair(&options.latest_filename, "latest_filename"),
                                     std::pair(&options.meta_graph_suffix, "meta_graph_suffix")}) {
      if (name->empty() || absl::StrContains(*name, '/')) {
        return InvalidArgument("Saver: ", what, " must be a name without '/', got '", *name, "'");
      }
    }
    return absl::OkStatus();
  }

  // A step that is asked for by `name`, as sessions of any graph with the nodes know it; and where
  // the session has no such nodes by `node`, so that it takes them up when it knows their graph.
  Status RunTakingUp(absl::FunctionRef<Status(const FetchName&)> run, const std::string& name,
                     const FetchName& node) const {
    const auto lacks_nodes = [this](const Status& status) {
      return absl::IsNotFound(status) &&
             absl::StrContains(status.message(), absl::StrCat("unable to find feed output ",
                                                              def_.filename_tensor_name()));
    };
    Status status = run(name);
    if (lacks_nodes(status)) status = run(node);
    if (!lacks_nodes(status)) return status;
    return Prefixed(
        "Saver: the session must have the nodes of the Saver, got one that was extended without "
        "them; extend it with the graph again",
        status);
  }

  // The step that writes the values.
  Status RunSave(Session* session, const std::string& path) {
    std::vector<Feed> feeds = {{def_.filename_tensor_name(), Tensor::Scalar<std::string>(path)}};
    std::string parts;  // their directory
    if (!temp_suffix_tensor_.empty()) {
      parts = absl::StrCat(path, kTempMark, run_digits_.empty() ? RandomHexName() : run_digits_,
                           RandomHexName());
      feeds.emplace_back(temp_suffix_tensor_, Tensor::Scalar<std::string>(absl::StrCat(
                                                  absl::StripPrefix(parts, path), "/part")));
    }
    const Status saved =
        RunTakingUp([&](const FetchName& save) { return session->Run(feeds, {save}).status(); },
                    def_.save_tensor_name(), save_tensor_);
    if (!saved.ok()) {
      // Parts that were written before the error.
      if (!parts.empty()) fs_->RecursivelyDelete(parts).IgnoreError();
      Remember(path, saved);
    }
    return saved;
  }

  // The checkpoints that stay with the new one, and in *evicted those that are to be deleted.
  std::vector<Kept> KeptWith(const std::string& path, const SaveOptions& options,
                             std::vector<Kept>* evicted, double* next_keep_s) const {
    const std::string directory = Dirname(path);
    std::vector<Kept> kept = kept_;
    kept.erase(
        std::remove_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.path == path; }),
        kept.end());
    kept.push_back({path, NowSeconds(), options.meta_graph_suffix});
    if (def_.max_to_keep() <= 0) {
      kept = {kept.back()};
    }
    while (def_.max_to_keep() > 0 && kept.size() > static_cast<size_t>(def_.max_to_keep())) {
      if (kept.front().time_s > *next_keep_s) {
        *next_keep_s += keep_period_s_;
      } else if (Dirname(kept.front().path) == directory) {
        // Others are somebody else's now.
        evicted->push_back(kept.front());
      }
      kept.erase(kept.begin());
    }
    return kept;
  }

  // Names the new checkpoint in the state file, then deletes what is too much.
  Status CommitCheckpoint(const std::string& path, const SaveOptions& options) {
    const std::string directory = Dirname(path);
    std::vector<Kept> evicted;
    double next_keep_s = next_keep_s_;
    std::vector<Kept> kept = KeptWith(path, options, &evicted, &next_keep_s);
    CheckpointState state;
    state.latest = path;
    for (const Kept& k : kept) {
      if (Dirname(k.path) == directory || IsAbsolutePath(k.path)) state.all.push_back(k.path);
    }
    const Status written = WriteCheckpointState(fs_, directory, state, options.latest_filename,
                                                relative_paths_, may_commit_);
    if (!written.ok()) {
      Remember(path, written);
      return written;
    }
    kept_ = def_.max_to_keep() > 0 ? std::move(kept) : std::vector<Kept>();
    next_keep_s_ = next_keep_s;
    // The new checkpoint is safe: what cannot be deleted now is tried again after the next save.
    std::vector<Kept> to_delete = std::move(undeleted_);
    to_delete.insert(to_delete.end(), evicted.begin(), evicted.end());
    undeleted_.clear();
    const Status may_delete = MayCommit();
    if (!may_delete.ok()) {
      undeleted_ = std::move(to_delete);
      return may_delete;
    }
    for (Kept& old : to_delete) {
      if (old.path == path || IsKept(old.path)) continue;  // saved again since
      const Status deleted = old.is_unfinished ? DeleteUnfinished(old)
                                               : DeleteCheckpoint(fs_, old.path, old.meta_suffix);
      if (!deleted.ok()) {
        LogWarning("Checkpoint '", old.path,
                   "' is left for the next save to delete: ", deleted.message());
        old.is_unfinished = old.is_unfinished || !fs_->FileExists(BundleIndexPath(old.path));
        undeleted_.push_back(std::move(old));
      }
    }
    return absl::OkStatus();
  }

  // After a save that failed with `why`. Of one that became no checkpoint, what there is is
  // deleted: on a full disk the next try needs the room. By the next save where a task that lost us
  // may still be at it.
  void Remember(const std::string& path, const Status& why) {
    if (IsKept(path)) return;
    if (fs_->FileExists(BundleIndexPath(path))) {
      Adopt({path});
    } else if (CheckpointV1Files(fs_, path).empty()) {
      const Kept unfinished{.path = path, .is_unfinished = true};
      const bool has_ended = !absl::IsUnavailable(why) && !absl::IsAborted(why) &&
                             !absl::IsCancelled(why) && !absl::IsDeadlineExceeded(why);
      if (has_ended && MayCommit().ok() && DeleteUnfinished(unfinished).ok()) return;
      undeleted_.push_back(unfinished);
    }
  }

  // A checkpoint that came into being though its save failed: one that later saves may delete. It
  // is none of the last ones: those are what a save that succeeded wrote.
  void Adopt(Kept late) {
    if (def_.max_to_keep() <= 0) return;
    late.time_s = NowSeconds();
    late.is_unfinished = false;
    kept_.insert(kept_.empty() ? kept_.end() : std::prev(kept_.end()), std::move(late));
  }

  // Not while somebody else gives files their names under this prefix: their data has no index yet.
  // What is complete by now, by whomever, is no leftover.
  Status DeleteUnfinished(const Kept& unfinished) {
    MR_ASSIGN_OR_RETURN(const auto hold, PrefixHold::Take(fs_, unfinished.path, Clock::Real(),
                                                          absl::ZeroDuration()));
    if (fs_->FileExists(BundleIndexPath(unfinished.path))) {
      Adopt(unfinished);
      return absl::OkStatus();
    }
    return DeleteCheckpoint(fs_, unfinished.path, unfinished.meta_suffix);
  }

  // What the checkpoint itself says about a restore that failed; `restored` where it says nothing.
  Status Explain(const std::string& checkpoint, const Status& restored) {
    Status why;
    if (const auto bundle = BundleReader::Open(fs_, checkpoint); bundle.ok()) {
      why = CompareWithCheckpoint(**bundle, checkpoint, expected_, restored);
    } else if (const auto v1 = CheckpointV1Reader::Open(fs_, checkpoint); v1.ok()) {
      why = CompareWithCheckpoint(**v1, checkpoint, expected_, restored);
    }
    return why.ok() ? restored : why;
  }

  std::optional<std::string> OtherIntact(const std::string& checkpoint) {
    const std::optional<CheckpointState> state =
        ReadCheckpointState(fs_, Dirname(checkpoint), state_file_);
    if (!state) return std::nullopt;
    for (auto it = state->all.rbegin(); it != state->all.rend(); ++it) {
      if (*it != checkpoint && CheckpointExists(fs_, *it)) return *it;
    }
    return std::nullopt;
  }

  const tensorflow::SaverDef def_;
  const std::vector<Expected> expected_;
  const std::string temp_suffix_tensor_;
  const FetchName save_tensor_, restore_op_;  // of `def_`
  const std::optional<Scope> graph_;
  FileSystem* const fs_;
  Clock* const clock_;
  const std::function<Status()> may_commit_;
  const bool may_be_empty_;
  const bool pads_step_;
  const bool relative_paths_;
  const double keep_period_s_;
  std::string state_file_ = kStateFile;  // of the last save
  std::string run_digits_;               // of the run's id; "" for none
  double next_keep_s_;
  std::vector<Kept> kept_;        // oldest first
  std::vector<Kept> undeleted_;   // evicted or never finished, but still there
  Leftovers leftovers_;           // seen before the first of the last saves by step
  std::string leftovers_family_;  // directory and base name of these
};

StatusOr<std::unique_ptr<Saver>> MakeNow(const Scope& scope, SaverOptions options);

// Of defer_build: a Saver from Build on.
class DeferredSaver : public Saver {
 public:
  DeferredSaver(const Scope& scope, SaverOptions options)
      : scope_(scope), options_(std::move(options)) {}

  Status Build() override {
    if (saver_ != nullptr) return saver_->Build();
    SaverOptions options = options_;
    options.defer_build = false;
    MR_ASSIGN_OR_RETURN(saver_, MakeNow(scope_, std::move(options)));
    if (!run_id_.empty()) saver_->SetRunId(run_id_);
    return absl::OkStatus();
  }
  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    MR_RETURN_IF_ERROR(CheckBuilt("Save"));
    return saver_->Save(session, prefix, global_step);
  }
  StatusOr<std::string> SaveAs(Session* session, const std::string& prefix,
                               std::optional<int64_t> global_step,
                               const SaveOptions& options) override {
    MR_RETURN_IF_ERROR(CheckBuilt("SaveAs"));
    return saver_->SaveAs(session, prefix, global_step, options);
  }
  Status Restore(Session* session, const std::string& checkpoint) override {
    MR_RETURN_IF_ERROR(CheckBuilt("Restore"));
    return saver_->Restore(session, checkpoint);
  }
  StatusOr<CheckpointDifference> Compare(const std::string& checkpoint) override {
    MR_RETURN_IF_ERROR(CheckBuilt("Compare"));
    return saver_->Compare(checkpoint);
  }
  void SetRunId(const std::string& id) override {
    run_id_ = id;
    if (saver_ != nullptr) saver_->SetRunId(id);
  }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    MR_RETURN_IF_ERROR(CheckBuilt("RecoverLastCheckpoints"));
    return saver_->RecoverLastCheckpoints(paths);
  }
  std::vector<std::string> last_checkpoints() const override {
    return saver_ == nullptr ? std::vector<std::string>() : saver_->last_checkpoints();
  }
  std::vector<TimedCheckpoint> last_checkpoints_with_time() const override {
    return saver_ == nullptr ? std::vector<TimedCheckpoint>()
                             : saver_->last_checkpoints_with_time();
  }
  Status SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints) override {
    MR_RETURN_IF_ERROR(CheckBuilt("SetLastCheckpointsWithTime"));
    return saver_->SetLastCheckpointsWithTime(std::move(checkpoints));
  }
  const tensorflow::SaverDef& def() const override {
    return saver_ == nullptr ? tensorflow::SaverDef::default_instance() : saver_->def();
  }

 private:
  Status CheckBuilt(absl::string_view method) const {
    if (saver_ != nullptr) return absl::OkStatus();
    return FailedPrecondition("Saver: Build must come before ", method,
                              ", got a saver with defer_build that is not built");
  }

  const Scope scope_;
  const SaverOptions options_;
  std::string run_id_;
  std::unique_ptr<Saver> saver_;  // null before Build
};

Status CheckOptions(const SaverOptions& options) {
  if (!options.variables.empty() && !options.named_variables.empty()) {
    return InvalidArgument("Saver: variables and named_variables must not both be given, got ",
                           options.variables.size(), " and ", options.named_variables.size());
  }
  if (options.write_version != CheckpointFormat::kV2) {
    return absl::UnimplementedError(
        "Saver: write_version must be kV2, got kV1; checkpoints of the first format are read only");
  }
  if (options.max_to_keep < 0) {
    return InvalidArgument("Saver: max_to_keep must be >= 0, got ", options.max_to_keep);
  }
  if (!(options.keep_checkpoint_every_n_hours > 0)) {
    return InvalidArgument("Saver: keep_checkpoint_every_n_hours must be > 0, got ",
                           options.keep_checkpoint_every_n_hours);
  }
  if (options.filename.empty()) {
    return absl::InvalidArgumentError("Saver: filename must name a checkpoint, got ''");
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Saver>> MakeNow(const Scope& scope, SaverOptions options) {
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies().WithDevice("");
  MR_ASSIGN_OR_RETURN(SaveNodes nodes, AddSaveNodes(scope, root, options));
  return std::unique_ptr<Saver>(new GraphSaver(
      std::move(nodes), options.write_meta_graph ? std::optional<Scope>(root) : std::nullopt,
      options));
}

}  // namespace

Status DeleteCheckpoint(FileSystem* fs, const std::string& prefix,
                        const std::string& meta_graph_suffix) {
  MR_RETURN_IF_ERROR(FailPoint("saver/before_delete"));
  const std::string base = Basename(prefix);
  if (fs->FileExists(BundleIndexPath(prefix))) {
    MR_RETURN_IF_ERROR(fs->DeleteFile(BundleIndexPath(prefix)));
  } else {
    // One of the first format is its data files, named by the prefix itself.
    for (const std::string& file : CheckpointV1Files(fs, prefix)) {
      const std::string name = Basename(file);
      absl::string_view rest = name;
      if (absl::ConsumePrefix(&rest, base) &&
          (rest.empty() || IsDataSuffix(".data" + std::string(rest)))) {
        MR_RETURN_IF_ERROR(fs->DeleteFile(file));
      }
    }
  }
  MR_RETURN_IF_ERROR(FailPoint("saver/after_delete_index"));
  MR_ASSIGN_OR_RETURN(const auto names, fs->GetChildren(Dirname(prefix)));
  // Before the data: a meta graph without data is somebody's own.
  const std::string meta_graph = MetaGraphPath(prefix, meta_graph_suffix);
  if (fs->FileExists(meta_graph)) MR_RETURN_IF_ERROR(fs->DeleteFile(meta_graph));
  for (const std::string& name : names) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, base) && IsDataSuffix(rest)) {
      MR_RETURN_IF_ERROR(fs->DeleteFile(JoinPath(Dirname(prefix), name)));
    }
  }
  return absl::OkStatus();
}

StatusOr<CheckpointDifference> Saver::Compare(const std::string&) { return CheckpointDifference(); }

void Saver::SetRunId(const std::string&) {}

StatusOr<std::string> Saver::SaveAs(Session*, const std::string&, std::optional<int64_t>,
                                    const SaveOptions&) {
  return absl::UnimplementedError("Saver: this one has no options of a save, got some; use Save");
}

Status Saver::Build() {
  return absl::FailedPreconditionError(
      "Saver: only one made with defer_build that was not built yet can be built");
}

std::vector<TimedCheckpoint> Saver::last_checkpoints_with_time() const {
  std::vector<TimedCheckpoint> timed;
  for (std::string& path : last_checkpoints()) timed.push_back({std::move(path), 0});
  return timed;
}

Status Saver::SetLastCheckpointsWithTime(std::vector<TimedCheckpoint>) {
  return absl::UnimplementedError("Saver: this one keeps the list of its checkpoints itself");
}

StatusOr<std::unique_ptr<Saver>> Saver::Make(ScopeAt at, SaverOptions options) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  if (options.defer_build) {
    return std::unique_ptr<Saver>(new DeferredSaver(at.here(), std::move(options)));
  }
  return MakeNow(at.here(), std::move(options));
}

std::unique_ptr<Saver> Saver::FromDef(const tensorflow::SaverDef& def, FileSystem* file_system) {
  SaverOptions options;
  options.file_system = file_system;
  options.keep_checkpoint_every_n_hours = def.keep_checkpoint_every_n_hours();
  return std::make_unique<GraphSaver>(SaveNodes{.def = def,
                                                .expected = {},
                                                .temp_suffix = "",
                                                .save_tensor = def.save_tensor_name(),
                                                .restore_op = def.restore_op_name()},
                                      std::nullopt, options);
}

}  // namespace millrace
