// SPDX-License-Identifier: Apache-2.0
#include "saver/saver.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "graph/place/device_name.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "ops/strings/string_join.h"
#include "proto/saver.pb.h"
#include "saver/checkpoint_v1.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

constexpr char kStateFile[] = "checkpoint";
// Digits of the random part in the name of a sharded save's directory, as TensorFlow has them.
constexpr size_t kTempDigits = 32;

constexpr char kTempMark[] = "_temp_";
// Digits of RandomHexName(), which ends the names of files that are not finished; as many of a
// run's id begin the random part of its directories.
constexpr size_t kHexDigits = 16;

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

std::string MetaGraphPath(absl::string_view checkpoint) {
  return absl::StrCat(checkpoint, ".meta");
}

// ".data-00000-of-00002".
bool IsDataSuffix(absl::string_view text) {
  const auto number = [&text] {
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(end);
    return end >= 5;
  };
  return absl::ConsumePrefix(&text, ".data-") && number() && absl::ConsumePrefix(&text, "-of-") &&
         number() && text.empty();
}

// Removes "<mark><digits hexadecimal digits>" from the end.
bool ConsumeHexSuffix(absl::string_view* text, absl::string_view mark, size_t digits) {
  if (text->size() < digits || !IsHex(text->substr(text->size() - digits), digits)) return false;
  absl::string_view rest = text->substr(0, text->size() - digits);
  if (!absl::ConsumeSuffix(&rest, mark)) return false;
  *text = rest;
  return true;
}

// What a name in a directory of checkpoints says: a file of a checkpoint `base`-<step> that is no
// checkpoint without an index, or one that is not finished.
enum class Part { kNone, kData, kMetaGraph, kUnfinishedFile, kUnfinishedDirectory };
struct PartName {
  Part part = Part::kNone;
  std::string checkpoint;  // "m-12"
};
PartName ParsePartName(absl::string_view name, absl::string_view base) {
  absl::string_view rest = name;
  if (ConsumeHexSuffix(&rest, ".tmp", kHexDigits) && rest == kStateFile) {
    return {Part::kUnfinishedFile, ""};
  }
  rest = name;
  if (!absl::ConsumePrefix(&rest, base) || !absl::ConsumePrefix(&rest, "-")) return {};
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return {};
  rest.remove_prefix(digits);
  const std::string checkpoint(name.substr(0, name.size() - rest.size()));
  if (rest == ".meta") return {Part::kMetaGraph, checkpoint};
  if (IsDataSuffix(rest)) return {Part::kData, checkpoint};
  if (ConsumeHexSuffix(&rest, kTempMark, kTempDigits)) {
    return {rest.empty() ? Part::kUnfinishedDirectory : Part::kNone, checkpoint};
  }
  const bool unfinished = ConsumeHexSuffix(&rest, ".tempstate", kHexDigits)
                              ? rest == ".index" || IsDataSuffix(rest)
                              : ConsumeHexSuffix(&rest, ".tmp", kHexDigits) && rest == ".meta";
  return {unfinished ? Part::kUnfinishedFile : Part::kNone, checkpoint};
}

// --- Building ------------------------------------------------------------------------------------

// A variable, or one part of a large one, as a checkpoint knows it.
struct Saved {
  std::string name;
  std::string spec;  // shape and slice; "" for a whole variable
  Variable variable;
};

StatusOr<Saved> MakeSaved(const Variable& variable) {
  if (!variable.handle.valid() || !variable.value.valid()) {
    return InvalidArgument("Saver: variable '", variable.name,
                           "' must belong to the graph, got an invalid one");
  }
  if (variable.slice.full_name.empty()) return Saved{variable.name, "", variable};
  const VariableSlice& slice = variable.slice;
  const size_t rank = slice.full_shape.size();
  if (slice.var_offset.size() != rank || slice.var_shape.size() != rank) {
    return InvalidArgument("Saver: variable '", variable.name,
                           "': its slice must have one offset and one length per ",
                           "dimension of the full shape, got ", slice.var_offset.size(), " and ",
                           slice.var_shape.size(), " for ", rank);
  }
  std::vector<std::string> extents;
  for (size_t i = 0; i < rank; ++i) {
    extents.push_back(absl::StrCat(slice.var_offset[i], ",", slice.var_shape[i]));
  }
  return Saved{slice.full_name,
               absl::StrCat(absl::StrJoin(slice.full_shape, " "), " ", absl::StrJoin(extents, ":")),
               variable};
}

