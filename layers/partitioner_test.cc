// SPDX-License-Identifier: Apache-2.0
#include "layers/partitioner.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/table_parts.h"
#include "gtest/gtest.h"
#include "layers/dense.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/testing/layer_test.h"
#include "layers/variable.h"
#include "layers/weight.h"
#include "ops/ops.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"

// covers: variables: partitioners give TensorFlow's numbers of parts, along any axis, strings by
//   bytes per element, and refuse what TensorFlow refuses, with its texts
// covers: variables: variables are cut along any axis, with TensorFlow's names, slices and initial
//   values; look-ups in columns give the rows of the whole table
// covers: variables: tables of which nothing is said are cut as the scope's device function says

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
using Cut = std::vector<int64_t>;

// --- How many parts ------------------------------------------------------------------------------

TEST(FixedSizePartitioner, GivesSoManyPartsOrOneForEachElementOfTheAxis) {
  const Shape shape{1000, 3};
  EXPECT_EQ(*FixedSizePartitioner(4)(shape, DT_FLOAT), (Cut{4, 1}));
  EXPECT_EQ(*FixedSizePartitioner(4, 1)(shape, DT_FLOAT), (Cut{1, 3}));
  EXPECT_EQ(*FixedSizePartitioner(2, -1)(shape, DT_STRING), (Cut{1, 2}));
  EXPECT_EQ(*FixedSizePartitioner(2, -2)(shape, DT_FLOAT), (Cut{2, 1}));
  // The variable refuses these.
  EXPECT_EQ(*FixedSizePartitioner(0)(shape, DT_FLOAT), (Cut{0, 1}));
  EXPECT_EQ(*FixedSizePartitioner(2)(Shape{0, 3}, DT_FLOAT), (Cut{0, 1}));
}

// A slice of [4, 8, 16, 32] floats along axis 0 has 8 * 16 * 32 * 4 = 16384 bytes; along the others
// 8192, 4096 and 2048.
TEST(VariableAxisSizePartitioner, PutsAsManySlicesIntoAPartAsItTakes) {
  const struct {
    int axis;
    int64_t max_shard_bytes, max_shards;
    Cut want;
  } cases[] = {
      {0, 131072, 0, {1, 1, 1, 1}},  // all 65536 bytes
      {1, 65536, 0, {1, 1, 1, 1}},   // exactly
      {1, 65535, 0, {1, 2, 1, 1}},   // seven slices, and one
      {2, 32768, 0, {1, 1, 2, 1}},   // 8 of 16 slices
      {2, 20480, 0, {1, 1, 4, 1}},   // 5 of 16 slices: ceil(3.2)
      {3, 2048, 0, {1, 1, 1, 32}},   // one slice
      {3, 1024, 0, {1, 1, 1, 32}},   // less than one
      {3, 1024, 5, {1, 1, 1, 5}},    // the limit goes first
      {2, 32768, 5, {1, 1, 2, 1}},   // and is only one
      {-1, 1024, 0, {1, 1, 1, 32}},
  };
  for (const auto& c : cases) {
    const Partitioner partitioner = VariableAxisSizePartitioner(
        c.max_shard_bytes, {.axis = c.axis, .max_shards = c.max_shards});
    EXPECT_EQ(*partitioner(Shape{4, 8, 16, 32}, DT_FLOAT), c.want)
        << c.axis << ", " << c.max_shard_bytes;
  }
  // Of strings: 4 * 8 * 16 * 8 = 4096 bytes a slice, so 8 of 32 in a part; with 16 bytes 4 of 32.
  const Shape strings{4, 8, 16, 32};
  EXPECT_EQ(*VariableAxisSizePartitioner(32768, {.axis = 3, .bytes_per_string_element = 8})(
                strings, DT_STRING),
            (Cut{1, 1, 1, 4}));
  EXPECT_EQ(*VariableAxisSizePartitioner(32768, {.axis = 3})(strings, DT_STRING),
            (Cut{1, 1, 1, 8}));
  // Without elements.
  for (const Shape& shape : {Shape{0, 2}, Shape{2, 0}}) {
    EXPECT_EQ(*VariableAxisSizePartitioner(1)(shape, DT_FLOAT), (Cut{1, 1}));
  }
}

