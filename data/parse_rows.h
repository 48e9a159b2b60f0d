// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_PARSE_ROWS_H_
#define MILLRACE_DATA_PARSE_ROWS_H_

// ParseExampleRows: serialized tensorflow.Examples as elements of a dataset, whole blocks at a
// time.
//
//   Dataset rows = Dataset::Records({"train.tfrecord"})
//                      .Map(ParseExampleRows({{"age", FixedLenFeature{.dtype = DT_INT64}},
//                                             {"name", FixedLenFeature{.dtype = DT_STRING}}}))
//                      .Shuffle(1000)
//                      .Batch(128);
//
// One component per feature, of its name, in the order of the names. Elements are one string
// component, of any shape; each component has that shape and the feature's behind it.
//
// Rows of one dataset have one shape, so features are FixedLenFeatures; others are parsed in the
// graph, a batch at a time (data/parse_features.h).
//
// Errors: those of the op (data/parse_example.h), with file and record where they are known;
// InvalidArgument for other features and other elements.

#include <memory>

#include "data/feature_spec.h"  // IWYU pragma: export
#include "data/row_function.h"

namespace millrace::data {

StatusOr<std::shared_ptr<const RowFunction>> ParseExampleRows(const FeatureSpecs& specs);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_PARSE_ROWS_H_
