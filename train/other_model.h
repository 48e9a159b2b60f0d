// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_OTHER_MODEL_H_
#define MILLRACE_TRAIN_OTHER_MODEL_H_

// CheckModelOf: that a directory is not another model's.
//
// A chief asks before it takes a directory over: one that is refused leaves the run there, its
// owner and its end as they are.
//
// Thread-safety: a function of its arguments and of the files.
// Failure: FailedPrecondition in one sentence, with what differs, whose the directory is and since
// when. What cannot be read is nobody's fault here: a restore says it.

#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "saver/saver.h"

namespace millrace {

struct ModelDirectory {
  std::string speaker = "";  // in the error
  std::string option = "";   // what the speaker calls the directory: "logdir"
  std::string directory = "";
};

// OK when the latest checkpoint of the directory, if there is one, has what `saver` restores.
Status CheckModelOf(const ModelDirectory& where, Saver* saver, FileSystem* fs);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_OTHER_MODEL_H_
