// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SAVED_MODEL_RUN_H_
#define MILLRACE_TOOLS_SAVED_MODEL_RUN_H_

// `saved_model_cli run`: loads a model, runs one signature and prints its outputs, in the exact
// text of TensorFlow 1.15's saved_model_cli.
//
// Outputs are printed in sorted order of key; with an outdir each is also written to
// <outdir>/<key>.npy, where a key that is no plain file name is refused. As JSON the outputs are
// one object of tensors (formats/tensor_json.h) by key; what is saved where goes to `warnings`
// then.
//
// A model that asks for devices that are not here runs on the CPU: a GPU always, tasks of a cluster
// with `clear_devices`.
//
// Thread-safety: pure function and files. Failure: the Statuses of tools/python_error.h. Kernels
// are those that the program links.

#include <ostream>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "runtime/session.h"
#include "tools/saved_model_inputs.h"

namespace millrace {

struct SavedModelRun {
  std::string dir = {}, tag_set = {}, signature_key = {};
  SavedModelInputFlags inputs = {};
  std::string outdir = {};  // "" = nothing is saved
  bool overwrite = false;
  bool clear_devices = false;
  bool json = false;
};

// How the tools open models: what asks for a GPU runs without one.
SessionOptions ToolSessionOptions();

Status RunSavedModel(FileSystem* fs, const SavedModelRun& run, std::ostream& out,
                     std::ostream& warnings);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SAVED_MODEL_RUN_H_
