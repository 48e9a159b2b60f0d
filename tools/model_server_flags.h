// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_MODEL_SERVER_FLAGS_H_
#define MILLRACE_TOOLS_MODEL_SERVER_FLAGS_H_

// The flags of model_server: TensorFlow Serving's, with its defaults where nothing is said against
// them (docs/serving.md has the table), and our own.
//
// Thread-safety: functions. Failure: InvalidArgument for values that cannot be; what reading a file
// that a flag names says, with its name.

#include <string>

#include "absl/time/time.h"
#include "core/program.h"
#include "core/status.h"
#include "serving/server/model_server.h"
#include "tools/command_line.h"

namespace millrace {

struct ModelServerFlags {
  ModelServerOptions options;
  absl::Duration drain = absl::Seconds(30);
  absl::Duration not_ready = absl::ZeroDuration();  // before it
  // Of --model_config_file, which is read again in this period; infinite: never.
  std::string config_file = "", config_content = "";
  absl::Duration config_period = absl::InfiniteDuration();
};

ProgramHelp ModelServerHelp();
StatusOr<ModelServerFlags> ReadModelServerFlags(const CommandLine& flags);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_MODEL_SERVER_FLAGS_H_
