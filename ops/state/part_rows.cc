// SPDX-License-Identifier: Apache-2.0
#include "ops/state/part_rows.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "core/random_bits.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/rules/index_type.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // places are int32

Status CheckLength(int64_t n) {
  if (n <= kMost) return absl::OkStatus();
  return InvalidArgument("ids must be at most ", kMost, ", got ", n);
}

// Which part has a row, and which row of the part it is.
struct PartsOfTable {
  int64_t num_parts = 0;
  std::vector<int64_t> ends;  // empty: the parts take turns

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "N", &num_parts, "ends", &ends));
    if (ends.empty()) return absl::OkStatus();
    if (ends.size() != static_cast<size_t>(num_parts)) {
      return InvalidArgument("ends must have N = ", num_parts, " elements, got ", ends.size());
    }
    int64_t last = 0;
    for (const int64_t end : ends) {
      if (end < last) return InvalidArgument("ends must not decrease from 0 on, got ", end);
      last = end;
    }
    return absl::OkStatus();
  }
  int64_t rows() const { return ends.empty() ? std::numeric_limits<int64_t>::max() : ends.back(); }
  size_t PartOf(int64_t id) const {
    if (ends.empty()) return static_cast<size_t>(id % num_parts);
    return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), id) - ends.begin());
  }
  int64_t RowIn(size_t part, int64_t id) const {
    if (ends.empty()) return id / num_parts;
    return part == 0 ? id : id - ends[part - 1];
  }
  // The part of each id. `counts`: ids by part.
  template <typename Index>
  Status Divide(absl::Span<const Index> ids, std::vector<int32_t>* part_of,
                std::vector<int64_t>* counts) const {
    MR_RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(ids.size())));
    part_of->resize(ids.size());
    counts->assign(static_cast<size_t>(num_parts), 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t id = ids[i];
      if (id < 0 || id >= rows()) {
        return InvalidArgument("ids[", i, "] = ", id, " is not in [0, ", rows(), ")");
      }
      const size_t part = PartOf(id);
      (*part_of)[i] = static_cast<int32_t>(part);
      ++(*counts)[part];
    }
    return absl::OkStatus();
  }
};

// --- _PartRows -----------------------------------------------------------------------------------

struct PartRowsRule : PartsOfTable {
  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 1, "ids").status());
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, {-1});
    return absl::OkStatus();
  }
};

Status RunPartRows(KernelContext* ctx, const PartRowsRule& rule) {
  return VisitIndexType(ctx->input(0).dtype(), [&]<typename Index>() -> Status {
    const absl::Span<const Index> ids = ctx->input(0).raw<Index>();
    std::vector<int32_t> part_of;
    std::vector<int64_t> counts;
    MR_RETURN_IF_ERROR(rule.Divide(ids, &part_of, &counts));
    const auto n = static_cast<int>(rule.num_parts);
    std::vector<Index*> rows;
    std::vector<int32_t*> places;
    for (int p = 0; p < n; ++p) {
      const Shape shape{counts[static_cast<size_t>(p)]};
      MR_ASSIGN_OR_RETURN(Tensor * own, ctx->AllocateOutput(p, shape));
      MR_ASSIGN_OR_RETURN(Tensor * where, ctx->AllocateOutput(n + p, shape));
      rows.push_back(own->mutable_raw<Index>().data());
      places.push_back(where->mutable_raw<int32_t>().data());
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto p = static_cast<size_t>(part_of[i]);
      *rows[p]++ = static_cast<Index>(rule.RowIn(p, ids[i]));
      *places[p]++ = static_cast<int32_t>(i);
    }
    return absl::OkStatus();
  });
}

const OpRegistration kPartRows = OpSpec("_PartRows", "ids: T -> rows: N * T, places: N * int32",
                                        "N: int >= 1; ends: list(int); T: {int32, int64}")
                                     .With(RuledKernelFor<PartRowsRule>(RunPartRows))
                                     .NotDifferentiable();

// --- _PartLists ----------------------------------------------------------------------------------

