// SPDX-License-Identifier: Apache-2.0
//
// Ops of datasets that call functions of the graph's library: what they describe is what the C++
// combinators describe, of GraphFunctions (data/graph_function.h).

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "data/dataset.h"
#include "data/dataset_op.h"
#include "data/dataset_variant.h"
#include "data/graph_function.h"
#include "data/group_by_reducer.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace::data {
namespace {

// More calls at once than the I/O pool has threads only read ahead.
constexpr int64_t kMostParallelCalls = 64;
// "As many as are good".
constexpr int64_t kTuned = -1;

constexpr char kOneFunctionArguments[] = "input_dataset: variant, other_arguments: Targuments";
constexpr char kOneFunctionAttrs[] =
    "f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1";

std::vector<DType> TypesOf(const ElementSpec& spec) {
  std::vector<DType> types;
  for (const ComponentSpec& component : spec) types.push_back(component.dtype);
  return types;
}

int64_t ParallelCalls(int64_t asked) {
  return asked == kTuned ? Arena::Default()->num_threads() : std::min(asked, kMostParallelCalls);
}

// --- Functions of elements

// The function of attr `attr`, which takes elements of `input`.
StatusOr<GraphFunction> FunctionOf(const DatasetArgs& args, absl::string_view attr,
                                   const Dataset& input) {
  MR_ASSIGN_OR_RETURN(GraphFunction function, args.Function(attr));
  MR_RETURN_IF_ERROR(function.CheckTakes(input.spec()));
  return function;
}

// A function that ends its dataset may not do so where the number of elements is promised.
StatusOr<MapFunction> MapFunctionOf(const DatasetArgs& args, const Dataset& input,
                                    bool keeps_count) {
  MR_ASSIGN_OR_RETURN(GraphFunction function, FunctionOf(args, "f", input));
  MR_RETURN_IF_ERROR(function.CheckReturns(TypesOf(args.declared())));
  return MapFunction([function = std::move(function), keeps_count](
                         CancellationManager* cancellation, Element element) -> StatusOr<Element> {
    StatusOr<Element> results = function.Call(cancellation, std::move(element));
    if (keeps_count && absl::IsOutOfRange(results.status())) {
      return InvalidArgument("Function invocation produced OutOfRangeError: ",
                             results.status().message());
    }
    return results;
  });
}

StatusOr<bool> ScalarBool(const Element& results, absl::string_view attr) {
  if (results.size() == 1 && results[0].dtype() == DT_BOOL && results[0].shape().is_scalar()) {
    return results[0].raw_scalar<bool>();
  }
  return InvalidArgument("the function of attr '", attr, "' must return a bool scalar, got ",
                         SpecText(SpecOf(results)));
}

StatusOr<int64_t> ScalarInt(const Element& results, absl::string_view attr) {
  if (results.size() == 1 && results[0].dtype() == DT_INT64 && results[0].shape().is_scalar()) {
    return results[0].raw_scalar<int64_t>();
  }
  return InvalidArgument("the function of attr '", attr, "' must return an int64 scalar, got ",
                         SpecText(SpecOf(results)));
}

StatusOr<Dataset> DatasetResult(const Element& results, absl::string_view attr) {
  if (results.size() != 1) {
    return InvalidArgument("the function of attr '", attr, "' must return one dataset, got ",
                           results.size(), " tensors");
  }
  MR_ASSIGN_OR_RETURN(
      DatasetWithOptions made,
      DatasetOf(results[0], absl::StrCat("the result of the function of attr '", attr, "'")));
  return std::move(made.dataset);
}

StatusOr<DatasetFunction> DatasetFunctionOf(const DatasetArgs& args, const Dataset& input) {
  MR_ASSIGN_OR_RETURN(GraphFunction function, FunctionOf(args, "f", input));
  MR_RETURN_IF_ERROR(function.CheckReturns({DT_VARIANT}));
  return DatasetFunction(
      [function = std::move(function)](CancellationManager* cancellation,
                                       const Element& element) -> StatusOr<Dataset> {
        MR_ASSIGN_OR_RETURN(const Element results, function.Call(cancellation, element));
        return DatasetResult(results, "f");
      });
}

// --- Map

StatusOr<Dataset> MapDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(const bool keeps_count, args.Attr<bool>("preserve_cardinality"));
  MR_ASSIGN_OR_RETURN(MapFunction function, MapFunctionOf(args, input, keeps_count));
  return input.Map(std::move(function), {.spec = args.declared()});
}
constexpr char kMapAttrs[] =
    "f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1; use_inter_op_parallelism: bool = true; "
    "preserve_cardinality: bool = false";