TEST(MinMaxVariablePartitioner, GivesAPartForEachMinimum) {
  const Shape shape{2048, 1024};  // 8 MiB of float: 32 times 256 KiB
  EXPECT_EQ(*MinMaxVariablePartitioner()(shape, DT_FLOAT), (Cut{1, 1}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100})(shape, DT_FLOAT), (Cut{32, 1}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 16})(shape, DT_FLOAT), (Cut{16, 1}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100, .axis = 1})(shape, DT_FLOAT),
            (Cut{1, 32}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100})(shape, DT_DOUBLE), (Cut{64, 1}));
  // 2048 floats are 8192 bytes: 4 times 2 KiB; a byte less at least is a part more.
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100, .min_slice_size = 2048})(Shape{2048},
                                                                                        DT_FLOAT),
            (Cut{4}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100, .min_slice_size = 2047})(Shape{2048},
                                                                                        DT_FLOAT),
            (Cut{5}));
  // At most one for each element, at least one.
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100, .min_slice_size = 1})(Shape{3, 64},
                                                                                     DT_FLOAT),
            (Cut{3, 1}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 0})(shape, DT_FLOAT), (Cut{1, 1}));
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 4})(Shape{0, 3}, DT_FLOAT), (Cut{1, 1}));
  // 1000 strings of 16 bytes, of 4 bytes.
  EXPECT_EQ(*MinMaxVariablePartitioner({.max_partitions = 100, .min_slice_size = 2000})(Shape{1000},
                                                                                        DT_STRING),
            (Cut{8}));
  EXPECT_EQ(*MinMaxVariablePartitioner(
                {.max_partitions = 100, .min_slice_size = 2000, .bytes_per_string_element = 4})(
                Shape{1000}, DT_STRING),
            (Cut{2}));
}

TEST(Partitioners, RefuseWhatTheyCannotCount) {
  const struct {
    Partitioner partitioner;
    const char* text;
  } cases[] = {
      {FixedSizePartitioner(2, 2),
       "Can not partition variable along axis 2 when shape is only [4,10]"},
      {FixedSizePartitioner(2, -3),
       "Can not partition variable along axis -3 when shape is only [4,10]"},
      {VariableAxisSizePartitioner(8, {.axis = 2}), "along axis 2 when shape is only [4,10]"},
      {MinMaxVariablePartitioner({.axis = 5}), "along axis 5 when shape is only [4,10]"},
      {VariableAxisSizePartitioner(0),
       "Both max_shard_bytes and bytes_per_string_element must be positive, got 0 and 16"},
      {VariableAxisSizePartitioner(8, {.bytes_per_string_element = -1}),
       "must be positive, got 8 and -1"},
      {VariableAxisSizePartitioner(8, {.max_shards = -1}), "max_shards must be positive, got -1"},
      {MinMaxVariablePartitioner({.min_slice_size = 0}),
       "Both min_slice_size and bytes_per_string_element must be positive, got 0 and 16"},
      {MinMaxVariablePartitioner({.bytes_per_string_element = 0}), "must be positive, got 262144"},
  };
  for (const auto& c : cases) {
    EXPECT_STATUS(c.partitioner(Shape{4, 10}, DT_FLOAT).status(), kInvalid, c.text);
  }
}

// --- Variables -----------------------------------------------------------------------------------

// The part of `whole` that is asked for.
Initializer PartsOf(const Tensor& whole) {
  return [whole](ScopeAt at, const InitialShape& part, DType) {
    return Slice(at, Const(at, whole), ConstVector<int64_t>(at, part.var_offset),
                 ConstVector<int64_t>(at, part.shape.dims()));
  };
}

