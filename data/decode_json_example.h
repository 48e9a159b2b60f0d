// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DECODE_JSON_EXAMPLE_H_
#define MILLRACE_DATA_DECODE_JSON_EXAMPLE_H_

#include "graph/node_builder.h"

namespace millrace {

// tensorflow.Examples in protobuf's JSON as serialized ones, for ParseExample. Any shape; it is
// kept.
//
//   {"features": {"feature": {"age": {"int64List": {"value": ["30"]}}}}}
//
// InvalidArgument with the number of the first text that is no such JSON, and why.
inline constexpr UnaryBuilder DecodeJSONExample{"DecodeJSONExample"};

}  // namespace millrace

#endif  // MILLRACE_DATA_DECODE_JSON_EXAMPLE_H_