// Files are written by the CPU of the task that holds the variable.
StatusOr<std::string> SaveDevice(const Variable& variable) {
  MR_ASSIGN_OR_RETURN(DeviceName device,
                      DeviceName::Parse(variable.handle.node()->requested_device()));
  device.type = "CPU";
  device.id = 0;
  return device.ToString();
}

// "X", "X_1", "X_2", ...
std::string Numbered(absl::string_view name, size_t i) {
  return i == 0 ? std::string(name) : absl::StrCat(name, "_", i);
}

// The nodes of one Saver.
class SaveGraph {
 public:
  SaveGraph(const Scope& scope, absl::string_view name) : s_(scope.WithSubScope(name)) {}

  // Groups: device and variables.
  using Groups = std::vector<std::pair<std::string, std::vector<Saved>>>;

  void Build(const Groups& groups, bool sharded, const std::string& temp_suffix,
             tensorflow::SaverDef* def) {
    const Output model = Const(s_.WithName("filename/input"), "model");
    const Output filename =
        PlaceholderWithDefault(s_.WithName("filename"), model, PartialShape::Scalar());
    filename_ = PlaceholderWithDefault(s_.WithName("Const"), filename, PartialShape::Scalar());
    const Output saved = sharded ? SaveSharded(groups, temp_suffix) : SaveOne(groups[0]);
    const Operation restored = Restore(groups, sharded);
    def->set_filename_tensor_name(filename_.name());
    def->set_save_tensor_name(saved.name());
    def->set_restore_op_name(restored.name());
  }

  // The tensor that follows the file name in those of the parts; "" when there are none.
  const std::string& temp_suffix() const { return temp_suffix_; }

 private:
  static Output TextVector(const Scope& scope, const std::vector<Saved>& variables,
                           std::string Saved::*field) {
    std::vector<std::string> texts;
    for (const Saved& one : variables) texts.push_back(one.*field);
    return ConstVector<std::string>(scope, texts);
  }

  Operation SaveGroup(const Scope& s, const std::string& name, Output prefix,
                      const std::vector<Saved>& variables) {
    const Output names = TextVector(s.WithName(name + "/tensor_names"), variables, &Saved::name);
    const Output specs =
        TextVector(s.WithName(name + "/shape_and_slices"), variables, &Saved::spec);
    std::vector<Output> values;
    for (const Saved& one : variables) {
      // A reference is read by the op itself.
      const Variable& v = one.variable;
      values.push_back(v.handle.dtype() == DT_RESOURCE ? v.value : v.handle);
    }
    return SaveV2(s.WithName(name), prefix, names, specs, values);
  }

  Output SaveOne(const Groups::value_type& group) {
    const Scope s = s_.WithDevice(group.first);
    const Operation save = SaveGroup(s, "SaveV2", filename_, group.second);
    return WithDependencies(s.WithName("control_dependency"), {save}, filename_);
  }

  Output SaveSharded(const Groups& groups, const std::string& temp_suffix) {
    const Output suffix = Const(s_.WithName("StringJoin/inputs_1"), temp_suffix);
    temp_suffix_ = suffix.name();
    const Output temp = StringJoin(s_.WithName("StringJoin"), {filename_, suffix});
    const Output num_shards = Const(s_.WithName("num_shards"), static_cast<int32_t>(groups.size()));
    std::vector<Output> parts;
    std::vector<Operation> written;
    for (size_t i = 0; i < groups.size(); ++i) {
      const Scope s = s_.WithDevice(groups[i].first);
      const std::string name = Numbered("ShardedFilename", i);
      const Output shard = Const(s.WithName(name + "/shard"), static_cast<int32_t>(i));
      const Output part = ShardedFilename(s.WithName(name), temp, shard, num_shards);
      const Operation save = SaveGroup(s, Numbered("SaveV2", i), part, groups[i].second);
      const Output done =
          WithDependencies(s.WithName(Numbered("control_dependency", i)), {save}, part);
      parts.push_back(part);
      written.push_back(done.op());
    }
    // One task makes one checkpoint of the parts: all tasks see the same files.
    const Scope s = s_.WithDevice(groups[0].first);
    const Output prefixes =
        NodeBuilder(
            s.WithControlDependencies(written).WithName("MergeV2Checkpoints/checkpoint_prefixes"),
            "Pack")
            .Input(parts)
            .Attr("axis", int64_t{0})
            .Finish()
            .output(0);
    const Operation merge =
        MergeV2Checkpoints(s.WithName("MergeV2Checkpoints"), prefixes, filename_);
    written.insert(written.begin(), merge);
    return WithDependencies(s.WithName("Identity"), written, filename_);
  }

