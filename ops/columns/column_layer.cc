// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/column_layer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/linalg/matmul.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using Part = ColumnLayerPart;

// Where the rows of a table are: the only place that knows which variable has which ids.
struct RowRange {
  // The variable has rows [begin, end) of `count`; a whole table: all, however many there are.
  bool is_part = false;
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max(), count = -1;

  // Has it the row of this id? Not for no id (negative).
  bool Has(int64_t id) const {
    return static_cast<uint64_t>(id) - static_cast<uint64_t>(begin) <
           static_cast<uint64_t>(end - begin);
  }
};

// The parts, as both ops have them in attrs.
struct LayerParts {
  std::vector<Part> parts;
  int64_t width = 0;
  int64_t num_numbers = 0;
  std::vector<int64_t> table_widths;
  std::vector<RowRange> ranges;    // of the tables
  std::vector<std::string> kinds;  // the attrs themselves
  std::vector<int64_t> from, of_table, offsets, widths;
  std::vector<int64_t> row_begins, row_ends, row_counts;

  Status Init(const NodeAttrs& attrs, int64_t num_tables) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "kinds", &kinds, "from", &from, "of_table", &of_table,
                                 "offsets", &offsets, "widths", &widths, "width", &width,
                                 "row_begins", &row_begins, "row_ends", &row_ends, "row_counts",
                                 &row_counts));
    MR_RETURN_IF_ERROR(InitRanges(num_tables));
    const size_t n = kinds.size();
    for (const size_t size : {from.size(), of_table.size(), offsets.size(), widths.size()}) {
      if (size != n) {
        return InvalidArgument("the lists of parts must have ", n, " elements as kinds, got ",
                               size);
      }
    }
    table_widths.assign(static_cast<size_t>(num_tables), -1);
    for (size_t i = 0; i < n; ++i) {
      Part& part = parts.emplace_back();
      part = {.from = from[i], .table = of_table[i], .offset = offsets[i], .width = widths[i]};
      if (part.width < 1 || part.offset < 0 || part.offset > width ||
          part.width > width - part.offset) {
        return InvalidArgument("part ", i, " must be within the width ", width, ", got ",
                               part.width, " numbers from ", part.offset, " on");
      }
      if (kinds[i] == "numbers") {
        part.kind = Part::Kind::kNumbers;
        if (part.from != num_numbers++) {
          return InvalidArgument("part ", i, " must have the numbers ", num_numbers - 1, ", got ",
                                 part.from);
        }
        continue;
      }
      if (part.from < 0) {
        return InvalidArgument("part ", i, " must have ids >= 0, got ", part.from);
      }
      if (kinds[i] == "one_hot") {
        part.kind = Part::Kind::kOneHot;
      } else if (kinds[i] == "rows") {
        part.kind = Part::Kind::kRows;
        if (part.table < 0 || part.table >= num_tables) {
          return InvalidArgument("part ", i, " must have a table in [0, ", num_tables, "), got ",
                                 part.table);
        }
        int64_t& table_width = table_widths[static_cast<size_t>(part.table)];
        if (table_width >= 0 && table_width != part.width) {
          return InvalidArgument("part ", i, " must be as wide as its table, ", table_width,
                                 ", got ", part.width);
        }
        table_width = part.width;
      } else {
        return InvalidArgument("kinds must be numbers, one_hot or rows, got '", kinds[i], "'");
      }
    }
    return absl::OkStatus();
  }

  // Without the attrs all tables are whole.
  Status InitRanges(int64_t num_tables) {
    ranges.assign(static_cast<size_t>(num_tables), {});
    if (row_begins.empty() && row_ends.empty() && row_counts.empty()) return absl::OkStatus();
    for (const size_t size : {row_begins.size(), row_ends.size(), row_counts.size()}) {
      if (size != ranges.size()) {
        return InvalidArgument("the lists of rows must have ", num_tables,
                               " elements as there are tables, got ", size);
      }
    }
    for (size_t k = 0; k < ranges.size(); ++k) {
      if (row_ends[k] < 0) continue;
      if (row_begins[k] < 0 || row_begins[k] > row_ends[k] || row_ends[k] > row_counts[k]) {
        return InvalidArgument("table ", k, " must have rows within [0, ", row_counts[k],
                               "), got [", row_begins[k], ", ", row_ends[k], ")");
      }
      ranges[k] = {
          .is_part = true, .begin = row_begins[k], .end = row_ends[k], .count = row_counts[k]};
    }
    return absl::OkStatus();
  }

  // The batch, of `ids`.
  StatusOr<int64_t> CheckIds(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape ids, c->InputWithRank(0, 2, "ids"));
    for (size_t i = 0; i < parts.size() && ids.dim(0) >= 0; ++i) {
      if (parts[i].kind == Part::Kind::kNumbers || parts[i].from < ids.dim(0)) continue;
      return InvalidArgument("part ", i, " must have ids < ", ids.dim(0), ", got ", parts[i].from);
    }
    return ids.dim(1);
  }
};

