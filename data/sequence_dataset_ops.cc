// SPDX-License-Identifier: Apache-2.0
//
// Ops of datasets that give the elements of others: which of them, how often, in which order, when.

#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"
#include "data/dataset_op.h"
#include "data/directed_interleave.h"

namespace millrace::data {
namespace {

// One input dataset and one number.
template <Dataset (Dataset::*kMethod)(int64_t) const>
StatusOr<Dataset> WithCount(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(const int64_t count, args.Int(1));
  return (input.*kMethod)(count);
}
constexpr char kInputAndCount[] = "input_dataset: variant, count: int64";
constexpr char kInput[] = "input_dataset: variant";

const DatasetOp kTake("TakeDataset", kInputAndCount, kDatasetElements, WithCount<&Dataset::Take>);
const DatasetOp kSkip("SkipDataset", kInputAndCount, kDatasetElements, WithCount<&Dataset::Skip>);
const DatasetOp kRepeat("RepeatDataset", kInputAndCount, kDatasetElements,
                        WithCount<&Dataset::Repeat>);

const DatasetOp kShard("ShardDataset", "input_dataset: variant, num_shards: int64, index: int64",
                       "require_non_empty: bool = false; output_types: list(type) >= 1; "
                       "output_shapes: list(shape) >= 1",
                       [](const DatasetArgs& args) -> StatusOr<Dataset> {
                         MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
                         MR_ASSIGN_OR_RETURN(const int64_t num_shards, args.Int(1));
                         MR_ASSIGN_OR_RETURN(const int64_t index, args.Int(2));
                         MR_ASSIGN_OR_RETURN(const bool require_non_empty,
                                             args.Attr<bool>("require_non_empty"));
                         const int64_t n = input.cardinality();
                         // Of an input whose size is not known it shows in what comes.
                         if (require_non_empty && n >= 0 && n < num_shards) {
                           return InvalidArgument(
                               "input_dataset must have an element for each of the ", num_shards,
                               " shards, got ", n, " elements");
                         }
                         return input.Shard(num_shards, index);
                       });

const DatasetOp kConcatenate("ConcatenateDataset",
                             "input_dataset: variant, another_dataset: variant", kDatasetElements,
                             [](const DatasetArgs& args) -> StatusOr<Dataset> {
                               MR_ASSIGN_OR_RETURN(const Dataset first, args.dataset(0));
                               MR_ASSIGN_OR_RETURN(const Dataset second, args.dataset(1));
                               return first.Concatenate(second);
                             });

const DatasetOp kZip("ZipDataset", "input_datasets: N * variant",
                     "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
                     "N: int >= 1",
                     [](const DatasetArgs& args) -> StatusOr<Dataset> {
                       std::vector<Dataset> inputs;
                       for (int i = 0; i < args.size(); ++i) {
                         MR_ASSIGN_OR_RETURN(Dataset input, args.dataset(i));
                         inputs.push_back(std::move(input));
                       }
                       return Dataset::Zip(std::move(inputs));
                     });

StatusOr<Dataset> DirectedInterleaveDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset selector, args.dataset(0));
  std::vector<Dataset> inputs;
  for (int i = 1; i < args.size(); ++i) {
    MR_ASSIGN_OR_RETURN(Dataset input, args.dataset(i));
    inputs.push_back(std::move(input));
  }
  return DirectedInterleave(selector, std::move(inputs));
}
constexpr char kDirectedInterleaveArguments[] =
    "selector_input_dataset: variant, data_input_datasets: N * variant";
constexpr char kDirectedInterleaveAttrs[] =
    "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; N: int >= 1";
const DatasetOp kDirectedInterleave("DirectedInterleaveDataset", kDirectedInterleaveArguments,
                                    kDirectedInterleaveAttrs, DirectedInterleaveDataset);