Tensor Counted(const Shape& shape) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, shape);
  float next = 1;
  for (float& x : t.mutable_flat<float>()) x = next++;
  return t;
}

TEST(PartitionedVariable, IsCutAlongAnyAxis) {
  const Shape shape{4, 10, 3};
  const struct {
    Cut partitions;
    int cut;
    std::vector<Cut> offsets, shapes;
  } cases[] = {
      {{2, 1, 1}, 0, {{0, 0, 0}, {2, 0, 0}}, {{2, 10, 3}, {2, 10, 3}}},
      // The first ones are larger.
      {{1, 4, 1},
       1,
       {{0, 0, 0}, {0, 3, 0}, {0, 6, 0}, {0, 8, 0}},
       {{4, 3, 3}, {4, 3, 3}, {4, 2, 3}, {4, 2, 3}}},
      {{1, 1, 3}, 2, {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}}, {{4, 10, 1}, {4, 10, 1}, {4, 10, 1}}},
      {{1, 1, 1}, 0, {{0, 0, 0}}, {{4, 10, 3}}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.partitions.size() + c.offsets.size());
    Scope root;
    const Scope scope = root.WithSubScope("m");
    const PartitionedVariable w = MakePartitionedVariable(scope.WithName("w"), shape, DT_FLOAT,
                                                          c.partitions, PartsOf(Counted(shape)));
    ASSERT_OK(root.status());
    EXPECT_EQ(w.name, "m/w");
    EXPECT_EQ(w.full_shape, shape);
    ASSERT_EQ(w.parts.size(), c.offsets.size());
    EXPECT_EQ(CutDimension(w.parts), c.cut);
    for (const char* collection : {"variables", "trainable_variables"}) {
      const std::vector<Variable> found = VariablesOf(root, collection);
      ASSERT_EQ(found.size(), w.parts.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].name, absl::StrCat("m/w/part_", i));
        EXPECT_EQ(found[i].slice.full_name, "m/w");
        EXPECT_EQ(found[i].slice.full_shape, (Cut{4, 10, 3}));
        EXPECT_EQ(found[i].slice.var_offset, c.offsets[i]);
        EXPECT_EQ(found[i].slice.var_shape, c.shapes[i]);
        EXPECT_EQ(found[i].shape, PartialShape(*Shape::Make(c.shapes[i])));
      }
      EXPECT_EQ(CutDimension(found), c.cut);
    }
    const Output whole = WholeValue(root, w);
    EXPECT_EQ(whole.node()->name(), "m/w");
    EXPECT_EQ(root.graph()->FindNode("m/w/ConcatPartitions/concat") != nullptr, w.parts.size() > 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(root, {}, {whole}));
    ExpectTensorEqual(out[0], Counted(shape));
  }
}

// As in TensorFlow: each part has random numbers of its own, which with a seed depend on its shape
// alone; the scale is that of the whole.
TEST(PartitionedVariable, PartsHaveTheRandomNumbersOfVariablesOfTheirShape) {
  Scope root;
  const Initializer uniform = RandomUniformInitializer({.seed = 7});
  const PartitionedVariable w =
      MakePartitionedVariable(root.WithName("w"), Shape{3, 5}, DT_FLOAT, {1, 3}, uniform);
  const Variable wide = MakeVariable(root.WithName("wide"), Shape{3, 2}, DT_FLOAT, uniform);
  const Variable narrow = MakeVariable(root.WithName("narrow"), Shape{3, 1}, DT_FLOAT, uniform);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(root, {},
                                      {w.parts[0].value, w.parts[1].value, w.parts[2].value,
                                       wide.value, narrow.value}));
  ExpectTensorEqual(out[0], out[3]);
  ExpectTensorEqual(out[1], out[3]);
  ExpectTensorEqual(out[2], out[4]);
}

