// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/row_ids.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/dtype.h"
#include "core/fingerprint64.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/block.h"
#include "data/element.h"
#include "data/row_function.h"
#include "estimator/columns/column_plan.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/given_ids.h"
#include "estimator/columns/single_value_ids.h"
#include "ops/columns/column_ids.h"
#include "ops/columns/id_maker.h"

namespace millrace {
namespace {

constexpr char kWhere[] = "GiveIds";

// What a row becomes.
struct RowIdsPlan {
  // A feature: a component, as it is or as floats.
  struct Feature {
    size_t component;
    bool as_float;
  };
  // A component of ids: column `column` of those that are made.
  struct Given {
    size_t column;
    data::ComponentSpec spec;
  };
  data::ElementSpec rows;
  std::vector<size_t> kept;  // components of `rows`
  std::vector<Feature> features;
  std::vector<IdColumn> columns;
  std::vector<Given> given;

  data::ElementSpec Output() const {
    data::ElementSpec spec;
    for (const size_t i : kept) spec.push_back(rows[i]);
    for (const Given& ids : given) spec.push_back(ids.spec);
    return spec;
  }
};

class RowIds : public data::RowFunction {
 public:
  RowIds(RowIdsPlan plan, IdMaker maker) : plan_(std::move(plan)), maker_(std::move(maker)) {}
  // With what the ids depend on: a saved state has ids of rows, which another column's are not.
  std::string Name() const override {
    std::string names;
    for (const RowIdsPlan::Given& ids : plan_.given) absl::StrAppend(&names, ids.spec.name, ";");
    return absl::StrCat(kWhere, "(", absl::Hex(Fingerprint64(names), absl::kZeroPad16), ")");
  }
  StatusOr<data::ElementSpec> OutputSpec(const data::ElementSpec&) const override {
    return plan_.Output();
  }

  StatusOr<data::Element> Call(const data::Element& element, Arena* arena) const override {
    data::Block row, out;
    row.rows = 1;
    for (const Tensor& component : element) {
      if (component.rank() != 0) {
        return InvalidArgument(kWhere, ": components must be scalars, got shape ",
                               component.shape());
      }
      MR_ASSIGN_OR_RETURN(Tensor stacked, component.Reshaped(Shape{1}));
      row.columns.push_back({.stacked = std::move(stacked)});
    }
    Status error;
    MR_RETURN_IF_ERROR(CallBlock(row, arena, &out, &error));
    MR_RETURN_IF_ERROR(error);
    data::Element made;
    MR_RETURN_IF_ERROR(data::ElementOf(out, 0, &made));
    return made;
  }