const DatasetOp kDirectedInterleaveInExperiments("ExperimentalDirectedInterleaveDataset",
                                                 kDirectedInterleaveArguments,
                                                 kDirectedInterleaveAttrs,
                                                 DirectedInterleaveDataset);

// TensorFlow's op has no limit; what it drops is counted and logged all the same.
StatusOr<Dataset> IgnoreErrors(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  return input.IgnoreErrors({.max_share = 1, .max_files = kForever});
}
const DatasetOp kIgnoreErrors("IgnoreErrorsDataset", kInput, kDatasetElements, IgnoreErrors);
const DatasetOp kIgnoreErrorsInExperiments("ExperimentalIgnoreErrorsDataset", kInput,
                                           kDatasetElements, IgnoreErrors);

// --- Order

const DatasetOp kShuffle("ShuffleDataset",
                         "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64",
                         "reshuffle_each_iteration: bool = true; output_types: list(type) >= 1; "
                         "output_shapes: list(shape) >= 1",
                         [](const DatasetArgs& args) -> StatusOr<Dataset> {
                           ShuffleOptions options;
                           MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
                           MR_ASSIGN_OR_RETURN(const int64_t buffer_size, args.Int(1));
                           MR_ASSIGN_OR_RETURN(options.seed, args.Int(2));
                           MR_ASSIGN_OR_RETURN(options.seed2, args.Int(3));
                           MR_ASSIGN_OR_RETURN(options.reshuffle_each_iteration,
                                               args.Attr<bool>("reshuffle_each_iteration"));
                           return input.Shuffle(buffer_size, options);
                         });

const DatasetOp kShuffleAndRepeat(
    "ShuffleAndRepeatDataset",
    "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64, count: int64",
    kDatasetElements, [](const DatasetArgs& args) -> StatusOr<Dataset> {
      ShuffleOptions options;
      MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
      MR_ASSIGN_OR_RETURN(const int64_t buffer_size, args.Int(1));
      MR_ASSIGN_OR_RETURN(options.seed, args.Int(2));
      MR_ASSIGN_OR_RETURN(options.seed2, args.Int(3));
      MR_ASSIGN_OR_RETURN(const int64_t count, args.Int(4));
      return input.ShuffleAndRepeat(buffer_size, count, options);
    });

// --- When

const DatasetOp kPrefetch(
    "PrefetchDataset", "input_dataset: variant, buffer_size: int64",
    "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; slack_period: int = 0; "
    "legacy_autotune: bool = true",
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
      MR_ASSIGN_OR_RETURN(const int64_t buffer_size, args.Int(1));
      return input.Prefetch(buffer_size);
    });

const DatasetOp kCache("CacheDataset", "input_dataset: variant, filename: string", kDatasetElements,
                       [](const DatasetArgs& args) -> StatusOr<Dataset> {
                         MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
                         MR_ASSIGN_OR_RETURN(std::string path, args.Text(1));
                         return path.empty() ? input.Cache() : input.Cache(std::move(path));
                       });

// --- Hints how to run it, which this engine needs not: the same elements.

StatusOr<Dataset> Same(const DatasetArgs& args) { return args.dataset(0); }

const DatasetOp kOptimize("OptimizeDataset", "input_dataset: variant, optimizations: string",
                          "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
                          "optimization_configs: list(string) = []",
                          Same, DatasetArgShapes::kElementTensors);
const DatasetOp kModel("ModelDataset", kInput,
                       "algorithm: int = 0; cpu_budget: int = 0; output_types: list(type) >= 1; "
                       "output_shapes: list(shape) >= 1",
                       Same);
const DatasetOp kMaxIntraOpParallelism("MaxIntraOpParallelismDataset",
                                       "input_dataset: variant, max_intra_op_parallelism: int64",
                                       kDatasetElements, Same);
const DatasetOp kPrivateThreadPool("PrivateThreadPoolDataset",
                                   "input_dataset: variant, num_threads: int64", kDatasetElements,
                                   Same);

}  // namespace
}  // namespace millrace::data
