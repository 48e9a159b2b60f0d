// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/column_ids.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "graph/op_registry.h"
#include "ops/columns/id_maker.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Kind = IdColumn::Kind;

// The columns as the attrs have them: a list for each member of IdColumn, lists of lists one after
// the other.
struct ColumnIdsRule {
  std::vector<DType> dtypes;  // of the features
  std::vector<IdColumn> columns;

  Status Init(const NodeAttrs& attrs) {
    std::vector<std::string> kinds, names, all_words;
    std::vector<int64_t> features, sizes, counts, oov, defaults, hash_keys, all_integers;
    std::vector<int64_t> leaf_columns, leaf_features;
    std::vector<float> boundaries;
    MR_RETURN_IF_ERROR(ReadAttrs(
        attrs, "Tfeatures", &dtypes, "kinds", &kinds, "names", &names, "from", &features, "sizes",
        &sizes, "counts", &counts, "oov_buckets", &oov, "defaults", &defaults, "hash_keys",
        &hash_keys, "words", &all_words, "integers", &all_integers, "boundaries", &boundaries,
        "leaf_columns", &leaf_columns, "leaf_features", &leaf_features));
    const size_t n = kinds.size();
    for (const size_t size : {names.size(), features.size(), sizes.size(), counts.size(),
                              oov.size(), defaults.size(), hash_keys.size()}) {
      if (size != n) {
        return InvalidArgument("the lists of columns must have ", n, " elements as kinds, got ",
                               size);
      }
    }
    if (leaf_columns.size() != leaf_features.size()) {
      return InvalidArgument("leaf_columns and leaf_features must be as many, got ",
                             leaf_columns.size(), " and ", leaf_features.size());
    }
    size_t word = 0, integer = 0, boundary = 0, leaf = 0;
    // The next `count` elements of `all`, from `*at` on.
    const auto take = [](const auto& all, int64_t count, size_t* at, auto* to) -> Status {
      if (count < 1 || static_cast<uint64_t>(count) > all.size() - *at) {
        return InvalidArgument("counts must say what the lists have, got ", count, " where ",
                               all.size() - *at, " are left");
      }
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(*at);
      to->assign(begin, begin + static_cast<std::ptrdiff_t>(count));
      *at += static_cast<size_t>(count);
      return absl::OkStatus();
    };
    for (size_t i = 0; i < n; ++i) {
      IdColumn& column = columns.emplace_back();
      column = {.name = names[i],
                .feature = features[i],
                .size = sizes[i],
                .num_oov_buckets = oov[i],
                .default_value = defaults[i],
                .hash_key = static_cast<uint64_t>(hash_keys[i])};
      const std::string& kind = kinds[i];
      if (kind == "hash") {
        column.kind = Kind::kHash;
      } else if (kind == "words") {
        column.kind = Kind::kWords;
        std::vector<std::string> words;
        MR_RETURN_IF_ERROR(take(all_words, counts[i], &word, &words));
        column.vocabulary = Tensor::Vector<std::string>(absl::MakeConstSpan(words));
      } else if (kind == "integers") {
        column.kind = Kind::kWords;
        std::vector<int64_t> integers;
        MR_RETURN_IF_ERROR(take(all_integers, counts[i], &integer, &integers));
        column.vocabulary = Tensor::Vector<int64_t>(absl::MakeConstSpan(integers));
      } else if (kind == "identity") {
        column.kind = Kind::kIdentity;
      } else if (kind == "buckets") {
        column.kind = Kind::kBuckets;
        MR_RETURN_IF_ERROR(take(boundaries, counts[i], &boundary, &column.boundaries));
      } else if (kind == "cross") {
        column.kind = Kind::kCross;
        std::vector<int64_t> from_columns, from_features;
        size_t same = leaf;
        MR_RETURN_IF_ERROR(take(leaf_columns, counts[i], &leaf, &from_columns));
        MR_RETURN_IF_ERROR(take(leaf_features, counts[i], &same, &from_features));
        for (size_t j = 0; j < from_columns.size(); ++j) {
          column.leaves.push_back({from_columns[j], from_features[j]});
        }
      } else {
        return InvalidArgument(
            "kinds must be hash, words, integers, identity, buckets or cross, got '", kind, "'");
      }
      MR_RETURN_IF_ERROR(IdMaker::Check(columns, i, dtypes));
    }
    return absl::OkStatus();
  }

  StatusOr<PartialShape> operator()(RuleContext* c) const {
    int64_t batch = -1;
    int first = -1;
    for (int i = 0; i < c->num_inputs(); ++i) {
      const PartialShape& shape = c->input(i);
      if (!shape.has_rank()) continue;
      const bool fits =
          shape.rank() == 1 || (shape.rank() == 2 && (shape.dim(1) == 1 || shape.dim(1) == -1));
      if (!fits) {
        return InvalidArgument("feature ", i, " must have one value per example, got shape ",
                               shape);
      }
      if (shape.dim(0) < 0) continue;
      if (batch >= 0 && shape.dim(0) != batch) {
        return InvalidArgument("features must have as many examples, got ", shape.dim(0),
                               " of feature ", i, " and ", batch, " of feature ", first);
      }
      batch = shape.dim(0);
      first = i;
    }
    return PartialShape::Make({static_cast<int64_t>(columns.size()), batch});
  }
};

class ColumnIdsKernel : public RuledKernel<ColumnIdsRule> {
 protected:
  Status Prepare(KernelConstruction*) override {
    MR_ASSIGN_OR_RETURN(maker_, IdMaker::Make(rule().columns, rule().dtypes));
    return absl::OkStatus();
  }

  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    const int64_t batch = out->dim(1);
    std::vector<IdFeature> features;
    for (int i = 0; i < static_cast<int>(rule().dtypes.size()); ++i) {
      features.push_back(IdFeature::Of(ctx->input(i)));
    }
    for (const IdColumn& column : rule().columns) {
      const int64_t bad = IdMaker::FirstBad(column, features, batch);
      if (bad >= 0) return IdMaker::BadIdentity(column, features, bad);
    }
    MR_ASSIGN_OR_RETURN(const Shape scratch, Shape::Make({maker_.num_fingerprints(), batch}));
    MR_ASSIGN_OR_RETURN(Tensor fingerprints, ctx->AllocateTemp(DT_INT64, scratch));
    int64_t* const ids = out->mutable_raw<int64_t>().data();
    int64_t* const hashes = fingerprints.mutable_raw<int64_t>().data();
    const double cost_ns = IdMaker::kIdNs * static_cast<double>(rule().columns.size());
    ctx->ParallelFor(batch, cost_ns, [&](int64_t begin, int64_t end) {
      maker_.MakeIds({features, batch, begin, end, ids, hashes});
    });
    return absl::OkStatus();
  }

 private:
  IdMaker maker_;
};

const OpRegistration kColumnIds =
    OpSpec("_ColumnIds", "features: Tfeatures -> ids: int64",
           "Tfeatures: list(type) >= 1; kinds: list(string) >= 1; names: list(string); "
           "from: list(int); sizes: list(int); counts: list(int); oov_buckets: list(int); "
           "defaults: list(int); hash_keys: list(int); words: list(string); integers: list(int); "
           "boundaries: list(float); leaf_columns: list(int); leaf_features: list(int)")
        .With(KernelFor<ColumnIdsKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
