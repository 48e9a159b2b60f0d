// SPDX-License-Identifier: Apache-2.0
// The values of each feature are hashed (or written) once, then combined: prefix[k] is what the
// values of the first k features make, so that a combination costs what differs from the last one.
#include "ops/sparse/sparse_cross.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/fingerprint64.h"
#include "graph/op_registry.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// How many combinations there are is for the kernel to count.
struct SparseCrossRule {
  int64_t num_sparse = 0;
  int64_t num_buckets = 0;
  int64_t hash_key = 0;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "N", &num_sparse, "num_buckets", &num_buckets, "hash_key", &hash_key);
  }
  Status operator()(RuleContext* c) const {
    const int n = static_cast<int>(num_sparse);
    if (c->num_inputs() == 0) {
      return InvalidArgument("SparseCross must have at least one feature, got none");
    }
    for (int i = 0; i < n; ++i) {
      const std::string name = absl::StrCat("sparse feature ", i, ": ");
      MR_ASSIGN_OR_RETURN(
          const SparseSize size,
          CheckSparseInput(c, {.indices = i, .values = n + i, .shape = 2 * n + i, .prefix = name}));
      if (size.rank != 2 && size.rank != -1) {
        return InvalidArgument(name, "shape must be that of a matrix, got ", size.rank,
                               " dimensions");
      }
    }
    PartialShape examples({-1});
    for (int i = 3 * n; i < c->num_inputs(); ++i) {
      const PartialShape& feature = c->input(i);
      if (!feature.has_rank()) continue;
      if (feature.rank() != 2) {
        return InvalidArgument("dense feature ", i - 3 * n, " must be a matrix, got shape ",
                               feature);
      }
      const StatusOr<PartialShape> merged = examples.MergeWith(PartialShape({feature.dim(0)}));
      if (!merged.ok()) {
        return InvalidArgument("dense feature ", i - 3 * n, " must have ", examples.dim(0),
                               " examples as the features before it, got ", feature.dim(0));
      }
      examples = *merged;
    }
    c->set_output(0, {-1, 2});
    c->set_output(1, {-1});
    c->set_output(2, {2});
    return absl::OkStatus();
  }
};

// --- Features ------------------------------------------------------------------------------------

// The values of a feature, and which of them are an example's.
struct Feature {
  explicit Feature(const Tensor& values)
      : strings(values.dtype() == DT_STRING ? values.raw<std::string>().data() : nullptr),
        ints(values.dtype() == DT_STRING ? nullptr : values.raw<int64_t>().data()) {}

  uint64_t Hash(int64_t i) const {
    return strings != nullptr ? Fingerprint64(strings[i]) : static_cast<uint64_t>(ints[i]);
  }

  const std::string* strings;
  const int64_t* ints;
  std::vector<std::pair<int64_t, int64_t>> parts;  // [begin, end) of each example
};

// The features of the examples that may have combinations: those in which the first feature has a
// value. A sparse shape may claim any number of others.
struct Examples {
  std::vector<int64_t> rows;  // which example, ascending
  std::vector<Feature> features;
  std::vector<int64_t> ends;  // where the combinations of each end
  int64_t num_rows = 0;       // all of them
  int64_t most = 0;           // combinations of one
};

// Calls body(row, begin, end) for each run of elements of one example.
template <typename Body>
Status ForEachRun(const Tensor& indices, int64_t num_rows, int feature, Body body) {
  const int64_t* const index = indices.raw<int64_t>().data();
  const int64_t count = indices.dim(0);
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = index[2 * i];
    if (row < 0 || row >= num_rows) {
      return InvalidArgument("sparse feature ", feature, ": indices[", i, ",0] must be in [0, ",
                             num_rows, "), the number of examples, got ", row);
    }
    if (i > 0 && row < index[2 * (i - 1)]) {
      return InvalidArgument("sparse feature ", feature, ": indices must be in the order of ",
                             "examples, got example ", row, " behind ", index[2 * (i - 1)]);
    }
    if (i + 1 == count || index[2 * (i + 1)] != row) {
      body(row, begin, i + 1);
      begin = i + 1;
    }
  }
  return absl::OkStatus();
}