  Operation Restore(const Groups& groups, bool sharded) {
    size_t resources = 0, references = 0;
    std::vector<Operation> shards;
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto& [device, variables] = groups[i];
      const Scope s = s_.WithDevice(device);
      const std::string name = Numbered("RestoreV2", i);
      const Output names = TextVector(s.WithName(name + "/tensor_names"), variables, &Saved::name);
      const Output specs =
          TextVector(s.WithName(name + "/shape_and_slices"), variables, &Saved::spec);
      std::vector<DType> dtypes;
      for (const Saved& one : variables) dtypes.push_back(one.variable.dtype);
      const std::vector<Output> values =
          RestoreV2(s.WithName(name), filename_, names, specs, dtypes);
      std::vector<Operation> assigned;
      for (size_t k = 0; k < variables.size(); ++k) {
        const Output handle = variables[k].variable.handle;
        const Scope there = s_.ColocatedWith(handle.op());
        if (handle.dtype() == DT_RESOURCE) {
          assigned.push_back(AssignVariableOp(
              there.WithName(Numbered("AssignVariableOp", resources++)), handle, values[k]));
        } else {
          assigned.push_back(
              Assign(there.WithName(Numbered("Assign", references++)), handle, values[k]).op());
        }
      }
      if (!sharded && groups.size() == 1) {
        return Group(s.WithName("restore_all"), assigned);
      }
      shards.push_back(Group(s.WithName(Numbered("restore_shard", i)), assigned));
    }
    return Group(s_.WithDevice(groups[0].first).WithName("restore_all"), shards);
  }

  const Scope s_;
  Output filename_;
  std::string temp_suffix_;
};

// --- What the graph expects of a checkpoint ------------------------------------------------------

struct Expected {
  std::string name;
  DType dtype;
  PartialShape shape;
  std::string built_at;  // "file:line" of the variable; may be empty

  std::string built() const {
    return built_at.empty() ? "" : absl::StrCat("; built at ", built_at);
  }
};

