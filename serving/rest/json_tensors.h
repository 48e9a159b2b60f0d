// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_TENSORS_H_
#define MILLRACE_SERVING_REST_JSON_TENSORS_H_

// The body of a predict request, as JSON, to tensors: TensorFlow Serving's forms, acceptance and
// messages.
//
//   {"signature_name": "s", "instances": [[1, 2], [3, 4]]}          rows of the only input
//   {"instances": [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]}         rows of several inputs
//   {"inputs": [[1, 2], [3, 4]]}   {"inputs": {"x": 1, "y": [2]}}   columns
//
// The reader's events are put straight into the tensors: no tree of values, no allocation per
// element. Runs of plain numbers are read by a loop of our own, which computes what RapidJSON
// computes, bit for bit; it leaves any other number to RapidJSON.
//
// `signature_name` may follow the data. The data is then read as the default signature's first and,
// when another name follows it, a second time: nothing is kept of it in between, and bodies that
// name their signature first, or not at all, are read once.
//
// As there: the first of equal keys wins; a tensor's shape is that of its first elements; of
// several mistakes the outermost, then the first is reported, and mistakes in JSON come before all
// others. Not as there (serving/rest/README.md): bounds, ranges of the small integer types, uint16.
//
// Memory: at most 12 bytes per byte of the body for numbers, 40 for strings, whose objects are 32.
// Thread-safety: pure functions. Failure: InvalidArgument; Unimplemented for a dtype that JSON has
// no form for (in columns, as there); what `inputs_of` returned.

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/aliased_tensor.h"
#include "serving/rest/json_scan.h"

namespace millrace {

// An input of a signature. The shape is for callers: JSON gives tensors the shapes that it has.
struct JsonInput {
  std::string alias;
  DType dtype = DT_INVALID;
  PartialShape shape = {};
};

// The inputs of a signature ("" is the default one), ordered by alias, valid until the request is
// read. May be asked twice.
using JsonInputsOf =
    std::function<StatusOr<absl::Span<const JsonInput>>(absl::string_view signature_name)>;

// What the reply is to look like, too.
enum class JsonForm { kRow, kColumnar };

struct JsonPredictRequest {
  std::string signature_name;  // "": not said
  JsonForm form = JsonForm::kRow;
  std::vector<AliasedTensor> inputs;  // ordered as JsonInputsOf gave them; all of them
};

StatusOr<JsonPredictRequest> ReadPredictRequest(absl::string_view body,
                                                const JsonInputsOf& inputs_of,
                                                const JsonLimits& limits = {});

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_TENSORS_H_
