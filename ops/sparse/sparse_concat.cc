// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_concat.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/transpose.h"
#include "ops/math/cwise_binary.h"
#include "ops/rules/elements.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Elements i of `indices` and `values` with keep(i), as outputs `indices_out` and `values_out`;
// `change` is called for each index that is written.
template <typename Keep, typename Change>
Status CopyElements(KernelContext* ctx, const Tensor& indices, const Tensor& values, Keep keep,
                    int indices_out, int values_out, Change change) {
  const int64_t count = indices.dim(0), rank = indices.dim(1);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < count; ++i) {
    if (keep(i)) kept.push_back(i);
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({static_cast<int64_t>(kept.size()), rank}));
  MR_ASSIGN_OR_RETURN(Tensor * new_indices, ctx->AllocateOutput(indices_out, shape));
  MR_ASSIGN_OR_RETURN(Tensor * new_values, ctx->AllocateOutput(values_out, shape.Slice(0, 1)));
  const int64_t* const from = indices.raw<int64_t>().data();
  int64_t* to = new_indices->mutable_raw<int64_t>().data();
  for (const int64_t i : kept) {
    std::copy_n(from + i * rank, rank, to);
    change(to);
    to += rank;
  }
  return VisitElements(values.dtype(), [&]<typename E>() {
    E* value = MutableElementsOf<E>(new_values);
    for (const int64_t i : kept) *value++ = ElementsOf<E>(values)[i];
  });
}

Status SetShape(KernelContext* ctx, int output, absl::Span<const int64_t> dims) {
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(output));
  std::copy(dims.begin(), dims.end(), shape->mutable_raw<int64_t>().begin());
  return absl::OkStatus();
}

// --- SparseConcat --------------------------------------------------------------------------------

// Inputs: N times indices, N times values, N times shapes.
struct SparseConcatRule {
  int64_t n = 0;
  int64_t concat_dim = 0;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "N", &n, "concat_dim", &concat_dim);
  }
  Status operator()(RuleContext* c) const {
    const int inputs = static_cast<int>(n);
    int64_t count = 0, rank = -1;
    for (int i = 0; i < inputs; ++i) {
      const std::string name = absl::StrCat("input ", i, ": ");
      MR_ASSIGN_OR_RETURN(
          const SparseSize size,
          CheckSparseInput(
              c, {.indices = i, .values = inputs + i, .shape = 2 * inputs + i, .prefix = name}));
      if (size.rank >= 0 && rank >= 0 && size.rank != rank) {
        return InvalidArgument(name, "must have rank ", rank, " as the inputs before it, got ",
                               size.rank);
      }
      rank = std::max(rank, size.rank);
      if (count < 0 || size.count < 0) {
        count = -1;
      } else {
        count += size.count;
      }
    }
    if (rank >= 0) MR_RETURN_IF_ERROR(ResolveAxis(concat_dim, static_cast<int>(rank)).status());
    c->set_output(0, {count, rank});
    c->set_output(1, {count});
    c->set_output(2, {rank});
    return absl::OkStatus();
  }
};