// --- _ColumnLayer --------------------------------------------------------------------------------

// Inputs: ids, N times numbers, K times tables.
struct ColumnLayerRule : LayerParts {
  int64_t num_tables = 0;

  Status Init(const NodeAttrs& attrs) {
    int64_t n = 0;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "N", &n, "K", &num_tables));
    MR_RETURN_IF_ERROR(LayerParts::Init(attrs, num_tables));
    if (n == num_numbers) return absl::OkStatus();
    return InvalidArgument("the parts must have the ", n, " numbers given, got ", num_numbers);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t batch, CheckIds(c));
    for (const Part& part : parts) {
      if (part.kind != Part::Kind::kNumbers) continue;
      const PartialShape& numbers = c->input(1 + static_cast<int>(part.from));
      if (!numbers.IsFullyDefined()) continue;
      const int64_t own = numbers.rank() > 0 ? numbers.dim(0) : -1;
      MR_ASSIGN_OR_RETURN(const Shape shape, numbers.ToShape());
      MR_ASSIGN_OR_RETURN(const int64_t wanted,
                          CheckedProduct(std::max<int64_t>(own, 0), part.width));
      if (own >= 0 && (batch < 0 || own == batch) && shape.num_elements() == wanted) continue;
      return InvalidArgument("numbers ", part.from, " must have ", part.width, " for each of ",
                             batch < 0 ? "the" : absl::StrCat(batch), " examples, got shape ",
                             numbers);
    }
    return PartialShape::Make({batch, width});
  }
};

