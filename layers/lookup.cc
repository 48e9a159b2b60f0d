// SPDX-License-Identifier: Apache-2.0
#include "layers/lookup.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/lookup/hash_table.h"
#include "ops/lookup/lookup_table.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/select.h"
#include "ops/strings/as_string.h"
#include "ops/strings/hash_bucket.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

constexpr char kTableInitializers[] = "table_initializer";
constexpr char kAssetFilepaths[] = "asset_filepaths";
constexpr char kSaveableTables[] = "saveable_objects";

bool IsIntegerKey(DType dtype) { return dtype == DT_INT32 || dtype == DT_INT64; }

LookupTable Fail(const ScopeAt& at, const Status& status) {
  at.scope.UpdateStatus(Prefixed("LookupTable", status), at.where);
  return LookupTable();
}

// The place of the first key that an earlier one equals, and that one's.
struct Duplicate {
  size_t first, second;
};
template <typename K>
std::optional<Duplicate> FindDuplicate(absl::Span<const K> keys,
                                       absl::FunctionRef<bool(size_t, size_t)> is_fine) {
  HashMap<K, size_t> places;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [at, is_new] = places.emplace(keys[i], i);
    if (!is_new && !is_fine(at->second, i)) return Duplicate{at->second, i};
  }
  return std::nullopt;
}
std::optional<Duplicate> FindDuplicate(const Tensor& keys,
                                       absl::FunctionRef<bool(size_t, size_t)> is_fine) {
  if (keys.dtype() == DT_STRING) return FindDuplicate(keys.raw<std::string>(), is_fine);
  if (keys.dtype() == DT_INT32) return FindDuplicate(keys.raw<int32_t>(), is_fine);
  return FindDuplicate(keys.raw<int64_t>(), is_fine);
}
std::string KeyText(const Tensor& keys, size_t i) {
  if (keys.dtype() == DT_STRING) return absl::StrCat("'", keys.raw<std::string>()[i], "'");
  return absl::StrCat(keys.ints()[i]);
}

Status CheckKeys(const Tensor& keys, absl::string_view what) {
  if (!IsIntegerKey(keys.dtype()) && keys.dtype() != DT_STRING) {
    return InvalidArgument(what, " must be int32, int64 or string, got ", keys.dtype());
  }
  if (keys.rank() != 1) {
    return InvalidArgument(what, " must be a vector, got shape ", keys.shape());
  }
  return absl::OkStatus();
}

Status CheckVocabulary(const Tensor& words, int64_t num_oov_buckets) {
  MR_RETURN_IF_ERROR(CheckKeys(words, "vocabulary"));
  if (words.num_elements() == 0) return InvalidArgument("vocabulary must have words, got none");
  if (num_oov_buckets < 0) {
    return InvalidArgument("num_oov_buckets must be >= 0, got ", num_oov_buckets);
  }
  const auto twice = FindDuplicate(words, [](size_t, size_t) { return false; });
  if (!twice) return absl::OkStatus();
  return InvalidArgument("vocabulary must have different words, got ", KeyText(words, twice->first),
                         " at ", twice->first, " and ", twice->second);
}

// The place of a table's nodes: it belongs to the whole model and waits for nothing.
Scope TableScope(const Scope& scope, absl::string_view default_name) {
  return scope.WithoutControlDependencies().CompositeScope(default_name);
}

LookupTable MakeHandle(const ScopeAt& at, DType key_dtype, DType value_dtype,
                       const TableAttrs& attrs) {
  LookupTable table;
  table.handle =
      HashTableV2({at.scope.WithName(at.scope.prefix()), at.where}, key_dtype, value_dtype,
                  {.container = attrs.container, .shared_name = attrs.shared_name});
  table.key_dtype = key_dtype;
  table.value_dtype = value_dtype;
  return table;
}

Status CheckDefault(const Tensor& default_value, DType value_dtype) {
  if (default_value.dtype() == value_dtype && default_value.rank() == 0) return absl::OkStatus();
  return InvalidArgument("default_value must be ", value_dtype, "[], got ", default_value.dtype(),
                         default_value.shape());
}

LookupTable Finish(const ScopeAt& at, LookupTable table, const Tensor& default_value) {
  if (!table.initializer.valid()) return LookupTable();
  at.scope.AddToNodeCollection(kTableInitializers, table.initializer.name());
  table.default_value = Const({at.scope.WithName("default_value"), at.where}, default_value);
  return table.default_value.valid() ? table : LookupTable();
}

