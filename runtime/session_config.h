// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_CONFIG_H_
#define MILLRACE_RUNTIME_SESSION_CONFIG_H_

// SessionConfig: how a session or server uses its machine: what TensorFlow's ConfigProto says, for
// programs that know no protobuf.
//
//   NewSession({.config = {.intra_op_parallelism_threads = 2, .allow_soft_placement = true}})
//
// The fields have the message's names and defaults. Whatever else the message can say is said with
// one: SessionConfigOf copies what it says of the fields into them, where it may be changed, also
// back to the default, and keeps the rest.
//
// A value; thread-compatible.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tensorflow {
class ConfigProto;
}  // namespace tensorflow

namespace millrace {

struct SessionConfig {
  // Threads that compute; 0: the process's own pool, of one thread per core. Negative: the caller's
  // alone. The second one counts where the first is 0.
  int intra_op_parallelism_threads = 0;
  int inter_op_parallelism_threads = 0;
  // A pool of its own, whatever their number.
  bool use_per_session_threads = false;
  // {{"CPU", 2}}: devices /cpu:0 and /cpu:1.
  std::map<std::string, int> device_count = {};
  // Nodes go to a device that there is where the one that they ask for is not.
  bool allow_soft_placement = false;
  bool log_device_placement = false;
  // The only tasks of a cluster that the session talks to: {"/job:ps", "/job:worker/task:1"}.
  std::vector<std::string> device_filters = {};
  // Of a step that sets no limit itself; 0: none.
  int64_t operation_timeout_in_ms = 0;

  // What the fields do not say; null: nothing. What it says of them does not count.
  std::shared_ptr<const tensorflow::ConfigProto> message = nullptr;
};

// All of the message; ConfigProtoOf gives it back.
SessionConfig SessionConfigOf(tensorflow::ConfigProto message);
// The fields, and the rest of the message.
tensorflow::ConfigProto ConfigProtoOf(const SessionConfig& config);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_CONFIG_H_
