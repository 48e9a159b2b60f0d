// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_LOCAL_MODEL_H_
#define MILLRACE_TOOLS_LOCAL_MODEL_H_

// LocalModel: a trained model in this process, of either form in which models are exported:
//
//   saved_model.pb, variables/     a SavedModel, one of whose signatures is asked
//   export.meta, export.*          the older form: a meta graph whose collections `inputs` and
//                                  `outputs` have JSON objects, alias -> tensor, and a checkpoint
//
// Without a name the signature is "serving_default", else the only one.
//
// Thread-safety: as Session. Failure: that of the files; InvalidArgument for a signature that is
// not there, or none named where there are several, listing those that there are.

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"

namespace millrace {

// The signature that is asked: `asked`, or without one "serving_default", else the only one. `flag`
// names it in errors: "--signature".
StatusOr<std::string> ChosenSignature(const std::map<std::string, ModelSignature>& signatures,
                                      const std::string& asked, const std::string& flag);

struct LocalModel {
  std::map<std::string, SignatureTensor> inputs = {}, outputs = {};
  // All outputs. It holds what it needs.
  std::function<StatusOr<NamedTensors>(const NamedTensors& inputs)> predict = {};
};

struct LocalModelOptions {
  std::string signature = "";  // "": see above; not for the older form
  std::vector<std::string> tags = {"serve"};
  // For messages: who opens it, and the flag that gave `signature`.
  std::string program = "local_predict", signature_flag = "--signature-name";
};

// `directory` may also be one of versions ("1700000001/"): the newest is taken, and `note` says so.
StatusOr<LocalModel> OpenLocalModel(FileSystem* fs, const std::string& directory,
                                    const LocalModelOptions& options, std::ostream& note);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_LOCAL_MODEL_H_