// In `scope`, which is the table's own.
LookupTable FromTensors(const ScopeAt& at, const Tensor& keys, const Tensor& values,
                        const Tensor& default_value, const TableAttrs& attrs) {
  LookupTable table = MakeHandle(at, keys.dtype(), values.dtype(), attrs);
  table.size = keys.num_elements();
  const Scope init = at.scope.WithSubScope("table_init");
  table.initializer =
      InitializeTableV2({init.WithName("InitializeTableV2"), at.where}, table.handle,
                        Const({init.WithName("keys"), at.where}, keys),
                        Const({init.WithName("values"), at.where}, values));
  return Finish(at, std::move(table), default_value);
}

LookupTable FromFile(const ScopeAt& at, const TableFile& file, const Tensor& default_value,
                     TableAttrs attrs) {
  if (file.path.empty()) return Fail(at, InvalidArgument("path must name a file, got ''"));
  if (file.vocab_size < -1 || file.vocab_size == 0) {
    return Fail(
        at, InvalidArgument("vocab_size must be >= 1, or -1 for all lines, got ", file.vocab_size));
  }
  if (attrs.shared_name.empty()) {
    attrs.shared_name = absl::StrCat("hash_table_", file.path);
    if (file.vocab_size > 0) absl::StrAppend(&attrs.shared_name, "_", file.vocab_size);
    absl::StrAppend(&attrs.shared_name, "_", file.key_column, "_", file.value_column);
  }
  LookupTable table = MakeHandle(at, file.key_dtype, file.value_dtype, attrs);
  if (file.vocab_size > 0) table.size = file.vocab_size;
  const Scope init = at.scope.WithSubScope("table_init");
  const Output path = Const({init.WithName("asset_filepath"), at.where}, file.path);
  table.initializer =
      InitializeTableFromTextFileV2({init.WithName("InitializeTableFromTextFileV2"), at.where},
                                    table.handle, path, file.key_column, file.value_column,
                                    {.vocab_size = file.vocab_size, .delimiter = file.delimiter});
  if (table.initializer.valid()) at.scope.AddToNodeCollection(kAssetFilepaths, path.name());
  return Finish(at, std::move(table), default_value);
}

IndexTable Indexed(LookupTable table, int64_t num_oov_buckets) {
  if (!table.valid()) return IndexTable();
  return {std::move(table), num_oov_buckets};
}

// "<table>_Lookup": the base of nodes that ask a table, in the caller's scope.
std::string NameOf(const LookupTable& table) {
  const std::string& full = table.handle.node()->name();
  const size_t slash = full.rfind('/');
  return slash == std::string::npos ? full : full.substr(slash + 1);
}

Output AsKeys(const ScopeAt& at, Output keys, DType key_dtype) {
  if (keys.dtype() == DT_INT32 && key_dtype == DT_INT64) return Cast(at, keys, DT_INT64);
  return keys;
}

Output Find(const ScopeAt& at, const LookupTable& table, Output keys) {
  return LookupTableFindV2(at, table.handle, AsKeys(at, keys, table.key_dtype),
                           table.default_value);
}

}  // namespace

// --- Keys and values -----------------------------------------------------------------------------

LookupTable StaticTable(ScopeAt at, const Tensor& keys, const Tensor& values,
                        const Tensor& default_value, const TableAttrs& attrs) {
  const auto check = [&]() -> Status {
    MR_RETURN_IF_ERROR(CheckKeys(keys, "keys"));
    if (values.shape() != keys.shape()) {
      return InvalidArgument("values must have the keys' shape ", keys.shape(), ", got shape ",
                             values.shape());
    }
    MR_RETURN_IF_ERROR(CheckDefault(default_value, values.dtype()));
    const auto twice = FindDuplicate(keys, [&](size_t a, size_t b) {
      const int64_t first = static_cast<int64_t>(a), second = static_cast<int64_t>(b);
      return values.Rows(first, first + 1) == values.Rows(second, second + 1);
    });
    if (!twice) return absl::OkStatus();
    return InvalidArgument("keys must have one value each, got ", KeyText(keys, twice->first),
                           " at ", twice->first, " and ", twice->second);
  };
  if (const Status status = check(); !status.ok()) return Fail(at, status);
  return FromTensors({TableScope(at.scope, "hash_table"), at.where}, keys, values, default_value,
                     attrs);
}

