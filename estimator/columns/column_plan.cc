// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/column_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

const char* LayerName(LayerPlan::Kind kind) {
  switch (kind) {
    case LayerPlan::Kind::kInput:
      return "InputLayer";
    case LayerPlan::Kind::kLinear:
      return "LinearModel";
    case LayerPlan::Kind::kSequence:
      return "SequenceInputLayer";
  }
  return "";
}

// May a column of this name name nodes?
bool IsScopeName(const std::string& name) {
  const auto letter = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); };
  if (name.empty() || !(letter(name[0]) || name[0] == '.')) return false;
  return name.back() != '/' && std::all_of(name.begin(), name.end(), [&](char c) {
           return letter(c) || c == '_' || c == '.' || c == '-' || c == '/' || c == '\\';
         });
}

// Do two columns give the same numbers or ids?
bool AreSame(const ColumnSpecPtr& a, const ColumnSpecPtr& b);

bool AreSameNumbers(const NumericSpec& a, const NumericSpec& b) {
  // Functions cannot be compared: the same ones are those of one column.
  return a.key == b.key && a.shape == b.shape && a.dtype == b.dtype && !a.normalizer &&
         !b.normalizer;
}

bool AreSameLeaves(const CrossedSpec& a, const CrossedSpec& b) {
  return std::equal(a.leaves.begin(), a.leaves.end(), b.leaves.begin(), b.leaves.end(),
                    [](const CrossedSpec::Leaf& x, const CrossedSpec::Leaf& y) {
                      if ((x.column == nullptr) != (y.column == nullptr)) return false;
                      return x.column == nullptr ? x.key == y.key : AreSame(x.column, y.column);
                    });
}

bool AreSame(const ColumnSpecPtr& a, const ColumnSpecPtr& b) {
  if (a == b) return true;
  if (a->name != b->name || a->kind.index() != b->kind.index()) return false;
  if (const auto* x = a->As<NumericSpec>()) return AreSameNumbers(*x, *b->As<NumericSpec>());
  if (const auto* x = a->As<BucketizedSpec>()) {
    const auto* y = b->As<BucketizedSpec>();
    return AreSame(x->source, y->source) && x->boundaries == y->boundaries;
  }
  if (const auto* x = a->As<HashBucketSpec>()) {
    const auto* y = b->As<HashBucketSpec>();
    return x->key == y->key && x->num_buckets == y->num_buckets && x->dtype == y->dtype;
  }
  if (const auto* x = a->As<VocabularySpec>()) {
    const auto* y = b->As<VocabularySpec>();
    return x->key == y->key && x->dtype == y->dtype && x->words == y->words && x->file == y->file &&
           x->size == y->size && x->num_oov_buckets == y->num_oov_buckets &&
           x->default_value == y->default_value;
  }
  if (const auto* x = a->As<IdentitySpec>()) {
    const auto* y = b->As<IdentitySpec>();
    return x->key == y->key && x->num_buckets == y->num_buckets &&
           x->default_value == y->default_value;
  }
  if (const auto* x = a->As<CrossedSpec>()) {
    const auto* y = b->As<CrossedSpec>();
    return x->num_buckets == y->num_buckets && x->hash_key == y->hash_key &&
           x->tf_compat_cross_order == y->tf_compat_cross_order && AreSameLeaves(*x, *y);
  }
  return false;
}

// The feature that a column reads by itself.
const std::string* KeyOf(const ColumnSpec& column) {
  if (const auto* c = column.As<NumericSpec>()) return &c->key;
  if (const auto* c = column.As<HashBucketSpec>()) return &c->key;
  if (const auto* c = column.As<VocabularySpec>()) return &c->key;
  if (const auto* c = column.As<IdentitySpec>()) return &c->key;
  if (const auto* c = column.As<SequenceNumericSpec>()) return &c->key;
  return nullptr;
}

// A position in a vector of the plan, whose elements are few: a model has as many as it has
// columns.
template <typename T, typename F>
int FindOrAdd(std::vector<T>* list, F is_it, T added) {
  const auto found = std::find_if(list->begin(), list->end(), is_it);
  if (found != list->end()) return static_cast<int>(found - list->begin());
  list->push_back(std::move(added));
  return static_cast<int>(list->size()) - 1;
}

class PlanBuilder {
 public:
  Status AddLayer(const AskedLayer& asked);
  ColumnPlan Done() { return std::move(plan_); }

 private:
  int Source(const std::string& key, const ColumnSpec& column) {
    return FindOrAdd(
        &plan_.sources, [&](const SourcePlan& s) { return s.key == key; },
        SourcePlan{key, column.name, column.where});
  }
  int Numeric(const ColumnSpecPtr& column) {
    const auto* spec = column->As<NumericSpec>();
    return FindOrAdd(
        &plan_.numerics, [&](const NumericPlan& n) { return AreSame(n.column, column); },
        NumericPlan{Source(spec->key, *column), column, spec->shape.num_elements()});
  }
  int Ids(const ColumnSpecPtr& column);

