// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_PLATFORM_CONFIG_H_
#define MILLRACE_TOOLS_PLATFORM_CONFIG_H_

// What --platform_config_file and --tensorflow_session_config_file of TensorFlow Serving say, for a
// ModelServer.
//
// Thread-safety: functions. Failure: InvalidArgument for a text that is no such message and for
// platforms other than `tensorflow`; Unimplemented for a session on another server and
// for fixed inputs. What does nothing here is in the log.

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "runtime/session_config.h"
#include "serving/server/model_server.h"

namespace millrace {

// A PlatformConfigMap as text. As there, session, batching, tags and warm-up of the options are
// then those of the file, also where it says nothing of them; warm-up is off unless it says so.
Status ReadPlatformConfig(absl::string_view text, ModelServerOptions* options);

// A ConfigProto as text.
StatusOr<SessionConfig> ReadSessionConfig(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_PLATFORM_CONFIG_H_