class ColumnLayerKernel : public RuledKernel<ColumnLayerRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    std::vector<std::shared_ptr<VariableStorage>> tables;
    tables.reserve(static_cast<size_t>(rule().num_tables));
    for (int k = 0; k < static_cast<int>(rule().num_tables); ++k) {
      MR_ASSIGN_OR_RETURN(auto table, VariableInput(ctx, FirstTable() + k, DT_FLOAT));
      tables.push_back(std::move(table));
    }
    for (;;) {
      const Status status = Fill(ctx, tables);
      if (!absl::IsAborted(status)) return status;  // a table was assigned another shape meanwhile
    }
  }

 private:
  int FirstTable() const { return 1 + static_cast<int>(rule().num_numbers); }

  // The shapes that the parts are looked up in.
  StatusOr<std::vector<Shape>> CheckTables(
      const KernelContext& ctx, const std::vector<std::shared_ptr<VariableStorage>>& tables) const {
    std::vector<Shape> shapes;
    shapes.reserve(tables.size());
    for (size_t k = 0; k < tables.size(); ++k) {
      StatusOr<Shape> shape = tables[k]->shape();
      if (absl::IsFailedPrecondition(shape.status())) {
        const Tensor& handle = ctx.input(FirstTable() + static_cast<int>(k));
        return ReadError(*tables[k], handle.raw_scalar<ResourceHandle>());
      }
      MR_RETURN_IF_ERROR(shape.status());
      const int64_t width = rule().table_widths[k];
      if (shape->rank() != 2 || (width >= 0 && shape->dim(1) != width)) {
        return InvalidArgument("table '", tables[k]->name(), "' must have shape [?,", width,
                               "], got ", *shape);
      }
      const RowRange& range = rule().ranges[k];
      if (range.is_part && shape->dim(0) != range.end - range.begin) {
        return InvalidArgument("table '", tables[k]->name(), "' must have the rows [", range.begin,
                               ", ", range.end, ") of ", range.count, ", got shape ", *shape);
      }
      shapes.push_back(*std::move(shape));
    }
    const int64_t batch = ctx.input(0).dim(1);
    const int64_t* const ids = ctx.input(0).raw<int64_t>().data();
    for (const Part& part : rule().parts) {
      if (part.kind != Part::Kind::kRows) continue;
      const auto k = static_cast<size_t>(part.table);
      // Of the whole table: what other variables have is no error.
      const RowRange& range = rule().ranges[k];
      const int64_t rows = range.is_part ? range.count : shapes[k].dim(0);
      const int64_t* const own = ids + part.from * batch;
      const auto is_wrong = [rows](int64_t id) { return id >= rows; };
      bool any = false;  // one pass without branches
      for (int64_t i = 0; i < batch; ++i) any |= is_wrong(own[i]);
      if (!any) continue;
      return InvalidArgument("ids of table '", tables[k]->name(), "' must be in [0, ", rows,
                             "), got ", *std::find_if(own, own + batch, is_wrong));
    }
    return shapes;
  }

  // Rows of tables, as they are looked up; memory for the next ones.
  class TableRows {
   public:
    // to[i * step + j] += whole[ids[i], j], of which `table` has the rows of `range`; nothing for
    // ids that it does not have.
    Status Add(const VariableStorage& table, const Shape& shape, const RowRange& range,
               absl::Span<const int64_t> ids, int64_t width, int64_t step, float* to) {
      const auto n = static_cast<int64_t>(ids.size());
      bool all = true;  // one pass without branches
      for (const int64_t id : ids) all &= range.Has(id);
      const bool are_rows = all && range.begin == 0;
      if (!are_rows) {
        indices_.clear();
        for (const int64_t id : ids) {
          if (range.Has(id)) indices_.push_back(id - range.begin);
        }
      }
      const absl::Span<const int64_t> indices = are_rows ? ids : absl::MakeConstSpan(indices_);
      rows_.resize(std::max(rows_.size(), indices.size() * static_cast<size_t>(width)));
      MR_RETURN_IF_ERROR(
          table.GatherRows<int64_t>(indices, shape, reinterpret_cast<char*>(rows_.data())));
      const float* row = rows_.data();
      if (all && width == 1) {
        for (int64_t i = 0; i < n; ++i) to[i * step] += row[i];
        return absl::OkStatus();
      }
      for (int64_t i = 0; i < n; ++i) {
        if (!all && !range.Has(ids[static_cast<size_t>(i)])) continue;
        for (int64_t j = 0; j < width; ++j) to[i * step + j] += row[j];
        row += width;
      }
      return absl::OkStatus();
    }

   private:
    std::vector<int64_t> indices_;
    std::vector<float> rows_;
  };

  Status Fill(KernelContext* ctx,
              const std::vector<std::shared_ptr<VariableStorage>>& tables) const {
    MR_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, CheckTables(*ctx, tables));
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateZeros(0));
    float* const out = output->mutable_raw<float>().data();
    const int64_t batch = output->dim(0);
    const int64_t* const ids = ctx->input(0).raw<int64_t>().data();
    Mutex mu;
    Status first;
    const double cost_ns = 20.0 * static_cast<double>(rule().parts.size());
    ctx->ParallelFor(batch, cost_ns, [&](int64_t begin, int64_t end) {
      TableRows table_rows;
      for (const Part& part : rule().parts) {
        float* const to = out + part.offset;
        const int64_t width = part.width, step = rule().width;
        const int64_t* const own = ids + part.from * batch;
        switch (part.kind) {
          case Part::Kind::kNumbers: {
            const float* const numbers =
                ctx->input(1 + static_cast<int>(part.from)).raw<float>().data();
            for (int64_t i = begin; i < end; ++i) {
              for (int64_t j = 0; j < width; ++j) to[i * step + j] += numbers[i * width + j];
            }
            break;
          }
          case Part::Kind::kOneHot:
            for (int64_t i = begin; i < end; ++i) {
              if (own[i] >= 0 && own[i] < width) to[i * step + own[i]] += 1;
            }
            break;
          case Part::Kind::kRows: {
            const auto k = static_cast<size_t>(part.table);
            const Status status = table_rows.Add(*tables[k], shapes[k], rule().ranges[k],
                                                 absl::MakeConstSpan(own + begin, own + end), width,
                                                 step, to + begin * step);
            if (!status.ok()) {
              MutexLock lock(&mu);
              first.Update(status);
              return;
            }
            break;
          }
        }
      }
    });
    return first;
  }
};

