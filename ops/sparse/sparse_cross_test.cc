// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_cross.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/fingerprint64.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: crosses and buckets are TensorFlow's numbers (its tests' constants, the census
//   columns): any number of values per example, the last feature fastest

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kKey = 0xDECAFCAFFE;

// The sparse parts of a feature.
struct Sparse {
  Tensor indices, values, shape;
};
template <typename T>
Sparse SparseOf(std::vector<std::vector<T>> rows) {
  std::vector<int64_t> indices;
  std::vector<T> values;
  int64_t most = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t i = 0; i < rows[row].size(); ++i) {
      indices.insert(indices.end(), {static_cast<int64_t>(row), static_cast<int64_t>(i)});
      values.push_back(rows[row][i]);
    }
    most = std::max(most, static_cast<int64_t>(rows[row].size()));
  }
  const int64_t n = static_cast<int64_t>(values.size());
  return {*Tensor::FromValues<int64_t>(ShapeOf({n, 2}), indices), Tensor::Vector<T>(values),
          Tensor::Vector<int64_t>({static_cast<int64_t>(rows.size()), most})};
}

OpCall Cross(const std::vector<Sparse>& sparse, const std::vector<Tensor>& dense,
             const SparseCrossAttrs& attrs) {
  std::vector<OpInput> indices, values, shapes, tensors;
  std::vector<DType> sparse_types, dense_types;
  for (const Sparse& s : sparse) {
    indices.push_back(s.indices);
    values.push_back(s.values);
    shapes.push_back(s.shape);
    sparse_types.push_back(s.values.dtype());
  }
  for (const Tensor& t : dense) {
    tensors.push_back(t);
    dense_types.push_back(t.dtype());
  }
  const DType out = attrs.hashed_output ? DT_INT64 : DT_STRING;
  return OpCall("SparseCross")
      .Inputs(indices)
      .Inputs(values)
      .Inputs(shapes)
      .Inputs(tensors)
      .Attr("N", static_cast<int64_t>(sparse.size()))
      .Attr("hashed_output", attrs.hashed_output)
      .Attr("num_buckets", attrs.num_buckets)
      .Attr("hash_key", attrs.hash_key)
      .Attr("sparse_types", sparse_types)
      .Attr("dense_types", dense_types)
      .Attr("out_type", out)
      .Attr("internal_type", out);
}

void ExpectCross(const OpCall& call, const Tensor& indices, const Tensor& values,
                 const Tensor& shape) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ExpectTensorEqual(out[0], indices);
  ExpectTensorEqual(out[1], values);
  ExpectTensorEqual(out[2], shape);
}

int64_t Hash(const std::vector<std::string>& values, int64_t num_buckets, int64_t key = kKey) {
  std::vector<Sparse> features;
  for (const std::string& v : values) features.push_back(SparseOf<std::string>({{v}}));
  const StatusOr<std::vector<Tensor>> out =
      RunOp(Cross(features, {}, {.num_buckets = num_buckets, .hash_key = key}));
  if (!out.ok()) ADD_FAILURE() << out.status();
  return out.ok() ? (*out)[1].scalar<int64_t>() : -1;
}

// Computed by TensorFlow: its own tests' constants, and the columns of the census example.
TEST(SparseCross, HashesAsTensorFlowDoes) {
  const std::vector<std::string> features = {"batch1-FC1-F1", "batch1-FC2-F1", "batch1-FC3-F1"};
  EXPECT_EQ(Hash(features, 0), 1971693436396284976);
  EXPECT_EQ(Hash(features, 100), 83);
  EXPECT_EQ(Hash(features, 0, kKey + 1), 4847552627144134031);
  EXPECT_EQ(Hash(features, 100, kKey + 1), 31);

  EXPECT_EQ(Hash({" 11th", " Machine-op-inspct"}, 10000), 2155);
  EXPECT_EQ(Hash({" United-States", " Machine-op-inspct"}, 10000), 9933);
  EXPECT_EQ(Hash({"11th", "Machine-op-inspct"}, 10000), 2555);
  EXPECT_EQ(Hash({"United-States", "Machine-op-inspct"}, 10000), 5365);
  for (const auto& [occupation, bucket] :
       {std::pair<std::string, int64_t>{" Machine-op-inspct", 606053},
        {"Machine-op-inspct", 844746}}) {
    const Sparse two = SparseOf<int64_t>({{2}});
    ExpectCross(
        Cross({two, two, SparseOf<std::string>({{occupation}})}, {}, {.num_buckets = 1000000}),
        Tensor::Of<int64_t>({{0, 0}}), Tensor::Of<int64_t>({bucket}), Tensor::Of<int64_t>({1, 1}));
  }
}

