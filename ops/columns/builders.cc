// SPDX-License-Identifier: Apache-2.0
// The builders: structs as lists of attrs.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "ops/columns/column_ids.h"
#include "ops/columns/column_layer.h"
#include "ops/columns/column_unique.h"
#include "ops/columns/zero_fraction.h"

namespace millrace {

Output ColumnIds(const ScopeAt& at, absl::Span<const Output> features,
                 const std::vector<IdColumn>& columns) {
  std::vector<std::string> kinds, names, words;
  std::vector<int64_t> from, sizes, counts, oov_buckets, defaults, hash_keys, integers;
  std::vector<int64_t> leaf_columns, leaf_features;
  std::vector<float> boundaries;
  for (const IdColumn& column : columns) {
    const bool text = column.vocabulary.dtype() == DT_STRING;
    int64_t count = 0;
    switch (column.kind) {
      case IdColumn::Kind::kHash:
        kinds.emplace_back("hash");
        break;
      case IdColumn::Kind::kWords:
        kinds.emplace_back(text ? "words" : "integers");
        count = column.vocabulary.num_elements();
        for (int64_t i = 0; i < count; ++i) {
          if (text) {
            words.push_back(column.vocabulary.raw<std::string>()[static_cast<size_t>(i)]);
          } else {
            integers.push_back(column.vocabulary.ints()[static_cast<size_t>(i)]);
          }
        }
        break;
      case IdColumn::Kind::kIdentity:
        kinds.emplace_back("identity");
        break;
      case IdColumn::Kind::kBuckets:
        kinds.emplace_back("buckets");
        count = static_cast<int64_t>(column.boundaries.size());
        boundaries.insert(boundaries.end(), column.boundaries.begin(), column.boundaries.end());
        break;
      case IdColumn::Kind::kCross:
        kinds.emplace_back("cross");
        count = static_cast<int64_t>(column.leaves.size());
        for (const IdColumn::Leaf& leaf : column.leaves) {
          leaf_columns.push_back(leaf.column);
          leaf_features.push_back(leaf.feature);
        }
        break;
    }
    names.push_back(column.name);
    from.push_back(column.feature);
    sizes.push_back(column.size);
    counts.push_back(count);
    oov_buckets.push_back(column.num_oov_buckets);
    defaults.push_back(column.default_value);
    hash_keys.push_back(static_cast<int64_t>(column.hash_key));
  }
  return BuildOp(at, "_ColumnIds", {features}, "kinds", kinds, "names", names, "from", from,
                 "sizes", sizes, "counts", counts, "oov_buckets", oov_buckets, "defaults", defaults,
                 "hash_keys", hash_keys, "words", words, "integers", integers, "boundaries",
                 boundaries, "leaf_columns", leaf_columns, "leaf_features", leaf_features);
}

Output ColumnLayer(const ScopeAt& at, const Output& ids, absl::Span<const Output> numbers,
                   absl::Span<const ColumnTable> tables, const std::vector<ColumnLayerPart>& parts,
                   int64_t width) {
  std::vector<std::string> kinds;
  std::vector<int64_t> from, of_table, offsets, widths;
  for (const ColumnLayerPart& part : parts) {
    kinds.emplace_back(part.kind == ColumnLayerPart::Kind::kNumbers  ? "numbers"
                       : part.kind == ColumnLayerPart::Kind::kOneHot ? "one_hot"
                                                                     : "rows");
    from.push_back(part.from);
    of_table.push_back(part.table);
    offsets.push_back(part.offset);
    widths.push_back(part.width);
  }
  std::vector<Output> handles;
  std::vector<int64_t> row_begins, row_ends, row_counts;
  for (const ColumnTable& table : tables) {
    handles.push_back(table.handle);
    row_begins.push_back(table.begin);
    row_ends.push_back(table.end);
    row_counts.push_back(table.rows);
  }
  // Nodes of whole tables say nothing of rows.
  if (std::all_of(row_ends.begin(), row_ends.end(), [](int64_t end) { return end < 0; })) {
    row_begins.clear();
    row_ends.clear();
    row_counts.clear();
  }
  return BuildOp(at, "_ColumnLayer", {ids, numbers, handles}, "kinds", kinds, "from", from,
                 "of_table", of_table, "offsets", offsets, "widths", widths, "width", width,
                 "row_begins", row_begins, "row_ends", row_ends, "row_counts", row_counts);
}

ColumnUniqueOutputs ColumnUnique(const ScopeAt& at, const Output& ids,
                                 const std::vector<int64_t>& from) {
  const BuiltNode node = BuildOp(at, "_ColumnUnique", {ids}, "from", from);
  return {node.output(0), node.output(1)};
}

Output ColumnPick(const ScopeAt& at, const Output& rows, const Output& places,
                  const std::vector<int64_t>& widths) {
  return BuildOp(at, "_ColumnPick", {rows, places}, "widths", widths);
}

Output ZeroFraction(const ScopeAt& at, absl::Span<const Output> variables) {
  return BuildOp(at, "_ZeroFraction", {variables});
}

}  // namespace millrace
