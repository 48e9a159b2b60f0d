// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DECODE_CSV_H_
#define MILLRACE_DATA_DECODE_CSV_H_

// DecodeCSV: CSV records in a graph: what a served model is sent, say. (Files are read by datasets,
// data/csv.h, where the rules are.)

#include <cstdint>
#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct DecodeCSVAttrs {
  std::string field_delim = ",";  // one character
  bool use_quote_delim = true;
  std::string na_value = "";
  std::vector<int64_t> select_cols = {};  // ascending, from 0; empty: all
};
// One tensor per default, of its dtype (int32, int64, float, double, string) and the shape of
// `records`. A default is a scalar or a vector of at most one element; without any the field is
// required. InvalidArgument, in TensorFlow's words, for records that are otherwise.
inline std::vector<Output> DecodeCSV(ScopeAt at, Output records,
                                     const std::vector<Output>& record_defaults,
                                     const DecodeCSVAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "DecodeCSV", {records, record_defaults}, "field_delim",
                                 attrs.field_delim, "use_quote_delim", attrs.use_quote_delim,
                                 "na_value", attrs.na_value, "select_cols", attrs.select_cols);
  return node.outputs(0, static_cast<int>(record_defaults.size()));
}

}  // namespace millrace

#endif  // MILLRACE_DATA_DECODE_CSV_H_
