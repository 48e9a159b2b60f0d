// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_JSON_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_JSON_H_

// Requests and replies of the Open Inference Protocol as JSON.
//
//   {"id": "42", "parameters": {"signature_name": "s"},
//    "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}],
//    "outputs": [{"name": "y"}]}
//   {"model_name":"m","model_version":"3","id":"42",
//    "outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[3.0,7.0]}]}
//
// "data" is flat or nested as the shape; elements of BYTES are strings, or {"b64": "..."}. It may
// come before "datatype": then it is read a second time.
//
// Binary data: the parameter binary_data_size of an input says how many bytes of the binary part
// are its raw elements, in the order of the inputs; binary_data of an output, binary_data_output of
// the request, ask for raw elements behind the reply's JSON. FP16 and BF16 have no other form.
//
// The events of the reader are put straight into the tensors (serving/rest/json_column.h), with the
// same bounds. Keys that nobody knows are skipped; a known key comes once.
//
// Thread-safety: pure functions. Failure: InvalidArgument for what a client sent; Unimplemented for
// shared memory and for what the protocol has no form for; ResourceExhausted for a reply that is
// too large.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"
#include "serving/protocols/v2_infer.h"
#include "serving/rest/json_scan.h"

namespace inference {
class ModelMetadataResponse;
class ServerMetadataResponse;
}  // namespace inference

namespace millrace {

// `binary` stands behind the JSON.
StatusOr<V2Infer> ReadV2Json(absl::string_view json, absl::string_view binary,
                             const JsonLimits& limits = {});

struct V2JsonReply {
  std::string body;
  // Bytes of the JSON that it begins with; all of them when there is no binary part.
  size_t json_bytes = 0;
};
inline constexpr int64_t kMaxV2ReplyBytes = int64_t{1} << 30;
StatusOr<V2JsonReply> WriteV2Json(absl::string_view model, int64_t version, const V2Infer& request,
                                  absl::Span<const AliasedTensor> outputs,
                                  int64_t max_bytes = kMaxV2ReplyBytes);

std::string V2MetadataJson(const inference::ModelMetadataResponse& metadata);
std::string V2MetadataJson(const inference::ServerMetadataResponse& metadata);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_JSON_H_