TEST(PartitionedVariable, PartsOfTheIdentityAreItsParts) {
  for (const Shape& shape : {Shape{3, 5}, Shape{5, 3}}) {
    for (const Cut& partitions : {Cut{1, 1}, Cut{3, 1}, Cut{1, 2}}) {
      Scope root;
      const Variable whole =
          MakeVariable(root.WithName("whole"), shape, DT_FLOAT, IdentityInitializer(2));
      const PartitionedVariable w = MakePartitionedVariable(root.WithName("w"), shape, DT_FLOAT,
                                                            partitions, IdentityInitializer(2));
      const Output value = WholeValue(root, w);
      ASSERT_OK(root.status());
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           RunInitialized(root, {}, {whole.value, value}));
      ExpectTensorEqual(out[1], out[0]);
    }
  }
}

TEST(PartitionedVariable, OfNoRowsIsOnePart) {
  Scope root;
  const PartitionedVariable w =
      MakeVariableInParts(root.WithName("w"), Shape{0, 2}, DT_FLOAT,
                          MinMaxVariablePartitioner({.max_partitions = 4}), ZerosInitializer());
  ASSERT_OK(root.status());
  ASSERT_EQ(w.parts.size(), 1u);
  EXPECT_EQ(w.parts[0].name, "w/part_0");
}

// A partitioner that is a function of the program.
Partitioner Always(const Cut& partitions) {
  return [partitions](const Shape&, DType) { return partitions; };
}

TEST(PartitionedVariable, BadPartitionsAreErrorsOfTheScope) {
  const auto make = [](const Partitioner& partitioner, const Shape& shape) {
    return [partitioner, shape](const Scope& s) {
      const PartitionedVariable w =
          MakeVariableInParts(s.WithName("w"), shape, DT_FLOAT, partitioner, ZerosInitializer());
      return w.parts.empty() ? Output() : w.parts[0].value;
    };
  };
  const Shape shape{4, 10};
  ExpectBadCalls({
      {make(FixedSizePartitioner(2), Shape()),
       "Variable 'm/w': A partitioned Variable must have rank at least 1, shape: []"},
      {make(FixedSizePartitioner(0), shape),
       "Variable 'm/w': Partitioner returned zero partitions for some axes: [0, 1]"},
      {make(FixedSizePartitioner(-2, 1), shape),
       "Partitioner returned zero partitions for some axes: [1, -2]"},
      {make(FixedSizePartitioner(2), Shape{0, 2}),
       "Partitioner returned zero partitions for some axes: [0, 1]"},
      {make(Always({2}), shape),
       "Partitioner returned a partition list that does not match the Variable's rank: [2] vs. "
       "[4,10]"},
      {make(Always({}), shape), "does not match the Variable's rank: [] vs. [4,10]"},
      {make(Always({2, 1, 1}), shape), "the Variable's rank: [2, 1, 1] vs. [4,10]"},
      {make(Always({2, 2}), shape),
       "Can only slice a variable along one dimension: shape: [4,10], partitioning: [2, 2]"},
      {make(Always({5, 1}), shape),
       "Variable 'm/w': dimension 0 must be cut into at most 4 parts, as many as it has elements, "
       "got 5 (shape [4,10], partitioning [5, 1])"},
      {make(Always({1, 11}), shape), "dimension 1 must be cut into at most 10 parts"},
      {make(FixedSizePartitioner(2, 2), shape),
       "Variable 'm/w': Can not partition variable along axis 2 when shape is only [4,10]"},
      {make(VariableAxisSizePartitioner(0), shape), "Variable 'm/w': Both max_shard_bytes and"},
      {make([](const Shape&, DType) -> StatusOr<Cut> { return InvalidArgument("not today"); },
            shape),
       "Variable 'm/w': not today"},
      {[&](const Scope& s) {
         const PartitionedVariable w =
             MakePartitionedVariable(s.WithName("w"), shape, DT_FLOAT, 5, ZerosInitializer());
         return w.parts.empty() ? Output() : w.parts[0].value;
       },
       "dimension 0 must be cut into at most 4 parts"},
  });
}