// Numbers keys in the order in which they first come.
class Numbering {
 public:
  explicit Numbering(size_t most) {
    size_t size = 16;
    while (size < 2 * most) size *= 2;
    slots_.assign(size, -1);
    mask_ = size - 1;
  }
  int32_t NumberOf(int64_t key) {
    uint64_t hash = (static_cast<uint64_t>(key) ^ Seed()) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 32)) * Seed();
    size_t at = (hash >> 32) & mask_;
    for (; slots_[at] >= 0; at = (at + 1) & mask_) {
      if (keys_[static_cast<size_t>(slots_[at])] == key) return slots_[at];
    }
    slots_[at] = static_cast<int32_t>(keys_.size());
    keys_.push_back(key);
    return slots_[at];
  }
  // By number.
  const std::vector<int64_t>& keys() const { return keys_; }

 private:
  // Of this process: who sends ids cannot choose those that have one place. Numbers do not hang on
  // it. Odd, so that no key is lost.
  static uint64_t Seed() {
    static const uint64_t seed = RandomUint64() | 1;
    return seed;
  }

  std::vector<int32_t> slots_;
  std::vector<int64_t> keys_;
  size_t mask_ = 0;
};

struct PartListsRule : PartsOfTable {
  int64_t row_bytes = 0;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(PartsOfTable::Init(attrs));
    return ReadAttrs(attrs, "row_bytes", &row_bytes);
  }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape ids, c->InputWithRank(0, 1, "ids"));
    if (!c->input(1).IsCompatibleWith(ids)) {
      return InvalidArgument("examples must be as long as ids, got shape ", c->input(1), " for ",
                             ids);
    }
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, {-1});
    return absl::OkStatus();
  }
};

// What is found out of the ids of one part.
struct PartOfList {
  explicit PartOfList(int64_t count)
      : num_ids(count), rows(static_cast<size_t>(count)), examples(static_cast<size_t>(count)) {}
  int64_t num_ids;
  Numbering rows, examples;
  bool by_example = false;  // it gives sums
  int32_t begin = 0;        // of its sums, among those of all parts
  int32_t picked = 0;       // of its sums

  int64_t num_sums() const {
    return static_cast<int64_t>(by_example ? examples.keys().size() : rows.keys().size());
  }
  // Whether sums are fewer bytes than rows. What the part gives comes back as its gradient.
  void Choose(int64_t row_bytes, int64_t index_bytes) {
    const auto bytes = [&](int64_t indices, size_t given) {
      return static_cast<double>(indices) * static_cast<double>(index_bytes + 4) +
             2 * static_cast<double>(given) * static_cast<double>(row_bytes);
    };
    const size_t num_rows = rows.keys().size();
    by_example =
        bytes(num_ids, examples.keys().size()) < bytes(static_cast<int64_t>(num_rows), num_rows);
  }
};

template <typename Index, typename Example>
Status DivideLists(KernelContext* ctx, const PartListsRule& rule) {
  const absl::Span<const Index> ids = ctx->input(0).raw<Index>();
  const absl::Span<const Example> examples = ctx->input(1).raw<Example>();
  std::vector<int32_t> part_of;
  std::vector<int64_t> counts;
  MR_RETURN_IF_ERROR(rule.Divide(ids, &part_of, &counts));
  std::vector<PartOfList> parts;
  for (const int64_t count : counts) parts.emplace_back(count);
  std::vector<int32_t> row_of(ids.size()), example_of(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto p = static_cast<size_t>(part_of[i]);
    row_of[i] = parts[p].rows.NumberOf(rule.RowIn(p, ids[i]));
    example_of[i] = parts[p].examples.NumberOf(examples[i]);
  }
  int64_t num_sums = 0, num_picks = 0;
  std::vector<Index*> rows;
  std::vector<int32_t*> sums;
  const auto n = static_cast<int>(rule.num_parts);
  for (int p = 0; p < n; ++p) {
    PartOfList& part = parts[static_cast<size_t>(p)];
    part.Choose(rule.row_bytes, sizeof(Index));
    part.begin = static_cast<int32_t>(num_sums);
    num_sums += part.num_sums();  // no more than there are ids
    num_picks += part.by_example ? part.num_sums() : part.num_ids;
    const Shape shape{part.by_example ? part.num_ids : part.num_sums()};
    MR_ASSIGN_OR_RETURN(Tensor * own, ctx->AllocateOutput(p, shape));
    MR_ASSIGN_OR_RETURN(Tensor * into, ctx->AllocateOutput(n + p, shape));
    rows.push_back(own->mutable_raw<Index>().data());
    sums.push_back(into->mutable_raw<int32_t>().data());
    if (part.by_example) continue;
    int32_t number = 0;
    for (const int64_t row : part.rows.keys()) {
      *rows.back()++ = static_cast<Index>(row);
      *sums.back()++ = number++;
    }
  }
  const Shape shape{num_picks};
  MR_ASSIGN_OR_RETURN(Tensor * picks, ctx->AllocateOutput(2 * n, shape));
  MR_ASSIGN_OR_RETURN(Tensor * picked_for, ctx->AllocateOutput(2 * n + 1, shape));
  int32_t* pick = picks->mutable_raw<int32_t>().data();
  Example* example = picked_for->mutable_raw<Example>().data();
  // In the order of the list, so that rows are added up as those of the whole table are.
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto p = static_cast<size_t>(part_of[i]);
    PartOfList& part = parts[p];
    int32_t number = row_of[i];
    if (part.by_example) {
      number = example_of[i];
      *rows[p]++ = static_cast<Index>(rule.RowIn(p, ids[i]));
      *sums[p]++ = number;
      if (number < part.picked) continue;
      ++part.picked;
    }
    *pick++ = part.begin + number;
    *example++ = examples[i];
  }
  return absl::OkStatus();
}