StatusOr<Examples> ReadExamples(const KernelContext& ctx, int n) {
  Examples examples;
  const int num_features = ctx.num_inputs() - 2 * n;
  std::optional<int64_t> num_rows;
  for (int i = 0; i < num_features - n; ++i) num_rows = ctx.input(3 * n + i).dim(0);
  for (int i = 0; i < n; ++i) {
    const int64_t rows = ctx.input(2 * n + i).raw<int64_t>()[0];
    if (rows < 0 || rows != num_rows.value_or(rows)) {
      return InvalidArgument("sparse feature ", i, ": shape[0] must be ",
                             num_rows ? absl::StrCat(*num_rows) : ">= 0",
                             ", the number of examples, got ", rows);
    }
    num_rows = rows;
  }
  examples.num_rows = *num_rows;
  for (int i = 0; i < n; ++i) {
    const Tensor& indices = ctx.input(i);
    examples.features.emplace_back(ctx.input(n + i));
    auto& parts = examples.features.back().parts;
    if (i == 0) {
      MR_RETURN_IF_ERROR(
          ForEachRun(indices, *num_rows, i, [&](int64_t row, int64_t begin, int64_t end) {
            examples.rows.push_back(row);
            parts.emplace_back(begin, end);
          }));
      continue;
    }
    parts.resize(examples.rows.size());
    size_t at = 0;
    MR_RETURN_IF_ERROR(
        ForEachRun(indices, *num_rows, i, [&](int64_t row, int64_t begin, int64_t end) {
          while (at < examples.rows.size() && examples.rows[at] < row) ++at;
          if (at < examples.rows.size() && examples.rows[at] == row) parts[at] = {begin, end};
        }));
  }
  for (int i = n; i < num_features; ++i) {
    const Tensor& dense = ctx.input(2 * n + i);
    const int64_t width = dense.dim(1);
    if (n == 0 && i == 0 && width > 0) {
      for (int64_t row = 0; row < *num_rows; ++row) examples.rows.push_back(row);
    }
    examples.features.emplace_back(dense);
    for (const int64_t row : examples.rows) {
      examples.features.back().parts.emplace_back(row * width, (row + 1) * width);
    }
  }
  int64_t end = 0;
  for (size_t e = 0; e < examples.rows.size(); ++e) {
    int64_t count = 1;
    for (const Feature& feature : examples.features) {
      const auto [first, last] = feature.parts[e];
      MR_ASSIGN_OR_RETURN(count, CheckedProduct(count, last - first));
    }
    end += count;
    // Each count fits by far; so does their sum as long as it is looked at each time.
    MR_RETURN_IF_ERROR(CheckedProduct(end, 2).status());
    examples.ends.push_back(end);
    examples.most = std::max(examples.most, count);
  }
  return examples;
}

// --- Combinations --------------------------------------------------------------------------------

// Calls emit(place, state) for each combination of one part of each feature, the last feature
// fastest: next(state, k, i) is the state with part i of feature k added to it.
template <typename State, typename Next, typename Emit>
void ForEachCombination(absl::Span<const int64_t> counts, State start, Next next, Emit emit) {
  const size_t n = counts.size();
  absl::InlinedVector<State, 8> prefix(n + 1, start);
  absl::InlinedVector<int64_t, 8> part(n, 0);
  for (int64_t place = 0;; ++place) {
    // Parts behind the one that has moved begin anew, the one itself goes on: all from `changed`.
    size_t changed = n;
    if (place == 0) {
      changed = 0;
    } else {
      while (changed > 0 && ++part[changed - 1] == counts[changed - 1]) part[--changed] = 0;
      if (changed == 0) return;
      --changed;
    }
    for (size_t k = changed; k < n; ++k) prefix[k + 1] = next(prefix[k], k, part[k]);
    emit(place, prefix[n]);
  }
}