const DatasetOp kMap("MapDataset", kOneFunctionArguments, kMapAttrs, MapDataset,
                     DatasetArgShapes::kElementTensors);
const DatasetOp kMapInExperiments("ExperimentalMapDataset", kOneFunctionArguments, kMapAttrs,
                                  MapDataset, DatasetArgShapes::kElementTensors);

const DatasetOp kParallelMap(
    "ParallelMapDataset",
    "input_dataset: variant, other_arguments: Targuments, num_parallel_calls: int32",
    "f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1; use_inter_op_parallelism: bool = true; sloppy: bool = false; "
    "preserve_cardinality: bool = false",
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
      MR_ASSIGN_OR_RETURN(const int32_t calls, args.Scalar<int32_t>("num_parallel_calls"));
      MR_ASSIGN_OR_RETURN(const bool keeps_count, args.Attr<bool>("preserve_cardinality"));
      MR_ASSIGN_OR_RETURN(MapFunction function, MapFunctionOf(args, input, keeps_count));
      return input.Map(std::move(function),
                       {.num_parallel_calls = ParallelCalls(calls), .spec = args.declared()});
    },
    DatasetArgShapes::kElementTensors);

StatusOr<Dataset> MapAndBatchDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(const int64_t batch_size, args.Scalar<int64_t>("batch_size"));
  MR_ASSIGN_OR_RETURN(const int64_t calls, args.Scalar<int64_t>("num_parallel_calls"));
  MR_ASSIGN_OR_RETURN(const bool drop_remainder, args.Scalar<bool>("drop_remainder"));
  MR_ASSIGN_OR_RETURN(const bool keeps_count, args.Attr<bool>("preserve_cardinality"));
  MR_ASSIGN_OR_RETURN(MapFunction function, MapFunctionOf(args, input, keeps_count));
  // What is declared are batches: of the rows all but the first dimension is known.
  ElementSpec rows;
  for (const ComponentSpec& batch : args.declared()) {
    ComponentSpec& row = rows.emplace_back();
    row.dtype = batch.dtype;
    if (!batch.shape.has_rank()) continue;
    if (batch.shape.rank() < 1) {
      return InvalidArgument("output_shapes must be of batches, got a scalar");
    }
    MR_ASSIGN_OR_RETURN(row.shape, PartialShape::Make(batch.shape.dims().subspan(1)));
  }
  return input.MapAndBatch(std::move(function), batch_size,
                           {.num_parallel_calls = ParallelCalls(calls), .spec = std::move(rows)},
                           {.drop_remainder = drop_remainder});
}
constexpr char kMapAndBatchArguments[] =
    "input_dataset: variant, other_arguments: Targuments, batch_size: int64, "
    "num_parallel_calls: int64, drop_remainder: bool";
constexpr char kMapAndBatchAttrs[] =
    "f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1; preserve_cardinality: bool = false";
const DatasetOp kMapAndBatch("MapAndBatchDataset", kMapAndBatchArguments, kMapAndBatchAttrs,
                             MapAndBatchDataset, DatasetArgShapes::kElementTensors);
const DatasetOp kMapAndBatchInExperiments("ExperimentalMapAndBatchDataset", kMapAndBatchArguments,
                                          kMapAndBatchAttrs, MapAndBatchDataset,
                                          DatasetArgShapes::kElementTensors);

StatusOr<Dataset> ScanDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(Element state, args.Tensors("initial_state"));
  MR_ASSIGN_OR_RETURN(GraphFunction function, args.Function("f"));
  MR_ASSIGN_OR_RETURN(const bool keeps_count, args.Attr<bool>("preserve_cardinality"));
  const size_t n = state.size();
  ElementSpec takes = SpecOf(state);
  std::vector<DType> returns = TypesOf(takes);
  if (!input.spec().empty()) {
    takes.insert(takes.end(), input.spec().begin(), input.spec().end());
    MR_RETURN_IF_ERROR(function.CheckTakes(takes));
  }
  for (const ComponentSpec& component : args.declared()) returns.push_back(component.dtype);
  MR_RETURN_IF_ERROR(function.CheckReturns(returns));
  return input.Scan(
      std::move(state),
      [function = std::move(function), n, keeps_count](
          CancellationManager* cancellation, Element state,
          Element element) -> StatusOr<std::pair<Element, Element>> {
        for (Tensor& tensor : element) state.push_back(std::move(tensor));
        StatusOr<Element> results = function.Call(cancellation, std::move(state));
        if (keeps_count && absl::IsOutOfRange(results.status())) {
          return InvalidArgument("Function invocation produced OutOfRangeError: ",
                                 results.status().message());
        }
        MR_RETURN_IF_ERROR(results.status());
        Element output;
        for (size_t i = n; i < results->size(); ++i) output.push_back(std::move((*results)[i]));
        results->resize(n);
        return std::pair(*std::move(results), std::move(output));
      },
      args.declared());
}
constexpr char kScanArguments[] =
    "input_dataset: variant, initial_state: Tstate, other_arguments: Targuments";
