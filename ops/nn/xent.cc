// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/xent.h"

#include <cstring>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/loops/softmax.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/nn/softmax.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Rules ---------------------------------------------------------------------------------------

// [batch, classes] of features and labels together.
template <typename S>  // Shape or PartialShape
StatusOr<S> CommonShape(const S& features, const S& labels) {
  StatusOr<S> both = BroadcastShape(features, labels);
  if (!both.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits and labels must be broadcastable: logits_size=", features.ToString(),
                     " labels_size=", labels.ToString()));
  }
  bool is_matrix = both->rank() == 2;
  if constexpr (std::is_same_v<S, PartialShape>) {
    if (!both->has_rank()) return PartialShape::UnknownOfRank(2);
  }
  if (!is_matrix) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits and labels must be matrices or broadcast to a matrix, got shapes ",
                     features.ToString(), " and ", labels.ToString()));
  }
  return *std::move(both);
}

struct SparseSizes {
  int64_t batch, classes;  // -1 when unknown
};
StatusOr<SparseSizes> CheckSparse(const PartialShape& features, const PartialShape& labels) {
  if (features.has_rank() && features.rank() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits must be 2-D, but got shape ", features.ToString()));
  }
  if (labels.has_rank() && labels.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("labels must be 1-D, but got shape ", labels.ToString()));
  }
  SparseSizes sizes{features.has_rank() ? features.dim(0) : -1,
                    features.has_rank() ? features.dim(1) : -1};
  if (sizes.classes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Must have at least one class, but got logits shape ", features.ToString()));
  }
  if (labels.has_rank() && labels.dim(0) >= 0) {
    if (sizes.batch >= 0 && sizes.batch != labels.dim(0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logits and labels must have the same first dimension, got logits shape ",
                       features.ToString(), " and labels shape ", labels.ToString()));
    }
    sizes.batch = labels.dim(0);
  }
  return sizes;
}

// --- Shapes --------------------------------------------------------------------------------------

Status XentShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape both, CommonShape(c->input(0), c->input(1)));
  c->set_output(0, {both.dim(0)});
  c->set_output(1, std::move(both));
  return absl::OkStatus();
}

Status SparseXentShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const SparseSizes sizes, CheckSparse(c->input(0), c->input(1)));
  MR_ASSIGN_OR_RETURN(PartialShape backprop, PartialShape::Make({sizes.batch, sizes.classes}));
  c->set_output(0, {sizes.batch});
  c->set_output(1, std::move(backprop));
  return absl::OkStatus();
}

// --- Kernels -------------------------------------------------------------------------------------

// Nanoseconds for one element, measured.
constexpr double kElementNs = 3;

class XentKernelBase : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType dtype = c->output_type(0);
    loops_ = math::FindSoftmax(dtype);
    if (loops_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

 protected:
  const math::SoftmaxLoops* loops_ = nullptr;
  int64_t size_ = 0;
};

