// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVER_H_
#define MILLRACE_SAVER_SAVER_H_

// Saver: adds the save and restore operations to a graph and runs them: checkpoints
// in TensorFlow's V2 format, a bounded number of them, and the `checkpoint` state file.
//
//   MR_ASSIGN_OR_RETURN(auto saver, Saver::Make(root));            // all variables of the graph
//   MR_ASSIGN_OR_RETURN(std::string path, saver->Save(session, "run/model.ckpt", step));
//   MR_RETURN_IF_ERROR(saver->Restore(session, path));
//
// A save is atomic and durable: when Save returns OK, the checkpoint, its meta graph and the state
// file survive a loss of power; when the process dies in between, the former checkpoint is still
// the latest. Old checkpoints are deleted only after the state file names the new one.
//
// Thread-safety: thread-compatible; a Saver of a scope reads the scope's graph when it saves.
// Failure: of the session's steps; of files with their path.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"

namespace tensorflow {
class SaverDef;
}  // namespace tensorflow

namespace millrace {

// Something other than a variable that is saved and restored with them: a lookup table (its keys
// and values), an iterator's position. Used while the nodes are built only.
class Saveable {
 public:
  // A tensor of the checkpoint.
  struct Spec {
    std::string name;   // in the checkpoint
    std::string slice;  // shape and slice, as SaveV2 takes it; "" for a whole tensor
    Output tensor;      // what is saved; the first one's device is where that is done
  };
  virtual ~Saveable() = default;
  // At least one; the first name orders the saveables in the file.
  virtual std::vector<Spec> specs() const = 0;
  // Adds what takes the restored tensors, one for each spec, with their dtypes. The scope has a
  // name of its own and the device of the first tensor's op.
  virtual Operation Restore(const Scope& scope, absl::Span<const Output> restored) const = 0;
};

enum class CheckpointFormat { kV1, kV2 };

struct SaverOptions {
  // What is saved. Nothing given here, in named_variables and in saveables = collection "variables"
  // of the graph and its tables that change (saver/table_saveable.h); else exactly what is given,
  // and not in the first two both.
  std::vector<Variable> variables = {};
  // Under these names in the checkpoint instead of their own. Parts of a partitioned variable have
  // one name.
  std::vector<std::pair<std::string, Variable>> named_variables = {};
  std::vector<std::shared_ptr<const Saveable>> saveables = {};
  // Nothing to save is no error: Save writes the meta graph alone and returns "", Restore does
  // nothing.
  bool allow_empty = false;
  // One shard per device that holds variables (all must see one file system).
  bool sharded = true;
  // Restores one value after the other on each device, so that one at a time is in memory twice.
  bool restore_sequentially = false;
  // Values of the checkpoint that have another shape than their variable take the variable's, when
  // they have as many elements. Whole variables only.
  bool reshape = false;
  int max_to_keep = 5;  // 0 = all, which are then not listed in the state file either
  // One of every so many hours is never deleted.
  double keep_checkpoint_every_n_hours = 10000;
  // `<checkpoint>.meta` next to each checkpoint: the scope's graph, as it is when the checkpoint is
  // written, with collections and SaverDef. It is deleted with its checkpoint.
  bool write_meta_graph = true;
  std::string name = "save";
  // The checkpoint that the nodes use when none is fed.
  std::string filename = "model";
  // The step in checkpoints' names with zeros in front, eight digits at least ("m-00000012"), so
  // that names sort as steps do.
  bool pad_step_number = false;
  // The state file names checkpoints of its own directory without it, so that the directory can be
  // moved. Off: by the paths that Save was given, as TensorFlow does by default (relative ones
  // without the directory all the same: they are read relative to it).
  bool save_relative_paths = true;
  // Unimplemented unless kV2: the first format is read only.
  CheckpointFormat write_version = CheckpointFormat::kV2;
  // No nodes are added until Build: for graphs that get more variables.
  bool defer_build = false;
  // For meta graphs, the state file and deletions; the save and restore ops use the tasks' own
  // files.
  FileSystem* file_system = FileSystem::Default();
  Clock* clock = Clock::Real();
  // Asked in each Save, right before the state file gets its name (its text is on the disk by then)
  // and again before anything old is deleted: a writer that was stopped meanwhile may have a
  // successor. Its error is that of Save, and what it would have changed stays as it is. Empty:
  // always allowed.
  std::function<Status()> may_commit = {};
};

// Of one save.
struct SaveOptions {
  // The state file's name in the checkpoint's directory. Those who look for the latest checkpoint
  // must give the same.
  std::string latest_filename = "checkpoint";
  std::string meta_graph_suffix = "meta";
  // Together with SaverOptions::write_meta_graph.
  bool write_meta_graph = true;
  // Without: the state file stays, the checkpoint is not counted and nothing old is deleted.
  bool write_state = true;
  // Meta graphs without attrs that have their defaults, so that older programs read them.
  bool strip_default_attrs = false;
};

// A checkpoint, and when it was written, in seconds since the epoch.
struct TimedCheckpoint {
  std::string path;
  double time_s = 0;
};

// How a checkpoint differs from what a Saver restores, by the names in the checkpoint.
struct CheckpointDifference {
  int64_t num_expected = 0;           // names that the Saver restores
  std::vector<std::string> missing;   // that the checkpoint lacks, with the line that made each
  std::vector<std::string> changed;   // of another type or shape, in a sentence each
  std::vector<std::string> unwanted;  // that the Saver does not restore
  // A Restore would succeed.
  bool fits() const { return missing.empty() && changed.empty(); }
};

class Saver {
 public:
  // Adds the nodes (names as TensorFlow's Saver gives them) to the scope's graph, whatever prefix,
  // device and control dependencies the scope has. InvalidArgument, naming the option, for options
  // that are wrong or exclude each other, when there is nothing to save and allow_empty is off, and
  // when two tensors have one name.
  static StatusOr<std::unique_ptr<Saver>> Make(ScopeAt at, SaverOptions options = {});
  // For a graph that has the nodes already. It writes no meta graphs: it does not know the graph.
  static std::unique_ptr<Saver> FromDef(const tensorflow::SaverDef& def,
                                        FileSystem* file_system = FileSystem::Default());
  virtual ~Saver() = default;

