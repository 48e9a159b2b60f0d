// SPDX-License-Identifier: Apache-2.0
// "built at file:line" is a line of the program, whatever builds: layers, losses, optimizers,
// estimators and savers hand the line of their caller on to all nodes that they add.

#include <map>
#include <memory>
#include <set>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/small_tensors.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "data/parse_features.h"
#include "estimator/canned/canned.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/sequence_input_layer.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/estimator.h"
#include "estimator/heads/heads.h"
#include "graph/function_builder.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "saver/saver.h"
#include "saver/table_saveable.h"
#include "train/hooks/monitored_training_session.h"
#include "train/input_queues.h"
#include "train/metrics.h"
#include "train/monitored_session.h"
#include "train/optimizer.h"
#include "train/optimizers.h"
#include "train/queue_runner.h"
#include "train/session_creator.h"
#include "train/session_manager.h"
#include "train/session_run_hook.h"
#include "train/summaries.h"
#include "train/supervisor.h"
#include "train/train.h"

// covers: accidents: "built at" names the program's line through every public composite (layers,
//   losses, metrics, optimizers, gradients, columns, heads, savers, summaries, sessions,
//   estimators); a composite without a row of the table fails the test
// covers: accidents: functions that a program gives to a composite have their own lines

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

// --- What the calls are made of: all at the line of their caller ---------------------------------

Output F(ScopeAt at, const PartialShape& shape = PartialShape({4, 3})) {
  return Placeholder(at, DT_FLOAT, shape);
}
Output I(ScopeAt at, const PartialShape& shape = PartialShape({4})) {
  return Placeholder(at, DT_INT32, shape);
}
Output Flags(ScopeAt at) { return Placeholder(at, DT_BOOL, PartialShape({4})); }
Output Flag(ScopeAt at) { return Placeholder(at, DT_BOOL, PartialShape::Scalar()); }
Output Texts(ScopeAt at, const PartialShape& shape = PartialShape({4})) {
  return Placeholder(at, DT_STRING, shape);
}
Output Number(ScopeAt at) { return F(at, PartialShape::Scalar()); }

Tensor Words() { return Tensor::Of({"a", "b"}); }

Variable W(ScopeAt at) { return MakeVariable(at, Shape{4, 3}, DT_FLOAT, ZerosInitializer()); }
PartitionedVariable Parts(ScopeAt at) {
  return MakePartitionedVariable(at, Shape{4, 3}, DT_FLOAT, 2, ZerosInitializer());
}
SparseTensor Sparse(ScopeAt at, DType dtype) {
  return {Placeholder(at, DT_INT64, PartialShape({-1, 2})),
          Placeholder(at, dtype, PartialShape({-1})), Placeholder(at, DT_INT64, PartialShape({2}))};
}

// Of a variable that is read whole and of one whose rows are looked up.
Output DenseAndSparseLoss(ScopeAt at) {
  const Output rows = EmbeddingLookup(at, {W(at)}, I(at));
  return ReduceSum(at, Mul(at, W(at).value, rows));
}
std::vector<GradientAndVariable> Gradients(ScopeAt at) {
  return GradientDescentOptimizer({.learning_rate = 0.1})
      .ComputeGradients(at, DenseAndSparseLoss(at));
}

void MinimizeWith(ScopeAt at, Optimizer&& optimizer) {
  optimizer.Minimize(at, DenseAndSparseLoss(at), {.global_step = GlobalStep(at)});
}

// The state of a loop that reads what is outside of it and has a branch.
Output LoopOver(ScopeAt at, const Output& x) {
  const std::source_location line = at.where;
  return WhileLoop(
      at, {Const(at, 0), x},
      [line](const Scope& c, const Outputs& v) {
        return Less({c, line}, v[0], Const({c, line}, 3));
      },
      [line, x](const Scope& given, const Outputs& v) -> Outputs {
        const Scope b = given.BuiltAt(line);
        const Output next = Cond(
            b, Equal(b, v[0], Const(b, 1)),
            [&](const Scope& then) { return Mul(then.BuiltAt(line), v[1], x); },
            [&](const Scope&) { return v[1]; });
        return {Add(b, v[0], Const(b, 1)), next};
      },
      {.maximum_iterations = Const(at, 5)})[1];
}

Features SomeFeatures(ScopeAt at) {
  return Features(Features::Map{{"age", F(at, {-1, 1})}, {"city", Texts(at, {-1, 1})}});
}
std::vector<DenseColumn> SomeColumns() {
  const NumericColumn age("age");
  const CategoricalColumn city = CategoricalColumnWithHashBucket("city", 10);
  return {age, BucketizedColumn(age, {1.f, 2.f}), EmbeddingColumn(city, 3), IndicatorColumn(city)};
}

// What the head makes in each mode.
void Specs(ScopeAt at, const HeadPtr& head, const Labels& labels) {
  const Features features;
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kPredict}) {
    const Variable w =
        MakeVariable(at, Shape{3, head->logits_dimension()}, DT_FLOAT, ZerosInitializer());
    GradientDescentOptimizer optimizer({.learning_rate = 0.1});
    head->CreateEstimatorSpec(at, {.features = features,
                                   .mode = mode,
                                   .logits = MatMul(at, F(at, {-1, 3}), w.value),
                                   .labels = labels,
                                   .optimizer = mode == Mode::kTrain ? &optimizer : nullptr});
  }
}

std::string NewDirectory(const std::string& name) {
  const std::string directory = JoinPath(::testing::TempDir(), absl::StrCat("built_at_", name));
  if (FileSystem::Posix()->FileExists(directory)) {
    EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(directory));
  }
  return directory;
}

// --- Every public composite ----------------------------------------------------------------------

struct Composite {
  const char* name;
  std::source_location line;  // of all that `build` does
  void (*build)(const Scope& s);
};

// A call of the function or method `name`, all of it at one line.
#define MR_COMPOSITE(name, ...)                                                 \
  {                                                                             \
    #name, std::source_location::current(), [](const Scope& s) { __VA_ARGS__; } \
  }