  Status CallBlock(const data::Block& in, Arena* arena, data::Block* out,
                   Status* error) const override {
    const int64_t rows = in.rows;
    if (in.columns.size() != plan_.rows.size()) {
      return InvalidArgument(kWhere, ": a row must have ", plan_.rows.size(), " components, got ",
                             in.columns.size());
    }
    std::vector<IdFeature> features;
    std::vector<std::vector<float>> floats(plan_.features.size());
    for (size_t f = 0; f < plan_.features.size(); ++f) {
      MR_ASSIGN_OR_RETURN(const IdFeature feature, FeatureOf(in, plan_.features[f], &floats[f]));
      features.push_back(feature);
    }
    // Before the first row that has a value that may not be.
    int64_t good = rows;
    for (const IdColumn& column : maker_.columns()) {
      const int64_t bad = IdMaker::FirstBad(column, features, good);
      if (bad < 0) continue;
      good = bad;
      *error = IdMaker::BadIdentity(column, features, bad);
    }
    const auto columns = static_cast<int64_t>(maker_.columns().size());
    MR_ASSIGN_OR_RETURN(const Shape shape,
                        Shape::Make({columns + maker_.num_fingerprints(), rows}));
    MR_ASSIGN_OR_RETURN(Tensor scratch, Tensor::Allocate(DT_INT64, shape));
    int64_t* const ids = scratch.mutable_raw<int64_t>().data();
    arena->ParallelFor(good, IdMaker::kIdNs * static_cast<double>(columns),
                       [&](int64_t begin, int64_t end) {
                         maker_.MakeIds({features, rows, begin, end, ids, ids + columns * rows});
                       });
    out->rows = good;
    out->columns.clear();
    for (const size_t i : plan_.kept) {
      // It is also that of `in`.
      out->columns.push_back(in.columns[i]);
      out->columns.back().is_new = false;
    }
    for (const RowIdsPlan::Given& given : plan_.given) {
      MR_ASSIGN_OR_RETURN(Tensor made, Tensor::Allocate(given.spec.dtype, Shape{rows}));
      const int64_t* const from = ids + static_cast<int64_t>(given.column) * rows;
      if (given.spec.dtype == DT_INT32) {
        int32_t* const to = made.mutable_raw<int32_t>().data();
        for (int64_t i = 0; i < good; ++i) to[i] = static_cast<int32_t>(from[i]);
      } else {
        std::copy_n(from, good, made.mutable_raw<int64_t>().data());
      }
      out->columns.push_back({.stacked = std::move(made)});
    }
    if (good < rows) {
      data::Block whole = std::move(*out);
      whole.rows = rows;
      *out = data::Slice(whole, 0, good);
    }
    return absl::OkStatus();
  }

 private:
  // `floats` are for those of a feature that are made here.
  StatusOr<IdFeature> FeatureOf(const data::Block& in, const RowIdsPlan::Feature& feature,
                                std::vector<float>* floats) const {
    const data::Column& column = in.columns[feature.component];
    const data::ComponentSpec& spec = plan_.rows[feature.component];
    if (!column.stacked.has_value() && spec.dtype == DT_STRING &&
        static_cast<int64_t>(column.strings.size()) == in.rows) {
      return IdFeature{.views = column.strings.data()};
    }
    if (!column.stacked.has_value() || column.stacked.dtype() != spec.dtype ||
        column.stacked.num_elements() != in.rows) {
      return InvalidArgument(kWhere, ": component '", spec.name, "' must be ", spec.dtype,
                             " [], got others");
    }
    const Tensor& values = column.stacked;
    if (!feature.as_float || spec.dtype == DT_FLOAT) return IdFeature::Of(values);
    floats->resize(static_cast<size_t>(in.rows));
    const auto convert = [&]<typename T>(T) {
      const absl::Span<const T> from = values.raw<T>();
      for (size_t i = 0; i < from.size(); ++i) (*floats)[i] = static_cast<float>(from[i]);
    };
    if (spec.dtype == DT_INT32) convert(int32_t());
    if (spec.dtype == DT_INT64) convert(int64_t());
    if (spec.dtype == DT_DOUBLE) convert(double());
    return IdFeature{.numbers = floats->data()};
  }

  const RowIdsPlan plan_;
  const IdMaker maker_;
};

class RowIdsPlanner {
 public:
  RowIdsPlanner(const ColumnPlan& plan, const data::ElementSpec& rows)
      : plan_(plan), row_of_(plan.ids.size(), -1), is_read_(plan.sources.size(), false) {
    made_.rows = rows;
  }

