// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_RUN_FILE_H_
#define MILLRACE_CORE_RUN_FILE_H_

// What a training run says of itself in its directory: two small JSON files, for its own tasks,
// for those that come later and for managers of clusters that know nothing of Millrace.
//
//   run.json      whose run it is: the id that it has for its whole life, and the chief that owns
//                 the directory now. Written by each chief when it takes the directory over; the
//                 last writer owns it, and has the larger epoch.
//   run_end.json  that training is over: at which step, with which checkpoint, and why. Written by
//                 the owner when it ends well. It counts only while its writer still owns the
//                 directory: a chief that goes on after an end takes the directory over first, and
//                 a late end of a chief that was taken over is none.
//
// Each file has one writer at a time, is replaced as a whole (WriteFileAtomically) and never read
// in order to be changed in part, so readers see what one chief wrote. Fields that this version
// does not know are kept. Paths of checkpoints in the directory are relative in the file: the
// directory can be moved.
//
// Thread-safety: functions of their arguments and of the files.
// Failure: DataLoss for a file that is none of these, by its name; that of the files otherwise.

#include <cstdint>
#include <optional>
#include <string>

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
  int64_t global_step = -1;     // -1: not known
  int64_t goal = 0;             // the global step at which the owner meant to end; 0: it had none
  std::string checkpoint = "";  // the last one; "": none
  std::string reason = "";      // for people
  std::string unknown = "";
};

std::string RunFilePath(const std::string& directory);
std::string RunEndFilePath(const std::string& directory);

// nullopt: there is none.
StatusOr<std::optional<RunFile>> ReadRunFile(FileSystem* fs, const std::string& directory);
Status WriteRunFile(FileSystem* fs, const std::string& directory, const RunFile& run);

// nullopt: the run of the directory has not ended, or there is none.
StatusOr<std::optional<RunEndFile>> ReadRunEnd(FileSystem* fs, const std::string& directory);
Status WriteRunEnd(FileSystem* fs, const std::string& directory, const RunEndFile& end);

}  // namespace millrace

#endif  // MILLRACE_CORE_RUN_FILE_H_