std::vector<Composite> Layers() {
  return {
    MR_COMPOSITE(CondAll, const Output x = F(s); CondAll(
                     s, Flag(s), [&](const Scope& b) -> Outputs { return {Neg(b, x)}; },
                     [&](const Scope&) -> Outputs { return {x}; })),
        MR_COMPOSITE(Cond, const Output x = F(s); Cond(
                         s, Flag(s), [&](const Scope& b) { return Neg(b, x); },
                         [&](const Scope& b) { return F(b); })),
        MR_COMPOSITE(
            Case, const Output x = F(s);
            const auto neg = [&](const Scope& b) -> Outputs { return {Neg(b, x)}; };
            Case(s, {{Flag(s), neg}, {Flag(s), neg}}, neg, {.exclusive = true})),
        MR_COMPOSITE(WhileLoop, LoopOver(s, F(s))),
        MR_COMPOSITE(MapFn,
                     MapFn(s, F(s), [](const Scope& b, const Output& row) { return Neg(b, row); })),
        MR_COMPOSITE(Scan,
                     Scan(s, {F(s)}, {F(s, {3})},
                          [](const Scope& b, const Outputs& so_far, const Outputs& row) -> Outputs {
                            return {Add(b, so_far[0], row[0])};
                          })),
        MR_COMPOSITE(
            FoldL, FoldL(s, {F(s)}, {F(s, {3})},
                         [](const Scope& b, const Outputs& so_far, const Outputs& row) -> Outputs {
                           return {Add(b, so_far[0], row[0])};
                         })),
        MR_COMPOSITE(
            FoldR, FoldR(s, {F(s)}, {F(s, {3})},
                         [](const Scope& b, const Outputs& so_far, const Outputs& row) -> Outputs {
                           return {Add(b, so_far[0], row[0])};
                         })),
        MR_COMPOSITE(Conv2D, Conv2D(s, F(s, {1, 8, 8, 3}), 4, 3,
                                    {.activation = Relu, .kernel_regularizer = L2(0.1)})),
        MR_COMPOSITE(Conv1D, Conv1D(s, F(s, {1, 8, 3}), 4, 3, {.activation = Tanh})),
        MR_COMPOSITE(Conv2DTranspose, Conv2DTranspose(s, F(s, {1, 8, 8, 3}), 4, 3)),
        MR_COMPOSITE(Dense, Dense(s, F(s, {-1, -1, 3}), 4,
                                  {.activation = Relu,
                                   .kernel_regularizer = L1L2(0.1, 0.2),
                                   .partitioner = FixedSizePartitioner(2)})),
        MR_COMPOSITE(Dense, Dense(s, F(s), 4,
                                  {.kernel_initializer = OrthogonalInitializer(),
                                   .bias_initializer = ConstantInitializer(1),
                                   .kernel_regularizer = L1(0.1)})),
        MR_COMPOSITE(Flatten, Flatten(s, F(s, {-1, -1, 3}))),
        MR_COMPOSITE(Dropout, Dropout(s, F(s), 0.5); Dropout(s, F(s), Number(s))),
        MR_COMPOSITE(DropoutByKeepProb, DropoutByKeepProb(s, F(s), 0.5);
                     DropoutByKeepProb(s, F(s), Number(s))),
        MR_COMPOSITE(EmbeddingLookup, EmbeddingLookup(s, Parts(s), I(s))),
        MR_COMPOSITE(EmbeddingLookupSparse,
                     EmbeddingLookupSparse(s, Parts(s), Sparse(s, DT_INT64), Sparse(s, DT_FLOAT),
                                           {.max_norm = 1.0})),
        MR_COMPOSITE(EmbeddingLookupSparse,
                     EmbeddingLookupSparse(s, Parts(s), IdLists{.ids = I(s), .rows = I(s)})),
        MR_COMPOSITE(SafeEmbeddingLookupSparse,
                     SafeEmbeddingLookupSparse(s, Parts(s), Sparse(s, DT_INT64))),
        MR_COMPOSITE(Embedding, Embedding(s, I(s), 10, 4, {.regularizer = L2(0.1)})),
        MR_COMPOSITE(Linear, Linear(s, {.ids = I(s), .rows = I(s)}, 10)),
        MR_COMPOSITE(InitializedValue, InitializedValue(s, W(s))),
        MR_COMPOSITE(FromInitialValues, FromInitialValues(s, "v", Neg(s, W(s).value))),
        MR_COMPOSITE(StaticTable, StaticTable(s, Words(), Tensor::Of<int64_t>({1, 2}),
                                              Tensor::Scalar<int64_t>(-1));
                     TablesInitializer(s)),
        MR_COMPOSITE(Lookup,
                     Lookup(s, IndexTableFromTensor(s, Words(), {.num_oov_buckets = 2}), Texts(s))),
        MR_COMPOSITE(IndexTableFromTensor, IndexTableFromTensor(s, Words())),
        MR_COMPOSITE(IndexTableFromFile, IndexTableFromFile(s, "words.txt", {.vocab_size = 3})),
        MR_COMPOSITE(TableSize,
                     TableSize(s, IndexTableFromFile(s, "words.txt", {.num_oov_buckets = 2}))),
        MR_COMPOSITE(IndexToStringTableFromTensor, IndexToStringTableFromTensor(s, Words())),
        MR_COMPOSITE(IndexToStringTableFromFile, IndexToStringTableFromFile(s, "words.txt")),
        MR_COMPOSITE(MutableTable, MutableTable(s, DT_STRING, Tensor::Scalar<int64_t>(0))),
        MR_COMPOSITE(TablesInitializer, IndexTableFromTensor(s, Words()); TablesInitializer(s)),
        MR_COMPOSITE(BatchNormalization, BatchNormalization(s, F(s, {4, 8, 8, 3}), true)),
        MR_COMPOSITE(BatchNormalization, BatchNormalization(s, F(s), Flag(s))),
        MR_COMPOSITE(UpdateOps, BatchNormalization(s, F(s), true); UpdateOps(s)),
        MR_COMPOSITE(TrainWithUpdates, BatchNormalization(s, F(s), true);
                     TrainWithUpdates(s, NoOp(s))),
        MR_COMPOSITE(LayerNormalization, LayerNormalization(s, F(s))),
        MR_COMPOSITE(Gelu, Gelu(s, F(s))), MR_COMPOSITE(Gelu, Gelu(s, F(s), {.approximate = true})),
        MR_COMPOSITE(MakeVariableInParts,
                     MakeVariableInParts(s, Shape{4, 3}, DT_FLOAT, FixedSizePartitioner(2),
                                         TruncatedNormalInitializer())),
        MR_COMPOSITE(WholeValue, WholeValue(s, Parts(s))),
        MR_COMPOSITE(MaxPooling2D, MaxPooling2D(s, F(s, {1, 8, 8, 3}), 2)),
        MR_COMPOSITE(AveragePooling2D, AveragePooling2D(s, F(s, {1, 8, 8, 3}), 2)),
        MR_COMPOSITE(GlobalAveragePooling2D, GlobalAveragePooling2D(s, F(s, {1, 8, 8, 3}))),
        MR_COMPOSITE(GlobalMaxPooling2D, GlobalMaxPooling2D(s, F(s, {1, 8, 8, 3}))),
        MR_COMPOSITE(AddRegularizationLoss, AddRegularizationLoss(s, L1L2(0.1, 0.2), F(s))),
        MR_COMPOSITE(DynamicRnn,
                     DynamicRnn(s, LSTMCell(4), F(s, {2, 5, 3}), {.sequence_length = I(s, {2})})),
        MR_COMPOSITE(DynamicRnn, DynamicRnn(s, GRUCell(4, {.activation = Relu}), F(s, {2, -1, 3}))),
        MR_COMPOSITE(DynamicRnn, DynamicRnn(s, FusedLSTMCell(4), F(s, {2, 5, 3}),
                                            {.sequence_length = I(s, {2}), .in_one_op = false})),
        MR_COMPOSITE(DynamicRnn, DynamicRnn(s, FusedGRUCell(4), F(s, {2, 5, 3}))),
        MR_COMPOSITE(StaticRnn, StaticRnn(s, BasicRNNCell(4), {F(s, {2, 3}), F(s, {2, 3})},
                                          {.sequence_length = I(s, {2})})),
        MR_COMPOSITE(BidirectionalDynamicRnn,
                     BidirectionalDynamicRnn(s, GRUCell(4), BasicLSTMCell(4), F(s, {2, 5, 3}))),
        MR_COMPOSITE(Build,
                     MultiRNNCell({std::make_shared<ResidualWrapper>(std::make_shared<GRUCell>(3)),
                                   std::make_shared<DropoutWrapper>(
                                       std::make_shared<LSTMCell>(
                                           4, LSTMCellAttrs{.use_peepholes = true, .num_proj = 2}),
                                       DropoutWrapperAttrs{.output_keep_prob = 0.5})})
                         .Build(s, 3, DT_FLOAT)),
        MR_COMPOSITE(ZeroState, ZeroState(s, LSTMCell(4), int64_t{2}, DT_FLOAT)),
        MR_COMPOSITE(TensorArray, TensorArray(s, DT_FLOAT, Const(s, 3))),
        MR_COMPOSITE(OfRows, TensorArray::OfRows(s, F(s, {-1, 3}))),
        MR_COMPOSITE(Read, TensorArray::OfRows(s, F(s)).Read(s, Const(s, 0))),
        MR_COMPOSITE(Write, TensorArray(s, DT_FLOAT, Const(s, 3)).Write(s, Const(s, 0), F(s))),
        MR_COMPOSITE(Stack, TensorArray::OfRows(s, F(s)).Stack(s)),
        MR_COMPOSITE(Gather, TensorArray::OfRows(s, F(s)).Gather(s, I(s))),
        MR_COMPOSITE(Unstack, TensorArray(s, DT_FLOAT, Const(s, 4)).Unstack(s, F(s, {-1, 3}))),
        MR_COMPOSITE(Scatter, TensorArray(s, DT_FLOAT, Const(s, 4)).Scatter(s, I(s), F(s))),
        MR_COMPOSITE(Concat, TensorArray::OfRows(s, F(s, {2, 4, 3})).Concat(s)),
        MR_COMPOSITE(
            Split,
            TensorArray(s, DT_FLOAT, Const(s, 2)).Split(s, F(s), Placeholder(s, DT_INT64, {2}))),
        MR_COMPOSITE(Size, TensorArray(s, DT_FLOAT, Const(s, 2)).Size(s)),
        MR_COMPOSITE(Close, TensorArray(s, DT_FLOAT, Const(s, 2)).Close(s)),
        MR_COMPOSITE(MakeVariable, MakeVariable(s, Const(s, 1.0f)); W(s);
                     MakeVariable(s, Const(s, 1.0f), {.use_resource = false});
                     MakeVariable(s, Const(s, 1.0f), {.trainable = false, .local = true})),
        MR_COMPOSITE(AdoptVariable, AdoptVariable(s, VarHandleOp(s, DT_FLOAT, Shape{2}))),
        MR_COMPOSITE(MakePartitionedVariable, Parts(s)),
        MR_COMPOSITE(GlobalVariablesInitializer, W(s); GlobalVariablesInitializer(s)),
        MR_COMPOSITE(LocalVariablesInitializer,
                     MakeVariable(s, Const(s, 1.0f), {.trainable = false, .local = true});
                     LocalVariablesInitializer(s)),
        MR_COMPOSITE(IsInitialized, IsInitialized(s, W(s))),
        MR_COMPOSITE(ReportUninitializedVariables, ReportUninitializedVariables(s, {W(s), W(s)})),
        MR_COMPOSITE(GlobalStep, GlobalStep(s)), MR_COMPOSITE(ReadVariable, ReadVariable(s, W(s))),
        MR_COMPOSITE(AssignVariable, AssignVariable(s, W(s), F(s))),
        MR_COMPOSITE(AssignAddVariable, AssignAddVariable(s, W(s), F(s))),
        MR_COMPOSITE(AssignSubVariable, AssignSubVariable(s, W(s), F(s))),
        MR_COMPOSITE(ScatterAddVariable, ScatterAddVariable(s, W(s), I(s), F(s))),
        MR_COMPOSITE(ScatterSubVariable, ScatterSubVariable(s, W(s), I(s), F(s))),
        MR_COMPOSITE(ScatterUpdateVariable, ScatterUpdateVariable(s, W(s), I(s), F(s))),
  };
}