Expected ExpectedOf(const Saved& saved) {
  const Variable& v = saved.variable;
  const StatusOr<ShapeAndSlice> part = ParseShapeAndSlice(saved.spec);
  return {saved.name, v.dtype, part.ok() && !part->is_whole ? part->full_shape : v.shape,
          v.handle.node()->built_at()};
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
  // `expected`: of a checkpoint, as far as it is known. `graph`: whose meta graph is written beside
  // each checkpoint. `temp_suffix`: the tensor with what follows a checkpoint's name in those of
  // its parts; "" when the graph was not made here, or is not sharded.
  GraphSaver(tensorflow::SaverDef def, std::vector<Expected> expected, std::string temp_suffix,
             std::optional<Scope> graph, FileSystem* fs, Clock* clock, double keep_every_n_hours,
             std::function<Status()> may_commit)
      : def_(std::move(def)),
        expected_(std::move(expected)),
        temp_suffix_tensor_(std::move(temp_suffix)),
        graph_(std::move(graph)),
        fs_(fs),
        clock_(clock),
        may_commit_(std::move(may_commit)),
        keep_period_s_(keep_every_n_hours * 3600),
        next_keep_s_(NowSeconds() + keep_period_s_) {}

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    const std::string path = global_step ? absl::StrCat(prefix, "-", *global_step) : prefix;
    if (Basename(path).empty() || Basename(path) == kStateFile) {
      return InvalidArgument("Saver: the prefix must name a file other than the state file '",
                             kStateFile, "', got '", path, "'");
    }
    // First, because it fails without having changed anything.
    std::optional<tensorflow::MetaGraphDef> meta;
    if (graph_) {
      MR_ASSIGN_OR_RETURN(meta, ExportMetaGraph(*graph_, {.saver_def = def_}));
    }
    const std::string directory = Dirname(path);
    MR_RETURN_IF_ERROR(MakeDirectory(fs_, directory));
    const std::string family = JoinPath(directory, Basename(prefix));
    const bool first_of_family = global_step && family != leftovers_family_;
    if (first_of_family) NoteLeftovers(directory, Basename(prefix));
    MR_RETURN_IF_ERROR(FailPoint("saver/before_save"));
    std::vector<Feed> feeds = {{def_.filename_tensor_name(), Tensor::Scalar<std::string>(path)}};
    std::string parts;  // their directory
    if (!temp_suffix_tensor_.empty()) {
      parts = absl::StrCat(path, kTempMark, run_digits_.empty() ? RandomHexName() : run_digits_,
                           RandomHexName());
      feeds.emplace_back(temp_suffix_tensor_, Tensor::Scalar<std::string>(absl::StrCat(
                                                  absl::StripPrefix(parts, path), "/part")));
    }
    const Status saved = session->Run(feeds, {def_.save_tensor_name()}).status();
    if (!saved.ok()) {
      // Parts that were written before the error.
      if (!parts.empty()) fs_->RecursivelyDelete(parts).IgnoreError();
      Remember(path);
      return saved;
    }
    const Status described = [&]() -> Status {
      MR_RETURN_IF_ERROR(FailPoint("saver/after_save"));
      if (!meta) return absl::OkStatus();
      MR_RETURN_IF_ERROR(FailPoint("saver/before_meta"));
      return WriteMetaGraph(fs_, MetaGraphPath(path), *meta);
    }();
    if (!described.ok()) {
      Remember(path);
      return described;
    }

    std::vector<Kept> kept = kept_;
    kept.erase(
        std::remove_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.path == path; }),
        kept.end());
    kept.push_back({path, NowSeconds()});
    std::vector<std::string> evicted;
    double next_keep_s = next_keep_s_;
    if (def_.max_to_keep() <= 0) {
      kept = {kept.back()};
    }
    while (def_.max_to_keep() > 0 && kept.size() > static_cast<size_t>(def_.max_to_keep())) {
      if (kept.front().time_s > next_keep_s) {
        next_keep_s += keep_period_s_;
      } else if (Dirname(kept.front().path) == directory) {
        // Others are somebody else's now.
        evicted.push_back(kept.front().path);
      }
      kept.erase(kept.begin());
    }
    CheckpointState state;
    state.latest = path;
    for (const Kept& k : kept) {
      if (Dirname(k.path) == directory || absl::StartsWith(k.path, "/"))
        state.all.push_back(k.path);
    }
    const Status written = [&]() -> Status {
      MR_RETURN_IF_ERROR(MayCommit());
      return WriteCheckpointState(fs_, directory, state);
    }();
    if (!written.ok()) {
      Remember(path);
      return written;
    }
    kept_ = def_.max_to_keep() > 0 ? std::move(kept) : std::vector<Kept>();
    next_keep_s_ = next_keep_s;
    // The new checkpoint is safe: what cannot be deleted now is tried again after the next save.
    std::vector<std::string> to_delete = std::move(undeleted_);
    to_delete.insert(to_delete.end(), evicted.begin(), evicted.end());
    undeleted_.clear();
    const Status may_delete = MayCommit();
    if (!may_delete.ok()) {
      undeleted_ = std::move(to_delete);
      return may_delete;
    }
    for (const std::string& old : to_delete) {
      if (old == path || IsKept(old)) continue;  // saved again since
      // All are kept, also one that a task finished after we had lost it.
      if (def_.max_to_keep() <= 0 && fs_->FileExists(BundleIndexPath(old))) continue;
      const Status deleted = Delete(old);
      if (!deleted.ok()) {
        LogWarning("Checkpoint '", old,
                   "' is left for the next save to delete: ", deleted.message());
        undeleted_.push_back(old);
      }
    }
    if (first_of_family) {
      leftovers_family_ = family;
    } else {
      DeleteLeftovers();
    }
    return path;
  }

  Status Restore(Session* session, const std::string& checkpoint) override {
    if (!fs_->FileExists(BundleIndexPath(checkpoint)) &&
        CheckpointV1Files(fs_, checkpoint).empty()) {
      return absl::NotFoundError(absl::StrCat("Saver: checkpoint '", checkpoint,
                                              "' must exist, got no file '",
                                              BundleIndexPath(checkpoint), "'"));
    }
    const Status restored =
        session
            ->Run({{def_.filename_tensor_name(), Tensor::Scalar<std::string>(checkpoint)}}, {},
                  {def_.restore_op_name()})
            .status();
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
    for (const auto& [directory, base] : families) Sweep(directory, base);
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

  const tensorflow::SaverDef& def() const override { return def_; }

 private:
  struct Kept {
    std::string path;
    double time_s;  // when it was written, since the epoch
  };
  struct Leftover {
    std::string path;
    PartName name;
    std::pair<uint64_t, double> state;  // size and time of the last change
  };

  double NowSeconds() { return absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()); }

  Status MayCommit() const { return may_commit_ ? may_commit_() : absl::OkStatus(); }

  bool IsKept(const std::string& path) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.path == path; });
  }

  // After a save that failed. A checkpoint that came into being all the same is one that later
  // saves may delete; of one that did not, the next save deletes what there is (not this one: a
  // task that lost us may still be at it).
  void Remember(const std::string& path) {
    if (IsKept(path)) return;
    if (fs_->FileExists(BundleIndexPath(path))) {
      if (def_.max_to_keep() > 0) kept_.push_back({path, NowSeconds()});
    } else if (CheckpointV1Files(fs_, path).empty()) {
      undeleted_.push_back(path);
    }
  }

  // Index first: without it the rest is no checkpoint.
  Status Delete(const std::string& prefix) {
    MR_RETURN_IF_ERROR(FailPoint("saver/before_delete"));
    const std::string base = Basename(prefix);
    if (fs_->FileExists(BundleIndexPath(prefix))) {
      MR_RETURN_IF_ERROR(fs_->DeleteFile(BundleIndexPath(prefix)));
    } else {
      // One of the first format is its data files, named by the prefix itself.
      for (const std::string& file : CheckpointV1Files(fs_, prefix)) {
        const std::string name = Basename(file);
        absl::string_view rest = name;
        if (absl::ConsumePrefix(&rest, base) &&
            (rest.empty() || IsDataSuffix(".data" + std::string(rest)))) {
          MR_RETURN_IF_ERROR(fs_->DeleteFile(file));
        }
      }
    }
    MR_RETURN_IF_ERROR(FailPoint("saver/after_delete_index"));
    MR_ASSIGN_OR_RETURN(const auto names, fs_->GetChildren(Dirname(prefix)));
    // Before the data: a meta graph without data is somebody's own.
    if (fs_->FileExists(MetaGraphPath(prefix))) {
      MR_RETURN_IF_ERROR(fs_->DeleteFile(MetaGraphPath(prefix)));
    }
    for (const std::string& name : names) {
      absl::string_view rest = name;
      if (absl::ConsumePrefix(&rest, base) && IsDataSuffix(rest)) {
        MR_RETURN_IF_ERROR(fs_->DeleteFile(JoinPath(Dirname(prefix), name)));
      }
    }
    return absl::OkStatus();
  }

  // What an interrupted save or deletion of the same prefix left has no index. Somebody may just be
  // writing it (a task that has not noticed the end of the program before this one): it is noted
  // before the first save and deleted only when the second one finds it unchanged.

  // Nothing when it is no such file (any more).
  std::optional<std::pair<uint64_t, double>> LeftoverState(const std::string& path,
                                                           const PartName& name) {
    if (name.part == Part::kNone) return std::nullopt;
    if (name.part == Part::kUnfinishedDirectory) {
      if (!HoldsPartsOnly(path)) return std::nullopt;
    } else if (name.part == Part::kData || name.part == Part::kMetaGraph) {
      const std::string checkpoint = JoinPath(Dirname(path), name.checkpoint);
      if (IsKept(checkpoint) || fs_->FileExists(BundleIndexPath(checkpoint)) ||
          !CheckpointV1Files(fs_, checkpoint).empty()) {
        return std::nullopt;
      }
    }
    const StatusOr<double> time = fs_->GetModificationTime(path);
    if (!time.ok()) return std::nullopt;
    return std::make_pair(fs_->GetFileSize(path).value_or(0), *time);
  }

  void NoteLeftovers(const std::string& directory, const std::string& base) {
    leftovers_.clear();
    leftovers_family_.clear();
    const bool deletes = def_.max_to_keep() > 0;
    if (!deletes && run_digits_.empty()) return;
    const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory);
    if (!names.ok()) return;
    std::set<std::string> with_data;  // checkpoints
    std::set<std::string> begun;      // by saves of this run that did not end
    for (const std::string& name : *names) {
      const PartName part = ParsePartName(name, base);
      if (part.part == Part::kData) with_data.insert(part.checkpoint);
      if (IsOwnDirectory(name, part)) begun.insert(part.checkpoint);
    }
    for (const std::string& name : *names) {
      const std::string path = JoinPath(directory, name);
      const PartName part = ParsePartName(name, base);
      switch (part.part) {
        case Part::kNone:
          continue;
        case Part::kUnfinishedDirectory:
          if (!run_digits_.empty() && !IsOwnDirectory(name, part)) continue;
          break;
        case Part::kUnfinishedFile:
          break;
        case Part::kMetaGraph:
          // By itself it is a file that people keep.
          if (with_data.count(part.checkpoint) == 0) continue;
          [[fallthrough]];
        case Part::kData:
          if (!deletes && begun.count(part.checkpoint) == 0) continue;
          break;
      }
      const auto state = LeftoverState(path, part);
      if (state) leftovers_.push_back({path, part, *state});
    }
    // Meta graphs before their data, for the same reason; directories after the files that are
    // known by them.
    const auto order = [](const Leftover& leftover) {
      return leftover.name.part == Part::kMetaGraph             ? 0
             : leftover.name.part == Part::kUnfinishedDirectory ? 2
                                                                : 1;
    };
    std::stable_sort(
        leftovers_.begin(), leftovers_.end(),
        [&order](const Leftover& a, const Leftover& b) { return order(a) < order(b); });
  }

  // Of parts, made by a save of the same run.
  bool IsOwnDirectory(absl::string_view name, const PartName& part) const {
    return part.part == Part::kUnfinishedDirectory && !run_digits_.empty() &&
           absl::StartsWith(name.substr(part.checkpoint.size()),
                            absl::StrCat(kTempMark, run_digits_));
  }

  void DeleteLeftovers() {
    for (const Leftover& leftover : leftovers_) {
      if (LeftoverState(leftover.path, leftover.name) != leftover.state) continue;
      LogInfo("Saver: deleting '", leftover.path, "', which an interrupted save left");
      if (leftover.name.part == Part::kUnfinishedDirectory) {
        fs_->RecursivelyDelete(leftover.path).IgnoreError();
      } else {
        fs_->DeleteFile(leftover.path).IgnoreError();
      }
    }
    leftovers_.clear();
  }

  // What a save of `base` that died left: directories of parts, and files under temporary names.
  // Those of a run are for DeleteLeftovers.
  void Sweep(const std::string& directory, const std::string& base) {
    if (!run_digits_.empty()) return;
    const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory);
    if (!names.ok()) return;
    for (const std::string& name : *names) {
      const std::string path = JoinPath(directory, name);
      const PartName part = ParsePartName(name, base);
      if (part.part == Part::kUnfinishedDirectory && HoldsPartsOnly(path)) {
        fs_->RecursivelyDelete(path).IgnoreError();
      }
      if (part.part == Part::kUnfinishedFile && absl::StrContains(name, ".tempstate")) {
        fs_->DeleteFile(path).IgnoreError();
      }
    }
  }

  bool HoldsPartsOnly(const std::string& directory) {
    const StatusOr<std::vector<std::string>> names = fs_->GetChildren(directory);
    return names.ok() && std::all_of(names->begin(), names->end(), [](const std::string& name) {
             return absl::StartsWith(name, "part-");
           });
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
    const std::optional<CheckpointState> state = ReadCheckpointState(fs_, Dirname(checkpoint));
    if (!state) return std::nullopt;
    for (auto it = state->all.rbegin(); it != state->all.rend(); ++it) {
      if (*it != checkpoint && CheckpointExists(fs_, *it)) return *it;
    }
    return std::nullopt;
  }

  const tensorflow::SaverDef def_;
  const std::vector<Expected> expected_;
  const std::string temp_suffix_tensor_;
  const std::optional<Scope> graph_;
  FileSystem* const fs_;
  Clock* const clock_;
  const std::function<Status()> may_commit_;
  const double keep_period_s_;
  std::string run_digits_;  // of the run's id; "" for none
  double next_keep_s_;
  std::vector<Kept> kept_;              // oldest first
  std::vector<std::string> undeleted_;  // evicted or never finished, but still there
  std::string leftovers_family_;        // directory and base name of the last saves by step
  std::vector<Leftover> leftovers_;     // seen before the first of them
};

}  // namespace