// The parts that are rows of tables, and the columns [begin, end) that they are in.
struct RowParts {
  std::vector<std::string> kinds;
  std::vector<int64_t> from, of_table, offsets, widths;
  int64_t begin = 0, end = 0;

  explicit RowParts(const LayerParts& all) : begin(all.width) {
    for (const Part& part : all.parts) {
      if (part.kind != Part::Kind::kRows) continue;
      kinds.emplace_back("rows");
      from.push_back(part.from);
      of_table.push_back(part.table);
      offsets.push_back(part.offset);
      widths.push_back(part.width);
      begin = std::min(begin, part.offset);
      end = std::max(end, part.offset + part.width);
    }
  }
};

// Columns [begin, end) of a product with a transposed matrix, as the gradient of a dense layer's
// input is one, without the others; invalid when `matrix` is none.
Output ColumnsOfProduct(const Scope& s, const Output& matrix, int64_t begin, int64_t end) {
  const Node* const node = matrix.node();
  if (node->op() != "MatMul") return Output();
  const StatusOr<bool> transpose_a = GetAttr<bool>(node->def(), "transpose_a"),
                       transpose_b = GetAttr<bool>(node->def(), "transpose_b");
  if (!transpose_a.ok() || *transpose_a || !transpose_b.ok() || !*transpose_b) return Output();
  const OutputRef &left = node->input(0), &right = node->input(1);
  const Output rows = Slice(s, Output(right.node, right.index),
                            ConstVector<int64_t>(s, std::vector<int64_t>{begin, 0}),
                            ConstVector<int64_t>(s, std::vector<int64_t>{end - begin, -1}));
  return MatMul(s, Output(left.node, left.index), rows, {.transpose_b = true});
}