Status RunPartLists(KernelContext* ctx, const PartListsRule& rule) {
  return VisitIndexType(ctx->input(0).dtype(), [&]<typename Index>() {
    return VisitIndexType(ctx->input(1).dtype(), [&]<typename Example>() {
      return DivideLists<Index, Example>(ctx, rule);
    });
  });
}

const OpRegistration kPartLists =
    OpSpec("_PartLists",
           "ids: T, examples: S -> rows: N * T, sums: N * int32, picks: int32, picked_for: S",
           "N: int >= 1; ends: list(int); row_bytes: int >= 1; T: {int32, int64}; "
           "S: {int32, int64}")
        .With(RuledKernelFor<PartListsRule>(RunPartLists))
        .NotDifferentiable();

// --- _RowSums ------------------------------------------------------------------------------------

Status CheckRowsAndSums(const PartialShape& rows, const PartialShape& sums) {
  const bool vectors =
      (!rows.has_rank() || rows.rank() == 1) && (!sums.has_rank() || sums.rank() == 1);
  if (vectors && rows.IsCompatibleWith(sums)) return absl::OkStatus();
  return InvalidArgument("rows and sums must be vectors of one length, got shapes ", rows, " and ",
                         sums);
}

// Of sums that have every number below it.
StatusOr<int64_t> CountSums(absl::Span<const int32_t> sums) {
  int64_t count = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] < 0 || static_cast<size_t>(sums[i]) >= sums.size()) {
      return InvalidArgument("sums[", i, "] = ", sums[i], " is not in [0, ", sums.size(), ")");
    }
    count = std::max(count, int64_t{sums[i]} + 1);
  }
  return count;
}

Status RowSumsShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape table, ShapeOfHandle(c));
  MR_RETURN_IF_ERROR(CheckRowsAndSums(c->input(1), c->input(2)));
  MR_ASSIGN_OR_RETURN(PartialShape shape, RowsShape({-1}, table));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T>
class RowSumsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto table, VariableInput(ctx, 0, DTypeOf<T>));
    MR_RETURN_IF_ERROR(CheckRowsAndSums(ctx->input(1).shape(), ctx->input(2).shape()));
    MR_ASSIGN_OR_RETURN(const int64_t count, CountSums(ctx->input(2).raw<int32_t>()));
    for (;;) {
      const Status status = VisitIndexType(ctx->input(1).dtype(), [&]<typename Index>() {
        return AddUp<Index>(ctx, *table, count);
      });
      if (absl::IsAborted(status)) continue;  // assigned another shape meanwhile
      if (absl::IsFailedPrecondition(status)) {
        return ReadError(*table, ctx->input(0).raw_scalar<ResourceHandle>());
      }
      return status;
    }
  }

 private:
  template <typename Index>
  static Status AddUp(KernelContext* ctx, const VariableStorage& table, int64_t count) {
    MR_ASSIGN_OR_RETURN(const Shape whole, table.shape());
    MR_ASSIGN_OR_RETURN(const PartialShape wanted, RowsShape(PartialShape({count}), whole));
    MR_ASSIGN_OR_RETURN(const Shape shape, wanted.ToShape());
    const absl::Span<const Index> rows = ctx->input(1).raw<Index>();
    const absl::Span<const int32_t> sums = ctx->input(2).raw<int32_t>();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    // Each row by itself, as it is where rows are different.
    bool alone = true;
    for (size_t i = 0; i < sums.size(); ++i) alone &= static_cast<size_t>(sums[i]) == i;
    if (alone) return table.GatherRows<Index>(rows, whole, out->mutable_bytes().data());
    const int64_t width = whole.NumElements(1, whole.rank());
    MR_ASSIGN_OR_RETURN(const int64_t size,
                        CheckedProduct(static_cast<int64_t>(rows.size()), width));
    std::vector<T> found(static_cast<size_t>(size));
    MR_RETURN_IF_ERROR(table.GatherRows<Index>(rows, whole, reinterpret_cast<char*>(found.data())));
    T* const to = out->mutable_raw<T>().data();
    std::fill_n(to, out->num_elements(), T{0});
    const T* row = found.data();
    for (const int32_t s : sums) {
      T* const sum = to + s * width;
      for (int64_t j = 0; j < width; ++j) sum[j] += row[j];
      row += width;
    }
    return absl::OkStatus();
  }
};