class XentKernel : public XentKernelBase {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Shape logits = ctx->input(0).shape();
    const Shape labels = ctx->input(1).shape();
    MR_ASSIGN_OR_RETURN(const Shape both, CommonShape(logits, labels));
    const int64_t rows = both.dim(0);
    const int64_t columns = both.dim(1);
    MR_ASSIGN_OR_RETURN(const Shape loss_shape, Shape::Make({rows}));
    MR_ASSIGN_OR_RETURN(Tensor * loss, ctx->AllocateOutput(0, loss_shape));
    if (both.num_elements() == 0) {
      MR_RETURN_IF_ERROR(ctx->AllocateOutput(1, both).status());
      const absl::Span<char> bytes = loss->mutable_bytes();
      if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
      return absl::OkStatus();
    }
    Tensor x_copy, t_copy;  // only where an input is repeated
    const char* x = static_cast<const char*>(ctx->input(0).raw_data());
    const char* t = static_cast<const char*>(ctx->input(1).raw_data());
    if (labels != both) {
      MR_ASSIGN_OR_RETURN(t_copy, Repeated(ctx, ctx->input(1), both));
      t = static_cast<const char*>(t_copy.raw_data());
    }
    if (logits != both) {
      MR_ASSIGN_OR_RETURN(x_copy, Repeated(ctx, ctx->input(0), both));
      x = static_cast<const char*>(x_copy.raw_data());
    }
    MR_ASSIGN_OR_RETURN(Tensor * backprop, logits == both
                                               ? ctx->ForwardInputOrAllocateOutput({0}, 1, both)
                                               : ctx->AllocateOutput(1, both));
    char* l = static_cast<char*>(loss->mutable_raw_data());
    char* b = static_cast<char*>(backprop->mutable_raw_data());
    ctx->ParallelFor(
        rows, kElementNs * static_cast<double>(columns), [&](int64_t begin, int64_t end) {
          const int64_t at = begin * columns * size_;
          loops_->cross_entropy(x + at, t + at, l + begin * size_, b + at, end - begin, columns);
        });
    return absl::OkStatus();
  }

 private:
  // `small`, of rank <= 2, repeated to a matrix of shape `both`.
  StatusOr<Tensor> Repeated(KernelContext* ctx, const Tensor& small, const Shape& both) const {
    MR_ASSIGN_OR_RETURN(Tensor result, ctx->AllocateTemp(small.dtype(), both));
    const int rank = small.rank();
    const int64_t rows = rank < 2 ? 1 : small.dim(0);
    const int64_t columns = rank < 1 ? 1 : small.dim(rank - 1);
    const char* from = static_cast<const char*>(small.raw_data());
    char* to = static_cast<char*>(result.mutable_raw_data());
    const size_t element = static_cast<size_t>(size_);
    for (int64_t r = 0; r < both.dim(0); ++r) {
      const char* row = from + (rows == 1 ? 0 : r * columns * size_);
      if (columns == both.dim(1)) {
        std::memcpy(to, row, static_cast<size_t>(columns) * element);
        to += columns * size_;
        continue;
      }
      for (int64_t c = 0; c < both.dim(1); ++c, to += size_) std::memcpy(to, row, element);
    }
    return result;
  }
};

class SparseXentKernel : public XentKernelBase {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Shape shape = ctx->input(0).shape();
    MR_ASSIGN_OR_RETURN(const SparseSizes sizes, CheckSparse(shape, ctx->input(1).shape()));
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> labels, ctx->IntVectorInput(1, "labels"));
    for (const int64_t label : labels) {
      if (label < 0 || label >= sizes.classes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Received a label value of ", label, " which is outside the valid range of [0, ",
            sizes.classes, ").  Label values: ", First(labels)));
      }
    }
    MR_ASSIGN_OR_RETURN(Tensor * loss, ctx->AllocateOutput(0, ctx->input(1).shape()));
    const char* x = static_cast<const char*>(ctx->input(0).raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * backprop, ctx->ForwardInputOrAllocateOutput({0}, 1, shape));
    char* l = static_cast<char*>(loss->mutable_raw_data());
    char* b = static_cast<char*>(backprop->mutable_raw_data());
    ctx->ParallelFor(sizes.batch, kElementNs * static_cast<double>(sizes.classes),
                     [&](int64_t begin, int64_t end) {
                       const int64_t at = begin * sizes.classes * size_;
                       loops_->sparse_cross_entropy(x + at, labels.data() + begin,
                                                    l + begin * size_, b + at, end - begin,
                                                    sizes.classes);
                     });
    return absl::OkStatus();
  }

 private:
  // The first labels, for a message.
  static std::string First(const std::vector<int64_t>& labels) {
    constexpr size_t kMost = 16;
    std::string text;
    for (size_t i = 0; i < std::min(labels.size(), kMost); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : " ", labels[i]);
    }
    if (labels.size() > kMost) text += " ...";
    return text;
  }
};