Status RunSparseConcat(KernelContext* ctx, const SparseConcatRule& rule) {
  const int n = static_cast<int>(rule.n);
  const Tensor& first_shape = ctx->input(2 * n);
  const int rank = static_cast<int>(first_shape.dim(0));
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(rule.concat_dim, rank));
  std::vector<int64_t> dims = first_shape.ints().ToVector();
  std::vector<int64_t> offsets;  // of each input along the axis
  int64_t end = 0;
  for (int i = 0; i < n; ++i) {
    const absl::Span<const int64_t> shape = ctx->input(2 * n + i).raw<int64_t>();
    for (int d = 0; d < rank; ++d) {
      const int64_t dim = shape[static_cast<size_t>(d)];
      if (d == axis || dim == dims[static_cast<size_t>(d)]) continue;
      return InvalidArgument("input ", i, ": shape[", d, "] must be ", dims[static_cast<size_t>(d)],
                             " as in the inputs before it, got ", dim);
    }
    const int64_t size = shape[static_cast<size_t>(axis)];
    if (size < 0)
      return InvalidArgument("input ", i, ": shape[", axis, "] must be >= 0, got ", size);
    offsets.push_back(end);
    if (__builtin_add_overflow(end, size, &end)) {
      return InvalidArgument("the inputs must have fewer than 2^63 elements in dimension ", axis);
    }
  }
  dims[static_cast<size_t>(axis)] = end;
  MR_ASSIGN_OR_RETURN(const SparseShape shape,
                      SparseShape::Make(absl::MakeConstSpan(dims), "output_shape"));
  MR_RETURN_IF_ERROR(SetShape(ctx, 2, dims));

  // The places in the result of all elements, and which they are.
  std::vector<int64_t> places;
  std::vector<std::pair<int, int64_t>> sources;
  for (int i = 0; i < n; ++i) {
    MR_ASSIGN_OR_RETURN(
        const SparseShape own,
        SparseShape::Of(ctx->input(2 * n + i), absl::StrCat("input ", i, ": shape")));
    // Where the result has elements, its strides serve the inputs.
    SparseShape shifted = own;
    shifted.strides = shape.strides;
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> own_places,
                        FlatPlaces(ctx->input(i), shifted, PlaceOrder::kAny,
                                   absl::StrCat("input ", i, ": indices")));
    const int64_t shift = offsets[static_cast<size_t>(i)] *
                          (own.num_elements > 0 ? shape.strides[static_cast<size_t>(axis)] : 0);
    for (size_t k = 0; k < own_places.size(); ++k) {
      places.push_back(own_places[k] + shift);
      sources.emplace_back(i, static_cast<int64_t>(k));
    }
  }
  const std::vector<int64_t> order = OrderOf(places);
  const auto source = [&](size_t at) {
    return sources[order.empty() ? at : static_cast<size_t>(order[at])];
  };
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1));
  int64_t* to = indices->mutable_raw<int64_t>().data();
  for (size_t at = 0; at < sources.size(); ++at) {
    const auto [input, k] = source(at);
    std::copy_n(ctx->input(input).raw<int64_t>().data() + k * rank, rank, to);
    to[axis] += offsets[static_cast<size_t>(input)];
    to += rank;
  }
  return VisitElements(values->dtype(), [&]<typename E>() {
    E* value = MutableElementsOf<E>(values);
    for (size_t at = 0; at < sources.size(); ++at) {
      const auto [input, k] = source(at);
      *value++ = ElementsOf<E>(ctx->input(n + input))[k];
    }
  });
}

// The numbers of all elements, concatenated as the elements were, say where each came from.
Status SparseConcatGradient(GradientContext* c) {
  if (!c->has_grad(1)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const SparseConcatRule rule, c->GetRule<SparseConcatRule>());
  const Scope& s = c->scope();
  const int n = static_cast<int>(rule.n);
  const Output zero = Const(s, 0), one = Const(s, 1);
  std::vector<SparseTensor> numbers;
  std::vector<Output> sizes;
  Output end = zero;
  for (int i = 0; i < n; ++i) {
    const Output begin = end;
    sizes.push_back(Size(s, c->input(n + i)));
    end = Add(s, begin, sizes.back());
    numbers.push_back({c->input(i), Range(s, begin, end, one), c->input(2 * n + i)});
  }
  const Output sources = SparseConcat(s, numbers, rule.concat_dim).values;
  const Output grads = GatherV2(s, c->dense_grad(1), InvertPermutation(s, sources), zero);
  const std::vector<Output> parts = SplitV(s, grads, Pack(s, sizes), zero, n);
  for (int i = 0; i < n; ++i) c->set_input_grad(n + i, parts[static_cast<size_t>(i)]);
  return absl::OkStatus();
}

const OpRegistration kSparseConcat =
    OpSpec("SparseConcat",
           "indices: N * int64, values: N * T, shapes: N * int64 -> "
           "output_indices: int64, output_values: T, output_shape: int64",
           "concat_dim: int; N: int >= 2; T: type")
        .With(RuledKernelFor<SparseConcatRule>(RunSparseConcat))
        .Gradient(SparseConcatGradient);

// --- SparseSplit ---------------------------------------------------------------------------------

struct SparseSplitRule {
  int64_t num_split = 1;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "num_split", &num_split); }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> axis, c->IntScalar(0, "split_dim", true));
    MR_ASSIGN_OR_RETURN(const SparseSize size,
                        CheckSparseInput(c, {.indices = 1, .values = 2, .shape = 3}));
    if (axis && size.rank >= 0) {
      MR_RETURN_IF_ERROR(ResolveAxis(*axis, static_cast<int>(size.rank)).status());
    }
    const int n = static_cast<int>(num_split);
    for (int i = 0; i < n; ++i) {
      c->set_output(i, {-1, size.rank});
      c->set_output(n + i, {-1});
      c->set_output(2 * n + i, {size.rank});
    }
    return absl::OkStatus();
  }
};

