// SPDX-License-Identifier: Apache-2.0
//
// Ops of datasets that put elements together and take them apart: batches, windows.

#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/dataset_op.h"
#include "data/dataset_variant.h"
#include "data/element.h"
#include "graph/op_rule.h"

namespace millrace::data {
namespace {

constexpr char kCopies[] =
    "parallel_copy: bool = false; output_types: list(type) >= 1; output_shapes: list(shape) >= 1";

StatusOr<Dataset> Batch(const DatasetArgs& args) {
  BatchOptions options;
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(const int64_t batch_size, args.Int(1));
  if (args.size() > 2) {
    MR_ASSIGN_OR_RETURN(options.drop_remainder, args.Flag(2));
  }
  return input.Batch(batch_size, options);
}
const DatasetOp kBatch("BatchDataset", "input_dataset: variant, batch_size: int64",
                       kDatasetElements, Batch);
const DatasetOp kBatchV2("BatchDatasetV2",
                         "input_dataset: variant, batch_size: int64, drop_remainder: bool", kCopies,
                         Batch);

// Inputs: input_dataset, batch_size, N padded_shapes, N padding_values[, drop_remainder].
StatusOr<Dataset> PaddedBatch(const DatasetArgs& args) {
  PaddedBatchOptions options;
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(const int64_t batch_size, args.Int(1));
  MR_ASSIGN_OR_RETURN(const int64_t wide_n, args.Attr<int64_t>("N"));
  MR_ASSIGN_OR_RETURN(const std::vector<DType> types,
                      args.Attr<std::vector<DType>>("Toutput_types"));
  if (wide_n != static_cast<int64_t>(types.size())) {
    return InvalidArgument("padded_shapes must be as many as padding_values (", types.size(),
                           "), got ", wide_n);
  }
  const int n = static_cast<int>(wide_n);
  for (int i = 2; i < 2 + n; ++i) {
    if (args.tensor(i).rank() != 1) {
      return InvalidArgument("padded_shapes[", i - 2, "] must be a vector, got shape ",
                             args.tensor(i).shape());
    }
    for (const int64_t dim : args.tensor(i).raw<int64_t>()) {
      if (dim < -1) {
        return InvalidArgument("padded_shapes[", i - 2, "] must have dimensions >= -1, got ", dim);
      }
    }
    MR_ASSIGN_OR_RETURN(PartialShape shape, ShapeOfElements(args.tensor(i)));
    options.padded_shapes.push_back(std::move(shape));
  }
  options.padding_values = args.tensors(2 + n, 2 + 2 * n);
  if (args.size() > 2 + 2 * n) {
    MR_ASSIGN_OR_RETURN(options.drop_remainder, args.Flag(2 + 2 * n));
  }
  return input.PaddedBatch(batch_size, std::move(options));
}
const DatasetOp kPaddedBatch("PaddedBatchDataset",
                             "input_dataset: variant, batch_size: int64, padded_shapes: N * int64, "
                             "padding_values: Toutput_types",
                             "Toutput_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
                             "N: int >= 1",
                             PaddedBatch, DatasetArgShapes::kElementTensors);
const DatasetOp kPaddedBatchV2(
    "PaddedBatchDatasetV2",
    "input_dataset: variant, batch_size: int64, padded_shapes: N * int64, "
    "padding_values: Toutput_types, drop_remainder: bool",
    "parallel_copy: bool = false; Toutput_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1; N: int >= 1",
    PaddedBatch, DatasetArgShapes::kElementTensors);

StatusOr<Dataset> Unbatch(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  return input.Unbatch();
}
const DatasetOp kUnbatch("UnbatchDataset", "input_dataset: variant", kDatasetElements, Unbatch);
const DatasetOp kUnbatchInExperiments("ExperimentalUnbatchDataset", "input_dataset: variant",
                                      kDatasetElements, Unbatch);

// --- Windows

// Component `i` of the elements.
Dataset ComponentOf(const Dataset& dataset, size_t i) {
  ElementSpec spec;
  if (!dataset.spec().empty()) spec.push_back(dataset.spec()[i]);
  const auto pick = [i](Element element) -> StatusOr<Element> {
    return Element{std::move(element[i])};
  };
  return dataset.Map(pick, {.spec = std::move(spec)});
}

// Elements are datasets: one per component, of the window's values of it.
const DatasetOp kWindow(
    "WindowDataset",
    "input_dataset: variant, size: int64, shift: int64, stride: int64, drop_remainder: bool",
    kDatasetElements, [](const DatasetArgs& args) -> StatusOr<Dataset> {
      WindowOptions options;
      MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
      MR_ASSIGN_OR_RETURN(options.size, args.Int(1));
      MR_ASSIGN_OR_RETURN(options.shift, args.Int(2));
      MR_ASSIGN_OR_RETURN(options.stride, args.Int(3));
      MR_ASSIGN_OR_RETURN(options.drop_remainder, args.Flag(4));
      // 0 is the combinator's word for `size`, and no shift in TensorFlow.
      if (options.shift < 1) {
        return InvalidArgument("shift must be > 0, got ", options.shift);
      }
      const size_t n = input.spec().size();
      if (n == 0) {
        return FailedPrecondition(
            "input_dataset must know its components before its elements can be datasets");
      }
      return input.Window(
          options,
          [n](Dataset window) -> StatusOr<Dataset> {
            Element components;
            for (size_t i = 0; i < n; ++i) {
              components.push_back(DatasetValue(ComponentOf(window, i)));
            }
            return Dataset::FromTensors(std::move(components));
          },
          ElementSpec(n, {DT_VARIANT, PartialShape::Scalar()}));
    });

// The windows as batches.
StatusOr<Dataset> SlidingWindow(const DatasetArgs& args) {
  WindowOptions options;
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(options.size, args.Int(1));
  MR_ASSIGN_OR_RETURN(options.shift, args.Int(2));
  MR_ASSIGN_OR_RETURN(options.stride, args.Int(3));
  if (options.shift < 1) {
    return InvalidArgument("window_shift must be > 0, got ", options.shift);
  }
  options.drop_remainder = true;
  const int64_t size = options.size;
  return input.Window(
      options, [size](Dataset window) -> StatusOr<Dataset> { return window.Batch(size); },
      size > 0 ? input.Batch(size, {.drop_remainder = true}).spec() : ElementSpec());
}
constexpr char kSlidingArguments[] =
    "input_dataset: variant, window_size: int64, window_shift: int64, window_stride: int64";
const DatasetOp kSlidingWindow("SlidingWindowDataset", kSlidingArguments, kDatasetElements,
                               SlidingWindow);
const DatasetOp kSlidingWindowInExperiments("ExperimentalSlidingWindowDataset", kSlidingArguments,
                                            kDatasetElements, SlidingWindow);

}  // namespace
}  // namespace millrace::data