  RowIdsPlan Make(const std::vector<std::string>& keep) {
    std::set<std::string> given;
    for (const LayerPlan& layer : plan_.layers) {
      for (const ConsumerPlan& consumer : layer.consumers) {
        const bool plain = consumer.ids >= 0 && consumer.id_weights < 0;
        if (!plain || !IsMadeHere(consumer.ids)) {
          ReadBy(consumer);
          continue;
        }
        const IdsPlan& ids = plan_.ids[static_cast<size_t>(consumer.ids)];
        const std::string name = GivenIdsName(*ids.column);
        if (IsGiven(name) || !given.insert(name).second) continue;
        const auto column = static_cast<size_t>(ColumnOf(consumer.ids));
        const bool small = ids.num_ids <= std::numeric_limits<int32_t>::max();
        made_.given.push_back(
            {column, {small ? DT_INT32 : DT_INT64, PartialShape::Scalar(), name}});
      }
    }
    for (size_t i = 0; i < made_.rows.size(); ++i) {
      const data::ComponentSpec& component = made_.rows[i];
      const auto source = absl::c_find_if(
          plan_.sources, [&](const SourcePlan& s) { return s.key == component.name; });
      const bool is_used_up = component.dtype == DT_STRING && source != plan_.sources.end() &&
                              !is_read_[static_cast<size_t>(source - plan_.sources.begin())] &&
                              !absl::c_linear_search(keep, component.name);
      if (!is_used_up) made_.kept.push_back(i);
    }
    return std::move(made_);
  }

 private:
  // The component that is feature `key`, if it is a scalar.
  std::optional<size_t> ComponentOf(const std::string& key) const {
    const auto found = absl::c_find_if(
        made_.rows, [&](const data::ComponentSpec& component) { return component.name == key; });
    if (found == made_.rows.end() || !found->shape.has_rank() || found->shape.rank() != 0) {
      return std::nullopt;
    }
    return static_cast<size_t>(found - made_.rows.begin());
  }

  // By an earlier GiveIds.
  bool IsGiven(const std::string& name) const {
    return absl::c_any_of(made_.rows,
                          [&](const auto& component) { return component.name == name; });
  }

  bool IsMadeHere(int ids) const {
    const ColumnSpec& column = *plan_.ids[static_cast<size_t>(ids)].column;
    return !GivenIdsName(column).empty() && BucketsAreOfNumbers(ids) &&
           HasSingleValueIds(plan_, ids, [&](const std::string& key) -> std::optional<DType> {
             const std::optional<size_t> component = ComponentOf(key);
             if (!component) return std::nullopt;
             return made_.rows[*component].dtype;
           });
  }
  bool BucketsAreOfNumbers(int ids) const {
    const IdsPlan& own = plan_.ids[static_cast<size_t>(ids)];
    if (own.numeric >= 0) {
      const std::optional<size_t> component = ComponentOf(KeyOf(NumberOf(own)));
      if (!component) return false;
      const DType dtype = made_.rows[*component].dtype;
      return dtype == DT_FLOAT || dtype == DT_DOUBLE || dtype == DT_INT32 || dtype == DT_INT64;
    }
    return absl::c_all_of(own.leaves, [&](const IdsPlan::Leaf& leaf) {
      return leaf.ids < 0 || BucketsAreOfNumbers(leaf.ids);
    });
  }
  int NumberOf(const IdsPlan& ids) const {
    return plan_.numerics[static_cast<size_t>(ids.numeric)].source;
  }
  const std::string& KeyOf(int source) const {
    return plan_.sources[static_cast<size_t>(source)].key;
  }

  // The graph makes it of what it reads.
  void ReadBy(const ConsumerPlan& consumer) {
    if (consumer.numeric >= 0) {
      Read(plan_.numerics[static_cast<size_t>(consumer.numeric)].source);
    }
    if (consumer.id_weights >= 0) Read(consumer.id_weights);
    if (consumer.source >= 0) Read(consumer.source);
    if (consumer.ids >= 0) ReadBy(consumer.ids);
  }
  void ReadBy(int ids) {
    const IdsPlan& own = plan_.ids[static_cast<size_t>(ids)];
    if (own.source >= 0) Read(own.source);
    if (own.numeric >= 0) Read(NumberOf(own));
    for (const IdsPlan::Leaf& leaf : own.leaves) {
      if (leaf.ids >= 0) {
        ReadBy(leaf.ids);
      } else {
        Read(leaf.source);
      }
    }
  }
  void Read(int source) { is_read_[static_cast<size_t>(source)] = true; }

