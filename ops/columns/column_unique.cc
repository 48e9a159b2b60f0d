// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/column_unique.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- _ColumnUnique -------------------------------------------------------------------------------

struct ColumnUniqueRule {
  std::vector<int64_t> from;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "from", &from));
    for (const int64_t row : from) {
      if (row < 0) return InvalidArgument("from must be >= 0, got ", row);
    }
    return absl::OkStatus();
  }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape ids, c->InputWithRank(0, 2, "ids"));
    for (const int64_t row : from) {
      if (ids.dim(0) < 0 || row < ids.dim(0)) continue;
      return InvalidArgument("from must be < ", ids.dim(0), ", the rows of ids, got ", row);
    }
    const auto rows = static_cast<int64_t>(from.size());
    MR_ASSIGN_OR_RETURN(PartialShape unique, PartialShape::Make({rows, int64_t{-1}}));
    MR_ASSIGN_OR_RETURN(PartialShape places, PartialShape::Make({rows, ids.dim(1)}));
    c->set_output(0, std::move(unique));
    c->set_output(1, std::move(places));
    return absl::OkStatus();
  }
};

// The different ones of `ids`, and for each id its place among them.
std::vector<int64_t> Number(absl::Span<const int64_t> ids, int32_t* places) {
  size_t size = 16;
  while (size < 2 * ids.size()) size *= 2;
  const size_t mask = size - 1;
  std::vector<int32_t> slots(size, -1);
  std::vector<int64_t> different;
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t at = (static_cast<uint64_t>(ids[i]) * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (slots[at] >= 0 && different[static_cast<size_t>(slots[at])] != ids[i]) {
      at = (at + 1) & mask;
    }
    if (slots[at] < 0) {
      slots[at] = static_cast<int32_t>(different.size());
      different.push_back(ids[i]);
    }
    places[i] = slots[at];
  }
  return different;
}

Status RunColumnUnique(KernelContext* ctx, const ColumnUniqueRule& rule) {
  constexpr double kIdNs = 10;
  const int64_t batch = ctx->input(0).dim(1);
  if (batch > std::numeric_limits<int32_t>::max()) {  // places are int32
    return InvalidArgument("ids must be at most ", std::numeric_limits<int32_t>::max(),
                           " in a row, got ", batch);
  }
  const int64_t* const ids = ctx->input(0).raw<int64_t>().data();
  MR_ASSIGN_OR_RETURN(Tensor * places, ctx->AllocateOutput(1));
  int32_t* const to = places->mutable_raw<int32_t>().data();
  const auto rows = static_cast<int64_t>(rule.from.size());
  std::vector<std::vector<int64_t>> different(rule.from.size());
  ctx->ParallelFor(rows, kIdNs * static_cast<double>(batch), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* const own = ids + rule.from[static_cast<size_t>(i)] * batch;
      different[static_cast<size_t>(i)] =
          Number(absl::MakeConstSpan(own, static_cast<size_t>(batch)), to + i * batch);
    }
  });
  size_t most = 0;
  for (const std::vector<int64_t>& row : different) most = std::max(most, row.size());
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({rows, static_cast<int64_t>(most)}));
  MR_ASSIGN_OR_RETURN(Tensor * unique, ctx->AllocateOutput(0, shape));
  int64_t* out = unique->mutable_raw<int64_t>().data();
  for (const std::vector<int64_t>& row : different) {
    int64_t* const rest = std::copy(row.begin(), row.end(), out);
    out += most;
    // Without ids in one row there are none in the others.
    if (!row.empty()) std::fill(rest, out, row.front());
  }
  return absl::OkStatus();
}

const OpRegistration kColumnUnique =
    OpSpec("_ColumnUnique", "ids: int64 -> unique: int64, places: int32", "from: list(int) >= 1")
        .With(RuledKernelFor<ColumnUniqueRule>(RunColumnUnique))
        .NotDifferentiable();

// --- _ColumnPick ---------------------------------------------------------------------------------

// The columns of both ops.
struct PickedColumns {
  std::vector<int64_t> widths;
  int64_t width = 0;  // together

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "widths", &widths));
    for (const int64_t one : widths) {
      if (one < 1 || one > std::numeric_limits<int64_t>::max() - width) {
        return InvalidArgument("widths must be >= 1, and their sum below 2^63, got ", one);
      }
      width += one;
    }
    return absl::OkStatus();
  }
  // The batch, of places at input 1.
  StatusOr<int64_t> CheckPlaces(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape places, c->InputWithRank(1, 2, "places"));
    const auto columns = static_cast<int64_t>(widths.size());
    if (places.dim(0) >= 0 && places.dim(0) != columns) {
      return InvalidArgument("places must be of ", columns, " columns, got shape ", places);
    }
    return places.dim(1);
  }
  // How many rows there are.
  StatusOr<int64_t> CheckRows(RuleContext* c, int input) const {
    MR_ASSIGN_OR_RETURN(const PartialShape rows, c->InputWithRank(input, 2, "rows"));
    if (rows.dim(1) >= 0 && rows.dim(1) != width) {
      return InvalidArgument("rows must have ", width, " numbers each, got shape ", rows);
    }
    return rows.dim(0);
  }
};

