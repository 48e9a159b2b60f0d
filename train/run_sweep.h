// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_RUN_SWEEP_H_
#define MILLRACE_TRAIN_RUN_SWEEP_H_

// RunSweep: deletes what killed chiefs of a run have left in its directory, and nothing else. The
// next chief sweeps when it has its first session, and again at the end of the run.
//
//   checkpoints       that the state file does not list, although a save of this run had begun
//                     them, or was about to delete them, when its process was killed or it failed.
//                     The record of these is run_saves.json, which each save writes before it
//                     begins (run/run_file.h), and which a sweep leaves with what may still come
//   temporary files   of the names that a run writes, with the ending that its writers give them,
//                     older than this chief's hold of the directory: graph.pbtxt.tmp<16 digits>,
//                     run.json.tmp..., <checkpoint of the record>.index.tempstate<16 digits>
//   halves            of checkpoints of the record, all of it older than this chief's hold: the
//                     directory of parts <checkpoint>_temp_<32 digits>, and data and meta graph
//                     without an index that the state file does not list. The Saver deletes them
//                     after its second save (saver/leftovers.h); a chief may have only one to do
//
// What a user may own stays:
//   * checkpoints that no record names: copies, those of another writer, saves with a state file of
//     their own or none, those kept by keep_checkpoint_every_n_hours or without a limit, those from
//     before the record;
//   * all checkpoints where the state file is not as a Saver wrote it (somebody has chosen another
//     one by hand), or does not list the one in use;
//   * every file with another name.
//
// Thread-safety: all methods, from any thread. Lifetime: the file system outlives it.
// Failure: what cannot be read or deleted stays, for the next one.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "run/training_run.h"

namespace millrace {

class RunSweep {
 public:
  // `speaker`: in the log.
  RunSweep(FileSystem* fs, std::string speaker, std::string directory);

  // The chief of `run` has taken the directory over; before the first save. Later calls of one
  // chief change nothing.
  void TookOver(const TrainingRun& run);

  // What the saver may delete besides what it lists.
  struct Retention {
    int max_to_keep = 5;
    bool keeps_some_forever = false;  // keep_checkpoint_every_n_hours
  };
  // One save at a time; of a checkpoint in the directory.
  void SaveBegins(const std::string& path, const std::vector<std::string>& kept,
                  const Retention& retention);
  void SaveEnded(const std::string& path, const Status& status);

  // Deletes what is nobody's by now. Only while this chief has the directory. `in_use`: the
  // checkpoint that was restored, or that the end of the run names; "" for none.
  void Sweep(const std::string& in_use);
  // Where the chief does not know whether the directory is its own: what chiefs before have left is
  // for the next one.
  void Forget();

 private:
  // Names in the directory.
  std::set<std::string> Suspects() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsInside(const std::string& path) const;
  bool IsSaving() const;
  // Those that are for a later sweep: they are not there yet, or in use.
  std::set<std::string> SweepCheckpoints(const std::set<std::string>& suspects,
                                         const std::string& in_use) const;
  void SweepTemporaryFiles(const std::set<std::string>& suspects, double since) const;
  // What parts of `suspects` there are, and what the `unlisted` ones have without an index.
  void SweepHalves(const std::set<std::string>& suspects, const std::set<std::string>& unlisted,
                   double since) const;
  // Whether the file, or all that the directory holds, was written last before `since`.
  bool IsOlder(const std::string& path, double since) const;
  bool HoldsOlderPartsOnly(const std::string& directory, double since) const;

  FileSystem* const fs_;
  const std::string speaker_, directory_;
  mutable Mutex mu_;
  TrainingRun run_ ABSL_GUARDED_BY(mu_);
  // Since when this chief has the directory, by the clock of its files; 0: not known.
  double since_ ABSL_GUARDED_BY(mu_) = 0;
  // By chiefs before, and by saves that failed. What a saver lists is never in it: it may become
  // one that is kept for ever.
  std::set<std::string> left_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> recorded_ ABSL_GUARDED_BY(mu_);  // by the last save
  std::string in_progress_ ABSL_GUARDED_BY(mu_) = "";    // "" between two saves
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_RUN_SWEEP_H_