constexpr char kScanAttrs[] =
    "f: func; Tstate: list(type) >= 1; Targuments: list(type) >= 0; "
    "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
    "preserve_cardinality: bool = false";
const DatasetOp kScan("ScanDataset", kScanArguments, kScanAttrs, ScanDataset,
                      DatasetArgShapes::kElementTensors);
const DatasetOp kScanInExperiments("ExperimentalScanDataset", kScanArguments, kScanAttrs,
                                   ScanDataset, DatasetArgShapes::kElementTensors);

// --- Which elements

StatusOr<Dataset> WithPredicate(const DatasetArgs& args, bool ends) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(GraphFunction function, FunctionOf(args, "predicate", input));
  MR_RETURN_IF_ERROR(function.CheckReturns({DT_BOOL}));
  return input.Filter(
      [function = std::move(function), ends](CancellationManager* cancellation,
                                             const Element& element) -> StatusOr<bool> {
        MR_ASSIGN_OR_RETURN(const Element results, function.Call(cancellation, element));
        MR_ASSIGN_OR_RETURN(const bool keep, ScalarBool(results, "predicate"));
        if (!keep && ends) return absl::OutOfRangeError("the predicate does not hold");
        return keep;
      });
}
constexpr char kPredicateAttrs[] =
    "predicate: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1";
const DatasetOp kFilter(
    "FilterDataset", kOneFunctionArguments, kPredicateAttrs,
    [](const DatasetArgs& args) { return WithPredicate(args, /*ends=*/false); },
    DatasetArgShapes::kElementTensors);

StatusOr<Dataset> TakeWhileDataset(const DatasetArgs& args) {
  return WithPredicate(args, /*ends=*/true);
}
const DatasetOp kTakeWhile("TakeWhileDataset", kOneFunctionArguments, kPredicateAttrs,
                           TakeWhileDataset, DatasetArgShapes::kElementTensors);
const DatasetOp kTakeWhileInExperiments("ExperimentalTakeWhileDataset", kOneFunctionArguments,
                                        kPredicateAttrs, TakeWhileDataset,
                                        DatasetArgShapes::kElementTensors);

// --- Datasets of elements

const DatasetOp kFlatMap(
    "FlatMapDataset", kOneFunctionArguments, kOneFunctionAttrs,
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
      MR_ASSIGN_OR_RETURN(DatasetFunction function, DatasetFunctionOf(args, input));
      return input.FlatMap(std::move(function), args.declared());
    },
    DatasetArgShapes::kElementTensors);

StatusOr<Dataset> Interleaved(const DatasetArgs& args, bool parallel) {
  InterleaveOptions options;
  options.parallel = parallel;
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(options.cycle_length, args.Scalar<int64_t>("cycle_length"));
  MR_ASSIGN_OR_RETURN(options.block_length, args.Scalar<int64_t>("block_length"));
  if (options.cycle_length == kTuned) options.cycle_length = Arena::Default()->num_threads();
  MR_ASSIGN_OR_RETURN(DatasetFunction function, DatasetFunctionOf(args, input));
  return input.Interleave(std::move(function), options, args.declared());
}
const DatasetOp kInterleave(
    "InterleaveDataset",
    "input_dataset: variant, other_arguments: Targuments, cycle_length: int64, "
    "block_length: int64",
    kOneFunctionAttrs, [](const DatasetArgs& args) { return Interleaved(args, false); },
    DatasetArgShapes::kElementTensors);

// In the order of Interleave, also where another would be allowed ("sloppy"). How far is read ahead
// is the engine's matter.
StatusOr<Dataset> ParallelInterleaveDataset(const DatasetArgs& args) {
  return Interleaved(args, true);
}
constexpr char kParallelInterleaveArguments[] =
    "input_dataset: variant, other_arguments: Targuments, cycle_length: int64, "
    "block_length: int64, sloppy: bool, buffer_output_elements: int64, "
    "prefetch_input_elements: int64";
