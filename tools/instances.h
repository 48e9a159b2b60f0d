// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_INSTANCES_H_
#define MILLRACE_TOOLS_INSTANCES_H_

// Instances: what a model is asked about, one line each, as tensors of a batch.
//
//   {"age": 25, "workclass": " Private"}     a value per input of the signature
//   [0.5, 1.5]                               or, of a signature with one input, its value alone
//   {"b64": "AAE="}                          bytes, wherever a string may stand
//
// A value is a number, a string, a Boolean (formats/json_value.h) or nested lists of them, all of
// one shape: a row of the input. Every instance has every input and no other.
//
// Thread-safety: pure functions. Failure: InvalidArgument, with the line, the input, and what is
// there instead. Nesting is bounded (formats/json_nesting.h); memory is that of the text, times the
// size of an element.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"

namespace millrace {

// Instances of a signature, stacked.
struct Instances {
  NamedTensors inputs = {};
  int64_t count = 0;
};

using SignatureInputs = std::map<std::string, SignatureTensor>;

// A JSON value in each line that is not blank.
StatusOr<Instances> JsonInstances(absl::string_view text, const SignatureInputs& inputs);
// The values themselves, in the order of their lines: texts of JSON.
StatusOr<std::vector<std::string>> JsonInstanceTexts(absl::string_view text);
// Each line is a string, for a signature with one input of strings.
StatusOr<Instances> TextInstances(absl::string_view text, const SignatureInputs& inputs);
// The lines of that; at least one.
StatusOr<std::vector<std::string>> TextInstanceLines(absl::string_view text);
// The same of strings that may have any bytes.
StatusOr<Instances> StringInstances(std::vector<std::string> strings,
                                    const SignatureInputs& inputs);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_INSTANCES_H_