// Tables get rows, numbers what stands at their place.
Status ColumnLayerGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const ColumnLayerRule rule, c->GetRule<ColumnLayerRule>());
  const Scope& s = c->scope();
  const Output gradient = c->dense_grad(0);
  for (const Part& part : rule.parts) {
    if (part.kind != Part::Kind::kNumbers) continue;
    const int input = 1 + static_cast<int>(part.from);
    const Output own =
        Slice(s, gradient, ConstVector<int64_t>(s, std::vector<int64_t>{0, part.offset}),
              ConstVector<int64_t>(s, std::vector<int64_t>{-1, part.width}));
    c->set_input_grad(input, Reshape(s, own, ShapeOf(s, c->input(input))));
  }
  const int tables = static_cast<int>(rule.num_tables);
  if (tables == 0) return s.status();
  RowParts rows(rule);
  int64_t width = rule.width;
  Output own = rows.end - rows.begin < width ? ColumnsOfProduct(s, gradient, rows.begin, rows.end)
                                             : Output();
  if (own.valid()) {
    width = rows.end - rows.begin;
    for (int64_t& offset : rows.offsets) offset -= rows.begin;
  } else {
    own = gradient;
  }
  // Where the tables are: the batch's gradient goes there, not a gradient of each table.
  const std::string& device = c->node().requested_device();
  const Scope there = device.empty() ? s : s.WithDevice(device);
  const BuiltNode sums =
      BuildOp(there, "_ColumnLayerGrad", {c->input(0), own}, "K", rule.num_tables, "kinds",
              rows.kinds, "from", rows.from, "of_table", rows.of_table, "offsets", rows.offsets,
              "widths", rows.widths, "width", width, "row_begins", rule.row_begins, "row_ends",
              rule.row_ends, "row_counts", rule.row_counts);
  for (int k = 0; k < tables; ++k) {
    const int input = 1 + static_cast<int>(rule.num_numbers) + k;
    c->set_input_grad(input, IndexedSlices{.values = sums.output(tables + k),
                                           .indices = sums.output(k),
                                           .dense_shape = VariableShape(s, c->input(input)),
                                           .unique_indices = true});
  }
  return s.status();
}

constexpr char kPartAttrs[] =
    "kinds: list(string) >= 1; from: list(int); of_table: list(int); offsets: list(int); "
    "widths: list(int); width: int >= 1; row_begins: list(int) = []; row_ends: list(int) = []; "
    "row_counts: list(int) = []";

const OpRegistration kColumnLayer =
    OpSpec("_ColumnLayer", "ids: int64, numbers: N * float, tables: K * resource -> output: float",
           absl::StrCat("N: int >= 0; K: int >= 0; ", kPartAttrs))
        .Stateful()
        .Gradient(ColumnLayerGradient)
        .With(KernelFor<ColumnLayerKernel>());

// --- _ColumnLayerGrad ----------------------------------------------------------------------------

// How many different rows there are is for the kernel to count. Optimizers know this op as one
// whose indices are different (train/optimizer.cc).
struct ColumnLayerGradRule : LayerParts {
  // For an example, of one table: parts, and the numbers in their rows.
  int64_t most_parts = 0, most_numbers = 0;

  Status Init(const NodeAttrs& attrs) {
    int64_t num_tables = 0;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "K", &num_tables));
    MR_RETURN_IF_ERROR(LayerParts::Init(attrs, num_tables));
    for (size_t k = 0; k < table_widths.size(); ++k) {
      if (table_widths[k] < 0) return InvalidArgument("table ", k, " must have a part, got none");
      const int64_t own = std::count_if(parts.begin(), parts.end(), [k](const Part& part) {
        return part.kind == Part::Kind::kRows && part.table == static_cast<int64_t>(k);
      });
      MR_ASSIGN_OR_RETURN(const int64_t numbers, CheckedProduct(own, table_widths[k]));
      most_parts = std::max(most_parts, own);
      most_numbers = std::max(most_numbers, numbers);
    }
    return absl::OkStatus();
  }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t batch, CheckIds(c));
    MR_ASSIGN_OR_RETURN(const PartialShape wanted, PartialShape::Make({batch, width}));
    if (!c->input(1).IsCompatibleWith(wanted)) {
      return InvalidArgument("gradient must have shape ", wanted, ", got ", c->input(1));
    }
    const int tables = static_cast<int>(table_widths.size());
    for (int k = 0; k < tables; ++k) {
      c->set_output(k, {-1});
      c->set_output(tables + k, {-1, table_widths[static_cast<size_t>(k)]});
    }
    return absl::OkStatus();
  }
};

