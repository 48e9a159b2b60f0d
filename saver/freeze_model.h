// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_FREEZE_MODEL_H_
#define MILLRACE_SAVER_FREEZE_MODEL_H_

// FreezeModel: a Model whose graph has all values as constants (saver/freeze_graph.h): nothing is
// restored, no init op is run, no file is read when it is opened.
//
//   MR_ASSIGN_OR_RETURN(const Model frozen, FreezeModel(model));
//   MR_RETURN_IF_ERROR(WriteModel(frozen, "frozen/1"));
//
// The graph keeps what its signatures need; they keep their keys and tensors.
//
// Thread-safety: a pure function; it opens a session of its own in this process.
// Failure: as OpenModel and FreezeGraph. InvalidArgument: a key that no signature has, a model
// without signatures.

#include <string>
#include <vector>

#include "core/status.h"
#include "saver/model.h"

namespace millrace {

struct FreezeModelOptions {
  std::vector<std::string> signatures = {};  // by their keys; empty: all
  bool clear_devices = true;
};

StatusOr<Model> FreezeModel(const Model& model, const FreezeModelOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_SAVER_FREEZE_MODEL_H_
