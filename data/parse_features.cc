// SPDX-License-Identifier: Apache-2.0
#include "data/parse_features.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/sparse/sparse_reshape.h"

namespace millrace {
namespace {

constexpr absl::string_view kWhere = "ParseExample";

template <typename... Parts>
Status BadFeature(const std::string& name, const Parts&... parts) {
  return InvalidArgument(kWhere, ": feature '", name, "' ", parts...);
}

// The keys that the op is to look for.
class Keys {
 public:
  const ParseExampleFeatures& features() const { return features_; }

  Status AddSparse(const std::string& name, const std::string& key, DType dtype) {
    MR_RETURN_IF_ERROR(CheckFeatureType(kWhere, name, dtype));
    const auto [found, is_new] = sparse_.emplace(key, features_.sparse.size());
    if (is_new) {
      features_.sparse.push_back({.key = key, .dtype = dtype});
    } else if (const DType other = features_.sparse[found->second].dtype; other != dtype) {
      return BadFeature(name, "must have one dtype for key '", key, "', got ", other, " and ",
                        dtype);
    }
    return absl::OkStatus();
  }
  void AddDense(const std::string& key, PartialShape shape, Tensor default_value) {
    dense_[key] = features_.dense.size();
    features_.dense.push_back(
        {.key = key, .shape = std::move(shape), .default_value = default_value});
  }
  // When all are known.
  Status Check() const {
    for (const auto& [key, index] : dense_) {
      if (sparse_.count(key) == 0) continue;
      return BadFeature(key, "must be either dense or sparse, got both");
    }
    return absl::OkStatus();
  }
  const Output& dense(const ParseExampleOutputs& outputs, const std::string& key) const {
    return outputs.dense[dense_.at(key)];
  }
  const SparseTensor& sparse(const ParseExampleOutputs& outputs, const std::string& key) const {
    return outputs.sparse[sparse_.at(key)];
  }

 private:
  ParseExampleFeatures features_;
  std::map<std::string, size_t> sparse_, dense_;  // where they are in features_
};

// What each kind of feature needs.
struct AddKeys {
  const std::string& name;
  Keys* keys;

  Status operator()(const FixedLenFeature& feature) const {
    MR_ASSIGN_OR_RETURN(Tensor value, DefaultOf(kWhere, name, feature));
    keys->AddDense(name, feature.shape, std::move(value));
    return absl::OkStatus();
  }
  Status operator()(const VarLenFeature& feature) const {
    return keys->AddSparse(name, name, feature.dtype);
  }
  Status operator()(const SparseFeature& feature) const {
    if (feature.index_key.empty() || feature.index_key.size() != feature.size.size()) {
      return BadFeature(name, "must have one size for each of at least one index key, got ",
                        feature.size.size(), " for ", feature.index_key.size());
    }
    for (const int64_t size : feature.size) {
      if (size <= 0) return BadFeature(name, "must have sizes > 0, got ", size);
    }
    std::vector<std::string> indices = feature.index_key;
    std::sort(indices.begin(), indices.end());
    for (const std::string& key : indices) {
      MR_RETURN_IF_ERROR(keys->AddSparse(name, key, DT_INT64));
    }
    return keys->AddSparse(name, feature.value_key, feature.dtype);
  }
  Status operator()(const FixedLenSequenceFeature& feature) const {
    MR_ASSIGN_OR_RETURN(Tensor padding, PaddingOf(kWhere, name, feature));
    std::vector<int64_t> dims = {-1};
    dims.insert(dims.end(), feature.shape.dims().begin(), feature.shape.dims().end());
    MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
    keys->AddDense(name, std::move(shape), std::move(padding));
    return absl::OkStatus();
  }
};

// A sparse tensor [batch, size...] of values whose indices are values, too.
SparseTensor PutTogether(const Scope& outer, const std::vector<SparseTensor>& indices,
                         const SparseTensor& values, const SparseFeature& feature) {
  const Scope scope = outer.CompositeScope("SparseMerge");
  const Output examples = Slice(scope, indices[0].indices, Const<int32_t>(scope, {0, 0}),
                                Const<int32_t>(scope, {-1, 1}));
  std::vector<Output> columns = {examples};
  for (const SparseTensor& index : indices) {
    columns.push_back(ExpandDims(scope, index.values, Const(scope, 1)));
  }
  const Output batch =
      Slice(scope, indices[0].dense_shape, Const<int32_t>(scope, {0}), Const<int32_t>(scope, {1}));
  const Output sizes = Const(scope, Tensor::Vector<int64_t>(feature.size));
  SparseTensor result = {ConcatV2(scope, columns, Const(scope, 1)), values.values,
                         ConcatV2(scope, {batch, sizes}, Const(scope, 0))};
  if (feature.already_sorted) return result;
  return SparseReorder(scope, result);
}

// The tensors of each kind of feature, found among the op's.
struct AddResults {
  const Scope& scope;
  const std::string& name;
  const Keys& keys;
  const ParseExampleOutputs& outputs;
  ParsedFeatures* parsed;

  void operator()(const FixedLenFeature&) const { parsed->dense[name] = keys.dense(outputs, name); }
  void operator()(const FixedLenSequenceFeature&) const {
    parsed->dense[name] = keys.dense(outputs, name);
  }
  void operator()(const VarLenFeature&) const { parsed->sparse[name] = keys.sparse(outputs, name); }
  void operator()(const SparseFeature& feature) const {
    std::vector<SparseTensor> indices;
    for (const std::string& key : feature.index_key) indices.push_back(keys.sparse(outputs, key));
    parsed->sparse[name] =
        PutTogether(scope, indices, keys.sparse(outputs, feature.value_key), feature);
  }
};

}  // namespace

ParsedFeatures ParseExample(ScopeAt at, Output serialized, const FeatureSpecs& specs,
                            Output names) {
  Keys keys;
  Status status;
  for (const auto& [name, spec] : specs) status.Update(std::visit(AddKeys{name, &keys}, spec));
  status.Update(keys.Check());
  at.scope.UpdateStatus(status, at.where);
  if (!at.scope.ok()) return {};
  const ParseExampleOutputs outputs = ParseExample(at, serialized, keys.features(), names);
  if (!at.scope.ok()) return {};
  const Scope here = at.here();
  ParsedFeatures parsed;
  for (const auto& [name, spec] : specs) {
    std::visit(AddResults{here, name, keys, outputs, &parsed}, spec);
  }
  return parsed;
}

}  // namespace millrace