std::vector<Composite> LossesAndMetrics() {
  return {
    MR_COMPOSITE(MeanSquaredError,
                 MeanSquaredError(s, F(s), F(s, PartialShape()), {.weights = F(s, {-1, 1})})),
        MR_COMPOSITE(AbsoluteDifference, AbsoluteDifference(s, F(s), F(s), {.weights = 0.5})),
        MR_COMPOSITE(HuberLoss, HuberLoss(s, F(s), F(s))),
        MR_COMPOSITE(LogLoss, LogLoss(s, F(s), F(s))),
        MR_COMPOSITE(HingeLoss, HingeLoss(s, F(s), F(s))),
        MR_COMPOSITE(CosineDistance, CosineDistance(s, F(s), F(s), 1)),
        MR_COMPOSITE(SigmoidCrossEntropy,
                     SigmoidCrossEntropy(s, F(s), F(s), {.label_smoothing = 0.1})),
        MR_COMPOSITE(SoftmaxCrossEntropy,
                     SoftmaxCrossEntropy(s, F(s), F(s), {.label_smoothing = 0.1})),
        MR_COMPOSITE(SparseSoftmaxCrossEntropy, SparseSoftmaxCrossEntropy(s, I(s), F(s))),
        MR_COMPOSITE(MeanPairwiseSquaredError, MeanPairwiseSquaredError(s, F(s), F(s))),
        MR_COMPOSITE(ComputeWeightedLoss,
                     ComputeWeightedLoss(s, F(s), {.reduction = LossReduction::kMean})),
        MR_COMPOSITE(SigmoidCrossEntropyWithLogits, SigmoidCrossEntropyWithLogits(s, F(s), F(s))),
        MR_COMPOSITE(LogPoissonLoss, LogPoissonLoss(s, F(s), F(s), true)),
        MR_COMPOSITE(LossesOf, MeanSquaredError(s, F(s), F(s)); LossesOf(s)),
        MR_COMPOSITE(RegularizationLoss, AddRegularizationLoss(s, L2(0.1), F(s));
                     RegularizationLoss(s)),
        MR_COMPOSITE(TotalLoss, AddRegularizationLoss(s, L2(0.1), F(s));
                     MeanSquaredError(s, F(s), F(s)); TotalLoss(s)),
        MR_COMPOSITE(Mean, metrics::Mean(s, F(s), {.weights = F(s, {4, 1})})),
        MR_COMPOSITE(Accuracy, metrics::Accuracy(s, I(s), I(s))),
        MR_COMPOSITE(MeanSquaredError, metrics::MeanSquaredError(s, F(s), F(s))),
        MR_COMPOSITE(RootMeanSquaredError, metrics::RootMeanSquaredError(s, F(s), F(s))),
        MR_COMPOSITE(MeanAbsoluteError, metrics::MeanAbsoluteError(s, F(s), F(s))),
        MR_COMPOSITE(TruePositives, metrics::TruePositives(s, Flags(s), Flags(s))),
        MR_COMPOSITE(TrueNegatives, metrics::TrueNegatives(s, Flags(s), Flags(s))),
        MR_COMPOSITE(FalsePositives, metrics::FalsePositives(s, Flags(s), Flags(s))),
        MR_COMPOSITE(FalseNegatives, metrics::FalseNegatives(s, Flags(s), Flags(s))),
        MR_COMPOSITE(Precision, metrics::Precision(s, Flags(s), Flags(s))),
        MR_COMPOSITE(Recall, metrics::Recall(s, Flags(s), Flags(s))),
        MR_COMPOSITE(TruePositivesAtThresholds,
                     metrics::TruePositivesAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(TrueNegativesAtThresholds,
                     metrics::TrueNegativesAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(FalsePositivesAtThresholds,
                     metrics::FalsePositivesAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(FalseNegativesAtThresholds,
                     metrics::FalseNegativesAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(PrecisionAtThresholds,
                     metrics::PrecisionAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(RecallAtThresholds,
                     metrics::RecallAtThresholds(s, Flags(s), F(s, {4}), {0.5f})),
        MR_COMPOSITE(Auc, metrics::Auc(s, Flags(s), F(s, {4}))),
        MR_COMPOSITE(AddScalarSummary, AddScalarSummary(s, "a", Number(s), {.family = "b"})),
        MR_COMPOSITE(AddHistogramSummary, AddHistogramSummary(s, "a", F(s))),
        MR_COMPOSITE(AddImageSummary, AddImageSummary(s, "a", F(s, {1, 4, 4, 3}))),
        MR_COMPOSITE(AddTextSummary, AddTextSummary(s, "a", Texts(s))),
        MR_COMPOSITE(MergeAllSummaries, AddScalarSummary(s, "a", Number(s)); MergeAllSummaries(s)),
  };
}

std::vector<Composite> Training() {
  return {
    MR_COMPOSITE(AddGradients, const Output x = F(s); const Output y = LoopOver(s, x);
                 EXPECT_OK(AddGradients(s, {y}, {x}).status())),
        MR_COMPOSITE(AddGradients, const Output x = F(s, PartialShape());
                     const Output y = ReduceMean(
                         s, Relu(s, Conv2D(s, x, F(s, {3, 3, 3, 2}), {.padding = "SAME"})));
                     EXPECT_OK(AddGradients(s, {y}, {x}, {.colocate_with_ops = true}).status())),
        MR_COMPOSITE(DenseGradient, DenseGradient(s, Gradients(s)[0].gradient);
                     DenseGradient(s, Gradients(s)[1].gradient)),
        MR_COMPOSITE(Call, const DefinedFunction f =
                               DefineFunction(s, "f", {DT_FLOAT},
                                              [](const Scope& b, const Outputs& x) -> Outputs {
                                                return {Mul(b, x[0], x[0])};
                                              });
                     const Output x = F(s); const Output y = Call(s, f, {x})[0];
                     EXPECT_OK(AddGradients(s, {y}, {x}).status())),
        MR_COMPOSITE(CallOperation,
                     const DefinedFunction f = DefineFunction(
                         s, "f", {DT_FLOAT}, [](const Scope&, const Outputs& x) { return x; });
                     CallOperation(s, f, {F(s)})),
        MR_COMPOSITE(
            DefineFunction, const Output x = F(s); DefineFunction(
                s, "f", {DT_FLOAT},
                [&](const Scope& b, const Outputs& y) -> Outputs { return {Add(b, x, y[0])}; })),
        MR_COMPOSITE(GlobalNorm, GlobalNorm(s, Gradients(s))),
        MR_COMPOSITE(ClipByGlobalNorm, ClipByGlobalNorm(s, Gradients(s), 1.0)),
        MR_COMPOSITE(ClipByNorm, ClipByNorm(s, Gradients(s), 1.0); ClipByNorm(s, F(s), 1.0)),
        MR_COMPOSITE(ClipByAverageNorm, ClipByAverageNorm(s, Gradients(s), 1.0);
                     ClipByAverageNorm(s, F(s), 1.0)),
        MR_COMPOSITE(ClipByValue, ClipByValue(s, Gradients(s), -1.0, 1.0)),
        MR_COMPOSITE(InputProducer, InputProducer(s, F(s), {.num_epochs = 2})),
        MR_COMPOSITE(StringInputProducer, StringInputProducer(s, {"a", "b", "c"})),
        MR_COMPOSITE(Batch, Batch(s, {F(s, {3})}, 2, {.dynamic_pad = true})),
        MR_COMPOSITE(ShuffleBatch,
                     ShuffleBatch(s, {F(s, {3})}, 2, {.capacity = 10, .min_after_dequeue = 4})),
        MR_COMPOSITE(ExponentialDecay,
                     ExponentialDecay(s, 0.1, GlobalStep(s).value,
                                      {.decay_steps = 10, .decay_rate = 0.5, .staircase = true})),
        MR_COMPOSITE(NaturalExpDecay, NaturalExpDecay(s, 0.1, GlobalStep(s).value,
                                                      {.decay_steps = 10, .decay_rate = 0.5})),
        MR_COMPOSITE(InverseTimeDecay, InverseTimeDecay(s, 0.1, GlobalStep(s).value,
                                                        {.decay_steps = 10, .decay_rate = 0.5})),
        MR_COMPOSITE(PiecewiseConstant,
                     PiecewiseConstant(s, GlobalStep(s).value, {10, 20}, {0.1, 0.2, 0.3})),
        MR_COMPOSITE(PolynomialDecay, PolynomialDecay(s, Number(s), GlobalStep(s).value,
                                                      {.decay_steps = 10, .cycle = true})),
        MR_COMPOSITE(CosineDecay, CosineDecay(s, 0.1, GlobalStep(s).value, {.decay_steps = 10})),
        MR_COMPOSITE(CosineDecayRestarts,
                     CosineDecayRestarts(s, 0.1, GlobalStep(s).value, {.first_decay_steps = 10})),
        MR_COMPOSITE(LinearCosineDecay,
                     LinearCosineDecay(s, 0.1, GlobalStep(s).value, {.decay_steps = 10})),
        MR_COMPOSITE(LinearWarmup, LinearWarmup(s, 0.1, GlobalStep(s).value, {.warmup_steps = 10})),
        MR_COMPOSITE(Apply,
                     ExponentialMovingAverage({.decay = 0.9, .num_updates = GlobalStep(s).value})
                         .Apply(s, {W(s), W(s)})),
        MR_COMPOSITE(Minimize, MinimizeWith(s, AdadeltaOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, AdagradOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, AdamOptimizer({.learning_rate = Number(s)}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, FtrlOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, GradientDescentOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, MomentumOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize,
                     MinimizeWith(s, ProximalGradientDescentOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, ProximalAdagradOptimizer({.learning_rate = 0.1}))),
        MR_COMPOSITE(Minimize, MinimizeWith(s, RMSPropOptimizer({.centered = true}))),
        MR_COMPOSITE(Minimize, AdamOptimizer(AdamOptions{})
                                   .Minimize(s, DenseAndSparseLoss(s),
                                             {.clip = ClipByGlobalNorm(1.0),
                                              .gate_gradients = GateGradients::kOp})),
        MR_COMPOSITE(ComputeGradients,
                     AdamOptimizer(AdamOptions{})
                         .ComputeGradients(s, DenseAndSparseLoss(s),
                                           {.gate_gradients = GateGradients::kGraph})),
        MR_COMPOSITE(ApplyGradients, AdamOptimizer(AdamOptions{}).ApplyGradients(s, Gradients(s))),
        MR_COMPOSITE(StepAfter, StepAfter(s, NoOp(s), GlobalStep(s))),
        MR_COMPOSITE(AddQueueRunner, AddQueueRunner(s, FIFOQueueV2(s, {DT_FLOAT}), {NoOp(s)})),
        MR_COMPOSITE(Make, W(s); Parts(s); MutableTable(s, DT_STRING, Tensor::Scalar<int64_t>(0));
                     EXPECT_OK(Saver::Make(s, {.sharded = true}).status())),
        MR_COMPOSITE(Make, W(s); EXPECT_OK(Saver::Make(s, {.reshape = true}).status())),
        MR_COMPOSITE(Make, W(s); MakeVariable(s, F(s), {.use_resource = false});
                     auto saver = Saver::Make(s, {.defer_build = true}); ASSERT_OK(saver.status());
                     EXPECT_OK((*saver)->Build())),
        MR_COMPOSITE(MakeTableSaveable,
                     EXPECT_OK(MakeTableSaveable(
                                   s, MutableTable(s, DT_STRING, Tensor::Scalar<int64_t>(0)).handle)
                                   .status())),
        MR_COMPOSITE(TableSaveablesOf, MutableTable(s, DT_STRING, Tensor::Scalar<int64_t>(0));
                     EXPECT_OK(TableSaveablesOf(s).status())),
        MR_COMPOSITE(SessionManager, W(s); GlobalStep(s);
                     MakeVariable(s, Const(s, 1.0f), {.trainable = false, .local = true});
                     IndexTableFromTensor(s, Words()); SessionManager manager(s, {});
                     EXPECT_OK(manager.status())),
        MR_COMPOSITE(Supervisor, W(s); GlobalStep(s); Supervisor supervisor(s, {});
                     EXPECT_OK(supervisor.status())),
        MR_COMPOSITE(Train, EXPECT_OK(Train(s, AssignVariable(s, W(s), ZerosLike(s, W(s).value)),
                                            {.steps = 1})
                                          .status())),
        MR_COMPOSITE(
            Open, W(s);
            EXPECT_OK(MonitoredSession::Open(
                          s, std::make_unique<ChiefSessionCreator>(s, SessionCreatorOptions{}), {})
                          .status())),
        MR_COMPOSITE(SingularMonitoredSession, W(s);
                     EXPECT_OK(SingularMonitoredSession(s, {}).status())),
        MR_COMPOSITE(
            MonitoredTrainingSession, W(s); GlobalStep(s); AddScalarSummary(s, "a", Const(s, 1.0f));
            EXPECT_OK(
                MonitoredTrainingSession(s, {.checkpoint_dir = NewDirectory("session")}).status())),
  };
}

std::vector<Composite> ColumnsHeadsAndData() {
  return {
      MR_COMPOSITE(InputLayer, InputLayer(s, SomeFeatures(s), SomeColumns())),
      MR_COMPOSITE(InputLayer, InputLayer(s, SomeFeatures(s), SomeColumns(),
                                          {.lowering = ColumnLowering::kFused})),
      MR_COMPOSITE(LinearModel,
                   LinearModel(s, SomeFeatures(s),
                               {NumericColumn("age"), CategoricalColumnWithHashBucket("city", 9)})),
      MR_COMPOSITE(LinearModel,
                   LinearModel(s, SomeFeatures(s),
                               {NumericColumn("age"), CategoricalColumnWithHashBucket("city", 9)},
                               {.lowering = ColumnLowering::kFused})),
      MR_COMPOSITE(MakeSharedIds, MakeSharedIds(s, SomeFeatures(s), SomeColumns(), {})),
      MR_COMPOSITE(SequenceInputLayer,
                   SequenceInputLayer(
                       s, Features(Features::Map(), {{"city", Sparse(s, DT_STRING)}}),
                       {EmbeddingColumn(SequenceCategoricalColumnWithHashBucket("city", 9), 3)})),
      MR_COMPOSITE(CreateEstimatorSpec, Specs(s, BinaryHead({.thresholds = {0.5}}), F(s, {-1, 1}))),
      MR_COMPOSITE(CreateEstimatorSpec,
                   Specs(s, MultiClassHead(3, {.predict_all_classes = true}), I(s, {-1, 1}))),
      MR_COMPOSITE(CreateEstimatorSpec, Specs(s, MultiLabelHead(3), I(s, {-1, 3}))),
      MR_COMPOSITE(CreateEstimatorSpec, Specs(s, RegressionHead(), F(s, PartialShape()))),
      MR_COMPOSITE(CreateEstimatorSpec, Specs(s, PoissonRegressionHead(), F(s, {-1, 1}))),
      MR_COMPOSITE(CreateEstimatorSpec, Specs(s, LogisticRegressionHead(), F(s, {-1, 1}))),
      MR_COMPOSITE(CreateEstimatorSpec,
                   Specs(s, MultiHead({BinaryHead({.name = "a"}), RegressionHead({.name = "b"})}),
                         Labels(Labels::Map{{"a", F(s, {-1, 1})}, {"b", F(s, {-1, 1})}}))),
      MR_COMPOSITE(MakeInitializableIterator,
                   data::MakeInitializableIterator(s, data::Dataset::Range(3))),
      MR_COMPOSITE(ParseExample, ParseExample(s, Texts(s),
                                              FeatureSpecs{{"a", FixedLenFeature{}},
                                                           {"b", VarLenFeature{}},
                                                           {"c", SparseFeature{.index_key = {"i"},
                                                                               .value_key = "v",
                                                                               .dtype = DT_FLOAT,
                                                                               .size = {7}}}})),
  };
}

std::vector<Composite> Composites() {
  std::vector<Composite> all;
  for (const auto& part : {Layers(), LossesAndMetrics(), Training(), ColumnsHeadsAndData()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::string TextOf(const std::source_location& line) {
  return absl::StrCat(line.file_name(), ":", line.line());
}

TEST(BuiltAtTest, EachNodeOfACompositeNamesTheLineOfItsCall) {
  for (const Composite& composite : Composites()) {
    SCOPED_TRACE(absl::StrCat(composite.name, " at ", TextOf(composite.line)));
    Scope scope;
    composite.build(scope);
    EXPECT_OK(scope.status());
    EXPECT_GT(scope.graph()->num_nodes(), 0);
    for (const auto& node : scope.graph()->nodes()) {
      if (node == nullptr) continue;
      EXPECT_EQ(node->built_at(), TextOf(composite.line)) << node->op() << " " << node->name();
    }
  }
}

// Public functions and methods "Name(ScopeAt at" that have no row, and why.
const std::set<std::string>& WithoutRow() {
  static const auto* const names = new std::set<std::string>{
      // The type of a function that the program gives.
      "Output",
      // What an optimizer has made before (LocalSgdOptimizer), or one node (SyncReplicasOptimizer).
      "Copy", "Counts",
      // One node and its constants: ops/builder_test.cc, and the tests of their families.
      "DecodeCSV", "DecodeRaw", "DecodePaddedRaw", "DecodeCompressed", "DecodeJSONExample",
      "IteratorV2", "MakeIterator", "IteratorGetNext", "IteratorToStringHandle",
      "IteratorFromStringHandleV2", "SerializeIterator", "DeserializeIterator",
      "IteratorGetNextAsOptional", "OptionalFromValue", "OptionalNone", "OptionalHasValue",
      "OptionalGetValue", "ParseExampleV2", "ParseSingleExample", "ParseSequenceExample",
      "ParseSingleSequenceExample", "TextLineReaderV2", "TFRecordReaderV2",
      "FixedLengthRecordReaderV2", "WholeFileReaderV2", "IdentityReaderV2", "ReaderReadV2",
      "ReaderReadUpToV2", "ReaderNumRecordsProducedV2", "ReaderNumWorkUnitsCompletedV2",
      "ReaderResetV2", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename",
      "ShardedFilespec", "EnterLoop", "ExitLoop", "SwitchOn",
      // Parts of others: of Dropout, TensorArray, loops, heads, columns, gradients, Estimators.
      "MayDrop", "DropoutNodes", "NumRows", "LoopBuilder", "HookSetup", "Measure", "NamesOf",
      "AllIds", "AllNames", "Classification", "AddAucMetrics", "AddThresholdMetrics",
      "MakeColumnVariables", "AddGatedGradients", "DnnLogits", "LinearLogits", "AddLayerSummary",
      // They build in a graph of their own, or adopt what a graph has (AdoptVariable).
      "MakeServingModel", "ExportModel", "AdoptObjectVariables"};
  return *names;
}

// The names before "(ScopeAt at" in a header, comments left out.
std::set<std::string> NamesIn(const std::string& header) {
  std::set<std::string> names;
  for (absl::string_view line : absl::StrSplit(header, '\n')) {
    line = line.substr(0, line.find("//"));
    for (const absl::string_view before : {"(ScopeAt at", "(Session* session, ScopeAt at"}) {
      const size_t end = line.find(before);
      if (end == absl::string_view::npos) continue;
      size_t begin = end;
      while (begin > 0 && (absl::ascii_isalnum(static_cast<unsigned char>(line[begin - 1])) ||
                           line[begin - 1] == '_')) {
        --begin;
      }
      if (begin < end) names.emplace(line.substr(begin, end - begin));
    }
  }
  return names;
}

TEST(BuiltAtTest, EveryPublicCompositeHasARow) {
  std::set<std::string> rows;
  for (const Composite& composite : Composites()) rows.insert(composite.name);
  size_t found = 0;
  FileSystem* const fs = FileSystem::Posix();
  for (const char* const folder :
       {"data", "estimator", "estimator/canned", "estimator/columns", "estimator/heads", "graph",
        "layers", "saver", "train", "train/hooks"}) {
    const std::string directory = JoinPath("api/include/millrace", folder);
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, fs->GetChildren(directory));
    for (const std::string& file : files) {
      if (!absl::EndsWith(file, ".h")) continue;
      ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(fs, JoinPath(directory, file)));
      for (const std::string& name : NamesIn(text)) {
        ++found;
        EXPECT_TRUE(rows.count(name) > 0 || WithoutRow().count(name) > 0)
            << folder << "/" << file << ": " << name << " has no row in tests/errors/"
            << "built_at_test.cc, or a reason to have none";
      }
    }
  }
  EXPECT_GT(found, 100u);
}

// --- The program's own functions -----------------------------------------------------------------

std::string LineOf(const Scope& scope, const std::string& node) {
  const Node* const found = scope.graph()->FindNode(node);
  return found == nullptr ? absl::StrCat("no node '", node, "'") : found->built_at();
}

std::string Here(std::source_location line = std::source_location::current()) {
  return TextOf(line);
}

TEST(BuiltAtTest, FunctionsThatTheProgramGivesHaveTheirOwnLines) {
  Scope root;
  std::map<std::string, std::string> own;  // by node
  const Output x = F(root.WithName("x"));
  const auto named = [&](const Scope& s, const char* name, const std::string& line) {
    const Scope here = s.WithName(name);
    own[absl::StrCat(s.prefix(), name)] = line;
    return here;
  };
  Cond(
      root, Flag(root), [&](const Scope& b) { return Neg(named(b, "then", Here()), x); },
      [&](const Scope&) { return x; });
  WhileLoop(
      root, {x},
      [&](const Scope& c, const Outputs& v) {
        return Less(named(c, "go_on", Here()), ReduceSum(c, v[0]), Const(c, 1.0f));
      },
      [&](const Scope& b, const Outputs& v) -> Outputs {
        return {Neg(named(b, "body", Here()), v[0])};
      });
  MapFn(root, x, [&](const Scope& b, const Output& row) {
    const Output mapped = Neg(named(b, "mapped", Here()), row);
    return mapped;
  });
  Dense(root.WithName("layer"), x, 4,
        {.activation = [&](ScopeAt at, Output y) -> Output {
           return Relu(named(at.scope, "activation", Here()), y);
         },
         .kernel_initializer = [&](ScopeAt at, const InitialShape& of, DType dtype) -> Output {
           const Output dims = Const(at, DimsTensor(of.shape)), one = Const(at, 1.0f);
           return dtype == DT_FLOAT ? Fill(named(at.scope, "initializer", Here()), dims, one) : one;
         },
         .kernel_regularizer = [&](ScopeAt at, Output w) -> Output {
           return L2Loss(named(at.scope, "regularizer", Here()), w);
         }});
  GradientDescentOptimizer({.learning_rate = 0.1})
      .Minimize(root, DenseAndSparseLoss(root),
                {.clip = [&](ScopeAt at, std::vector<GradientAndVariable> gradients) {
                  NoOp(named(at.scope, "clip", Here()));
                  return gradients;
                }});
  ASSERT_OK(root.status());
  EXPECT_EQ(own.size(), 8u);
  for (const auto& [node, line] : own) EXPECT_EQ(LineOf(root, node), line) << node;
}

// A line inside of a composite that is itself called by a composite of the program: the Scope that
// BuiltAt gives is how programs hand a line on.
Output Twice(ScopeAt at, const Output& x) {
  const Scope s = at.here().CompositeScope("twice");
  return Dense(s, Add(s, x, x), 2);
}

TEST(BuiltAtTest, CompositesOfAProgramHandTheirLineOn) {
  Scope root;
  const Output x = F(root);
  const std::string line = absl::StrCat(__FILE__, ":", __LINE__ + 1);
  Twice(root, x);
  ASSERT_OK(root.status());
  for (const auto& node : root.graph()->nodes()) {
    if (node == nullptr || node.get() == x.node()) continue;
    EXPECT_EQ(node->built_at(), line) << node->name();
  }
}

TEST(BuiltAtTest, ErrorsInsideOfACompositeNameTheLineOfItsCall) {
  struct Case {
    const char* what;
    void (*build)(const Scope& s);
    std::source_location line;
  };
#define MR_WRONG(what, ...)                                                    \
  {                                                                            \
    what, [](const Scope& s) { __VA_ARGS__; }, std::source_location::current() \
  }
  const Case cases[] = {
    MR_WRONG("a branch", const Output x = F(s); Cond(
                 s, Flag(s), [&](const Scope& b) { return MatMul(b, x, x); },
                 [&](const Scope&) { return x; })),
    MR_WRONG("a learning rate",
             AdamOptimizer(AdamOptions{.learning_rate = F(s)}).Minimize(s, DenseAndSparseLoss(s))),
    MR_WRONG("a moving average of ids",
             ExponentialMovingAverage().Apply(s, {MakeVariable(s, Const(s, 1))})),
    MR_WRONG("a gradient that is none", DenseGradient(s, IndexedSlices{F(s), I(s), Output()})),
    MR_WRONG("an iterator over nothing", data::MakeInitializableIterator(s, data::Dataset())),
  };
#undef MR_WRONG
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Scope scope;
    c.build(scope);
    EXPECT_FALSE(scope.ok());
    EXPECT_TRUE(
        absl::EndsWith(scope.status().message(), absl::StrCat("; built at ", TextOf(c.line))))
        << scope.status();
  }
}

// --- Estimators ----------------------------------------------------------------------------------

// Where the nodes of an Estimator's graph were built, once it is complete.
class GraphLines : public SessionRunHook {
 public:
  std::string name() const override { return "GraphLines"; }
  Status Begin(HookSetup* setup) override {
    graph_ = setup->scope().graph();
    own_ = Here();
    NoOp(setup->scope().WithName("of_the_hook"));
    return absl::OkStatus();
  }
  Status AfterCreateSession(RunContext*, const CreatedSession&) override {
    for (const auto& node : graph_->nodes()) {
      if (node != nullptr) lines_[node->name()] = node->built_at();
    }
    return absl::OkStatus();
  }
  // By the name of the node.
  const std::map<std::string, std::string>& lines() const { return lines_; }
  // Near the line of the hook's own node.
  const std::string& own() const { return own_; }

 private:
  const Graph* graph_ = nullptr;
  std::string own_;
  std::map<std::string, std::string> lines_;
};

Input SomeInput() {
  return Input(
      data::Dataset::FromTensorSlices(
          {Tensor::Of({{1.f}, {2.f}}), Tensor::Of({{"a"}, {"b"}}), Tensor::Of({{0.f}, {1.f}})})
          .Batch(1),
      {.names = {"age", "city", "label"}, .labels = {"label"}});
}

EstimatorSpec LineOfAge(const Scope& scope, const Features& features, const Labels& labels,
                        Mode mode) {
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.1f));
  const Output y = Mul(scope.WithName("y"), w.value, features["age"]);
  EstimatorSpec spec{.mode = mode, .predictions = y};
  if (mode == Mode::kPredict) return spec;
  spec.loss = MeanSquaredError(scope, labels, y);
  if (mode == Mode::kTrain) {
    spec.train_op = GradientDescentOptimizer({.learning_rate = 0.1})
                        .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  }
  return spec;
}

void ExpectLinesOfThisFile(const GraphLines& hook) {
  EXPECT_FALSE(hook.lines().empty());
  for (const auto& [node, line] : hook.lines()) {
    EXPECT_TRUE(absl::StartsWith(line, absl::StrCat(__FILE__, ":"))) << node << ": " << line;
  }
}

TEST(BuiltAtTest, AnEstimatorNamesTheLineThatMadeItAndItsFunctionsTheirs) {
  const std::string line = absl::StrCat(__FILE__, ":", __LINE__ + 1);
  const auto made = Estimator::Make(LineOfAge, {.model_dir = NewDirectory("estimator")});
  ASSERT_OK(made.status());
  const auto trained = std::make_shared<GraphLines>(), evaluated = std::make_shared<GraphLines>();
  ASSERT_OK(made->Train(SomeInput, {.steps = 1, .hooks = {trained}}).status());
  ASSERT_OK(made->Evaluate(SomeInput, {.steps = 1, .hooks = {evaluated}}).status());
  ExpectLinesOfThisFile(*trained);
  ExpectLinesOfThisFile(*evaluated);
  EXPECT_EQ(trained->lines().at("global_step"), line);
  EXPECT_EQ(trained->lines().at("save/restore_all"), line);
  EXPECT_NE(trained->lines().at("w"), line);
  EXPECT_NE(trained->lines().at("y"), line);
  EXPECT_NE(trained->lines().at("of_the_hook"), line);
}

TEST(BuiltAtTest, APreMadeEstimatorNamesTheLineThatMadeIt) {
  const std::vector<FeatureColumn> linear = {NumericColumn("age"),
                                             CategoricalColumnWithHashBucket("city", 9)};
  const EstimatorOptions options[] = {{.model_dir = NewDirectory("linear")},
                                      {.model_dir = NewDirectory("dnn")},
                                      {.model_dir = NewDirectory("combined")},
                                      {.model_dir = NewDirectory("baseline")}};
  const std::string begin = Here();
  const Estimator estimators[] = {
      LinearClassifier({.feature_columns = linear}, options[0]),
      DNNClassifier({.hidden_units = {4}, .feature_columns = SomeColumns()}, options[1]),
      DNNLinearCombinedClassifier({.linear_feature_columns = linear,
                                   .dnn_feature_columns = SomeColumns(),
                                   .dnn_hidden_units = {4}},
                                  options[2]),
      BaselineClassifier({}, options[3]),
  };
  for (const Estimator& estimator : estimators) {
    SCOPED_TRACE(estimator.model_dir());
    const auto trained = std::make_shared<GraphLines>(), evaluated = std::make_shared<GraphLines>();
    ASSERT_OK(estimator.Train(SomeInput, {.steps = 1, .hooks = {trained}}).status());
    ASSERT_OK(estimator.Evaluate(SomeInput, {.steps = 1, .hooks = {evaluated}}).status());
    ExpectLinesOfThisFile(*trained);
    ExpectLinesOfThisFile(*evaluated);
    // All of one line but the hook's node.
    std::set<std::string> lines;
    for (const auto& [node, line] : trained->lines()) {
      if (node != "of_the_hook") lines.insert(line);
    }
    EXPECT_EQ(lines.size(), 1u) << *lines.begin() << " to " << *lines.rbegin();
    EXPECT_NE(*lines.begin(), begin);
  }
}

}  // namespace
}  // namespace millrace
