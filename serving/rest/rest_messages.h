// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_REST_MESSAGES_H_
#define MILLRACE_SERVING_REST_REST_MESSAGES_H_

// Messages as replies of the REST front: protobuf's JSON printer with one blank per level, the
// fields' names of the .proto files, and fields that have their default. 64-bit integers are
// strings, enum values names.
//
// Thread-safety: pure functions. Failure: Internal, for what protobuf refuses (a string that is no
// UTF-8).

#include <string>

#include "core/status.h"
#include "google/protobuf/message.h"

namespace millrace {

// The status of a model: a GetModelStatusResponse, a line's end behind it.
StatusOr<std::string> StatusReply(const google::protobuf::Message& response);

// The metadata of a model: a ModelSpec and a SignatureDefMap, put together as TensorFlow Serving
// does (it prints no Any).
StatusOr<std::string> MetadataReply(const google::protobuf::Message& model_spec,
                                    const google::protobuf::Message& signature_def_map);

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_REST_MESSAGES_H_