  Status AddConsumer(const ColumnSpecPtr& column, LayerPlan* layer);
  Status FillConsumer(LayerPlan::Kind layer, ConsumerPlan* consumer);
  Status AddEmbedding(ConsumerPlan* consumer, LayerPlan* layer);
  Status AddTable(TablePlan table, int64_t rows, int64_t columns, LayerPlan* layer, int* position);
  // The ids of a column, and the weights that it gives them.
  void SetIds(const ColumnSpecPtr& column, ConsumerPlan* consumer);

  ColumnPlan plan_;
};

int PlanBuilder::Ids(const ColumnSpecPtr& column) {
  const auto same = [&](const IdsPlan& ids) { return AreSame(ids.column, column); };
  const auto found = std::find_if(plan_.ids.begin(), plan_.ids.end(), same);
  if (found != plan_.ids.end()) return static_cast<int>(found - plan_.ids.begin());
  IdsPlan ids = {.column = column, .num_ids = NumIds(*column)};
  if (const std::string* key = KeyOf(*column)) ids.source = Source(*key, *column);
  if (const auto* c = column->As<BucketizedSpec>()) ids.numeric = Numeric(c->source);
  if (const auto* c = column->As<CrossedSpec>()) {
    for (const CrossedSpec::Leaf& leaf : c->leaves) {
      IdsPlan::Leaf planned;
      if (leaf.column == nullptr) {
        planned.source = Source(leaf.key, *column);
      } else {
        planned.ids = Ids(leaf.column);
      }
      ids.leaves.push_back(planned);
    }
  }
  plan_.ids.push_back(std::move(ids));
  return static_cast<int>(plan_.ids.size()) - 1;
}

void PlanBuilder::SetIds(const ColumnSpecPtr& column, ConsumerPlan* consumer) {
  if (const auto* weighted = column->As<WeightedSpec>()) {
    consumer->ids = Ids(weighted->column);
    consumer->id_weights = Source(weighted->weight_key, *column);
    return;
  }
  consumer->ids = Ids(column);
}

Status PlanBuilder::AddTable(TablePlan table, int64_t rows, int64_t columns, LayerPlan* layer,
                             int* position) {
  StatusOr<Shape> shape = Shape::Make({rows, columns});
  if (!shape.ok()) {
    return Prefixed(absl::StrCat("table '", table.name, "'"), shape.status());
  }
  table.shape = *shape;
  layer->tables.push_back(std::move(table));
  *position = static_cast<int>(layer->tables.size()) - 1;
  return absl::OkStatus();
}

Status PlanBuilder::AddEmbedding(ConsumerPlan* consumer, LayerPlan* layer) {
  const auto* spec = consumer->column->As<EmbeddingSpec>();
  const bool shared = !spec->shared_name.empty();
  if (shared && !IsScopeName(spec->shared_name)) {
    return InvalidArgument("shared_name must be of letters, digits and any of _.-/\\, got '",
                           spec->shared_name, "'");
  }
  const std::string name =
      absl::StrCat(shared ? spec->shared_name : consumer->column->name, "/embedding_weights");
  const int64_t rows = NumIds(*spec->column);
  for (size_t i = 0; i < layer->tables.size(); ++i) {
    const TablePlan& table = layer->tables[i];
    if (table.name != name) continue;
    const auto* owner = table.column->As<EmbeddingSpec>();
    if (owner == nullptr || owner->shared_name != spec->shared_name || !shared) {
      return InvalidArgument("table '", name, "' must be of one column, got another in '",
                             table.column->name, "'");
    }
    if (table.shape.dim(0) != rows || table.shape.dim(1) != spec->dimension) {
      return InvalidArgument("shared table '", name, "' must have one shape, got ", table.shape,
                             " in '", table.column->name, "' and [", rows, ",", spec->dimension,
                             "]");
    }
    consumer->table = static_cast<int>(i);
    return absl::OkStatus();
  }
  return AddTable({.name = name,
                   .column = consumer->column,
                   .shape = Shape(),
                   .initializer = spec->initializer,
                   .trainable = spec->trainable,
                   .ckpt_to_load_from = spec->ckpt_to_load_from,
                   .tensor_name_in_ckpt = spec->tensor_name_in_ckpt},
                  rows, spec->dimension, layer, &consumer->table);
}