// Numbers the ids of a table in the order in which they first come, and adds up their rows.
class RowSums {
 public:
  // For at most `most` different ids, of rows of at most `most_numbers` numbers together.
  RowSums(int64_t most, int64_t most_numbers) {
    size_t size = 16;
    while (size < 2 * static_cast<size_t>(most)) size *= 2;
    slots_.resize(size);
    mask_ = size - 1;
    ids_.resize(static_cast<size_t>(most));
    sums_.resize(static_cast<size_t>(most_numbers));
  }
  // Forgets all for a table of rows of `width` numbers.
  void Begin(int64_t width) {
    ++table_;
    count_ = 0;
    width_ = width;
  }
  // The sum of the row, zeros at first.
  float* SumOf(int64_t id) {
    size_t at = (static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15u >> 32) & mask_;
    for (; slots_[at].table == table_; at = (at + 1) & mask_) {
      const int64_t place = slots_[at].place;
      if (ids_[static_cast<size_t>(place)] == id) return sums_.data() + place * width_;
    }
    slots_[at] = {table_, static_cast<int32_t>(count_)};
    ids_[static_cast<size_t>(count_)] = id;
    float* const sum = sums_.data() + count_++ * width_;
    std::fill_n(sum, width_, 0.0f);
    return sum;
  }
  int64_t count() const { return count_; }
  const int64_t* ids() const { return ids_.data(); }
  const float* sums() const { return sums_.data(); }

 private:
  // Of another table than the present one: free.
  struct Slot {
    int32_t table = 0;
    int32_t place = 0;
  };
  std::vector<Slot> slots_;
  std::vector<int64_t> ids_;
  std::vector<float> sums_;
  size_t mask_ = 0;
  int32_t table_ = 0;
  int64_t count_ = 0, width_ = 0;
};

Status RunColumnLayerGrad(KernelContext* ctx, const ColumnLayerGradRule& rule) {
  const int64_t batch = ctx->input(0).dim(1);
  const int64_t* const ids = ctx->input(0).raw<int64_t>().data();
  const float* const gradient = ctx->input(1).raw<float>().data();
  const int tables = static_cast<int>(rule.table_widths.size());
  MR_ASSIGN_OR_RETURN(const int64_t most, CheckedProduct(batch, rule.most_parts));
  MR_ASSIGN_OR_RETURN(const int64_t most_numbers, CheckedProduct(batch, rule.most_numbers));
  // Places are numbered by int32.
  if (most > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("ids of one table must be at most ", std::numeric_limits<int32_t>::max(),
                           ", got ", most);
  }
  RowSums sums(most, most_numbers);
  for (int k = 0; k < tables; ++k) {
    const int64_t width = rule.table_widths[static_cast<size_t>(k)];
    const RowRange& range = rule.ranges[static_cast<size_t>(k)];
    sums.Begin(width);
    for (const Part& part : rule.parts) {
      if (part.kind != Part::Kind::kRows || part.table != k) continue;
      const int64_t* const own = ids + part.from * batch;
      const float* from = gradient + part.offset;
      for (int64_t i = 0; i < batch; ++i, from += rule.width) {
        const int64_t id = std::max<int64_t>(own[i], 0);
        if (!range.Has(id)) continue;
        float* const sum = sums.SumOf(id - range.begin);
        if (own[i] < 0) continue;
        for (int64_t j = 0; j < width; ++j) sum[j] += from[j];
      }
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({sums.count(), width}));
    MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(k, shape.Slice(0, 1)));
    MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(tables + k, shape));
    std::copy_n(sums.ids(), sums.count(), indices->mutable_raw<int64_t>().data());
    std::copy_n(sums.sums(), sums.count() * width, values->mutable_raw<float>().data());
  }
  return absl::OkStatus();
}

const OpRegistration kColumnLayerGrad =
    OpSpec("_ColumnLayerGrad",
           "ids: int64, gradient: float -> indices: K * int64, values: K * float",
           absl::StrCat("K: int >= 1; ", kPartAttrs))
        .With(RuledKernelFor<ColumnLayerGradRule>(RunColumnLayerGrad))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