void Saver::SetRunId(const std::string&) {}

StatusOr<std::unique_ptr<Saver>> Saver::Make(const Scope& scope, SaverOptions options) {
  MR_RETURN_IF_ERROR(scope.status());
  if (options.variables.empty()) options.variables = VariablesOf(scope, "variables");
  if (options.variables.empty()) {
    return absl::InvalidArgumentError(
        "Saver: there must be at least one variable to save, got none in the collection "
        "'variables'");
  }
  std::vector<Saved> all;
  for (const Variable& variable : options.variables) {
    MR_ASSIGN_OR_RETURN(Saved one, MakeSaved(variable));
    all.push_back(std::move(one));
  }
  // By name, as TensorFlow does: the order in the files. Parts of one variable stay in order.
  std::stable_sort(all.begin(), all.end(),
                   [](const Saved& a, const Saved& b) { return a.name < b.name; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].name == all[i - 1].name && all[i].spec == all[i - 1].spec) {
      return InvalidArgument(
          "Saver: each variable must have a name of its own in the checkpoint, got '", all[i].name,
          "' twice");
    }
  }
  std::vector<Expected> expected;
  for (const Saved& one : all) {
    // Parts of one variable stand together.
    if (expected.empty() || expected.back().name != one.name) expected.push_back(ExpectedOf(one));
  }
  std::map<std::string, std::vector<Saved>> by_device;
  for (Saved& one : all) {
    MR_ASSIGN_OR_RETURN(const std::string device, SaveDevice(one.variable));
    by_device[options.sharded ? device : std::string()].push_back(std::move(one));
  }
  if (!options.sharded) {
    // One file, written by the task of the first variable.
    auto group = by_device.extract("");
    MR_ASSIGN_OR_RETURN(group.key(), SaveDevice(group.mapped()[0].variable));
    by_device.insert(std::move(group));
  }
  const SaveGraph::Groups groups(by_device.begin(), by_device.end());

  const std::string temp_suffix =
      options.sharded ? absl::StrCat(kTempMark, RandomHexName(), RandomHexName(), "/part") : "";
  tensorflow::SaverDef def;
  def.set_max_to_keep(options.max_to_keep);
  def.set_sharded(options.sharded);
  def.set_keep_checkpoint_every_n_hours(static_cast<float>(options.keep_checkpoint_every_n_hours));
  def.set_version(tensorflow::SaverDef::V2);
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies().WithDevice("");
  SaveGraph graph(root, options.name);
  graph.Build(groups, options.sharded, temp_suffix, &def);
  MR_RETURN_IF_ERROR(scope.status());
  return std::unique_ptr<Saver>(new GraphSaver(
      std::move(def), std::move(expected), graph.temp_suffix(),
      options.write_meta_graph ? std::optional<Scope>(root) : std::nullopt, options.file_system,
      options.clock, options.keep_checkpoint_every_n_hours, std::move(options.may_commit)));
}

std::unique_ptr<Saver> Saver::FromDef(const tensorflow::SaverDef& def, FileSystem* file_system) {
  return std::make_unique<GraphSaver>(def, std::vector<Expected>(), "", std::nullopt, file_system,
                                      Clock::Real(), def.keep_checkpoint_every_n_hours(), nullptr);
}

}  // namespace millrace
