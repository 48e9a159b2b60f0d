// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MODEL_CONFIG_H_
#define MILLRACE_SERVING_MODEL_CONFIG_H_

// ModelServerConfig, the configuration of TensorFlow Serving, as the models of a server.
//
//   model_config_list {
//     config { name: "census" base_path: "/models/census" model_platform: "tensorflow" }
//   }
//
// Thread-safety: pure functions.
// Failure: InvalidArgument, with the name of the model: a platform other than "tensorflow", or both
// of model_type and model_platform; a logging_config without a file or with a wrong rate;
// Unimplemented for custom_model_config. Names, paths and labels
// are checked by ModelVersions::SetModels.

#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "serving/model_versions.h"

namespace tensorflow::serving {
class ModelServerConfig;
}  // namespace tensorflow::serving

namespace millrace {

StatusOr<std::vector<ModelSettings>> SettingsOf(
    const tensorflow::serving::ModelServerConfig& config);

// Of the text form, as --model_config_file has it. "Error parsing text-format
// tensorflow.serving.ModelServerConfig: LINE:COLUMN: what", as TensorFlow Serving says on stderr.
StatusOr<std::vector<ModelSettings>> ReadModelConfig(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MODEL_CONFIG_H_