const DatasetOp kParallelInterleave("ParallelInterleaveDataset", kParallelInterleaveArguments,
                                    kOneFunctionAttrs, ParallelInterleaveDataset,
                                    DatasetArgShapes::kElementTensors);
const DatasetOp kParallelInterleaveInExperiments("ExperimentalParallelInterleaveDataset",
                                                 kParallelInterleaveArguments, kOneFunctionAttrs,
                                                 ParallelInterleaveDataset,
                                                 DatasetArgShapes::kElementTensors);
const DatasetOp kParallelInterleaveV2(
    "ParallelInterleaveDatasetV2",
    "input_dataset: variant, other_arguments: Targuments, cycle_length: int64, "
    "block_length: int64, num_parallel_calls: int64",
    "f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1; sloppy: bool = false",
    [](const DatasetArgs& args) -> StatusOr<Dataset> {
      MR_ASSIGN_OR_RETURN(const int64_t calls, args.Scalar<int64_t>("num_parallel_calls"));
      if (calls != kTuned && calls < 1) {
        return InvalidArgument("num_parallel_calls must be >= 1 or -1, got ", calls);
      }
      return Interleaved(args, /*parallel=*/calls != 1);
    },
    DatasetArgShapes::kElementTensors);

StatusOr<Dataset> GroupByWindowDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(GraphFunction key, args.Function("key_func", "key_func_other_arguments"));
  MR_RETURN_IF_ERROR(key.CheckTakes(input.spec()));
  MR_RETURN_IF_ERROR(key.CheckReturns({DT_INT64}));
  MR_ASSIGN_OR_RETURN(GraphFunction size,
                      args.Function("window_size_func", "window_size_func_other_arguments"));
  MR_RETURN_IF_ERROR(size.CheckTakes({{DT_INT64}}));
  MR_RETURN_IF_ERROR(size.CheckReturns({DT_INT64}));
  MR_ASSIGN_OR_RETURN(GraphFunction reduce,
                      args.Function("reduce_func", "reduce_func_other_arguments"));
  MR_RETURN_IF_ERROR(reduce.CheckTakes({{DT_INT64}, {DT_VARIANT}}));
  MR_RETURN_IF_ERROR(reduce.CheckReturns({DT_VARIANT}));
  GroupByWindowFunctions functions;
  functions.key = [key = std::move(key)](CancellationManager* cancellation,
                                         const Element& element) -> StatusOr<int64_t> {
    MR_ASSIGN_OR_RETURN(const Element results, key.Call(cancellation, element));
    return ScalarInt(results, "key_func");
  };
  functions.window_size = [size = std::move(size)](CancellationManager* cancellation,
                                                   int64_t key) -> StatusOr<int64_t> {
    MR_ASSIGN_OR_RETURN(const Element results, size.Call(cancellation, {Tensor::Scalar(key)}));
    return ScalarInt(results, "window_size_func");
  };
  functions.window = [reduce = std::move(reduce)](CancellationManager* cancellation, int64_t key,
                                                  Dataset window) -> StatusOr<Dataset> {
    MR_ASSIGN_OR_RETURN(
        const Element results,
        reduce.Call(cancellation, {Tensor::Scalar(key), DatasetValue(std::move(window))}));
    return DatasetResult(results, "reduce_func");
  };
  return input.GroupByWindow(std::move(functions), args.declared());
}
constexpr char kGroupByWindowArguments[] =
    "input_dataset: variant, key_func_other_arguments: Tkey_func_other_arguments, "
    "reduce_func_other_arguments: Treduce_func_other_arguments, "
    "window_size_func_other_arguments: Twindow_size_func_other_arguments";
constexpr char kGroupByWindowAttrs[] =
    "key_func: func; reduce_func: func; window_size_func: func; "
    "Tkey_func_other_arguments: list(type) >= 0; Treduce_func_other_arguments: list(type) >= 0; "
    "Twindow_size_func_other_arguments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1";
const DatasetOp kGroupByWindow("GroupByWindowDataset", kGroupByWindowArguments, kGroupByWindowAttrs,
                               GroupByWindowDataset, DatasetArgShapes::kElementTensors);
const DatasetOp kGroupByWindowInExperiments("ExperimentalGroupByWindowDataset",
                                            kGroupByWindowArguments, kGroupByWindowAttrs,
                                            GroupByWindowDataset,
                                            DatasetArgShapes::kElementTensors);