  // The column that makes these ids; adds what is not there yet. Requires IsMadeHere.
  int64_t ColumnOf(int ids) {
    int64_t& row = row_of_[static_cast<size_t>(ids)];
    if (row >= 0) return row;
    const IdsPlan& own = plan_.ids[static_cast<size_t>(ids)];
    IdColumn column = IdColumnOf(*own.column);
    if (own.numeric >= 0) column.feature = FeatureOf(NumberOf(own), true);
    if (own.source >= 0) column.feature = FeatureOf(own.source, false);
    for (const IdsPlan::Leaf& leaf : own.leaves) {
      if (leaf.ids >= 0) {
        column.leaves.push_back({.column = ColumnOf(leaf.ids)});
      } else {
        column.leaves.push_back({.feature = FeatureOf(leaf.source, false)});
      }
    }
    made_.columns.push_back(std::move(column));
    return row = static_cast<int64_t>(made_.columns.size()) - 1;
  }
  int64_t FeatureOf(int source, bool as_float) {
    const size_t component = *ComponentOf(KeyOf(source));
    const auto found = absl::c_find_if(made_.features, [&](const RowIdsPlan::Feature& feature) {
      return feature.component == component && feature.as_float == as_float;
    });
    const auto place = found - made_.features.begin();
    if (found == made_.features.end()) made_.features.push_back({component, as_float});
    return place;
  }

  const ColumnPlan& plan_;
  std::vector<int64_t> row_of_;  // of ids: the column that makes them, or -1
  std::vector<bool> is_read_;    // of sources: by the graph
  RowIdsPlan made_;
};

StatusOr<data::Dataset> Given(const data::Dataset& rows, const std::vector<AskedLayer>& layers,
                              const GiveIdsOptions& options) {
  const data::ElementSpec& spec = rows.spec();
  if (spec.empty()) {
    return InvalidArgument("the types and names of the rows' components must be known, got none");
  }
  for (const std::string& name : options.keep) {
    if (absl::c_any_of(spec, [&](const auto& component) { return component.name == name; })) {
      continue;
    }
    return InvalidArgument("keep must name components of the rows, ", data::SpecText(spec),
                           ", got '", name, "'");
  }
  MR_ASSIGN_OR_RETURN(const ColumnPlan columns, MakeColumnPlan(layers));
  RowIdsPlan plan = RowIdsPlanner(columns, spec).Make(options.keep);
  if (plan.given.empty()) return rows;
  std::vector<DType> dtypes;
  for (const RowIdsPlan::Feature& feature : plan.features) {
    dtypes.push_back(feature.as_float ? DT_FLOAT : spec[feature.component].dtype);
  }
  MR_ASSIGN_OR_RETURN(IdMaker maker, IdMaker::Make(plan.columns, dtypes));
  std::shared_ptr<const data::RowFunction> function =
      std::make_shared<const RowIds>(std::move(plan), std::move(maker));
  return rows.Map(std::move(function));
}

}  // namespace

data::Dataset GiveIds(const data::Dataset& rows, const std::vector<DenseColumn>& dense,
                      const std::vector<FeatureColumn>& linear, const GiveIdsOptions& options) {
  if (!rows.status().ok()) return rows;
  std::vector<AskedLayer> layers;
  if (!dense.empty()) {
    layers.push_back({.kind = LayerPlan::Kind::kInput, .columns = {dense.begin(), dense.end()}});
  }
  if (!linear.empty()) layers.push_back({.kind = LayerPlan::Kind::kLinear, .columns = linear});
  if (layers.empty()) return rows;
  StatusOr<data::Dataset> given = Given(rows, layers, options);
  return given.ok() ? *std::move(given) : data::Dataset::Error(Prefixed(kWhere, given.status()));
}

}  // namespace millrace