// --- Layers and look-ups -------------------------------------------------------------------------

TEST(Dense, MayBeCutAlongItsUnits) {
  const Tensor x_value = TensorOf<float>({1, 3}, {1, 2, 3});
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, {-1, 3});
  // The last axis of kernel and bias.
  const DenseLayer y = Dense(root, x, 2,
                             {.kernel_initializer = PartsOf(Counted(Shape{3, 2})),
                              .bias_initializer = PartsOf(Counted(Shape{2})),
                              .partitioner = FixedSizePartitioner(2, -1)});
  ASSERT_OK(root.status());
  EXPECT_EQ(NamesOf(root, "variables"),
            std::vector<std::string>({"dense/kernel/part_0", "dense/kernel/part_1",
                                      "dense/bias/part_0", "dense/bias/part_1"}));
  EXPECT_EQ(y.kernel_parts.parts[1].shape.ToString(), "[3,1]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(root, {{x, x_value}}, {y}));
  // {1 + 2 * 3 + 3 * 5, 2 + 2 * 4 + 3 * 6} + {1, 2}.
  ExpectTensorEqual(out[0], TensorOf<float>({1, 2}, {23, 30}));
}

TEST(EmbeddingLookup, JoinsTheColumnsOfParts) {
  const Shape shape{7, 3};
  const Tensor three = TensorOf<float>({3}, {10, 11, 12});
  const struct {
    Tensor ids, rows;
    PartialShape shape;
    std::string known;  // of the rows; "": nothing
  } cases[] = {
      {Tensor::Scalar<int64_t>(3), three, PartialShape::Scalar(), "[3]"},
      {TensorOf<int64_t>({3}, {6, 0, 6}),
       TensorOf<float>({3, 3}, {19, 20, 21, 1, 2, 3, 19, 20, 21}),
       {-1},
       "[?,3]"},
      {TensorOf<int64_t>({1, 2}, {0, 3}),
       TensorOf<float>({1, 2, 3}, {1, 2, 3, 10, 11, 12}),
       {-1, 2},
       "[?,2,3]"},
      {TensorOf<int64_t>({0}, {}), TensorOf<float>({0, 3}, {}), PartialShape::Unknown(), ""},
  };
  // Also of tables on another task, whose different ids are looked up; it is this process.
  for (const std::string& device : {std::string(), std::string("/job:localhost/task:0")}) {
    for (const int parts : {1, 2, 3}) {
      for (const auto& c : cases) {
        Scope root;
        const Scope scope = root.WithDevice([device](const tensorflow::NodeDef& node) {
          return node.op() == "VarHandleOp" ? device : std::string();
        });
        const Output ids = Placeholder(scope, DT_INT64, c.shape);
        const EmbeddingLayer y = Embedding(scope, ids, 7, 3,
                                           {.initializer = PartsOf(Counted(shape)),
                                            .partitioner = FixedSizePartitioner(parts, 1)});
        ASSERT_OK(scope.status());
        EXPECT_EQ(y.table.parts.size(), static_cast<size_t>(parts));
        if (!c.known.empty()) {
          EXPECT_EQ(scope.shape(y).ToString(), c.known);
        }
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                             RunInitialized(scope, {{ids, c.ids}}, {y}));
        ExpectTensorEqual(out[0], c.rows);
      }
    }
  }
}

TEST(EmbeddingLookupSparse, CombinesRowsOfColumns) {
  Scope scope;
  const Output ids = Placeholder(scope, DT_INT64, {-1});
  const Output rows = Placeholder(scope, DT_INT64, {-1});
  const EmbeddingLayer y = Embedding(scope, {.ids = ids, .rows = rows}, 7, 3,
                                     {.initializer = PartsOf(Counted(Shape{7, 3})),
                                      .partitioner = FixedSizePartitioner(2, 1),
                                      .combiner = Combiner::kSum});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(scope,
                                      {{ids, TensorOf<int64_t>({3}, {0, 3, 1})},
                                       {rows, TensorOf<int64_t>({3}, {0, 0, 1})}},
                                      {y}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 3}, {11, 13, 15, 4, 5, 6}));
}