// --- Gradients -----------------------------------------------------------------------------------

// vector[n] times each row n of matrix[n, c].
Output ScaleRows(const Scope& s, Output vector, Output matrix) {
  return Mul(s, ExpandDims(s, vector, Const<int32_t>(s, -1)), matrix);
}

// What flows through backprop (a second derivative) to the features:
// (g - sum(g * softmax)) * softmax, by rows.
Output ThroughBackprop(const Scope& s, Output g, Output logits) {
  const Output softmax = Softmax(s, logits);
  const Output sum = ReduceSum(s, Mul(s, g, softmax), {-1}, {.keep_dims = true});
  return Mul(s, Sub(s, g, sum), softmax);
}

// Are the classes of both inputs known to be the same, so that a row of features is a whole row?
bool SameClasses(const PartialShape& a, const PartialShape& b) {
  return a.has_rank() && b.has_rank() && a.rank() >= 1 && b.rank() >= 1 &&
         a.dim(a.rank() - 1) >= 0 && a.dim(a.rank() - 1) == b.dim(b.rank() - 1);
}

Status XentGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output features = c->input(0), labels = c->input(1), backprop = c->output(1);
  // Features with one column may stand for many classes.
  const Output logits = SameClasses(s.shape(features), s.shape(labels))
                            ? features
                            : BroadcastTo(s, features, ShapeOf(s, backprop));
  Output to_features, to_labels;
  if (c->has_grad(0)) {
    const Output g = c->dense_grad(0);
    to_features = ScaleRows(s, g, backprop);
    to_labels = Neg(s, ScaleRows(s, g, LogSoftmax(s, logits)));
  }
  if (c->has_grad(1)) {
    const Output g = c->dense_grad(1);
    const Output second = ThroughBackprop(s, g, logits);
    to_features = to_features.valid() ? Add(s, to_features, second) : second;
    to_labels = to_labels.valid() ? Sub(s, to_labels, g) : Neg(s, g);
  }
  if (!to_features.valid()) return absl::OkStatus();
  c->set_input_grad(0, SumToInput(s, to_features, features, labels));
  c->set_input_grad(1, SumToInput(s, to_labels, labels, features));
  return absl::OkStatus();
}

Status SparseXentGradient(GradientContext* c) {
  const Scope& s = c->scope();
  Output to_features;
  if (c->has_grad(0)) to_features = ScaleRows(s, c->dense_grad(0), c->output(1));
  if (c->has_grad(1)) {
    const Output second = ThroughBackprop(s, c->dense_grad(1), c->input(0));
    to_features = to_features.valid() ? Add(s, to_features, second) : second;
  }
  if (to_features.valid()) c->set_input_grad(0, to_features);
  return absl::OkStatus();
}

const OpRegistration kXent = OpSpec("SoftmaxCrossEntropyWithLogits")
                                 .Input("features: T")
                                 .Input("labels: T")
                                 .Output("loss: T")
                                 .Output("backprop: T")
                                 .Attr("T: {half, bfloat16, float, double}")
                                 .Shape(XentShape)
                                 .Gradient(XentGradient);
const KernelRegistration kXentKernel = KernelFor<XentKernel>("SoftmaxCrossEntropyWithLogits");

const OpRegistration kSparseXent = OpSpec("SparseSoftmaxCrossEntropyWithLogits")
                                       .Input("features: T")
                                       .Input("labels: Tlabels")
                                       .Output("loss: T")
                                       .Output("backprop: T")
                                       .Attr("T: {half, bfloat16, float, double}")
                                       .Attr("Tlabels: {int32, int64} = DT_INT64")
                                       .Shape(SparseXentShape)
                                       .Gradient(SparseXentGradient);
const KernelRegistration kSparseXentKernel =
    KernelFor<SparseXentKernel>("SparseSoftmaxCrossEntropyWithLogits");

}  // namespace
}  // namespace millrace