  // A session that was extended with the Saver's Scope before the Saver was made takes up its
  // nodes, in Save and in Restore. NotFound, which says so, from one that does not know the Scope.
  //
  // Writes `<prefix>-<global_step>` (or `<prefix>`), its meta graph, the state file in the prefix's
  // directory, then deletes what is too much. Returns the checkpoint's path.
  //
  // Files that stood under the names of other steps of `prefix` before the first of several saves
  // and belong to no checkpoint are what an interrupted save or deletion left: those that have not
  // changed by the second save are deleted then. Which ones:
  //   * directories of parts: with a run's id (SetRunId) those that have it in their names, without
  //     one all of the prefix, unless max_to_keep is 0;
  //   * temporary files, unless max_to_keep is 0 and there is no run's id;
  //   * files of checkpoints that have no index; where max_to_keep is 0 only of those that a
  //     directory with the run's id was to become: there a Saver deletes nothing that others made.
  // A meta graph without data files stays: people export graphs under such names. One prefix has
  // one writer.
  virtual StatusOr<std::string> Save(Session* session, const std::string& prefix,
                                     std::optional<int64_t> global_step) = 0;
  // The same as asked for. InvalidArgument for a latest_filename or suffix that is no name of a
  // file.
  virtual StatusOr<std::string> SaveAs(Session* session, const std::string& prefix,
                                       std::optional<int64_t> global_step,
                                       const SaveOptions& options);
  // Of a Saver with defer_build: adds the nodes; every other method fails before.
  // FailedPrecondition when they are there.
  virtual Status Build();
  // `checkpoint`: what Save returned, or what stands for it: one of its files, its directory
  // (saver/checkpoint_name.h).
  // NotFound when there is no such checkpoint, or it lacks a variable; InvalidArgument when one has
  // another type or shape there. Such variables are named, with the line that made them.
  virtual Status Restore(Session* session, const std::string& checkpoint) = 0;
  // Without a session, and without its tensors: reads what the checkpoint lists. A Saver that does
  // not know its graph (FromDef) finds no difference. NotFound, DataLoss: of the checkpoint.
  virtual StatusOr<CheckpointDifference> Compare(const std::string& checkpoint);
  // From now on temporary files have the first 16 digits of a run's id (32 hexadecimal ones) in
  // their names, so that a Saver of the same run, in a later process, knows them. Another id, or a
  // Saver that does not know its graph (FromDef): nothing changes.
  virtual void SetRunId(const std::string& id);
  // After a restart: the checkpoints that this Saver may delete later, oldest first; those that do
  // not exist are left out. Also removes what interrupted saves of the same names left next to
  // them.
  virtual Status RecoverLastCheckpoints(const std::vector<std::string>& paths) = 0;
  virtual std::vector<std::string> last_checkpoints() const = 0;
  // For a program that remembers them itself: those that this Saver may delete later, oldest first,
  // whether they exist or not. Their times decide which one of every so many hours is kept.
  virtual std::vector<TimedCheckpoint> last_checkpoints_with_time() const;
  virtual Status SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints);
  virtual const tensorflow::SaverDef& def() const = 0;
};

// What the `checkpoint` file of a directory says; paths made absolute or relative to the working
// directory. nullopt when there is none, or it cannot be read (with a warning in the log): no
// text of a CheckpointState, no latest path, or a checksum that does not match.
//
// The file is TensorFlow's text and, in the last line, a comment with the checksum of what is above
// it. Checkpoints in the directory itself are named without it, so that it can be moved.
struct CheckpointState {
  std::string latest;
  std::vector<std::string> all;  // oldest first
  bool has_checksum = false;     // as read: a Saver wrote it, and nobody has changed it since
};
std::optional<CheckpointState> ReadCheckpointState(
    FileSystem* fs, const std::string& directory,
    const std::string& latest_filename = "checkpoint");
// `relative`: SaverOptions::save_relative_paths. `may_commit`: asked when the text is on the disk
// and only its name is missing; its error leaves the file as it was.
Status WriteCheckpointState(FileSystem* fs, const std::string& directory,
                            const CheckpointState& state,
                            const std::string& latest_filename = "checkpoint", bool relative = true,
                            const std::function<Status()>& may_commit = {});
// The newest checkpoint of a directory whose files are there: what the state file calls the latest,
// else the newest other one of its list, else of the directory (by step, then by time). Paths in
// the file are relative to the directory, or absolute. One that leads out of the directory is first
// looked up in it, by its last part, because the directory may have been moved.
std::optional<std::string> LatestCheckpoint(FileSystem* fs, const std::string& directory,
                                            const std::string& latest_filename = "checkpoint");
// Deletes the files of a checkpoint, whole or not, its meta graph with them; the index first:
// without it the rest is no checkpoint. OK when there are none.
Status DeleteCheckpoint(FileSystem* fs, const std::string& prefix,
                        const std::string& meta_graph_suffix = "meta");
// Its index can be read and its data files are there and long enough; or it is one of the first
// format.
bool CheckpointExists(FileSystem* fs, const std::string& prefix);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVER_H_