TEST(EmbeddingLookup, ColumnsHaveSparseGradientsOfTheirOwn) {
  Scope scope;
  const Output ids = Const<int64_t>(scope, {5, 2});
  const EmbeddingLayer y = Embedding(scope, ids, 7, 3, {.partitioner = FixedSizePartitioner(2, 1)});
  const Output loss = Mul(scope, y, Const(scope, TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6})));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> gradients,
      AddGradients(scope, {loss}, {y.table.parts[0].handle, y.table.parts[1].handle}));
  std::vector<FetchName> fetches;
  for (const Gradient& gradient : gradients) {
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradient));
    fetches.emplace_back(std::get<IndexedSlices>(gradient).indices);
    fetches.emplace_back(std::get<IndexedSlices>(gradient).values);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {}, fetches));
  ExpectTensorEqual(out[0], TensorOf<int64_t>({2}, {5, 2}));
  ExpectTensorEqual(out[1], TensorOf<float>({2, 2}, {1, 2, 4, 5}));
  ExpectTensorEqual(out[2], TensorOf<int64_t>({2}, {5, 2}));
  ExpectTensorEqual(out[3], TensorOf<float>({2, 1}, {3, 6}));
}

TEST(EmbeddingLookup, ColumnsThatAreNotTheTableAreErrorsOfTheScope) {
  const auto look_up = [](std::vector<size_t> places) {
    return [places = std::move(places)](const Scope& s) {
      const Shape shape{7, 3};
      std::vector<Variable> made =
          MakePartitionedVariable(s.WithName("t"), shape, DT_FLOAT, {1, 3}, ZerosInitializer())
              .parts;
      for (const Variable& part :
           MakePartitionedVariable(s.WithName("u"), shape, DT_FLOAT, {1, 3}, ZerosInitializer())
               .parts) {
        made.push_back(part);
      }
      made.push_back(MakeVariable(s.WithName("v"), Shape{7, 1}, DT_FLOAT, ZerosInitializer()));
      // As a damaged file could have it.
      made.push_back(made[1]);
      made.back().slice.var_offset.clear();
      std::vector<Variable> parts;
      for (const size_t place : places) parts.push_back(made[place]);
      return EmbeddingLookup(s, parts, Const<int64_t>(s, {1}));
    };
  };
  const std::string rule = " of dimension 1, along which the table is cut, got ";
  ExpectBadCalls({
      {look_up({1, 0, 2}), absl::StrCat("part 'm/t/part_1' must begin at 0", rule, "1 of 'm/t'")},
      {look_up({0, 2}), absl::StrCat("part 'm/t/part_2' must begin at 1", rule, "2 of 'm/t'")},
      {look_up({0, 4, 2}), absl::StrCat("part 'm/u/part_1' must begin at 1", rule, "1 of 'm/u'")},
      {look_up({0, 6, 2}), absl::StrCat("part 'm/v' must begin at 1", rule, "no slice")},
      {look_up({0, 7, 2}), absl::StrCat("part 'm/t/part_1' must begin at 1", rule, "no slice")},
      {look_up({0, 1}), "the parts of 'm/t' must be all of its dimension 1, got 2 of [7,3]"},
  });
}

// --- Where nothing is said -----------------------------------------------------------------------

// A row of two floats has 8 bytes: tables of up to 8 rows stay whole.
Scope WithTablesAbove64Bytes(const Scope& root) {
  return root.WithDevice(TablesInParts{.max_parts = 3, .min_part_bytes = 64});
}