Status RunSparseSplit(KernelContext* ctx, const SparseSplitRule& rule) {
  const Tensor &indices = ctx->input(1), &values = ctx->input(2);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(3), "shape"));
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(ctx->input(0).ints()[0], shape.rank()));
  MR_RETURN_IF_ERROR(FlatPlaces(indices, shape, PlaceOrder::kAny).status());
  const int64_t size = shape.dims[static_cast<size_t>(axis)], rank = shape.rank();
  if (rule.num_split > size) {
    return InvalidArgument("num_split must be at most ", size, ", the size of dimension ", axis,
                           ", got ", rule.num_split);
  }
  const int64_t* const index = indices.raw<int64_t>().data();
  const int n = static_cast<int>(rule.num_split);
  std::vector<int64_t> dims(shape.dims.begin(), shape.dims.end());
  int64_t begin = 0;
  for (int i = 0; i < n; ++i) {
    const int64_t end = begin + size / n + (i < size % n ? 1 : 0);
    const auto is_inside = [=](int64_t k) {
      const int64_t at = index[k * rank + axis];
      return at >= begin && at < end;
    };
    MR_RETURN_IF_ERROR(CopyElements(ctx, indices, values, is_inside, i, n + i,
                                    [=](int64_t* moved) { moved[axis] -= begin; }));
    dims[static_cast<size_t>(axis)] = end - begin;
    MR_RETURN_IF_ERROR(SetShape(ctx, 2 * n + i, dims));
    begin = end;
  }
  return absl::OkStatus();
}

// The numbers of the elements, split as they were, say which part has which.
Status SparseSplitGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const SparseSplitRule rule, c->GetRule<SparseSplitRule>());
  const int n = static_cast<int>(rule.num_split);
  const Scope& s = c->scope();
  bool has_grad = false;
  for (int i = n; i < 2 * n; ++i) has_grad = has_grad || c->has_grad(i);
  if (!has_grad) return absl::OkStatus();
  const Output zero = Const(s, 0);
  const Output numbers = Range(s, zero, Size(s, c->input(2)), Const(s, 1));
  std::vector<Output> sources, grads;
  for (const SparseTensor& part :
       SparseSplit(s, c->input(0), {c->input(1), numbers, c->input(3)}, n)) {
    sources.push_back(part.values);
    grads.push_back(c->dense_grad(n + static_cast<int>(grads.size())));
  }
  const auto joined = [&](const std::vector<Output>& parts) {
    return n == 1 ? parts[0] : ConcatV2(s, parts, zero);
  };
  c->set_input_grad(2, GatherV2(s, joined(grads), InvertPermutation(s, joined(sources)), zero));
  return absl::OkStatus();
}

const OpRegistration kSparseSplit =
    OpSpec("SparseSplit",
           "split_dim: int64, indices: int64, values: T, shape: int64 -> "
           "output_indices: num_split * int64, output_values: num_split * T, "
           "output_shape: num_split * int64",
           "num_split: int >= 1; T: type")
        .With(RuledKernelFor<SparseSplitRule>(RunSparseSplit))
        .Gradient(SparseSplitGradient);

// --- SparseSlice ---------------------------------------------------------------------------------

struct SparseSliceRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize size, CheckSparseInput(c, {}));
    PartialShape rank({size.rank});
    for (const int i : {3, 4}) {
      const char* const name = i == 3 ? "start" : "size";
      MR_ASSIGN_OR_RETURN(const PartialShape given, c->InputWithRank(i, 1, name));
      const StatusOr<PartialShape> merged = rank.MergeWith(given);
      if (!merged.ok()) {
        return InvalidArgument(name, " must have one element for each of the ", rank.dim(0),
                               " dimensions, got ", given.dim(0));
      }
      rank = *merged;
    }
    c->set_output(0, {-1, rank.dim(0)});
    c->set_output(1, {-1});
    c->set_output(2, rank);
    return absl::OkStatus();
  }
};