StatusOr<Dataset> GroupByReducerDataset(const DatasetArgs& args) {
  MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
  MR_ASSIGN_OR_RETURN(GraphFunction key, args.Function("key_func", "key_func_other_arguments"));
  MR_RETURN_IF_ERROR(key.CheckTakes(input.spec()));
  MR_RETURN_IF_ERROR(key.CheckReturns({DT_INT64}));
  MR_ASSIGN_OR_RETURN(GraphFunction init, args.Function("init_func", "init_func_other_arguments"));
  MR_RETURN_IF_ERROR(init.CheckTakes({{DT_INT64}}));
  MR_ASSIGN_OR_RETURN(GraphFunction reduce,
                      args.Function("reduce_func", "reduce_func_other_arguments"));
  MR_ASSIGN_OR_RETURN(GraphFunction finalize,
                      args.Function("finalize_func", "finalize_func_other_arguments"));
  ElementSpec state;
  for (const DType type : init.result_types()) state.push_back({type});
  MR_RETURN_IF_ERROR(reduce.CheckReturns(init.result_types()));
  MR_RETURN_IF_ERROR(finalize.CheckTakes(state));
  MR_RETURN_IF_ERROR(finalize.CheckReturns(TypesOf(args.declared())));
  if (!input.spec().empty()) {
    state.insert(state.end(), input.spec().begin(), input.spec().end());
    MR_RETURN_IF_ERROR(reduce.CheckTakes(state));
  }
  GroupByReducerFunctions functions;
  functions.key = [key = std::move(key)](CancellationManager* cancellation,
                                         const Element& element) -> StatusOr<int64_t> {
    MR_ASSIGN_OR_RETURN(const Element results, key.Call(cancellation, element));
    return ScalarInt(results, "key_func");
  };
  functions.init = [init = std::move(init)](CancellationManager* cancellation, int64_t key) {
    return init.Call(cancellation, {Tensor::Scalar(key)});
  };
  functions.reduce = [reduce = std::move(reduce)](CancellationManager* cancellation, Element state,
                                                  Element element) {
    for (Tensor& tensor : element) state.push_back(std::move(tensor));
    return reduce.Call(cancellation, std::move(state));
  };
  functions.finalize = [finalize = std::move(finalize)](CancellationManager* cancellation,
                                                        Element state) {
    return finalize.Call(cancellation, std::move(state));
  };
  return GroupByReducer(input, std::move(functions), args.declared());
}
constexpr char kGroupByReducerArguments[] =
    "input_dataset: variant, key_func_other_arguments: Tkey_func_other_arguments, "
    "init_func_other_arguments: Tinit_func_other_arguments, "
    "reduce_func_other_arguments: Treduce_func_other_arguments, "
    "finalize_func_other_arguments: Tfinalize_func_other_arguments";
constexpr char kGroupByReducerAttrs[] =
    "key_func: func; init_func: func; reduce_func: func; finalize_func: func; "
    "Tkey_func_other_arguments: list(type) >= 0; Tinit_func_other_arguments: list(type) >= 0; "
    "Treduce_func_other_arguments: list(type) >= 0; "
    "Tfinalize_func_other_arguments: list(type) >= 0; output_types: list(type) >= 1; "
    "output_shapes: list(shape) >= 1";
const DatasetSourceOp kGroupByReducer("GroupByReducerDataset", kGroupByReducerArguments,
                                      kGroupByReducerAttrs, GroupByReducerDataset,
                                      DatasetArgShapes::kElementTensors);
const DatasetSourceOp kGroupByReducerInExperiments("ExperimentalGroupByReducerDataset",
                                                   kGroupByReducerArguments, kGroupByReducerAttrs,
                                                   GroupByReducerDataset,
                                                   DatasetArgShapes::kElementTensors);

// --- Whole datasets in one step