Status CheckPlacesWithin(const Tensor& places, int64_t rows) {
  const absl::Span<const int32_t> all = places.raw<int32_t>();
  bool any = false;  // one pass without branches
  for (const int32_t place : all) any |= place < 0 || place >= rows;
  if (!any) return absl::OkStatus();
  const auto wrong = std::find_if(all.begin(), all.end(),
                                  [&](int32_t place) { return place < 0 || place >= rows; });
  return InvalidArgument("places must be in [0, ", rows, "), got ", *wrong);
}

struct ColumnPickRule : PickedColumns {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t batch, CheckPlaces(c));
    MR_RETURN_IF_ERROR(CheckRows(c, 0).status());
    return PartialShape::Make({batch, width});
  }
};

Status RunColumnPick(KernelContext* ctx, const ColumnPickRule& rule) {
  constexpr double kNumberNs = 0.5;
  const Tensor& places = ctx->input(1);
  MR_RETURN_IF_ERROR(CheckPlacesWithin(places, ctx->input(0).dim(0)));
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const float* const rows = ctx->input(0).raw<float>().data();
  float* const out = output->mutable_raw<float>().data();
  const int64_t batch = output->dim(0), width = rule.width;
  ctx->ParallelFor(batch, kNumberNs * static_cast<double>(width), [&](int64_t begin, int64_t end) {
    const int32_t* from = places.raw<int32_t>().data();
    int64_t offset = 0;
    for (const int64_t own : rule.widths) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(rows + from[i] * width + offset, own, out + i * width + offset);
      }
      from += batch;
      offset += own;
    }
  });
  return absl::OkStatus();
}

Status ColumnPickGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const ColumnPickRule rule, c->GetRule<ColumnPickRule>());
  c->set_input_grad(
      0, BuildOp(c->scope(), "_ColumnPickGrad", {c->dense_grad(0), c->input(1), c->input(0)},
                 "widths", rule.widths));
  return absl::OkStatus();
}

const OpRegistration kColumnPick =
    OpSpec("_ColumnPick", "rows: float, places: int32 -> output: float", "widths: list(int) >= 1")
        .Gradient(ColumnPickGradient)
        .With(RuledKernelFor<ColumnPickRule>(RunColumnPick));

// --- _ColumnPickGrad -----------------------------------------------------------------------------

// Of `rows` only the shape counts.
struct ColumnPickGradRule : PickedColumns {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t batch, CheckPlaces(c));
    MR_ASSIGN_OR_RETURN(const PartialShape wanted, PartialShape::Make({batch, width}));
    if (!c->input(0).IsCompatibleWith(wanted)) {
      return InvalidArgument("gradient must have shape ", wanted, ", got ", c->input(0));
    }
    MR_ASSIGN_OR_RETURN(const int64_t rows, CheckRows(c, 2));
    return PartialShape::Make({rows, width});
  }
};

Status RunColumnPickGrad(KernelContext* ctx, const ColumnPickGradRule& rule) {
  constexpr double kNumberNs = 1;
  const Tensor& places = ctx->input(1);
  MR_RETURN_IF_ERROR(CheckPlacesWithin(places, ctx->input(2).dim(0)));
  MR_ASSIGN_OR_RETURN(Tensor * sums, ctx->AllocateZeros(0));
  const float* const gradient = ctx->input(0).raw<float>().data();
  const int64_t batch = places.dim(1), width = rule.width;
  const auto columns = static_cast<int64_t>(rule.widths.size());
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (const int64_t own : rule.widths) {
    offsets.push_back(offset);
    offset += own;
  }
  float* const out = sums->mutable_raw<float>().data();
  const double column_ns =
      kNumberNs * static_cast<double>(batch) * static_cast<double>(width / columns + 1);
  // Each column has numbers of its own, so the order of its sums does not depend on the cuts.
  ctx->ParallelFor(columns, column_ns, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int32_t* const to = places.raw<int32_t>().data() + k * batch;
      const int64_t at = offsets[static_cast<size_t>(k)], own = rule.widths[static_cast<size_t>(k)];
      for (int64_t i = 0; i < batch; ++i) {
        const float* const from = gradient + i * width + at;
        float* const sum = out + to[i] * width + at;
        for (int64_t j = 0; j < own; ++j) sum[j] += from[j];
      }
    }
  });
  return absl::OkStatus();
}

const OpRegistration kColumnPickGrad =
    OpSpec("_ColumnPickGrad", "gradient: float, places: int32, rows: float -> sums: float",
           "widths: list(int) >= 1")
        .With(RuledKernelFor<ColumnPickGradRule>(RunColumnPickGrad))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
