// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_FILE_H_
#define MILLRACE_RUN_RUN_FILE_H_

// What a training run says of itself in its directory: small files, for its own tasks, for those
// that come later and for managers of clusters that know nothing of Millrace.
//
//   run.json      whose run it is: the id that it has for its whole life, and the chief that owns
//                 the directory now. Written by each chief when it takes the directory over; the
//                 last writer owns it, and has the larger epoch.
//   run_owner-7   what run.json says of the owner with epoch 7. Made with O_EXCL (which NFS keeps
//                 since version 3) before run.json is written, so that no two of several that begin
//                 at once have one epoch. The highest epoch is that of the newest owner, whatever
//                 a late write of an older one has left in run.json; lower ones are deleted.
//   run_end.json  that training is over: at which step, with which checkpoint, and why. Written by
//                 the owner when it ends well. It counts only while its writer still owns the
//                 directory: a chief that goes on after an end takes the directory over first, and
//                 a late end of a chief that was taken over is none.
//
//   run_end-<8 digits of the token>.json  the same, in a file that no other owner writes: what
//   counts
//                 when a late end of another one has replaced run_end.json.
//
//   run_saves.json  which checkpoints the owner's saves may leave without a place in the state file
//   if it is killed: what a save has begun, and what it may be about to delete. For the next chief
//   (train/run_sweep.h). It is not synced: after a power failure an older one may stand there.
//
// JSON files are replaced as a whole (WriteFileAtomically) and never read in order to be changed in
// part, so readers see what one chief wrote. Fields that this version
// does not know are kept. Paths of checkpoints in the directory are relative in the file: the
// directory can be moved.
//
// Thread-safety: functions of their arguments and of the files.
// Failure: DataLoss for a file that is none of these, by its name; that of the files otherwise.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

struct RunFile {
  std::string id = "";       // 32 hexadecimal digits
  std::string name = "";     // the directory, as the chief that made the id was given it
  std::string chief = "";    // who owns it, in words: "master-0 on host7, process 4711"
  std::string token = "";    // another one for each owner that there ever was
  int64_t epoch = 0;         // of the owner; grows with each
  std::string since = "";    // when the owner took it, for people
  std::string unknown = "";  // the text that was read, for fields of other versions
};

struct RunEndFile {
  std::string id = "";          // of the run, and
  std::string token = "";       // of the owner that ended it
  int64_t global_step = -1;     // of the checkpoint; without one what was counted; -1: not known
  int64_t goal = 0;             // the global step at which the owner meant to end; 0: it had none
  std::string checkpoint = "";  // the last one; "": none
  // What other tasks counted after the checkpoint was written, and it does not have.
  int64_t updates_after_checkpoint = 0;
  std::string reason = "";  // for people
  std::string unknown = "";
};

struct RunSavesFile {
  std::string id = "";                        // of the run
  std::vector<std::string> checkpoints = {};  // names in the directory: "model.ckpt-100"
};

std::string RunFilePath(const std::string& directory);
std::string RunEndFilePath(const std::string& directory);

// nullopt: there is none.
StatusOr<std::optional<RunFile>> ReadRunFile(FileSystem* fs, const std::string& directory);
Status WriteRunFile(FileSystem* fs, const std::string& directory, const RunFile& run);

// Makes run.epoch that of `run`, for good. AlreadyExists when another has it: look for the newest
// and take one above that. A process that was stopped for long in between may get one below the
// newest by now, which is nobody's: look again afterwards.
Status ClaimRunEpoch(FileSystem* fs, const std::string& directory, const RunFile& run);
// The newest that was claimed; 0: none.
StatusOr<int64_t> NewestRunEpoch(FileSystem* fs, const std::string& directory);
// The chief that claimed `epoch`. nullopt: none; DataLoss: somebody who is about to say so, or died
// then.
StatusOr<std::optional<RunFile>> ReadRunEpoch(FileSystem* fs, const std::string& directory,
                                              int64_t epoch);
// When `epoch` was claimed, in seconds since 1970 by the clock of the directory's files.
StatusOr<double> RunEpochTime(FileSystem* fs, const std::string& directory, int64_t epoch);
// Removes what owners below `epoch` have left: their epochs, and the ends that `token` did not
// write. What cannot be removed stays for the next one.
void SweepRunFiles(FileSystem* fs, const std::string& directory, int64_t epoch,
                   const std::string& token);

// nullopt: the run of the directory has not ended, or there is none.
StatusOr<std::optional<RunEndFile>> ReadRunEnd(FileSystem* fs, const std::string& directory);
Status WriteRunEnd(FileSystem* fs, const std::string& directory, const RunEndFile& end);

// nullopt: there is none. Names that are none of the directory are left out.
StatusOr<std::optional<RunSavesFile>> ReadRunSaves(FileSystem* fs, const std::string& directory);
// The last ones of so many checkpoints, at most kMaxRunSaves.
inline constexpr size_t kMaxRunSaves = 256;
Status WriteRunSaves(FileSystem* fs, const std::string& directory, const RunSavesFile& saves);

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_FILE_H_