// An iterator that one kernel reads in one step; cancelled with it.
class StepIterator {
 public:
  static StatusOr<std::unique_ptr<StepIterator>> Make(const Dataset& dataset,
                                                      CancellationManager* cancellation) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Iterator> iterator, dataset.MakeIterator());
    std::unique_ptr<StepIterator> made(new StepIterator(std::move(iterator), cancellation));
    if (cancellation != nullptr &&
        !cancellation->Register(&made->token_, [it = made->iterator_.get()] { it->Cancel(); })) {
      made->cancellation_ = nullptr;
      return absl::CancelledError("Step was cancelled.");
    }
    return made;
  }
  ~StepIterator() {
    if (cancellation_ != nullptr) cancellation_->Deregister(token_);
  }
  StatusOr<bool> Next(Element* element) { return iterator_->Next(element); }

 private:
  StepIterator(std::unique_ptr<Iterator> iterator, CancellationManager* cancellation)
      : iterator_(std::move(iterator)), cancellation_(cancellation) {}

  const std::unique_ptr<Iterator> iterator_;
  CancellationManager* cancellation_;
  CancellationManager::Token token_ = 0;
};

// Reads files and calls functions: on the I/O pool.
class WholeDatasetKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override { return info_.Init(c); }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    ctx->io_pool()->Schedule([this, ctx, done = std::move(done)]() mutable {
      done(NoExceptions("Dataset", [&] { return Work(ctx); }));
    });
  }

 protected:
  virtual StatusOr<Element> Result(KernelContext* ctx, const DatasetArgs& args) const = 0;

 private:
  Status Work(KernelContext* ctx) const {
    MR_ASSIGN_OR_RETURN(Element result, Result(ctx, DatasetArgs(ctx, &info_)));
    MR_RETURN_IF_ERROR(CheckElement("output_types and output_shapes", info_.declared(), result));
    for (size_t i = 0; i < result.size(); ++i) {
      ctx->set_output(static_cast<int>(i), std::move(result[i]));
    }
    return absl::OkStatus();
  }

  DatasetNodeInfo info_;
};

Status DeclaredShapes(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const auto shapes, c->GetAttr<std::vector<PartialShape>>("output_shapes"));
  if (static_cast<int>(shapes.size()) != c->num_outputs()) {
    return InvalidArgument("output_shapes must have one shape for each of the ", c->num_outputs(),
                           " types, got ", shapes.size());
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shapes[static_cast<size_t>(i)]);
  return c->InputWithRank(0, 0).status();
}

class ReduceKernel final : public WholeDatasetKernel {
 protected:
  StatusOr<Element> Result(KernelContext* ctx, const DatasetArgs& args) const override {
    MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
    MR_ASSIGN_OR_RETURN(Element state, args.Tensors("initial_state"));
    MR_ASSIGN_OR_RETURN(const GraphFunction function, args.Function("f"));
    const ElementSpec states = SpecOf(state);
    MR_RETURN_IF_ERROR(function.CheckReturns(TypesOf(states)));
    MR_ASSIGN_OR_RETURN(const auto iterator, StepIterator::Make(input, ctx->cancellation()));
    for (Element element;;) {
      MR_ASSIGN_OR_RETURN(const bool more, iterator->Next(&element));
      if (!more) return state;
      for (Tensor& tensor : element) state.push_back(std::move(tensor));
      MR_ASSIGN_OR_RETURN(state, function.Call(ctx->cancellation(), std::move(state)));
    }
  }
};

const OpRegistration kReduce =
    OpSpec("ReduceDataset",
           "input_dataset: variant, initial_state: Tstate, other_arguments: Targuments -> "
           "components: output_types",
           "f: func; Tstate: list(type) >= 1; Targuments: list(type) >= 0; "
           "output_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
           "use_inter_op_parallelism: bool = true")
        .Stateful()
        .Shape(DeclaredShapes)
        .NotDifferentiable()
        .With(KernelFor<ReduceKernel>());

class SingleElementKernel final : public WholeDatasetKernel {
 protected:
  StatusOr<Element> Result(KernelContext* ctx, const DatasetArgs& args) const override {
    MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
    MR_ASSIGN_OR_RETURN(const auto iterator, StepIterator::Make(input, ctx->cancellation()));
    Element element, second;
    MR_ASSIGN_OR_RETURN(const bool has_one, iterator->Next(&element));
    if (!has_one) return absl::InvalidArgumentError("Dataset was empty.");
    MR_ASSIGN_OR_RETURN(const bool has_two, iterator->Next(&second));
    if (has_two) return absl::InvalidArgumentError("Dataset had more than one element.");
    return element;
  }
};

const OpRegistration kSingleElement =
    OpSpec("DatasetToSingleElement", "dataset: variant -> components: output_types",
           "output_types: list(type) >= 1; output_shapes: list(shape) >= 1")
        .Stateful()
        .Shape(DeclaredShapes)
        .NotDifferentiable()
        .With(KernelFor<SingleElementKernel>());

}  // namespace
}  // namespace millrace::data