Status RunSparseSlice(KernelContext* ctx, const SparseSliceRule&) {
  const Tensor &indices = ctx->input(0), &values = ctx->input(1);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(2), "shape"));
  const absl::Span<const int64_t> start = ctx->input(3).raw<int64_t>();
  const absl::Span<const int64_t> size = ctx->input(4).raw<int64_t>();
  const size_t rank = start.size();
  std::vector<int64_t> dims;  // of what lies in the tensor
  for (size_t d = 0; d < rank; ++d) {
    if (start[d] < 0) return InvalidArgument("start[", d, "] must be >= 0, got ", start[d]);
    if (size[d] < 0) return InvalidArgument("size[", d, "] must be >= 0, got ", size[d]);
    dims.push_back(std::min(size[d], std::max<int64_t>(shape.dims[d] - start[d], 0)));
  }
  MR_RETURN_IF_ERROR(FlatPlaces(indices, shape, PlaceOrder::kAny).status());
  const int64_t* const index = indices.raw<int64_t>().data();
  const auto is_inside = [&](int64_t i) {
    for (size_t d = 0; d < rank; ++d) {
      const int64_t at = index[static_cast<size_t>(i) * rank + d] - start[d];
      if (at < 0 || at >= dims[d]) return false;
    }
    return true;
  };
  MR_RETURN_IF_ERROR(CopyElements(ctx, indices, values, is_inside, 0, 1, [&](int64_t* moved) {
    for (size_t d = 0; d < rank; ++d) moved[d] -= start[d];
  }));
  return SetShape(ctx, 2, dims);
}

Status SparseSliceGradient(GradientContext* c) {
  if (!c->has_grad(1)) return absl::OkStatus();
  c->set_input_grad(
      1, SparseSliceGrad(c->scope(), c->dense_grad(1), c->input(0), c->input(3), c->output(0)));
  return absl::OkStatus();
}

const OpRegistration kSparseSlice =
    OpSpec("SparseSlice",
           "indices: int64, values: T, shape: int64, start: int64, size: int64 -> "
           "output_indices: int64, output_values: T, output_shape: int64",
           "T: type")
        .With(RuledKernelFor<SparseSliceRule>(RunSparseSlice))
        .Gradient(SparseSliceGradient);

// --- SparseSliceGrad -----------------------------------------------------------------------------

struct SparseSliceGradRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(
        const SparseSize input,
        CheckSparseInput(
            c,
            {.indices = 1, .values = -1, .shape = 2, .prefix = "input_", .shape_name = "start"}));
    MR_ASSIGN_OR_RETURN(
        const SparseSize output,
        CheckSparseInput(c, {.indices = 3, .values = -1, .shape = -1, .prefix = "output_"}));
    if (input.rank >= 0 && output.rank >= 0 && input.rank != output.rank) {
      return InvalidArgument("output_indices must have ", input.rank,
                             " columns as input_indices, got ", output.rank);
    }
    MR_ASSIGN_OR_RETURN(const PartialShape grad, c->InputWithRank(0, 1, "backprop_val_grad"));
    if (grad.dim(0) >= 0 && output.count >= 0 && grad.dim(0) != output.count) {
      return InvalidArgument("backprop_val_grad must have one element for each of the ",
                             output.count, " output_indices, got ", grad.dim(0));
    }
    return PartialShape({input.count});
  }
};

Status RunSparseSliceGrad(KernelContext* ctx, const SparseSliceGradRule&) {
  const Tensor &inputs = ctx->input(1), &outputs = ctx->input(3);
  const size_t rank = static_cast<size_t>(inputs.dim(1));
  const int64_t* index = inputs.raw<int64_t>().data();
  const int64_t* const start = ctx->input(2).raw<int64_t>().data();
  const int64_t* const moved = outputs.raw<int64_t>().data();
  MR_ASSIGN_OR_RETURN(Tensor * grad, ctx->AllocateZeros(0));
  std::vector<int64_t> kept;  // the input elements that became output elements 0, 1, ...
  const int64_t count = outputs.dim(0);
  for (int64_t i = 0; i < inputs.dim(0) && static_cast<int64_t>(kept.size()) < count; ++i) {
    const int64_t* const to = moved + kept.size() * rank;
    size_t d = 0;
    // Wrapping, as the numbers may be any; equal they are only when they are right.
    while (d < rank && static_cast<uint64_t>(index[d]) ==
                           static_cast<uint64_t>(to[d]) + static_cast<uint64_t>(start[d])) {
      ++d;
    }
    if (d == rank) kept.push_back(i);
    index += rank;
  }
  if (static_cast<int64_t>(kept.size()) < count) {
    return InvalidArgument("output_indices[", kept.size(),
                           "] must be one of input_indices less input_start, in their order");
  }
  return VisitElements(grad->dtype(), [&]<typename E>() {
    const E* from = ElementsOf<E>(ctx->input(0));
    for (const int64_t i : kept) MutableElementsOf<E>(grad)[i] = *from++;
  });
}

const OpRegistration kSparseSliceGrad =
    OpSpec("SparseSliceGrad",
           "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64 "
           "-> val_grad: T",
           "T: numbertype")
        .With(RuledKernelFor<SparseSliceGradRule>(RunSparseSliceGrad));

}  // namespace
}  // namespace millrace
