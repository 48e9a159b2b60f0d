// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_CHECKPOINT_NAME_H_
#define MILLRACE_SAVER_CHECKPOINT_NAME_H_

// Which checkpoint a user means, who may name it by one of its files, by its directory or by the
// state file. Everything that is given a checkpoint by a user asks here.
//
// Thread-safety: pure functions over files.

#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// The name of the checkpoint, as Saver::Save returns it:
//
//   run/model.ckpt-100                        itself, where it exists
//   run/model.ckpt-100.index, .meta, .data-00000-of-00001
//                                             run/model.ckpt-100
//   run/old-00000-of-00002                    run/old, of the first format
//   run                                       a directory: its newest whole checkpoint
//                                             (LatestCheckpoint); a SavedModel's: its variables
//   run/checkpoint                            a state file, whatever its name: the same of what it
//                                             lists and of its directory
//
// Other names are returned as they are: the reader says what is missing. NotFound: a directory, or
// that of a state file, without a whole checkpoint.
StatusOr<std::string> CheckpointNamed(FileSystem* fs, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_SAVER_CHECKPOINT_NAME_H_