TEST(SparseCross, CombinesAllValuesOfAnExampleTheLastFeatureFastest) {
  const Sparse a = SparseOf<std::string>({{"a", "b"}, {}, {"c"}});
  const Sparse n = SparseOf<int64_t>({{1, 2, -3}, {4}, {5, 6}});
  const Tensor dense = Tensor::Of({{"x", "y"}, {"x", "y"}, {"", "z"}});
  ExpectCross(
      Cross({a, n}, {dense}, {.hashed_output = false}),
      Tensor::Of<int64_t>({{0, 0},
                           {0, 1},
                           {0, 2},
                           {0, 3},
                           {0, 4},
                           {0, 5},
                           {0, 6},
                           {0, 7},
                           {0, 8},
                           {0, 9},
                           {0, 10},
                           {0, 11},
                           {2, 0},
                           {2, 1},
                           {2, 2},
                           {2, 3}}),
      Tensor::Of({"a_X_1_X_x", "a_X_1_X_y", "a_X_2_X_x", "a_X_2_X_y", "a_X_-3_X_x", "a_X_-3_X_y",
                  "b_X_1_X_x", "b_X_1_X_y", "b_X_2_X_x", "b_X_2_X_y", "b_X_-3_X_x", "b_X_-3_X_y",
                  "c_X_5_X_", "c_X_5_X_z", "c_X_6_X_", "c_X_6_X_z"}),
      Tensor::Of<int64_t>({3, 12}));
  // Each in the chain of the others: what the texts are made of, hashed.
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Cross({a, n}, {dense}, {})));
  const auto hash = [](absl::string_view first, int64_t second, absl::string_view third) {
    uint64_t h = FingerprintCat64(kKey, Fingerprint64(first));
    h = FingerprintCat64(h, static_cast<uint64_t>(second));
    h = FingerprintCat64(h, Fingerprint64(third));
    return static_cast<int64_t>(h % uint64_t{std::numeric_limits<int64_t>::max()});
  };
  EXPECT_EQ(out[1].flat<int64_t>()[4], hash("a", -3, "x"));
  EXPECT_EQ(out[1].flat<int64_t>()[9], hash("b", 2, "y"));
  EXPECT_EQ(out[1].flat<int64_t>()[14], hash("c", 6, ""));
}

TEST(SparseCross, TakesDenseFeaturesAloneAndNoExamples) {
  ExpectCross(Cross({}, {Tensor::Of<int64_t>({{1}, {2}}), Tensor::Of({{"a", "b"}, {"c", "d"}})},
                    {.hashed_output = false}),
              Tensor::Of<int64_t>({{0, 0}, {0, 1}, {1, 0}, {1, 1}}),
              Tensor::Of({"1_X_a", "1_X_b", "2_X_c", "2_X_d"}), Tensor::Of<int64_t>({2, 2}));
  const Tensor no_indices = TensorOf<int64_t>({0, 2}, {});
  ExpectCross(Cross({}, {TensorOf<std::string>({2, 0}, {}), Tensor::Of<int64_t>({{1}, {2}})}, {}),
              no_indices, TensorOf<int64_t>({0}, {}), Tensor::Of<int64_t>({2, 0}));
  ExpectCross(Cross({SparseOf<int64_t>({})}, {}, {}), no_indices, TensorOf<int64_t>({0}, {}),
              Tensor::Of<int64_t>({0, 0}));
  // A shape may claim examples without end: nobody walks over them.
  const Sparse empty = {no_indices, TensorOf<int64_t>({0}, {}),
                        TensorOf<int64_t>({2}, {std::numeric_limits<int64_t>::max(), 7})};
  ExpectCross(Cross({empty, empty}, {}, {}), no_indices, TensorOf<int64_t>({0}, {}),
              TensorOf<int64_t>({2}, {std::numeric_limits<int64_t>::max(), 0}));
}

