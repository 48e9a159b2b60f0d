// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_fill_empty_rows.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/loops/number.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/segment.h"
#include "ops/rules/elements.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- SparseFillEmptyRows -------------------------------------------------------------------------

// How many elements there are in the end is left to the kernel.
struct SparseFillEmptyRowsRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize input, CheckSparseInput(c, {.shape_name = "dense_shape"}));
    MR_RETURN_IF_ERROR(c->InputWithRank(3, 0, "default_value").status());
    MR_ASSIGN_OR_RETURN(const PartialInts shape, c->IntVector(2, "dense_shape"));
    if (input.rank == 0) {
      return InvalidArgument("dense_shape must have at least one dimension, got none");
    }
    const int64_t rows = shape.at(0).value_or(-1);
    if (shape.at(0) && rows < 0) {
      return InvalidArgument("dense_shape[0] must be >= 0, got ", rows);
    }
    c->set_output(0, {-1, input.rank});
    c->set_output(1, {-1});
    c->set_output(2, {rows});
    c->set_output(3, {input.count});
    return absl::OkStatus();
  }
};

Status RunSparseFillEmptyRows(KernelContext* ctx, const SparseFillEmptyRowsRule&) {
  const Tensor &indices = ctx->input(0), &values = ctx->input(1);
  const size_t count = static_cast<size_t>(indices.dim(0)),
               rank = static_cast<size_t>(indices.dim(1));
  const int64_t* const from = indices.raw<int64_t>().data();
  MR_ASSIGN_OR_RETURN(Tensor * is_empty, ctx->AllocateOutput(2));
  MR_ASSIGN_OR_RETURN(Tensor * reverse, ctx->AllocateOutput(3));
  const size_t rows = static_cast<size_t>(is_empty->num_elements());
  // The number of elements of each row, then where it begins in the output.
  MR_ASSIGN_OR_RETURN(const Shape begins_shape, Shape::Make({static_cast<int64_t>(rows) + 1}));
  MR_ASSIGN_OR_RETURN(Tensor begins_memory, ctx->AllocateTemp(DT_INT64, begins_shape));
  const absl::Span<int64_t> begins = begins_memory.mutable_raw<int64_t>();
  std::fill(begins.begin(), begins.end(), 0);
  bool is_sorted = true;
  for (size_t i = 0; i < count; ++i) {
    const int64_t row = from[i * rank];
    if (row < 0 || row >= static_cast<int64_t>(rows)) {
      return InvalidArgument("indices[", i, ",0] must be in [0, ", rows,
                             "), the rows of dense_shape, got ", row);
    }
    ++begins[static_cast<size_t>(row) + 1];
    is_sorted = is_sorted && (i == 0 || from[(i - 1) * rank] <= row);
  }
  const absl::Span<bool> empty = is_empty->mutable_raw<bool>();
  bool has_empty = false;
  for (size_t row = 0; row < rows; ++row) {
    empty[row] = begins[row + 1] == 0;
    has_empty = has_empty || empty[row];
    begins[row + 1] = begins[row] + (empty[row] ? 1 : begins[row + 1]);
  }
  int64_t* const place = reverse->mutable_raw<int64_t>().data();
  if (is_sorted && !has_empty) {
    std::iota(place, place + count, 0);
    ctx->set_output(0, indices);
    ctx->set_output(1, values);
    return absl::OkStatus();
  }

  const int64_t total = begins[rows];
  MR_ASSIGN_OR_RETURN(const Shape filled_shape, Shape::Make({total, static_cast<int64_t>(rank)}));
  MR_ASSIGN_OR_RETURN(Tensor * filled_indices, ctx->AllocateOutput(0, filled_shape));
  MR_ASSIGN_OR_RETURN(Tensor * filled_values, ctx->AllocateOutput(1, filled_shape.Slice(0, 1)));
  int64_t* const to = filled_indices->mutable_raw<int64_t>().data();
  return VisitElements(values.dtype(), [&]<typename E>() {
    E* const filled = MutableElementsOf<E>(filled_values);
    for (size_t row = 0; row < rows; ++row) {
      if (!empty[row]) continue;
      int64_t* const index = to + begins[row] * static_cast<int64_t>(rank);
      std::fill(index, index + rank, 0);
      index[0] = static_cast<int64_t>(row);
      filled[begins[row]] = *ElementsOf<E>(ctx->input(3));
    }
    for (size_t i = 0; i < count; ++i) {
      place[i] = begins[static_cast<size_t>(from[i * rank])]++;
      std::copy_n(from + i * rank, rank, to + place[i] * static_cast<int64_t>(rank));
      filled[place[i]] = ElementsOf<E>(values)[i];
    }
  });
}