TEST(TablesInParts, CutsLargeTablesAndKeepsTheNamesOfOthers) {
  Scope root;
  const Scope scope = WithTablesAbove64Bytes(root);
  const Output ids = Placeholder(root, DT_INT64, {-1});
  const EmbeddingLayer small = Embedding(scope.WithName("small"), ids, 8, 2);
  const EmbeddingLayer large = Embedding(scope.WithName("large"), ids, 9, 2);
  const EmbeddingLayer largest = Embedding(scope.WithName("largest"), ids, 100, 2);
  const LinearLayer linear = Linear(scope, {.ids = ids, .rows = ids}, 17);
  const PartitionedVariable made =
      MakeVariableInParts(scope.WithName("own"), Shape{9, 2}, DT_FLOAT, {}, ZerosInitializer());
  ASSERT_OK(root.status());
  EXPECT_EQ(NamesOf(root, "trainable_variables"),
            std::vector<std::string>({"small/embeddings", "large/embeddings/part_0",
                                      "large/embeddings/part_1", "largest/embeddings/part_0",
                                      "largest/embeddings/part_1", "largest/embeddings/part_2",
                                      "linear/weights/part_0", "linear/weights/part_1",
                                      "linear/bias", "own/part_0", "own/part_1"}));
  EXPECT_TRUE(small.table.parts[0].slice.full_name.empty());
  EXPECT_EQ(large.table.name, "large/embeddings");
  EXPECT_EQ(large.table.parts[1].slice.full_name, "large/embeddings");
  EXPECT_EQ(large.table.parts[1].slice.var_offset, std::vector<int64_t>({5, 0}));
}

TEST(TablesInParts, LeavesAllElseWhole) {
  Scope root;
  const Scope scope = WithTablesAbove64Bytes(root);
  const Output ids = Placeholder(root, DT_INT64, {-1});
  const Output x = Placeholder(root, DT_FLOAT, {-1, 100});
  // A partitioner that is given, a task, what is said inside of it.
  EXPECT_EQ(
      Embedding(scope, ids, 100, 2, {.partitioner = FixedSizePartitioner(1)}).table.parts[0].name,
      "embedding/embeddings/part_0");
  EXPECT_EQ(Embedding(scope.WithDevice("/job:ps/task:0"), ids, 100, 2).table.parts.size(), 1u);
  EXPECT_EQ(Embedding(scope.WithDevice(TablesInParts{}), ids, 100, 2).table.parts.size(), 1u);
  // Weights that are no tables; vectors; variables of each task's own.
  EXPECT_TRUE(Dense(scope, x, 100).kernel.valid());
  EXPECT_EQ(MakeWeight(scope, "weight", {100, 2}, DT_FLOAT, {ZerosInitializer()}).name, "weight");
  const auto parts = [&](const Shape& shape, const VariableAttrs& attrs) {
    return MakeVariableInParts(scope, shape, DT_FLOAT, {}, ZerosInitializer(), attrs).parts.size();
  };
  EXPECT_EQ(parts(Shape{200}, {}), 1u);
  EXPECT_EQ(parts(Shape{}, {}), 1u);
  EXPECT_EQ(parts(Shape{100, 2}, {.local = true}), 1u);
  EXPECT_EQ(parts(Shape{100, 2}, {.trainable = false}), 3u);
  ASSERT_OK(root.status());
}

TEST(TablesInParts, WrongBytesAreAnErrorOfTheVariable) {
  Scope root;
  const Scope scope = root.WithDevice(TablesInParts{.max_parts = 3, .min_part_bytes = -1});
  const Output ids = Placeholder(root, DT_INT64, {-1});
  EXPECT_FALSE(Embedding(scope, ids, 100, 2).valid());
  EXPECT_STATUS(root.status(), kInvalid,
                "Variable 'embedding/embeddings': Both min_slice_size and "
                "bytes_per_string_element must be positive, got -1 and 16");
}

}  // namespace
}  // namespace millrace
