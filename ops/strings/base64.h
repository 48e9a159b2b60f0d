// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_BASE64_H_
#define MILLRACE_OPS_STRINGS_BASE64_H_

// Bytes as text of the URL-safe base64 alphabet (RFC 4648: '-' and '_'), and back. Any shape; it is
// kept.

#include "graph/node_builder.h"

namespace millrace {

struct EncodeBase64Attrs {
  bool pad = false;  // with '=' to a multiple of four characters
};
inline Output EncodeBase64(ScopeAt at, Output input, const EncodeBase64Attrs& attrs = {}) {
  return BuildOp(at, "EncodeBase64", {input}, "pad", attrs.pad);
}

// With or without padding. InvalidArgument for other characters and for a length of 1 modulo 4.
inline constexpr UnaryBuilder DecodeBase64{"DecodeBase64"};

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_BASE64_H_
