// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_REMOTE_MODEL_H_
#define MILLRACE_TOOLS_REMOTE_MODEL_H_

// A model of a server, for programs: over gRPC it is asked as one in this process
// (tools/local_model.h); over REST instances and predictions stay JSON.
//
// Thread-safety: functions and what they return, from any thread.
// Failure: that of the server, which REST tells by status code and text; InvalidArgument for a
// signature that is not there and for a reply that is none.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "saver/model_signature.h"
#include "serving/client/model_client.h"
#include "tools/instances.h"
#include "tools/local_model.h"

namespace millrace {

struct RemoteModel {
  std::string address;  // "host:port" or "unix:/path"
  std::string name;
  ModelVersionChoice which = {};
  std::string version_name = "";  // of a front's version, over REST alone; not with `which`
  std::string signature = "";     // "": serving_default, else the only one
  absl::Duration timeout = absl::Seconds(60);
};

// Over gRPC, with the credentials of this process. Each question asks the version that the server
// means then.
StatusOr<LocalModel> OpenRemoteModel(const RemoteModel& model);

// Over REST, with the token of this process, unless it wants TLS: the signatures, and the text of
// the reply to these instances, each a value of JSON.
StatusOr<std::map<std::string, ModelSignature>> RestSignatures(const RemoteModel& model);
StatusOr<std::string> RestPredict(const RemoteModel& model, const std::string& signature,
                                  absl::Span<const std::string> instances);
// The predictions of a reply as tensors of the signature's outputs.
StatusOr<Instances> PredictionsOfReply(absl::string_view reply, const SignatureInputs& outputs);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_REMOTE_MODEL_H_
