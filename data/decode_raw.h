// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DECODE_RAW_H_
#define MILLRACE_DATA_DECODE_RAW_H_

// Bytes in strings as numbers, and compressed bytes as they were before.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct DecodeRawAttrs {
  bool little_endian = true;
};
// The bytes of each string as numbers of `out_type` (a plain type): one dimension more, as many as
// they are. InvalidArgument for strings of different lengths, and for a length that is no multiple
// of the type's.
inline Output DecodeRaw(ScopeAt at, Output bytes, DType out_type,
                        const DecodeRawAttrs& attrs = {}) {
  return BuildOp(at, "DecodeRaw", {bytes}, "out_type", out_type, "little_endian",
                 attrs.little_endian);
}

// The same of strings of any length: `fixed_length` bytes (int32 scalar, a multiple of the type's
// size) of each, filled up by zeros where they end before.
inline Output DecodePaddedRaw(ScopeAt at, Output input_bytes, Output fixed_length, DType out_type,
                              const DecodeRawAttrs& attrs = {}) {
  return BuildOp(at, "DecodePaddedRaw", {input_bytes, fixed_length}, "out_type", out_type,
                 "little_endian", attrs.little_endian);
}

struct DecodeCompressedAttrs {
  std::string compression_type = "";  // "ZLIB", "GZIP"; "": they are not compressed
};
// Strings of any shape, which is kept. DataLoss for bytes that are no such stream, or cut;
// ResourceExhausted for more than a gigabyte in all.
inline Output DecodeCompressed(ScopeAt at, Output bytes, const DecodeCompressedAttrs& attrs = {}) {
  return BuildOp(at, "DecodeCompressed", {bytes}, "compression_type", attrs.compression_type);
}

}  // namespace millrace

#endif  // MILLRACE_DATA_DECODE_RAW_H_