// Kind, inputs and width, without tables.
Status PlanBuilder::FillConsumer(LayerPlan::Kind layer, ConsumerPlan* consumer) {
  using Kind = ConsumerPlan::Kind;
  const ColumnSpecPtr& column = consumer->column;
  const bool sequence = layer == LayerPlan::Kind::kSequence;
  const bool linear = layer == LayerPlan::Kind::kLinear;
  if (column->sequence != sequence ||
      !(column->is_dense() || (linear && column->is_categorical()) ||
        (sequence && column->As<SequenceNumericSpec>() != nullptr))) {
    return InvalidArgument("columns must be ",
                           sequence ? "sequence columns"
                           : linear ? "dense or categorical columns"
                                    : "dense columns",
                           ", got '", column->name, "'; ",
                           column->sequence
                               ? "SequenceInputLayer takes sequence columns"
                               : "IndicatorColumn and EmbeddingColumn make dense ones");
  }
  if (linear && column->is_categorical()) {
    consumer->kind = Kind::kIds;
    SetIds(column, consumer);
    consumer->width = NumIds(*column);
  } else if (const auto* numeric = column->As<NumericSpec>()) {
    consumer->kind = Kind::kNumeric;
    consumer->numeric = Numeric(column);
    consumer->width = numeric->shape.num_elements();
  } else if (column->As<BucketizedSpec>() != nullptr) {
    consumer->kind = Kind::kBuckets;
    consumer->ids = Ids(column);
    consumer->width = NumIds(*column);
  } else if (const auto* indicator = column->As<IndicatorSpec>()) {
    consumer->kind = Kind::kIndicator;
    SetIds(indicator->column, consumer);
    consumer->width = NumIds(*indicator->column);
  } else if (const auto* embedding = column->As<EmbeddingSpec>()) {
    consumer->kind = Kind::kEmbedding;
    SetIds(embedding->column, consumer);
    consumer->width = embedding->dimension;
  } else {
    const auto* steps = column->As<SequenceNumericSpec>();
    consumer->kind = Kind::kSequenceNumeric;
    consumer->source = Source(steps->key, *column);
    consumer->width = steps->shape.num_elements();
  }
  return absl::OkStatus();
}

Status PlanBuilder::AddConsumer(const ColumnSpecPtr& column, LayerPlan* layer) {
  if (!IsScopeName(column->name)) {
    return InvalidArgument("a column's name must be of letters, digits and any of _.-/\\, got '",
                           column->name, "'");
  }
  ConsumerPlan consumer = {.column = column};
  MR_RETURN_IF_ERROR(FillConsumer(layer->kind, &consumer));
  constexpr int64_t kMaxWidth = std::numeric_limits<int32_t>::max();
  if (consumer.kind != ConsumerPlan::Kind::kIds && consumer.width > kMaxWidth) {
    return InvalidArgument("a dense column must be at most ", kMaxWidth, " numbers wide, got ",
                           consumer.width, " of '", column->name, "'");
  }
  if (consumer.kind == ConsumerPlan::Kind::kEmbedding) {
    MR_RETURN_IF_ERROR(AddEmbedding(&consumer, layer));
  }
  if (layer->kind == LayerPlan::Kind::kLinear) {
    MR_RETURN_IF_ERROR(AddTable({.name = absl::StrCat(column->name, "/weights"),
                                 .column = column,
                                 .shape = Shape(),
                                 .initializer = ZerosInitializer()},
                                consumer.width, layer->width, layer, &consumer.weights));
  } else {
    consumer.offset = layer->width;
    layer->width += consumer.width;
    if (layer->width > kMaxWidth) {
      return InvalidArgument("the columns must be at most ", kMaxWidth,
                             " numbers wide together, got ", layer->width, " with '", column->name,
                             "'");
    }
  }
  layer->consumers.push_back(std::move(consumer));
  return absl::OkStatus();
}

Status PlanBuilder::AddLayer(const AskedLayer& asked) {
  LayerPlan layer = {.kind = asked.kind, .sparse_combiner = asked.sparse_combiner};
  if (asked.columns.empty()) return InvalidArgument("columns must be one or more, got none");
  const bool linear = asked.kind == LayerPlan::Kind::kLinear;
  if (linear && asked.units < 1) return InvalidArgument("units must be >= 1, got ", asked.units);
  layer.width = linear ? asked.units : 0;

  std::map<std::string, ColumnSpecPtr> sorted;
  for (const FeatureColumn& column : asked.columns) {
    MR_RETURN_IF_ERROR(column.status());
    const auto [place, added] = sorted.emplace(column.name(), column.spec());
    if (!added) {
      return OfColumn(
          *column.spec(),
          InvalidArgument("columns must have different names, got '", column.name(),
                          "' twice (the first made at ", place->second->where.file_name(), ":",
                          place->second->where.line(),
                          "); one feature in two ways needs a copy of another name"));
    }
  }
  for (const auto& [name, column] : sorted) {
    const Status added = AddConsumer(column, &layer);
    if (!added.ok()) return OfColumn(*column, added);
  }
  if (linear) {
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({asked.units}));
    layer.tables.push_back({.name = "bias_weights",
                            .column = nullptr,
                            .shape = shape,
                            .initializer = ZerosInitializer()});
  }
  plan_.layers.push_back(std::move(layer));
  return absl::OkStatus();
}

}  // namespace

bool GiveTheSame(const ColumnSpecPtr& a, const ColumnSpecPtr& b) { return AreSame(a, b); }

StatusOr<ColumnPlan> MakeColumnPlan(const std::vector<AskedLayer>& layers) {
  PlanBuilder builder;
  for (const AskedLayer& layer : layers) {
    MR_RETURN_IF_ERROR(Prefixed(LayerName(layer.kind), builder.AddLayer(layer)));
  }
  return builder.Done();
}

}  // namespace millrace
