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

// Adds the outputs.
Status WriteInferOutputs(absl::Span<const AliasedTensor> outputs, bool raw,
                         inference::ModelInferResponse* response);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_MESSAGES_H_