// The gradients of sums travel to the table; what they are for rows is made there.
Status RowSumsGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
  const std::string& device = c->node().requested_device();
  const Scope there = device.empty() ? s : s.WithDevice(device);
  const BuiltNode rows =
      BuildOp(there, "_RowSumsGrad", {c->dense_grad(0), c->input(1), c->input(2)});
  c->set_input_grad(0, IndexedSlices{.values = rows.output(1),
                                     .indices = rows.output(0),
                                     .dense_shape = VariableShape(s, c->input(0)),
                                     .unique_indices = true});
  return s.status();
}

const OpRegistration kRowSums =
    OpSpec("_RowSums", "table: resource, rows: T, sums: int32 -> output: dtype",
           "dtype: {float, double}; T: {int32, int64}")
        .Stateful()
        .TakesVariable(0, VariableUse::kReadsRows)
        .Shape(RowSumsShape)
        .Gradient(RowSumsGradient)
        .With(KernelsFor<RowSumsKernel, float, double>("dtype"));

// --- _RowSumsGrad --------------------------------------------------------------------------------

// How many different rows there are is for the kernel to count.
struct RowSumsGradRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape gradient, c->InputWithRankAtLeast(0, 1, "gradient"));
    MR_RETURN_IF_ERROR(CheckRowsAndSums(c->input(1), c->input(2)));
    MR_ASSIGN_OR_RETURN(PartialShape values, RowsShape({-1}, gradient));
    c->set_output(0, {-1});
    c->set_output(1, std::move(values));
    return absl::OkStatus();
  }
};

template <typename T, typename Index>
Status FillRowSumsGrad(KernelContext* ctx) {
  const Tensor& gradient = ctx->input(0);
  const absl::Span<const Index> rows = ctx->input(1).raw<Index>();
  const absl::Span<const int32_t> sums = ctx->input(2).raw<int32_t>();
  MR_RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(rows.size())));
  MR_ASSIGN_OR_RETURN(const int64_t count, CountSums(sums));
  if (count > gradient.dim(0)) {
    return InvalidArgument("sums must be < ", gradient.dim(0), ", the rows of gradient, got ",
                           count - 1);
  }
  Numbering different(rows.size());
  std::vector<int32_t> number_of;
  for (const Index row : rows) number_of.push_back(different.NumberOf(row));
  std::vector<int64_t> dims(gradient.shape().dims().begin(), gradient.shape().dims().end());
  dims[0] = static_cast<int64_t>(different.keys().size());
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, Shape{dims[0]}));
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, shape));
  Index* index = indices->mutable_raw<Index>().data();
  for (const int64_t row : different.keys()) *index++ = static_cast<Index>(row);
  const int64_t width = gradient.shape().NumElements(1, gradient.rank());
  const T* const from = gradient.raw<T>().data();
  T* const to = values->mutable_raw<T>().data();
  std::fill_n(to, values->num_elements(), T{0});
  for (size_t i = 0; i < rows.size(); ++i) {
    T* const sum = to + number_of[i] * width;
    const T* const own = from + sums[i] * width;
    for (int64_t j = 0; j < width; ++j) sum[j] += own[j];
  }
  return absl::OkStatus();
}

template <typename T>
Status RunRowSumsGrad(KernelContext* ctx, const RowSumsGradRule&) {
  return VisitIndexType(ctx->input(1).dtype(),
                        [&]<typename Index>() { return FillRowSumsGrad<T, Index>(ctx); });
}

const OpRegistration kRowSumsGrad =
    OpSpec("_RowSumsGrad", "gradient: dtype, rows: T, sums: int32 -> indices: T, values: dtype",
           "dtype: {float, double}; T: {int32, int64}")
        .With(RuledKernelsFor<RowSumsGradRule, float, double>(
            "dtype", []<typename T>() { return &RunRowSumsGrad<T>; }))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
