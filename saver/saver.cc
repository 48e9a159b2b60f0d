// SPDX-License-Identifier: Apache-2.0
#include "saver/saver.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/process_name.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "graph/place/device_name.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
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

constexpr char kMetaSuffix[] = "meta";

std::string MetaGraphPath(absl::string_view checkpoint, absl::string_view suffix) {
  return absl::StrCat(checkpoint, ".", suffix);
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
enum class Part { kNone, kData, kMetaGraph, kLock, kUnfinishedFile, kUnfinishedDirectory };
struct PartName {
  Part part = Part::kNone;
  std::string checkpoint;  // "m-12"
};
PartName ParsePartName(absl::string_view name, absl::string_view base,
                       absl::string_view state_file) {
  absl::string_view rest = name;
  if (ConsumeHexSuffix(&rest, ".tmp", kHexDigits) && rest == state_file) {
    return {Part::kUnfinishedFile, ""};
  }
  rest = name;
  if (!absl::ConsumePrefix(&rest, base) || !absl::ConsumePrefix(&rest, "-")) return {};
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return {};
  rest.remove_prefix(digits);
  const std::string checkpoint(name.substr(0, name.size() - rest.size()));
  if (rest == ".meta") return {Part::kMetaGraph, checkpoint};
  if (rest == ".lock") return {Part::kLock, checkpoint};
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

// One tensor of the checkpoint.
struct Saved {
  std::string name;
  std::string spec;  // shape and slice; "" for a whole tensor
  Output tensor;
  DType dtype = DT_INVALID;
  PartialShape shape;    // as far as it is known
  std::string built_at;  // "file:line"; may be empty
};

// What is restored by one op: a variable, one part of a large one, or a saveable.
struct Item {
  std::vector<Saved> tensors;
  Output variable;                           // its handle or reference; invalid for a saveable
  std::shared_ptr<const Saveable> saveable;  // null for a variable

  Node* place() const { return (variable.valid() ? variable : tensors[0].tensor).node(); }
};

// `name`: in the checkpoint; the variable's own when empty.
StatusOr<Item> ItemOf(const Variable& variable, const std::string& name) {
  if (!variable.handle.valid() || !variable.value.valid()) {
    return InvalidArgument("Saver: variable '", variable.name,
                           "' must belong to the graph, got an invalid one");
  }
  Saved saved;
  saved.name = name.empty() ? variable.name : name;
  // A reference is read by the op itself.
  saved.tensor = variable.handle.dtype() == DT_RESOURCE ? variable.value : variable.handle;
  saved.dtype = variable.dtype;
  saved.shape = variable.shape;
  saved.built_at = variable.handle.node()->built_at();
  if (!variable.slice.full_name.empty()) {
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
    if (name.empty()) saved.name = slice.full_name;
    saved.spec =
        absl::StrCat(absl::StrJoin(slice.full_shape, " "), " ", absl::StrJoin(extents, ":"));
  }
  return Item{{std::move(saved)}, variable.handle, nullptr};
}

StatusOr<Item> ItemOf(const std::shared_ptr<const Saveable>& saveable) {
  if (saveable == nullptr) {
    return absl::InvalidArgumentError("Saver: a saveable must be given, got a null pointer");
  }
  Item item;
  item.saveable = saveable;
  for (Saveable::Spec& spec : saveable->specs()) {
    if (spec.name.empty() || !spec.tensor.valid()) {
      return InvalidArgument(
          "Saver: a saveable's tensor must have a name and be of the graph, got '", spec.name, "'",
          spec.tensor.valid() ? "" : " and no tensor");
    }
    const StatusOr<ShapeAndSlice> slice = ParseShapeAndSlice(spec.slice);
    if (!slice.ok()) return Prefixed(absl::StrCat("Saver: '", spec.name, "'"), slice.status());
    const DType dtype = WithoutRef(spec.tensor.dtype());
    item.tensors.push_back({std::move(spec.name), std::move(spec.slice), spec.tensor, dtype,
                            PartialShape(), spec.tensor.node()->built_at()});
  }
  if (item.tensors.empty()) {
    return absl::InvalidArgumentError("Saver: a saveable must have at least one tensor, got none");
  }
  return item;
}

// Files are written by the CPU of the task that holds the variable.
StatusOr<std::string> SaveDevice(const Item& item) {
  MR_ASSIGN_OR_RETURN(DeviceName device, DeviceName::Parse(item.place()->requested_device()));
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
  SaveGraph(const Scope& scope, const SaverOptions& options)
      : s_(scope.WithSubScope(options.name)), options_(options) {}

  // Groups: device and what is on it.
  using Groups = std::vector<std::pair<std::string, std::vector<Item>>>;

  void Build(const Groups& groups, const std::string& temp_suffix, tensorflow::SaverDef* def) {
    const bool sharded = options_.sharded;
    const Output model = Const(s_.WithName("filename/input"), options_.filename);
    const Output filename =
        PlaceholderWithDefault(s_.WithName("filename"), model, PartialShape::Scalar());
    filename_ = PlaceholderWithDefault(s_.WithName("Const"), filename, PartialShape::Scalar());
    const Output saved = sharded ? SaveSharded(groups, temp_suffix) : SaveOne(groups[0]);
    const Operation restored = Restore(groups);
    def->set_filename_tensor_name(filename_.name());
    def->set_save_tensor_name(saved.name());
    def->set_restore_op_name(restored.name());
  }

  // The tensor that follows the file name in those of the parts; "" when there are none.
  const std::string& temp_suffix() const { return temp_suffix_; }

 private:
  static Output TextVector(const Scope& scope, absl::Span<const Item> items,
                           std::string Saved::*field) {
    std::vector<std::string> texts;
    for (const Item& item : items) {
      for (const Saved& one : item.tensors) texts.push_back(one.*field);
    }
    return ConstVector<std::string>(scope, texts);
  }

  Operation SaveGroup(const Scope& s, const std::string& name, Output prefix,
                      const std::vector<Item>& items) {
    const Output names = TextVector(s.WithName(name + "/tensor_names"), items, &Saved::name);
    const Output specs = TextVector(s.WithName(name + "/shape_and_slices"), items, &Saved::spec);
    std::vector<Output> values;
    for (const Item& item : items) {
      for (const Saved& one : item.tensors) values.push_back(one.tensor);
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

  Operation Restore(const Groups& groups) {
    std::vector<Operation> shards;
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto& [device, items] = groups[i];
      const Scope s = s_.WithDevice(device);
      std::vector<Operation> restored;
      if (options_.restore_sequentially) {
        for (const Item& item : items) {
          const Scope after = restored.empty() ? s : s.WithControlDependencies({restored.back()});
          RestoreItems(after, absl::MakeConstSpan(&item, 1), &restored);
        }
      } else {
        RestoreItems(s, items, &restored);
      }
      if (!options_.sharded && groups.size() == 1) {
        return Group(s.WithName("restore_all"), restored);
      }
      shards.push_back(Group(s.WithName(Numbered("restore_shard", i)), restored));
    }
    return Group(s_.WithDevice(groups[0].first).WithName("restore_all"), shards);
  }

  // Items of one device by one RestoreV2.
  void RestoreItems(const Scope& s, absl::Span<const Item> items,
                    std::vector<Operation>* restored) {
    const std::string name = Numbered("RestoreV2", reads_++);
    const Output names = TextVector(s.WithName(name + "/tensor_names"), items, &Saved::name);
    const Output specs = TextVector(s.WithName(name + "/shape_and_slices"), items, &Saved::spec);
    std::vector<DType> dtypes;
    for (const Item& item : items) {
      for (const Saved& one : item.tensors) dtypes.push_back(one.dtype);
    }
    const std::vector<Output> values = RestoreV2(s.WithName(name), filename_, names, specs, dtypes);
    size_t next = 0;
    for (const Item& item : items) {
      const Scope there = s_.ColocatedWith(Operation(item.place()));
      if (item.saveable != nullptr) {
        const Scope own = there.WithSubScope(Numbered("Restore", saveables_++));
        restored->push_back(item.saveable->Restore(
            own, absl::MakeConstSpan(values).subspan(next, item.tensors.size())));
      } else {
        restored->push_back(Assigned(s, there, item, values[next]));
      }
      next += item.tensors.size();
    }
  }

  Operation Assigned(const Scope& s, const Scope& there, const Item& item, Output value) {
    if (options_.reshape) {
      const Saved& one = item.tensors[0];
      const std::string name = Numbered("Reshape", reshapes_++);
      const Output shape = one.shape.IsFullyDefined()
                               ? ConstVector<int64_t>(s.WithName(name + "/shape"), one.shape.dims())
                               : ShapeOf(s.WithName(name + "/shape"), one.tensor);
      value = Reshape(s.WithName(name), value, shape);
    }
    if (item.variable.dtype() == DT_RESOURCE) {
      return AssignVariableOp(there.WithName(Numbered("AssignVariableOp", resources_++)),
                              item.variable, value);
    }
    return Assign(there.WithName(Numbered("Assign", references_++)), item.variable, value).op();
  }

  const Scope s_;
  const SaverOptions& options_;
  size_t reads_ = 0, resources_ = 0, references_ = 0, saveables_ = 0, reshapes_ = 0;  // so far
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

Expected ExpectedOf(const Saved& saved, bool reshape) {
  const StatusOr<ShapeAndSlice> part = ParseShapeAndSlice(saved.spec);
  if (part.ok() && !part->is_whole) {
    return {saved.name, saved.dtype, part->full_shape, saved.built_at};
  }
  return {saved.name, saved.dtype, reshape ? PartialShape() : saved.shape, saved.built_at};
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
  // Of options only what is asked for after the nodes were made is looked at. `expected`: of a
  // checkpoint, as far as it is known; it is empty with a `def` without names when there is nothing
  // to save. `graph`: whose meta graph is written beside each checkpoint. `temp_suffix`: the tensor
  // with what follows a checkpoint's name in those of its parts; "" when the graph was not made
  // here, or is not sharded.
  GraphSaver(tensorflow::SaverDef def, std::vector<Expected> expected, std::string temp_suffix,
             std::optional<Scope> graph, const SaverOptions& options)
      : def_(std::move(def)),
        expected_(std::move(expected)),
        temp_suffix_tensor_(std::move(temp_suffix)),
        graph_(std::move(graph)),
        fs_(options.file_system),
        clock_(options.clock),
        may_commit_(options.may_commit),
        may_be_empty_(options.allow_empty),
        pads_step_(options.pad_step_number),
        relative_paths_(options.save_relative_paths),
        keep_period_s_(options.keep_checkpoint_every_n_hours * 3600),
        next_keep_s_(NowSeconds() + keep_period_s_) {}

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    return SaveAs(session, prefix, global_step, SaveOptions());
  }

  StatusOr<std::string> SaveAs(Session* session, const std::string& prefix,
                               std::optional<int64_t> global_step,
                               const SaveOptions& options) override {
    for (const auto& [name, what] : {std::pair(&options.latest_filename, "latest_filename"),
                                     std::pair(&options.meta_graph_suffix, "meta_graph_suffix")}) {
      if (name->empty() || absl::StrContains(*name, '/')) {
        return InvalidArgument("Saver: ", what, " must be a name without '/', got '", *name, "'");
      }
    }
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
      return WriteMetaGraph(fs_, meta_path, *meta);
    }();
    if (!described.ok()) {
      Remember(path);
      return described;
    }
    if (!options.write_state) return path;

    std::vector<Kept> kept = kept_;
    kept.erase(
        std::remove_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.path == path; }),
        kept.end());
    kept.push_back({path, NowSeconds(), options.meta_graph_suffix});
    std::vector<Kept> evicted;
    double next_keep_s = next_keep_s_;
    if (def_.max_to_keep() <= 0) {
      kept = {kept.back()};
    }
    while (def_.max_to_keep() > 0 && kept.size() > static_cast<size_t>(def_.max_to_keep())) {
      if (kept.front().time_s > next_keep_s) {
        next_keep_s += keep_period_s_;
      } else if (Dirname(kept.front().path) == directory) {
        // Others are somebody else's now.
        evicted.push_back(kept.front());
      }
      kept.erase(kept.begin());
    }
    CheckpointState state;
    state.latest = path;
    for (const Kept& k : kept) {
      if (Dirname(k.path) == directory || absl::StartsWith(k.path, "/"))
        state.all.push_back(k.path);
    }
    const Status written = WriteCheckpointState(fs_, directory, state, options.latest_filename,
                                                relative_paths_, may_commit_);
    if (!written.ok()) {
      Remember(path);
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
    for (const Kept& old : to_delete) {
      if (old.path == path || IsKept(old.path)) continue;  // saved again since
      // All are kept, also one that a task finished after we had lost it.
      if (def_.max_to_keep() <= 0 && fs_->FileExists(BundleIndexPath(old.path))) continue;
      const Status deleted = Delete(old.path, old.meta_suffix);
      if (!deleted.ok()) {
        LogWarning("Checkpoint '", old.path,
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
    if (is_empty()) return absl::OkStatus();
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
  };
  struct Leftover {
    std::string path;
    PartName name;
    std::pair<uint64_t, double> state;  // size and time of the last change
  };

  bool is_empty() const { return may_be_empty_ && def_.save_tensor_name().empty(); }

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
      undeleted_.push_back({path});
    }
  }

  // Index first: without it the rest is no checkpoint.
  Status Delete(const std::string& prefix, const std::string& meta_suffix) {
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
    const std::string meta_graph = MetaGraphPath(prefix, meta_suffix);
    if (fs_->FileExists(meta_graph)) MR_RETURN_IF_ERROR(fs_->DeleteFile(meta_graph));
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
      const PartName part = ParsePartName(name, base, state_file_);
      if (part.part == Part::kData) with_data.insert(part.checkpoint);
      if (IsOwnDirectory(name, part)) begun.insert(part.checkpoint);
    }
    for (const std::string& name : *names) {
      const std::string path = JoinPath(directory, name);
      const PartName part = ParsePartName(name, base, state_file_);
      switch (part.part) {
        case Part::kNone:
          continue;
        case Part::kUnfinishedDirectory:
          if (!run_digits_.empty() && !IsOwnDirectory(name, part)) continue;
          break;
        case Part::kUnfinishedFile:
        case Part::kLock:
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
      } else if (leftover.name.part == Part::kLock) {
        // Goes with the lock; not while somebody has it.
        fs_->TryLockFile(leftover.path, ProcessName()).status().IgnoreError();
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
      const PartName part = ParsePartName(name, base, state_file_);
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
  std::vector<Kept> kept_;           // oldest first
  std::vector<Kept> undeleted_;      // evicted or never finished, but still there
  std::string leftovers_family_;     // directory and base name of the last saves by step
  std::vector<Leftover> leftovers_;  // seen before the first of them
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

// What the options name, in the order of the file.
StatusOr<std::vector<Item>> ItemsOf(const Scope& scope, const SaverOptions& options) {
  std::vector<Variable> variables = options.variables;
  if (variables.empty() && options.named_variables.empty() && options.saveables.empty()) {
    variables = VariablesOf(scope, "variables");
  }
  std::vector<Item> items;
  for (const Variable& variable : variables) {
    MR_ASSIGN_OR_RETURN(Item item, ItemOf(variable, ""));
    items.push_back(std::move(item));
  }
  for (const auto& [name, variable] : options.named_variables) {
    if (name.empty()) {
      return InvalidArgument("Saver: named_variables must have names, got '' for '", variable.name,
                             "'");
    }
    MR_ASSIGN_OR_RETURN(Item item, ItemOf(variable, name));
    items.push_back(std::move(item));
  }
  for (const auto& saveable : options.saveables) {
    MR_ASSIGN_OR_RETURN(Item item, ItemOf(saveable));
    items.push_back(std::move(item));
  }
  // By name, as TensorFlow does: the order in the files. Parts of one variable stay in order.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.tensors[0].name < b.tensors[0].name;
  });
  std::set<std::pair<std::string, std::string>> names;
  for (const Item& item : items) {
    for (const Saved& one : item.tensors) {
      if (!names.emplace(one.name, one.spec).second) {
        return InvalidArgument(
            "Saver: each variable must have a name of its own in the checkpoint, got '", one.name,
            "' twice");
      }
      if (options.reshape && (!one.spec.empty() || item.saveable != nullptr)) {
        return InvalidArgument("Saver: reshape takes whole variables only, got ",
                               item.saveable != nullptr ? "a saveable's '" : "a part of '",
                               one.name, "'");
      }
    }
  }
  if (items.empty() && !options.allow_empty) {
    return absl::InvalidArgumentError(
        "Saver: there must be at least one variable to save, got none in the collection "
        "'variables'; allow_empty takes none");
  }
  return items;
}

StatusOr<std::unique_ptr<Saver>> MakeNow(const Scope& scope, SaverOptions options) {
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const std::vector<Item> items, ItemsOf(scope, options));
  std::vector<Expected> expected;
  std::map<std::string, std::vector<Item>> by_device;
  for (const Item& item : items) {
    for (const Saved& one : item.tensors) {
      // Parts of one variable stand together.
      if (expected.empty() || expected.back().name != one.name) {
        expected.push_back(ExpectedOf(one, options.reshape));
      }
    }
    MR_ASSIGN_OR_RETURN(const std::string device, SaveDevice(item));
    by_device[options.sharded ? device : std::string()].push_back(item);
  }
  if (!options.sharded && !items.empty()) {
    // One file, written by the task of the first variable.
    auto group = by_device.extract("");
    MR_ASSIGN_OR_RETURN(group.key(), SaveDevice(group.mapped()[0]));
    by_device.insert(std::move(group));
  }
  const SaveGraph::Groups groups(by_device.begin(), by_device.end());

  tensorflow::SaverDef def;
  def.set_max_to_keep(options.max_to_keep);
  def.set_sharded(options.sharded);
  def.set_keep_checkpoint_every_n_hours(static_cast<float>(options.keep_checkpoint_every_n_hours));
  def.set_version(tensorflow::SaverDef::V2);
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies().WithDevice("");
  SaveGraph graph(root, options);
  if (!items.empty()) {
    graph.Build(
        groups,
        options.sharded ? absl::StrCat(kTempMark, RandomHexName(), RandomHexName(), "/part") : "",
        &def);
  }
  MR_RETURN_IF_ERROR(scope.status());
  return std::unique_ptr<Saver>(new GraphSaver(
      std::move(def), std::move(expected), graph.temp_suffix(),
      options.write_meta_graph ? std::optional<Scope>(root) : std::nullopt, options));
}

}  // namespace

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

StatusOr<std::unique_ptr<Saver>> Saver::Make(const Scope& scope, SaverOptions options) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  if (options.defer_build) {
    return std::unique_ptr<Saver>(new DeferredSaver(scope, std::move(options)));
  }
  return MakeNow(scope, std::move(options));
}

std::unique_ptr<Saver> Saver::FromDef(const tensorflow::SaverDef& def, FileSystem* file_system) {
  SaverOptions options;
  options.file_system = file_system;
  options.keep_checkpoint_every_n_hours = def.keep_checkpoint_every_n_hours();
  return std::make_unique<GraphSaver>(def, std::vector<Expected>(), "", std::nullopt, options);
}

}  // namespace millrace