TEST(SparseCross, DoesNotDependOnThreads) {
  std::vector<std::vector<std::string>> rows(3000);
  std::vector<std::vector<int64_t>> numbers(3000);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t k = 0; k < i % 4; ++k) rows[i].push_back(absl::StrCat("value ", i, " ", k));
    for (size_t k = 0; k < i % 3; ++k) numbers[i].push_back(static_cast<int64_t>(i * k));
  }
  for (const bool hashed : {false, true}) {
    OpTestDevice one(1), four(4);
    const auto run = [&](OpTestDevice* device) {
      auto call = Cross({SparseOf(rows), SparseOf(numbers)}, {}, {.hashed_output = hashed});
      return *RunOp(call.On(device));
    };
    const std::vector<Tensor> a = run(&one), b = run(&four);
    for (size_t i = 0; i < 3; ++i) ExpectTensorEqual(a[i], b[i]);
  }
}

TEST(SparseCross, RefusesFeaturesThatDoNotFit) {
  const Sparse two = SparseOf<std::string>({{"a"}, {"b"}}),
               three = SparseOf<int64_t>({{1}, {}, {}});
  ExpectOpError(Cross({two, three}, {}, {}), kInvalid,
                "sparse feature 1: shape[0] must be 2, the number of examples, got 3");
  ExpectOpError(Cross({two}, {Tensor::Of<int64_t>({{1}})}, {}), kInvalid,
                "sparse feature 0: shape[0] must be 1, the number of examples, got 2");
  ExpectOpError(Cross({}, {Tensor::Of<int64_t>({{1}}), Tensor::Of({{"a"}, {"b"}})}, {}), kInvalid,
                "dense feature 1 must have 1 examples as the features before it, got 2");
  ExpectOpError(Cross({}, {Tensor::Of<int64_t>({1})}, {}), kInvalid,
                "dense feature 0 must be a matrix, got shape [1]");
  ExpectOpError(Cross({}, {}, {}), kInvalid, "must have at least one feature");
  Sparse bad = two;
  bad.indices = Tensor::Of<int64_t>({{0, 0}, {2, 0}});
  ExpectOpError(Cross({bad}, {}, {}), kInvalid,
                "sparse feature 0: indices[1,0] must be in [0, 2), the number of examples, got 2");
  bad.indices = Tensor::Of<int64_t>({{1, 0}, {0, 0}});
  ExpectOpError(
      Cross({bad}, {}, {}), kInvalid,
      "sparse feature 0: indices must be in the order of examples, got example 0 behind 1");
  bad.indices = Tensor::Of<int64_t>({{1, 0}});
  ExpectOpError(Cross({bad}, {}, {}), kInvalid, "sparse feature 0: indices must have one row");
  bad = two;
  bad.shape = Tensor::Of<int64_t>({2, 1, 1});
  ExpectOpError(Cross({bad}, {}, {}), kInvalid, "sparse feature 0: indices must have one column");
  bad.indices = Tensor::Of<int64_t>({{0}, {1}});
  bad.shape = Tensor::Of<int64_t>({2});
  ExpectOpError(Cross({bad}, {}, {}), kInvalid, "shape must be that of a matrix, got 1 dimensions");
  bad = two;
  bad.shape = Tensor::Of<int64_t>({-2, 1});
  ExpectOpError(Cross({bad}, {}, {}), kInvalid, "shape[0] must be >= 0");
  // 2^64 combinations from 64 features of two values.
  const std::vector<Sparse> many(64, SparseOf<int64_t>({{1, 2}}));
  EXPECT_FALSE(RunOp(Cross(many, {}, {})).ok());
  const std::vector<Sparse> some(38, SparseOf<int64_t>({{1, 2}}));
  EXPECT_EQ(RunOp(Cross(some, {}, {})).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace millrace