Status SparseFillEmptyRowsGradient(GradientContext* c) {
  if (!c->has_grad(1)) return absl::OkStatus();
  const auto grads = SparseFillEmptyRowsGrad(c->scope(), c->output(3), c->dense_grad(1));
  c->set_input_grad(1, grads.d_values);
  c->set_input_grad(3, grads.d_default_value);
  return absl::OkStatus();
}

const OpRegistration kSparseFillEmptyRows =
    OpSpec("SparseFillEmptyRows",
           "indices: int64, values: T, dense_shape: int64, default_value: T -> "
           "output_indices: int64, output_values: T, empty_row_indicator: bool, "
           "reverse_index_map: int64",
           "T: type")
        .With(RuledKernelFor<SparseFillEmptyRowsRule>(RunSparseFillEmptyRows))
        .Gradient(SparseFillEmptyRowsGradient);

// --- SparseFillEmptyRowsGrad ---------------------------------------------------------------------

struct SparseFillEmptyRowsGradRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape map, c->InputWithRank(0, 1, "reverse_index_map"));
    MR_RETURN_IF_ERROR(c->InputWithRank(1, 1, "grad_values").status());
    c->set_output(0, map);
    c->set_output(1, PartialShape::Scalar());
    return absl::OkStatus();
  }
};

template <typename T>
Status RunSparseFillEmptyRowsGrad(KernelContext* ctx, const SparseFillEmptyRowsGradRule&) {
  const absl::Span<const int64_t> map = ctx->input(0).raw<int64_t>();
  const absl::Span<const T> grad = ctx->input(1).raw<T>();
  MR_ASSIGN_OR_RETURN(Tensor * d_values, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * d_default, ctx->AllocateOutput(1));
  std::vector<bool> is_filled(grad.size(), true);
  for (size_t i = 0; i < map.size(); ++i) {
    if (map[i] < 0 || map[i] >= static_cast<int64_t>(grad.size())) {
      return InvalidArgument("reverse_index_map[", i, "] must be in [0, ", grad.size(),
                             "), the elements of grad_values, got ", map[i]);
    }
    const size_t place = static_cast<size_t>(map[i]);
    d_values->mutable_raw<T>()[i] = grad[place];
    is_filled[place] = false;
  }
  math::Wide<T> total{};
  for (size_t i = 0; i < grad.size(); ++i) {
    if (is_filled[i]) total = math::WrapAdd(total, math::Wide<T>(math::Load(grad[i])));
  }
  d_default->mutable_raw<T>()[0] = math::Store<T>(total);
  return absl::OkStatus();
}

// An element of grad_values that a value came from has its gradient, another one that of the
// default value.
Status GradOfFillEmptyRowsGrad(GradientContext* c) {
  if (!c->has_grad(0) && !c->has_grad(1)) return absl::OkStatus();
  const Scope& s = c->scope();
  const Output map = c->input(0), count = Size(s, c->input(1));
  const Output values = UnsortedSegmentSum(s, c->dense_grad(0), map, count);
  const Output ones = OnesLike(s, c->output(0)), all = OnesLike(s, c->input(1));
  const Output is_filled = Sub(s, all, UnsortedSegmentSum(s, ones, map, count));
  c->set_input_grad(1, Add(s, values, Mul(s, c->dense_grad(1), is_filled)));
  return absl::OkStatus();
}

const OpRegistration kSparseFillEmptyRowsGrad =
    OpSpec("SparseFillEmptyRowsGrad",
           "reverse_index_map: int64, grad_values: T -> d_values: T, d_default_value: T", "T: type")
        .With(RuledKernelsFor<SparseFillEmptyRowsGradRule, float, double, int32_t, int64_t, Half,
                              Bfloat16, std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunSparseFillEmptyRowsGrad<T>; }))
        .Gradient(GradOfFillEmptyRowsGrad);

}  // namespace
}  // namespace millrace