LookupTable StaticTable(ScopeAt at, const TableFile& file, const Tensor& default_value,
                        const TableAttrs& attrs) {
  if (const Status status = CheckDefault(default_value, file.value_dtype); !status.ok()) {
    return Fail(at, status);
  }
  return FromFile({TableScope(at.scope, "hash_table"), at.where}, file, default_value, attrs);
}

Output Lookup(ScopeAt at, const LookupTable& table, Output keys) {
  if (!table.valid() || !keys.valid()) return Output();
  const Scope scope = at.scope.CompositeScope(absl::StrCat(NameOf(table), "_Lookup"));
  return Find({scope, at.where}, table, keys);
}

// --- Vocabularies --------------------------------------------------------------------------------

IndexTable IndexTableFromTensor(ScopeAt at, const Tensor& vocabulary,
                                const IndexTableAttrs& attrs) {
  if (const Status status = CheckVocabulary(vocabulary, attrs.num_oov_buckets); !status.ok()) {
    return Indexed(Fail(at, status), 0);
  }
  StatusOr<Tensor> words = vocabulary, ids = Tensor::Allocate(DT_INT64, vocabulary.shape());
  if (vocabulary.dtype() == DT_INT32) words = Tensor::Allocate(DT_INT64, vocabulary.shape());
  if (!words.ok() || !ids.ok()) {
    return Indexed(Fail(at, words.ok() ? ids.status() : words.status()), 0);
  }
  for (size_t i = 0; i < static_cast<size_t>(vocabulary.num_elements()); ++i) {
    ids->mutable_raw<int64_t>()[i] = static_cast<int64_t>(i);
    if (vocabulary.dtype() == DT_INT32) {
      words->mutable_raw<int64_t>()[i] = vocabulary.raw<int32_t>()[i];
    }
  }
  const Scope scope = TableScope(at.scope, "string_to_index");
  const Scope table = scope.CompositeScope("hash_table");
  return Indexed(
      FromTensors({table, at.where}, *words, *ids, Tensor::Scalar<int64_t>(attrs.default_value),
                  {.container = attrs.container, .shared_name = attrs.shared_name}),
      attrs.num_oov_buckets);
}

IndexTable IndexTableFromFile(ScopeAt at, const std::string& path, const VocabularyFile& attrs) {
  if (attrs.num_oov_buckets < 0) {
    return Indexed(
        Fail(at, InvalidArgument("num_oov_buckets must be >= 0, got ", attrs.num_oov_buckets)), 0);
  }
  if (!IsIntegerKey(attrs.key_dtype) && attrs.key_dtype != DT_STRING) {
    return Indexed(Fail(at, InvalidArgument("key_dtype must be int32, int64 or string, got ",
                                            attrs.key_dtype)),
                   0);
  }
  const Scope scope = TableScope(at.scope, "string_to_index");
  const Scope table = scope.CompositeScope("hash_table");
  return Indexed(FromFile({table, at.where},
                          {.path = path,
                           .key_dtype = IsIntegerKey(attrs.key_dtype) ? DT_INT64 : DT_STRING,
                           .key_column = attrs.key_column,
                           .value_dtype = DT_INT64,
                           .value_column = attrs.value_column,
                           .vocab_size = attrs.vocab_size,
                           .delimiter = attrs.delimiter},
                          Tensor::Scalar<int64_t>(attrs.default_value),
                          {.container = attrs.container, .shared_name = attrs.shared_name}),
                 attrs.num_oov_buckets);
}

Output Lookup(ScopeAt at, const IndexTable& index, Output keys) {
  if (index.num_oov_buckets == 0) return Lookup(at, index.table, keys);
  if (!index.valid() || !keys.valid()) return Output();
  const Scope scope = at.scope.CompositeScope("string_to_index_Lookup");
  const LookupTable& table = index.table;
  const Output ids = Find({scope, at.where}, table, keys);
  const Output words = IsIntegerKey(keys.dtype()) ? AsString({scope, at.where}, keys) : keys;
  const Output buckets = StringToHashBucketFast({scope.WithName("hash_bucket"), at.where}, words,
                                                index.num_oov_buckets);
  const Output first =
      table.size ? Const({scope.WithName("hash_table_Size"), at.where}, *table.size)
                 : LookupTableSizeV2({scope.WithName("hash_table_Size"), at.where}, table.handle);
  const Output others = Add({scope, at.where}, buckets, first);
  return Select({scope, at.where}, NotEqual({scope, at.where}, ids, table.default_value), ids,
                others);
}