Status RunSparseCross(KernelContext* ctx, const SparseCrossRule& rule) {
  MR_ASSIGN_OR_RETURN(const Examples examples,
                      ReadExamples(*ctx, static_cast<int>(rule.num_sparse)));
  const std::vector<Feature>& features = examples.features;
  const int64_t total = examples.ends.empty() ? 0 : examples.ends.back();
  MR_ASSIGN_OR_RETURN(const Shape indices_shape, Shape::Make({total, 2}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, indices_shape));
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, indices_shape.Slice(0, 1)));
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2));
  shape->mutable_raw<int64_t>()[0] = examples.num_rows;
  shape->mutable_raw<int64_t>()[1] = examples.most;

  const bool is_hashed = values->dtype() == DT_INT64;
  const uint64_t modulus = static_cast<uint64_t>(
      rule.num_buckets > 0 ? rule.num_buckets : std::numeric_limits<int64_t>::max());
  const size_t n = features.size();
  const double per_example =
      static_cast<double>(total) / static_cast<double>(examples.rows.size() + 1);
  const double cost_ns = 20 + 15 * static_cast<double>(n) + (is_hashed ? 15 : 80) * per_example;
  ctx->ParallelFor(
      static_cast<int64_t>(examples.rows.size()), cost_ns, [&](int64_t first, int64_t last) {
        absl::InlinedVector<int64_t, 8> counts(n), begins(n);
        std::vector<uint64_t> hashes;
        std::vector<std::string> texts;
        for (int64_t e = first; e < last; ++e) {
          int64_t num_parts = 0, num_combinations = 1;
          for (size_t k = 0; k < n; ++k) {
            const auto [begin, end] = features[k].parts[static_cast<size_t>(e)];
            begins[k] = num_parts;
            counts[k] = end - begin;
            num_parts += counts[k];
            num_combinations *= counts[k];
          }
          if (num_combinations == 0) continue;
          const int64_t at = examples.ends[static_cast<size_t>(e)] - num_combinations;
          for (int64_t i = 0; i < num_combinations; ++i) {
            int64_t* const index = indices->mutable_raw<int64_t>().data() + 2 * (at + i);
            index[0] = examples.rows[static_cast<size_t>(e)];
            index[1] = i;
          }
          const auto for_each_part = [&](auto visit) {
            for (size_t k = 0; k < n; ++k) {
              const auto [begin, end] = features[k].parts[static_cast<size_t>(e)];
              for (int64_t i = begin; i < end; ++i) visit(features[k], i);
            }
          };
          const auto part = [&](size_t k, int64_t i) { return static_cast<size_t>(begins[k] + i); };
          if (is_hashed) {
            hashes.clear();
            for_each_part([&](const Feature& f, int64_t i) { hashes.push_back(f.Hash(i)); });
            int64_t* const to = values->mutable_raw<int64_t>().data() + at;
            ForEachCombination(
                absl::MakeConstSpan(counts), static_cast<uint64_t>(rule.hash_key),
                [&](uint64_t hash, size_t k, int64_t i) {
                  return FingerprintCat64(hash, hashes[part(k, i)]);
                },
                [&](int64_t place, uint64_t hash) {
                  to[place] = static_cast<int64_t>(hash % modulus);
                });
          } else {
            texts.clear();
            for_each_part([&](const Feature& f, int64_t i) {
              texts.push_back(f.strings != nullptr ? f.strings[i] : absl::StrCat(f.ints[i]));
            });
            std::string* const to = values->mutable_raw<std::string>().data() + at;
            ForEachCombination(
                absl::MakeConstSpan(counts), std::string(),
                [&](const std::string& text, size_t k, int64_t i) {
                  return k == 0 ? texts[part(k, i)] : absl::StrCat(text, "_X_", texts[part(k, i)]);
                },
                [&](int64_t place, const std::string& text) { to[place] = text; });
          }
        }
      });
  return absl::OkStatus();
}

const OpRegistration kSparseCross =
    OpSpec("SparseCross",
           "indices: N * int64, values: sparse_types, shapes: N * int64, dense_inputs: dense_types "
           "-> output_indices: int64, output_values: out_type, output_shape: int64",
           "N: int >= 0; hashed_output: bool; num_buckets: int >= 0; hash_key: int; "
           "sparse_types: list({int64, string}) >= 0; dense_types: list({int64, string}) >= 0; "
           "out_type: {int64, string}; internal_type: {int64, string}")
        .With(RuledKernelFor<SparseCrossRule>(RunSparseCross))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
