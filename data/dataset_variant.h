// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DATASET_VARIANT_H_
#define MILLRACE_DATA_DATASET_VARIANT_H_

// Datasets as tensors: variant scalars, which flow from one dataset op to the next and into
// MakeIterator.
//
//   session->Run({{placeholder, DatasetFeed(dataset)}}, {}, {make_iterator});
//
// The tensor holds the Dataset itself, which never leaves this process: its functions are code, its
// sources are files and memory of this machine. What travels (in a message, a constant, a
// checkpoint) is at most a reference to it. That of a feed finds the dataset again in this process,
// for as long as the fed tensor lives: a step that a server of this process runs is fed so.
//
// Form: a Variant "millrace.Dataset" of one resource handle, whose resource is the dataset and
// whose name is the reference.
//
// Thread-safety: any thread.

#include "core/status.h"  // IWYU pragma: export
#include "core/tensor.h"  // IWYU pragma: export
#include "data/dataset.h"
#include "data/iterator.h"

namespace millrace::data {

// For feeds. Iterators over it get `options`; keep the tensor until the step has ended.
Tensor DatasetFeed(const Dataset& dataset, const IteratorOptions& options = {});
// For the outputs of dataset ops: cannot be referred to.
Tensor DatasetValue(const Dataset& dataset);

struct DatasetWithOptions {
  Dataset dataset;
  IteratorOptions options;
};
// What such a tensor is of. InvalidArgument when it is none; FailedPrecondition when its dataset is
// in another process, or gone. The message begins with "<name> ", that of the input.
StatusOr<DatasetWithOptions> DatasetOf(const Tensor& tensor, absl::string_view name);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DATASET_VARIANT_H_