SparseTensor Lookup(ScopeAt at, const LookupTable& table, const SparseTensor& keys) {
  return {keys.indices, Lookup(at, table, keys.values), keys.dense_shape};
}
SparseTensor Lookup(ScopeAt at, const IndexTable& table, const SparseTensor& keys) {
  return {keys.indices, Lookup(at, table, keys.values), keys.dense_shape};
}

Output TableSize(ScopeAt at, const IndexTable& index) {
  if (!index.valid()) return Output();
  if (index.table.size) return Const(at, *index.table.size + index.num_oov_buckets);
  if (index.num_oov_buckets == 0) return LookupTableSizeV2(at, index.table.handle);
  const Scope scope = at.scope.CompositeScope("string_to_index_Size");
  const ScopeAt here(scope, at.where);
  return Add(here, LookupTableSizeV2(here, index.table.handle), Const(here, index.num_oov_buckets));
}

LookupTable IndexToStringTableFromTensor(ScopeAt at, const Tensor& vocabulary,
                                         const std::string& default_value,
                                         const TableAttrs& attrs) {
  const auto check = [&]() -> Status {
    if (vocabulary.dtype() != DT_STRING || vocabulary.rank() != 1) {
      return InvalidArgument("vocabulary must be a vector of strings, got ", vocabulary.dtype(),
                             vocabulary.shape());
    }
    if (vocabulary.num_elements() > 0) return absl::OkStatus();
    return InvalidArgument("vocabulary must have words, got none");
  };
  if (const Status status = check(); !status.ok()) return Fail(at, status);
  StatusOr<Tensor> ids = Tensor::Allocate(DT_INT64, vocabulary.shape());
  if (!ids.ok()) return Fail(at, ids.status());
  int64_t id = 0;
  for (int64_t& each : ids->mutable_raw<int64_t>()) each = id++;
  return FromTensors({TableScope(at.scope, "index_to_string"), at.where}, *ids, vocabulary,
                     Tensor::Scalar(default_value), attrs);
}

LookupTable IndexToStringTableFromFile(ScopeAt at, const std::string& path, const WordFile& attrs) {
  return FromFile({TableScope(at.scope, "index_to_string"), at.where},
                  {.path = path,
                   .key_dtype = DT_INT64,
                   .key_column = attrs.key_column,
                   .value_dtype = DT_STRING,
                   .value_column = attrs.value_column,
                   .vocab_size = attrs.vocab_size,
                   .delimiter = attrs.delimiter},
                  Tensor::Scalar(attrs.default_value),
                  {.container = attrs.container, .shared_name = attrs.shared_name});
}

// --- Tables that change --------------------------------------------------------------------------

LookupTable MutableTable(ScopeAt at, DType key_dtype, const Tensor& default_value,
                         const MutableTableAttrs& attrs) {
  if (default_value.rank() > 1) {
    return Fail(at, InvalidArgument("default_value must be a scalar or a vector, got shape ",
                                    default_value.shape()));
  }
  const Scope scope = TableScope(at.scope, "MutableHashTable");
  const Scope named = scope.WithName(scope.prefix());
  const ScopeAt here(named, at.where);
  // What is saved is found again by its node's name.
  const HashTableAttrs own = {.container = attrs.container,
                              .shared_name = attrs.shared_name,
                              .use_node_name_sharing = attrs.checkpoint};
  LookupTable table;
  table.key_dtype = key_dtype;
  table.value_dtype = default_value.dtype();
  table.handle = default_value.rank() == 0
                     ? MutableHashTableV2(here, key_dtype, default_value.dtype(), own)
                     : MutableHashTableOfTensorsV2(here, key_dtype, default_value.dtype(),
                                                   PartialShape(default_value.shape()), own);
  table.default_value = Const({scope.WithName("Const"), at.where}, default_value);
  if (!table.default_value.valid()) return LookupTable();
  if (attrs.checkpoint) {
    at.scope.AddToNodeCollection(kSaveableTables, table.handle.node()->name());
  }
  return table;
}

// --- Initialisation ------------------------------------------------------------------------------

Operation TablesInitializer(ScopeAt at) {
  std::vector<Operation> initializers;
  const auto found = at.scope.collections()->find(kTableInitializers);
  if (found != at.scope.collections()->end()) {
    for (const std::string& name : found->second.node_list().value()) {
      if (Node* const node = at.scope.graph()->FindNode(name)) initializers.emplace_back(node);
    }
  }
  return Group({at.scope.WithoutControlDependencies().WithName("init_all_tables"), at.where},
               initializers);
}

}  // namespace millrace
