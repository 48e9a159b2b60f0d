// SPDX-License-Identifier: Apache-2.0
//
// The builders of parse_example.h and parse_sequence_example.h. What an op needs besides
// `serialized` are constants, named as TensorFlow names them:
// "ParseExample/ParseExample/dense_keys_0".

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/parse_example.h"
#include "data/parse_sequence_example.h"
#include "ops/array/constant.h"

namespace millrace {
namespace {

// Where a node and its constants are made: a scope of their own, and in it one of the op's name.
class ParserScope {
 public:
  ParserScope(const ScopeAt& at, absl::string_view scope, absl::string_view op)
      : scope_(at.scope.CompositeScope(scope)),
        name_(scope_.UniqueName(op)),
        of_node_(scope_.WithSubScope(absl::StrCat(name_, "/"))),
        named_(scope_.WithName(absl::StrCat(name_, "/"))),
        where_(at.where) {}

  ScopeAt node() const { return ScopeAt(named_, where_); }
  // Next to the node: "key_x".
  Output Default(const DenseKey& feature) const {
    const std::string name =
        feature.default_value.num_elements() == 0 ? NodeName("key_", feature.key) : "Const";
    return Const(ScopeAt(scope_.WithName(name), where_), feature.default_value);
  }
  Output Constant(absl::string_view name, const Tensor& value) const {
    return Const(ScopeAt(of_node_.WithName(name), where_), value);
  }
  Output Strings(absl::string_view name, const std::vector<std::string>& values) const {
    return Constant(name, Tensor::Vector<std::string>(values));
  }
  // One scalar each: "dense_keys_0", ...
  template <typename Key>
  std::vector<Output> Scalars(absl::string_view name, const std::vector<Key>& features) const {
    std::vector<Output> outputs;
    for (size_t i = 0; i < features.size(); ++i) {
      outputs.push_back(Constant(absl::StrCat(name, "_", i), Tensor::Scalar(features[i].key)));
    }
    return outputs;
  }

 private:
  // Keys may have characters that names of nodes cannot.
  static std::string NodeName(absl::string_view prefix, absl::string_view key) {
    std::string name = absl::StrCat(prefix, key);
    for (char& c : name) {
      const bool fine = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                        c == '.' || c == '-' || c == '/' || c == '\\';
      if (!fine) c = '_';
    }
    return absl::EndsWith(name, "/") ? name + "_" : name;
  }

