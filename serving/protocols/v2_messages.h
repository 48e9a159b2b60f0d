// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_MESSAGES_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_MESSAGES_H_

// ModelInferRequest and ModelInferResponse, the messages of the Open Inference Protocol, from and
// to tensors.
//
// A request has all its elements raw or all of them in typed fields. The response is raw when the
// request was, and when an output has no typed field (FP16, BF16).
//
// Thread-safety: pure functions. Failure: InvalidArgument, which names the tensor; Unimplemented
// for shared memory, classifications, and dtypes that the protocol has no name for.

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"
#include "serving/protocols/v2_infer.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
}  // namespace inference

namespace millrace {

StatusOr<V2Infer> ReadInferRequest(const inference::ModelInferRequest& request);

// The same with raw_input_contents that were left where they were received: each in its pieces.
inline constexpr int kV2RawInputContents = 7;  // the field
using V2RawContents = std::vector<absl::Span<const absl::string_view>>;
StatusOr<V2Infer> ReadInferRequest(const inference::ModelInferRequest& request,
                                   const V2RawContents& raw);

// Adds the outputs.
Status WriteInferOutputs(absl::Span<const AliasedTensor> outputs, bool raw,
                         inference::ModelInferResponse* response);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_MESSAGES_H_
