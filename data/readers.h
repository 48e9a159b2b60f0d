// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_READERS_H_
#define MILLRACE_DATA_READERS_H_

// Readers: TensorFlow's input of before its datasets: a resource that takes names of files out of a
// queue and gives what is in them, row by row, each with a key.
//
//   Output files = StringInputProducer(root, {"a.csv", "b.csv"});        // train/input_queues.h
//   KeyAndValue line = ReaderReadV2(root, TextLineReaderV2(root), files);
//
//   reader                    key                       value
//   TextLineReaderV2          <file>:<line, from 1 on>  a line without its end ("\n", "\r\n")
//   TFRecordReaderV2          <file>:<byte offset>      a record
//   FixedLengthRecordReaderV2 <file>:<number, from 0>   record_bytes bytes
//   WholeFileReaderV2         <file>                    all of it
//   IdentityReaderV2          <work>                    the same
//
// A read that needs the next file waits for the queue without a thread; files are read on the I/O
// pool. Reads of one reader are served in the order in which they came. When the queue is closed
// and empty a read fails with OutOfRange, the end of the data. A file that cannot be read fails the
// read that met it; the next one takes the next file. No gradients.

#include <cstdint>
#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct ReaderAttrs {
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
struct TextLineReaderAttrs {
  int64_t skip_header_lines = 0;  // of each file
  std::string container = "";
  std::string shared_name = "";
};
inline Output TextLineReaderV2(ScopeAt at, const TextLineReaderAttrs& attrs = {}) {
  return BuildOp(at, "TextLineReaderV2", {}, "skip_header_lines", attrs.skip_header_lines,
                 "container", attrs.container, "shared_name", attrs.shared_name);
}
struct TFRecordReaderAttrs {
  std::string container = "";
  std::string shared_name = "";
  std::string compression_type = "";  // "", "ZLIB" or "GZIP"
};
inline Output TFRecordReaderV2(ScopeAt at, const TFRecordReaderAttrs& attrs = {}) {
  return BuildOp(at, "TFRecordReaderV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "compression_type", attrs.compression_type);
}
struct FixedLengthRecordReaderAttrs {
  int64_t header_bytes = 0;  // at the begin of each file
  int64_t record_bytes = 0;  // > 0
  int64_t footer_bytes = 0;  // at its end
  int64_t hop_bytes = 0;     // from the begin of a record to that of the next; 0: record_bytes
  std::string container = "";
  std::string shared_name = "";
  std::string encoding = "";  // "", "ZLIB" or "GZIP"
};
inline Output FixedLengthRecordReaderV2(ScopeAt at, const FixedLengthRecordReaderAttrs& attrs) {
  return BuildOp(at, "FixedLengthRecordReaderV2", {}, "header_bytes", attrs.header_bytes,
                 "record_bytes", attrs.record_bytes, "footer_bytes", attrs.footer_bytes,
                 "hop_bytes", attrs.hop_bytes, "container", attrs.container, "shared_name",
                 attrs.shared_name, "encoding", attrs.encoding);
}
inline Output WholeFileReaderV2(ScopeAt at, const ReaderAttrs& attrs = {}) {
  return BuildOp(at, "WholeFileReaderV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}
inline Output IdentityReaderV2(ScopeAt at, const ReaderAttrs& attrs = {}) {
  return BuildOp(at, "IdentityReaderV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}

struct KeyAndValue {
  Output key, value;
};
// One row: string scalars. `queue`: of one component, string scalars.
inline KeyAndValue ReaderReadV2(ScopeAt at, Output reader, Output queue) {
  const std::vector<Output> out = BuildOp(at, "ReaderReadV2", {reader, queue}).outputs(0, 2);
  return {out[0], out[1]};
}
// Up to `num_records` (int64 scalar, > 0) rows of one file, at least one: string vectors.
inline KeyAndValue ReaderReadUpToV2(ScopeAt at, Output reader, Output queue, Output num_records) {
  const std::vector<Output> out =
      BuildOp(at, "ReaderReadUpToV2", {reader, queue, num_records}).outputs(0, 2);
  return {out[0], out[1]};
}
// Rows so far: an int64 scalar.
inline Output ReaderNumRecordsProducedV2(ScopeAt at, Output reader) {
  return BuildOp(at, "ReaderNumRecordsProducedV2", {reader});
}
// Files that were read to their ends: an int64 scalar.
inline Output ReaderNumWorkUnitsCompletedV2(ScopeAt at, Output reader) {
  return BuildOp(at, "ReaderNumWorkUnitsCompletedV2", {reader});
}
// As it began: the rest of the file that it was in is not read.
inline Operation ReaderResetV2(ScopeAt at, Output reader) {
  return BuildOp(at, "ReaderResetV2", {reader});
}

}  // namespace millrace

#endif  // MILLRACE_DATA_READERS_H_