  const Scope scope_;
  const std::string name_;
  const Scope of_node_, named_;
  const std::source_location where_;
};

template <typename Key>
std::vector<std::string> KeysOf(const std::vector<Key>& features) {
  std::vector<std::string> keys;
  for (const Key& f : features) keys.push_back(f.key);
  return keys;
}
template <typename Key>
std::vector<DType> TypesOf(const std::vector<Key>& features) {
  std::vector<DType> types;
  for (const Key& f : features) types.push_back(f.dtype);
  return types;
}
std::vector<DType> TypesOf(const std::vector<DenseKey>& features) {
  std::vector<DType> types;
  for (const DenseKey& f : features) types.push_back(f.default_value.dtype());
  return types;
}
template <typename Key>
std::vector<PartialShape> ShapesOf(const std::vector<Key>& features) {
  std::vector<PartialShape> shapes;
  for (const Key& f : features) shapes.push_back(f.shape);
  return shapes;
}
std::vector<Output> Defaults(const ParserScope& scope, const std::vector<DenseKey>& features) {
  std::vector<Output> defaults;
  for (const DenseKey& f : features) defaults.push_back(scope.Default(f));
  return defaults;
}

// Three lists of outputs of `n` tensors each, from `*first` on; moves it behind them.
std::vector<SparseTensor> SparseTensors(const BuiltNode& node, size_t n, int* first) {
  std::vector<SparseTensor> tensors;
  const int count = static_cast<int>(n);
  for (int i = *first; i < *first + count; ++i) {
    tensors.push_back({node.output(i), node.output(i + count), node.output(i + 2 * count)});
  }
  *first += 3 * count;
  return tensors;
}
std::vector<Output> List(const BuiltNode& node, size_t n, int* first) {
  const int count = static_cast<int>(n);
  *first += count;
  return node.outputs(*first - count, count);
}
ParseExampleOutputs ExampleOutputsOf(const BuiltNode& node, const ParseExampleFeatures& features,
                                     int* first) {
  ParseExampleOutputs outputs;
  outputs.sparse = SparseTensors(node, features.sparse.size(), first);
  outputs.dense = List(node, features.dense.size(), first);
  const std::vector<Output> values = List(node, features.ragged.size(), first);
  const std::vector<Output> splits = List(node, features.ragged.size(), first);
  for (size_t r = 0; r < features.ragged.size(); ++r) {
    outputs.ragged.push_back({values[r], splits[r]});
  }
  return outputs;
}

int64_t Count(size_t n) { return static_cast<int64_t>(n); }

// False, and the scope's error, where there are ragged ones.
bool AreNotRagged(const ScopeAt& at, const char* builder, const ParseExampleFeatures& features) {
  if (features.ragged.empty()) return true;
  at.scope.UpdateStatus(InvalidArgument(builder, ": features must be sparse or dense, got ragged '",
                                        features.ragged[0].key, "'; ParseExampleV2 has such"),
                        at.where);
  return false;
}

}  // namespace

ParseExampleOutputs ParseExample(ScopeAt at, Output serialized,
                                 const ParseExampleFeatures& features, Output names) {
  if (!AreNotRagged(at, "ParseExample", features)) return {};
  const ParserScope scope(at, "ParseExample", "ParseExample");
  const BuiltNode node =
      BuildOp(scope.node(), "ParseExample",
              {serialized, names.valid() ? names : scope.Strings("names", {}),
               scope.Scalars("sparse_keys", features.sparse),
               scope.Scalars("dense_keys", features.dense), Defaults(scope, features.dense)},
              "Nsparse", Count(features.sparse.size()), "Ndense", Count(features.dense.size()),
              "sparse_types", TypesOf(features.sparse), "Tdense", TypesOf(features.dense),
              "dense_shapes", ShapesOf(features.dense));
  int first = 0;
  return ExampleOutputsOf(node, features, &first);
}

ParseExampleOutputs ParseExampleV2(ScopeAt at, Output serialized,
                                   const ParseExampleFeatures& features, Output names) {
  const ParserScope scope(at, "ParseExample", "ParseExampleV2");
  std::vector<DType> split_types;
  for (const RaggedKey& f : features.ragged) split_types.push_back(f.row_splits_dtype);
  const BuiltNode node = BuildOp(
      scope.node(), "ParseExampleV2",
      {serialized, names.valid() ? names : scope.Strings("names", {}),
       scope.Strings("sparse_keys", KeysOf(features.sparse)),
       scope.Strings("dense_keys", KeysOf(features.dense)),
       scope.Strings("ragged_keys", KeysOf(features.ragged)), Defaults(scope, features.dense)},
      "Tdense", TypesOf(features.dense), "num_sparse", Count(features.sparse.size()),
      "sparse_types", TypesOf(features.sparse), "ragged_value_types", TypesOf(features.ragged),
      "ragged_split_types", split_types, "dense_shapes", ShapesOf(features.dense));
  int first = 0;
  return ExampleOutputsOf(node, features, &first);
}

ParseExampleOutputs ParseSingleExample(ScopeAt at, Output serialized,
                                       const ParseExampleFeatures& features) {
  if (!AreNotRagged(at, "ParseSingleExample", features)) return {};
  const ParserScope scope(at, "ParseSingleExample", "ParseSingleExample");
  const BuiltNode node =
      BuildOp(scope.node(), "ParseSingleExample", {serialized, Defaults(scope, features.dense)},
              "num_sparse", Count(features.sparse.size()), "sparse_keys", KeysOf(features.sparse),
              "dense_keys", KeysOf(features.dense), "sparse_types", TypesOf(features.sparse),
              "Tdense", TypesOf(features.dense), "dense_shapes", ShapesOf(features.dense));
  int first = 0;
  return ExampleOutputsOf(node, features, &first);
}

SequenceExampleOutputs ParseSequenceExample(ScopeAt at, Output serialized,
                                            const SequenceExampleFeatures& features, Output names) {
  const ParseExampleFeatures& context = features.context;
  if (!AreNotRagged(at, "ParseSequenceExample", context)) return {};
  const ParserScope scope(at, "ParseSequenceExample", "ParseSequenceExample");
  std::vector<std::string> may_be_missing;
  for (const DenseListKey& f : features.dense_lists) {
    if (f.missing_assumed_empty) may_be_missing.push_back(f.key);
  }
  const BuiltNode node =
      BuildOp(scope.node(), "ParseSequenceExample",
              {serialized, names.valid() ? names : scope.Strings("debug_name", {}),
               Defaults(scope, context.dense)},
              "feature_list_dense_missing_assumed_empty", may_be_missing, "context_sparse_keys",
              KeysOf(context.sparse), "context_dense_keys", KeysOf(context.dense),
              "feature_list_sparse_keys", KeysOf(features.sparse_lists), "feature_list_dense_keys",
              KeysOf(features.dense_lists), "Ncontext_sparse", Count(context.sparse.size()),
              "Ncontext_dense", Count(context.dense.size()), "Nfeature_list_sparse",
              Count(features.sparse_lists.size()), "Nfeature_list_dense",
              Count(features.dense_lists.size()), "context_sparse_types", TypesOf(context.sparse),
              "Tcontext_dense", TypesOf(context.dense), "feature_list_dense_types",
              TypesOf(features.dense_lists), "context_dense_shapes", ShapesOf(context.dense),
              "feature_list_sparse_types", TypesOf(features.sparse_lists),
              "feature_list_dense_shapes", ShapesOf(features.dense_lists));
  int first = 0;
  SequenceExampleOutputs outputs;
  outputs.context = ExampleOutputsOf(node, context, &first);
  outputs.sparse_lists = SparseTensors(node, features.sparse_lists.size(), &first);
  outputs.dense_lists = List(node, features.dense_lists.size(), &first);
  outputs.dense_lengths = List(node, features.dense_lists.size(), &first);
  return outputs;
}

SequenceExampleOutputs ParseSingleSequenceExample(ScopeAt at, Output serialized,
                                                  const SequenceExampleFeatures& features,
                                                  Output name) {
  const ParseExampleFeatures& context = features.context;
  if (!AreNotRagged(at, "ParseSingleSequenceExample", context)) return {};
  const ParserScope scope(at, "ParseSingleSequenceExample", "ParseSingleSequenceExample");
  std::vector<std::string> may_be_missing;
  for (const DenseListKey& f : features.dense_lists) {
    if (f.missing_assumed_empty) may_be_missing.push_back(f.key);
  }
  const BuiltNode node = BuildOp(
      scope.node(), "ParseSingleSequenceExample",
      {serialized, scope.Strings("feature_list_dense_missing_assumed_empty", may_be_missing),
       scope.Scalars("context_sparse_keys", context.sparse),
       scope.Scalars("context_dense_keys", context.dense),
       scope.Scalars("feature_list_sparse_keys", features.sparse_lists),
       scope.Scalars("feature_list_dense_keys", features.dense_lists),
       Defaults(scope, context.dense),
       name.valid() ? name : scope.Constant("debug_name", Tensor::Scalar(""))},
      "Ncontext_sparse", Count(context.sparse.size()), "Ncontext_dense",
      Count(context.dense.size()), "Nfeature_list_sparse", Count(features.sparse_lists.size()),
      "Nfeature_list_dense", Count(features.dense_lists.size()), "context_sparse_types",
      TypesOf(context.sparse), "Tcontext_dense", TypesOf(context.dense), "feature_list_dense_types",
      TypesOf(features.dense_lists), "context_dense_shapes", ShapesOf(context.dense),
      "feature_list_sparse_types", TypesOf(features.sparse_lists), "feature_list_dense_shapes",
      ShapesOf(features.dense_lists));
  int first = 0;
  SequenceExampleOutputs outputs;
  outputs.context = ExampleOutputsOf(node, context, &first);
  outputs.sparse_lists = SparseTensors(node, features.sparse_lists.size(), &first);
  outputs.dense_lists = List(node, features.dense_lists.size(), &first);
  return outputs;
}

}  // namespace millrace
