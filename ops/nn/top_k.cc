// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/top_k.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- TopK, TopKV2 --------------------------------------------------------------------------------

// The shape of both outputs; the only place that knows which (input, k) are legal. k = -1: unknown.
StatusOr<PartialShape> TopKShapeOf(const PartialShape& input, int64_t k) {
  if (!input.has_rank()) return PartialShape();
  if (input.rank() < 1) {
    return absl::InvalidArgumentError("input must have rank >= 1, got shape []");
  }
  const int64_t last = input.dim(input.rank() - 1);
  if (last != -1 && k > last) {
    return absl::InvalidArgumentError(
        absl::StrCat("input must have at least k columns. Had ", last, ", needed ", k));
  }
  std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
  dims.back() = k;
  return PartialShape::Make(dims);
}
Status CheckK(int64_t k) {
  if (k < 0) return absl::InvalidArgumentError(absl::StrCat("Need k >= 0, got ", k));
  return absl::OkStatus();
}

Status SetTopKShapes(InferenceContext* c, int64_t k) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, TopKShapeOf(c->input(0), k));
  c->set_output(0, shape);
  c->set_output(1, shape);
  return absl::OkStatus();
}
Status TopKV2Shape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  const std::optional<int64_t> k = ConstantInt(c, 1);
  if (k) MR_RETURN_IF_ERROR(CheckK(*k));
  return SetTopKShapes(c, k.value_or(-1));
}
Status TopKV1Shape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const int64_t k, c->GetAttr<int64_t>("k"));
  MR_RETURN_IF_ERROR(CheckK(k));
  return SetTopKShapes(c, k);
}

template <typename T>
class TopKKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    if (c->num_inputs() > 1) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(k_, c->GetAttr<int64_t>("k"));
    return CheckK(*k_);
  }
  Status Compute(KernelContext* ctx) const override {
    int64_t k;
    if (k_) {
      k = *k_;
    } else {
      MR_ASSIGN_OR_RETURN(k, ctx->IntScalarInput(1, "k"));
      MR_RETURN_IF_ERROR(CheckK(k));
    }
    const Tensor input = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const PartialShape known, TopKShapeOf(input.shape(), k));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(0, shape));
    MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(1, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    const int64_t width = input.dim(input.rank() - 1);
    const T* from = input.raw<T>().data();
    T* to = values->mutable_raw<T>().data();
    int32_t* where = indices->mutable_raw<int32_t>().data();
    ctx->ParallelFor(input.num_elements() / width, 5.0 * static_cast<double>(width),
                     [=](int64_t begin, int64_t end) {
                       std::vector<int32_t> order(static_cast<size_t>(width));
                       for (int64_t r = begin; r < end; ++r) {
                         const T* row = from + r * width;
                         std::iota(order.begin(), order.end(), 0);
                         std::partial_sort(order.begin(), order.begin() + k, order.end(),
                                           [row](int32_t a, int32_t b) {
                                             if (row[a] > row[b]) return true;
                                             if (row[b] > row[a]) return false;
                                             return a < b;
                                           });
                         for (int64_t i = 0; i < k; ++i) {
                           where[r * k + i] = order[static_cast<size_t>(i)];
                           to[r * k + i] = row[order[static_cast<size_t>(i)]];
                         }
                       }
                     });
    return absl::OkStatus();
  }

 private:
  std::optional<int64_t> k_;  // attr of the old form
};

// The gradients go back to where the values were: row * width + index in the flat input.
Status TopKGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const auto binary = [&](const char* op, Output a, Output b) {
    return NodeBuilder(scope, op).Input(a).Input(b).Finish().output(0);
  };
  const Output last = Const<int32_t>(scope, {-1}), one = Const<int32_t>(scope, {1});
  const Output zero = Const(scope, int32_t{0});
  const Output shape = ShapeOf(scope, c->input(0));
  const Output width = StridedSlice(scope, shape, last, Const<int32_t>(scope, {0}), one,
                                    {.end_mask = 1, .shrink_axis_mask = 1});
  const Output k =
      StridedSlice(scope, ShapeOf(scope, c->output(1)), last, Const<int32_t>(scope, {0}), one,
                   {.end_mask = 1, .shrink_axis_mask = 1});
  const Output size = Size(scope, c->input(0));
  const Output starts = Range(scope, zero, size, width);
  const Output rows = Reshape(scope, c->output(1), Pack(scope, {Size(scope, starts), k}));
  const Output flat =
      Reshape(scope, binary("Add", rows, ExpandDims(scope, starts, Const(scope, 1))),
              Const<int32_t>(scope, {-1, 1}));
  const Output grad = Reshape(scope, c->dense_grad(0), last);
  const Output sum = ScatterNd(scope, flat, grad, Reshape(scope, size, one));
  c->set_input_grad(0, Reshape(scope, sum, shape));
  return absl::OkStatus();
}

