// SPDX-License-Identifier: Apache-2.0
//
// Ops of datasets that have no input dataset: tensors, ranges, files.

#include <string>
#include <utility>
#include <vector>

#include "core/compression.h"
#include "core/status.h"
#include "data/dataset.h"
#include "data/dataset_op.h"

namespace millrace::data {
namespace {

constexpr char kTensors[] = "Toutput_types: list(type) >= 1; output_shapes: list(shape) >= 1";

const DatasetSourceOp kTensor(
    "TensorDataset", "components: Toutput_types", kTensors,
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      return Dataset::FromTensors(args.tensors(0, args.size()));
    },
    DatasetArgShapes::kElementTensors);

const DatasetSourceOp kTensorSlice(
    "TensorSliceDataset", "components: Toutput_types", kTensors,
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      return Dataset::FromTensorSlices(args.tensors(0, args.size()));
    },
    DatasetArgShapes::kElementTensors);

const DatasetSourceOp kRange("RangeDataset", "start: int64, stop: int64, step: int64",
                             kDatasetElements, [](const DatasetArgs& args) -> StatusOr<Dataset> {
                               MR_ASSIGN_OR_RETURN(const int64_t start, args.Int(0));
                               MR_ASSIGN_OR_RETURN(const int64_t stop, args.Int(1));
                               MR_ASSIGN_OR_RETURN(const int64_t step, args.Int(2));
                               return Dataset::Range(start, stop, step);
                             });

// --- Files

// Inputs `compression` (none: -1) and `buffer_size`.
StatusOr<FileOptions> FileOptionsOf(const DatasetArgs& args, int compression, int buffer_size) {
  FileOptions options;
  if (compression >= 0) {
    MR_ASSIGN_OR_RETURN(const std::string text, args.Text(compression));
    MR_ASSIGN_OR_RETURN(options.compression, ParseCompression("compression_type", text));
  }
  MR_ASSIGN_OR_RETURN(options.buffer_size, args.Int(buffer_size));
  return options;
}

constexpr char kFiles[] = "filenames: string, compression_type: string, buffer_size: int64";

const DatasetSourceOp kTextLine(
    "TextLineDataset", kFiles, "",
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(std::vector<std::string> paths, args.Texts(0));
      MR_ASSIGN_OR_RETURN(const FileOptions options, FileOptionsOf(args, 1, 2));
      return Dataset::TextLines(std::move(paths), options);
    },
    DatasetArgShapes::kFirstIsList);

const DatasetSourceOp kTFRecord(
    "TFRecordDataset", kFiles, "",
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(std::vector<std::string> paths, args.Texts(0));
      MR_ASSIGN_OR_RETURN(const FileOptions options, FileOptionsOf(args, 1, 2));
      return Dataset::Records(std::move(paths), options);
    },
    DatasetArgShapes::kFirstIsList);

// Inputs: filenames, header_bytes, record_bytes, footer_bytes, buffer_size[, compression_type].
StatusOr<Dataset> FixedLength(const DatasetArgs& args) {
  FixedLengthOptions options;
  MR_ASSIGN_OR_RETURN(std::vector<std::string> paths, args.Texts(0));
  MR_ASSIGN_OR_RETURN(options.header_bytes, args.Int(1));
  MR_ASSIGN_OR_RETURN(const int64_t record_bytes, args.Int(2));
  MR_ASSIGN_OR_RETURN(options.footer_bytes, args.Int(3));
  MR_ASSIGN_OR_RETURN(options.file, FileOptionsOf(args, args.size() > 5 ? 5 : -1, 4));
  return Dataset::FixedLengthRecords(std::move(paths), record_bytes, options);
}
const DatasetSourceOp kFixedLength(
    "FixedLengthRecordDataset",
    "filenames: string, header_bytes: int64, record_bytes: int64, footer_bytes: int64, "
    "buffer_size: int64",
    "", FixedLength, DatasetArgShapes::kFirstIsList);
const DatasetSourceOp kFixedLengthV2(
    "FixedLengthRecordDatasetV2",
    "filenames: string, header_bytes: int64, record_bytes: int64, footer_bytes: int64, "
    "buffer_size: int64, compression_type: string",
    "", FixedLength, DatasetArgShapes::kFirstIsList);

// Sorted; a shuffle is an op of its own.
StatusOr<Dataset> MatchingFiles(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> patterns, args.Texts(0));
  return Dataset::ListFiles(std::move(patterns), {.shuffle = false});
}
const DatasetSourceOp kMatchingFiles("MatchingFilesDataset", "patterns: string", "", MatchingFiles,
                                     DatasetArgShapes::kFirstIsList);
const DatasetSourceOp kMatchingFilesInExperiments("ExperimentalMatchingFilesDataset",
                                                  "patterns: string", "", MatchingFiles,
                                                  DatasetArgShapes::kFirstIsList);

}  // namespace
}  // namespace millrace::data
