// SPDX-License-Identifier: Apache-2.0
#include "saver/save_graph.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/state/state.h"
#include "ops/strings/string_join.h"
#include "saver/leftovers.h"
#include "saver/save_restore.h"
#include "saver/table_saveable.h"
#include "saver/tensor_slice.h"
#include "saver/work_queue_saveable.h"

namespace millrace {
namespace {

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
    for (const auto& [device, items] : groups) {
      for (const Item& item : items) {
        if (IsWorkQueueState(item.tensors[0].tensor)) first_.push_back(item.tensors[0].tensor.op());
      }
    }
    const Output model = Const(s_.WithName("filename/input"), options_.filename);
    const Output filename =
        PlaceholderWithDefault(s_.WithName("filename"), model, PartialShape::Scalar());
    filename_ = PlaceholderWithDefault(s_.WithName("Const"), filename, PartialShape::Scalar());
    const Output saved = sharded ? SaveSharded(groups, temp_suffix) : SaveOne(groups[0]);
    const Operation restored = Restore(groups);
    def->set_filename_tensor_name(filename_.name());
    def->set_save_tensor_name(saved.name());
    def->set_restore_op_name(restored.name());
    save_tensor_ = saved;
    restore_op_ = restored;
  }

  // The tensor that follows the file name in those of the parts; "" when there are none.
  const std::string& temp_suffix() const { return temp_suffix_; }
  // "" before Build.
  const FetchName& save_tensor() const { return save_tensor_; }
  const FetchName& restore_op() const { return restore_op_; }

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
      for (const Saved& one : item.tensors) values.push_back(AfterFirst(item, one));
    }
    // A reference is read by the op itself.
    return SaveV2((first_.empty() ? s : s.WithControlDependencies(first_)).WithName(name), prefix,
                  names, specs, values);
  }
  // The same value, read behind what is to be read first. Others may use a variable's own read.
  Output AfterFirst(const Item& item, const Saved& saved) {
    if (first_.empty() || !item.variable.valid() || item.variable.dtype() != DT_RESOURCE) {
      return saved.tensor;
    }
    return ReadVariableOp(s_.ColocatedWith(item.variable.op())
                              .WithControlDependencies(first_)
                              .WithName(Numbered("ReadVariableOp", variable_reads_++)),
                          item.variable, saved.dtype);
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
      const std::string& device = groups[i].first;
      std::vector<Item> items;  // those who fill a work queue restore it
      for (const Item& item : groups[i].second) {
        if (!IsWorkQueueState(item.tensors[0].tensor)) items.push_back(item);
      }
      const Scope s = s_.WithDevice(device);
      std::vector<Operation> restored;
      if (options_.restore_sequentially) {
        for (const Item& item : items) {
          const Scope after = restored.empty() ? s : s.WithControlDependencies({restored.back()});
          RestoreItems(after, absl::MakeConstSpan(&item, 1), &restored);
        }
      } else if (!items.empty()) {
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
  // So far.
  size_t reads_ = 0, resources_ = 0, references_ = 0, saveables_ = 0, reshapes_ = 0;
  size_t variable_reads_ = 0;
  std::vector<Operation> first_;  // what is read before any variable
  Output filename_;
  FetchName save_tensor_ = "", restore_op_ = "";
  std::string temp_suffix_;
};

Expected ExpectedOf(const Saved& saved, bool reshape) {
  const StatusOr<ShapeAndSlice> part = ParseShapeAndSlice(saved.spec);
  if (part.ok() && !part->is_whole) {
    return {saved.name, saved.dtype, part->full_shape, saved.built_at};
  }
  return {saved.name, saved.dtype, reshape ? PartialShape() : saved.shape, saved.built_at};
}

// What the options name, in the order of the file.
StatusOr<std::vector<Item>> ItemsOf(const Scope& scope, const SaverOptions& options) {
  std::vector<Variable> variables = options.variables;
  std::vector<std::shared_ptr<const Saveable>> saveables = options.saveables;
  if (variables.empty() && options.named_variables.empty() && saveables.empty()) {
    variables = VariablesOf(scope, "variables");
    MR_ASSIGN_OR_RETURN(saveables, TableSaveablesOf(scope));
    MR_ASSIGN_OR_RETURN(const auto queues, WorkQueueSaveablesOf(scope));
    saveables.insert(saveables.end(), queues.begin(), queues.end());
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
  for (const auto& saveable : saveables) {
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

}  // namespace

StatusOr<SaveNodes> AddSaveNodes(const Scope& scope, const Scope& root,
                                 const SaverOptions& options) {
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const std::vector<Item> items, ItemsOf(scope, options));
  std::vector<Expected> expected;
  std::map<std::string, std::vector<Item>> by_device;
  for (const Item& item : items) {
    for (const Saved& one : item.tensors) {
      if (IsWorkQueueState(one.tensor)) continue;
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
  SaveGraph graph(root, options);
  if (!items.empty()) {
    graph.Build(
        groups,
        options.sharded ? absl::StrCat(kTempMark, RandomHexName(), RandomHexName(), "/part") : "",
        &def);
  }
  MR_RETURN_IF_ERROR(scope.status());
  return SaveNodes{std::move(def), std::move(expected), graph.temp_suffix(), graph.save_tensor(),
                   graph.restore_op()};
}

}  // namespace millrace