const OpRegistration kTopKV2 = OpSpec("TopKV2")
                                   .Input("input: T")
                                   .Input("k: int32")
                                   .Output("values: T")
                                   .Output("indices: int32")
                                   .Attr("sorted: bool = true")
                                   .Attr("T: realnumbertype")
                                   .Shape(TopKV2Shape)
                                   .Gradient(TopKGradient);
const OpRegistration kTopK = OpSpec("TopK")
                                 .Input("input: T")
                                 .Output("values: T")
                                 .Output("indices: int32")
                                 .Attr("k: int >= 0")
                                 .Attr("sorted: bool = true")
                                 .Attr("T: realnumbertype")
                                 .Deprecated(7, "Use TopKV2 instead")
                                 .Shape(TopKV1Shape)
                                 .Gradient(TopKGradient);
template <typename T>
struct TopKKernels {
  KernelRegistration v2 = KernelFor<TopKKernel<T>>("TopKV2").template Type<T>("T");
  KernelRegistration v1 = KernelFor<TopKKernel<T>>("TopK").template Type<T>("T");
};
const TopKKernels<float> kTopKFloat;
const TopKKernels<double> kTopKDouble;
const TopKKernels<int32_t> kTopKInt32;
const TopKKernels<int64_t> kTopKInt64;
const TopKKernels<uint8_t> kTopKUint8;

// --- InTopK, InTopKV2 ----------------------------------------------------------------------------

Status CheckInTopK(const PartialShape& predictions, const PartialShape& targets) {
  if (predictions.has_rank() && predictions.rank() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("predictions must be a matrix, got shape ", predictions.ToString()));
  }
  if (targets.has_rank() && targets.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("targets must be a vector, got shape ", targets.ToString()));
  }
  if (predictions.has_rank() && targets.has_rank() && predictions.dim(0) != -1 &&
      targets.dim(0) != -1 && predictions.dim(0) != targets.dim(0)) {
    return absl::InvalidArgumentError(absl::StrCat("targets must have one element for each of the ",
                                                   predictions.dim(0), " rows of predictions, got ",
                                                   targets.dim(0)));
  }
  return absl::OkStatus();
}

Status InTopKShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckInTopK(c->input(0), c->input(1)));
  if (c->num_inputs() > 2) MR_RETURN_IF_ERROR(c->InputWithRank(2, 0).status());
  int64_t batch = -1;
  if (c->input(0).has_rank()) batch = c->input(0).dim(0);
  if (batch == -1 && c->input(1).has_rank()) batch = c->input(1).dim(0);
  const int64_t dims[] = {batch};
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Fewer than k classes have a larger prediction.
bool IsInTopK(absl::Span<const float> row, int64_t target, int64_t k) {
  if (target < 0 || target >= static_cast<int64_t>(row.size())) return false;
  const float own = row[static_cast<size_t>(target)];
  if (!std::isfinite(own)) return false;
  int64_t larger = 0;
  for (const float other : row) {
    if (!std::isfinite(other)) return false;
    larger += other > own ? 1 : 0;
  }
  return larger < k;
}

class InTopKKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    if (c->num_inputs() > 2) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(k_, c->GetAttr<int64_t>("k"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    int64_t k;
    if (k_) {
      k = *k_;
    } else {
      MR_ASSIGN_OR_RETURN(k, ctx->IntScalarInput(2, "k"));
    }
    MR_RETURN_IF_ERROR(CheckInTopK(ctx->input(0).shape(), ctx->input(1).shape()));
    const std::vector<int64_t> targets = IntElements(ctx->input(1));
    const absl::Span<const float> predictions = ctx->input(0).raw<float>();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape::Vector(targets.size())));
    const size_t classes = targets.empty() ? 0 : predictions.size() / targets.size();
    for (size_t i = 0; i < targets.size(); ++i) {
      out->mutable_raw<bool>()[i] =
          IsInTopK(predictions.subspan(i * classes, classes), targets[i], k);
    }
    return absl::OkStatus();
  }

 private:
  std::optional<int64_t> k_;  // attr of the old form
};

const OpRegistration kInTopKV2 = OpSpec("InTopKV2")
                                     .Input("predictions: float")
                                     .Input("targets: T")
                                     .Input("k: T")
                                     .Output("precision: bool")
                                     .Attr("T: {int32, int64} = DT_INT32")
                                     .Shape(InTopKShape)
                                     .NotDifferentiable();
const KernelRegistration kInTopKV2Kernel = KernelFor<InTopKKernel>("InTopKV2");
const OpRegistration kInTopK = OpSpec("InTopK")
                                   .Input("predictions: float")
                                   .Input("targets: T")
                                   .Output("precision: bool")
                                   .Attr("k: int")
                                   .Attr("T: {int32, int64} = DT_INT32")
                                   .Shape(InTopKShape)
                                   .NotDifferentiable();
const KernelRegistration kInTopKKernel = KernelFor<InTopKKernel>("InTopK");

}  // namespace
}  // namespace millrace
