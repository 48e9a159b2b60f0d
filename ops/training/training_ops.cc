// SPDX-License-Identifier: Apache-2.0
// Update rules of optimizers. A Rule<E> knows an optimizer: how many slots it has, where its inputs
// are and which loop of ops/loops/training.h updates a range of elements. DenseKernel and
// SparseKernel run any rule on reference variables and on resources.
#include "ops/training/training_ops.h"

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "graph/shape_inference.h"
#include "ops/kernels/element_block.h"
#include "ops/kernels/variable_update.h"
#include "ops/loops/number.h"
#include "ops/loops/training.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using math::Load;
using math::UpdateArray;
using math::Wide;

// --- What all kernels share ----------------------------------------------------------------------

using Variables = std::vector<std::shared_ptr<VariableStorage>>;

// Inputs 0..count-1: reference variables or handles, of dtype `dtype`.
StatusOr<Variables> VariableInputs(KernelContext* ctx, int count, bool resource, DType dtype) {
  Variables variables;
  for (int i = 0; i < count; ++i) {
    std::shared_ptr<VariableStorage> variable;
    if (resource) {
      MR_ASSIGN_OR_RETURN(variable, ctx->ResourceInput<VariableStorage>(i));
    } else {
      MR_ASSIGN_OR_RETURN(variable, ctx->ref_input(i));
    }
    if (variable->dtype() != dtype) {
      return absl::InvalidArgumentError(absl::StrCat("variable '", variable->name(), "' must be ",
                                                     DTypeName(dtype), ", got ",
                                                     DTypeName(variable->dtype())));
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

std::vector<VariableStorage*> Pointers(const Variables& variables) {
  std::vector<VariableStorage*> pointers;
  for (const auto& variable : variables) pointers.push_back(variable.get());
  return pointers;
}

Status DifferentShapes(absl::string_view a, absl::string_view b, const std::string& a_shape,
                       const std::string& b_shape) {
  return absl::InvalidArgumentError(
      absl::StrCat(a, " and ", b, " do not have the same shape ", a_shape, " ", b_shape));
}

template <typename E>
StatusOr<Wide<E>> Rate(KernelContext* ctx, int i, absl::string_view name) {
  MR_ASSIGN_OR_RETURN(const E value, ctx->ScalarInput<E>(i, name));
  return Load(value);
}

// --- Rules ---------------------------------------------------------------------------------------

// What a rule says about its op's inputs: variables first, then the rest by position.
struct Layout {
  std::vector<std::string> variables;  // names of inputs 0, 1, ...; the first is "var"
  std::string gradient = "grad";
  int gradient_input = 0;
  int indices_input = -1;  // sparse forms
};

template <typename Element>
class GradientDescentRule {
 public:
  using E = Element;
  struct Rates {
    Wide<E> alpha;
  };
  static constexpr double kCostNs = 0.3;
  static Layout GetLayout(bool) { return {{"var"}, "delta", 2}; }
  Status Init(KernelConstruction*) { return absl::OkStatus(); }
  StatusOr<Rates> Read(KernelContext* ctx, bool) const {
    MR_ASSIGN_OR_RETURN(const Wide<E> alpha, Rate<E>(ctx, 1, "alpha"));
    return Rates{alpha};
  }
  void Run(const Rates& r, const UpdateArray<E>* v, const E* grad, int64_t n) const {
    math::GradientDescent<E>(v[0], grad, r.alpha, n);
  }
};

template <typename Element>
class AdamRule {
 public:
  using E = Element;
  using Rates = math::AdamRates<Wide<E>>;
  static constexpr double kCostNs = 1.0;
  static Layout GetLayout(bool) { return {{"var", "m", "v"}, "grad", 9}; }
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(nesterov_, c->GetAttr<bool>("use_nesterov"));
    return absl::OkStatus();
  }
  StatusOr<Rates> Read(KernelContext* ctx, bool) const {
    using W = Wide<E>;
    MR_ASSIGN_OR_RETURN(const W beta1_power, Rate<E>(ctx, 3, "beta1_power"));
    MR_ASSIGN_OR_RETURN(const W beta2_power, Rate<E>(ctx, 4, "beta2_power"));
    MR_ASSIGN_OR_RETURN(const W lr, Rate<E>(ctx, 5, "lr"));
    MR_ASSIGN_OR_RETURN(const W beta1, Rate<E>(ctx, 6, "beta1"));
    MR_ASSIGN_OR_RETURN(const W beta2, Rate<E>(ctx, 7, "beta2"));
    MR_ASSIGN_OR_RETURN(const W epsilon, Rate<E>(ctx, 8, "epsilon"));
    const W step = lr * std::sqrt(W(1) - beta2_power) / (W(1) - beta1_power);
    return Rates{step, beta1, beta2, epsilon};
  }
  void Run(const Rates& r, const UpdateArray<E>* v, const E* grad, int64_t n) const {
    math::Adam<E>(v[0], v[1], v[2], grad, r, nesterov_, n);
  }

 private:
  bool nesterov_ = false;
};

template <typename Element>
class AdagradRule {
 public:
  using E = Element;
  struct Rates {
    Wide<E> lr;
  };
  static constexpr double kCostNs = 0.8;
  static Layout GetLayout(bool sparse) { return {{"var", "accum"}, "grad", 3, sparse ? 4 : -1}; }
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(update_slots_, c->GetAttr<bool>("update_slots"));
    return absl::OkStatus();
  }
  StatusOr<Rates> Read(KernelContext* ctx, bool) const {
    MR_ASSIGN_OR_RETURN(const Wide<E> lr, Rate<E>(ctx, 2, "lr"));
    return Rates{lr};
  }
  void Run(const Rates& r, const UpdateArray<E>* v, const E* grad, int64_t n) const {
    math::Adagrad<E>(v[0], v[1], grad, r.lr, update_slots_, n);
  }

 private:
  bool update_slots_ = true;
};

template <typename Element>
class MomentumRule {
 public:
  using E = Element;
  struct Rates {
    Wide<E> lr, momentum;
  };
  static constexpr double kCostNs = 0.6;
  static Layout GetLayout(bool sparse) { return {{"var", "accum"}, "grad", 3, sparse ? 4 : -1}; }
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(nesterov_, c->GetAttr<bool>("use_nesterov"));
    return absl::OkStatus();
  }
  StatusOr<Rates> Read(KernelContext* ctx, bool sparse) const {
    MR_ASSIGN_OR_RETURN(const Wide<E> lr, Rate<E>(ctx, 2, "lr"));
    MR_ASSIGN_OR_RETURN(const Wide<E> momentum, Rate<E>(ctx, sparse ? 5 : 4, "momentum"));
    return Rates{lr, momentum};
  }
  void Run(const Rates& r, const UpdateArray<E>* v, const E* grad, int64_t n) const {
    math::Momentum<E>(v[0], v[1], grad, r.lr, r.momentum, nesterov_, n);
  }

 private:
  bool nesterov_ = false;
};

// --- Dense ---------------------------------------------------------------------------------------

template <typename Rule, bool kResource>
class DenseKernel : public Kernel {
 public:
  using E = typename Rule::E;
  static constexpr int kMaxVariables = 3;

  Status Init(KernelConstruction* c) override { return rule_.Init(c); }

  Status Compute(KernelContext* ctx) const override {
    const int count = static_cast<int>(layout_.variables.size());
    MR_ASSIGN_OR_RETURN(const Variables variables,
                        VariableInputs(ctx, count, kResource, DTypeOf<E>));
    MR_ASSIGN_OR_RETURN(const auto rates, rule_.Read(ctx, false));
    const Tensor& grad = ctx->input(layout_.gradient_input);
    MR_RETURN_IF_ERROR(VariableStorage::UpdateDense(
        Pointers(variables), [&](absl::Span<const Tensor> old) { return CheckShapes(old, grad); },
        [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          std::array<UpdateArray<E>, kMaxVariables> arrays{};
          for (size_t i = 0; i < old.size(); ++i) {
            arrays[i] = {static_cast<const E*>(old[i].raw_data()),
                         static_cast<E*>(fresh[i].mutable_raw_data())};
          }
          const E* gradient = static_cast<const E*>(grad.raw_data());
          ctx->ParallelBlocks(grad.num_elements(), kElementBlock, Rule::kCostNs,
                              [&](int64_t begin, int64_t end) {
                                std::array<UpdateArray<E>, kMaxVariables> part = arrays;
                                for (size_t i = 0; i < old.size(); ++i) {
                                  part[i].old_value += begin;
                                  part[i].new_value += begin;
                                }
                                rule_.Run(rates, part.data(), gradient + begin, end - begin);
                              });
          return absl::OkStatus();
        }));
    if (!kResource) ctx->set_output_ref(0, variables[0]);
    return absl::OkStatus();
  }

 private:
  Status CheckShapes(absl::Span<const Tensor> old, const Tensor& grad) const {
    for (size_t i = 1; i < old.size(); ++i) {
      if (old[i].shape() != old[0].shape()) {
        return DifferentShapes("var", layout_.variables[i], old[0].shape().ToString(),
                               old[i].shape().ToString());
      }
    }
    if (grad.shape() != old[0].shape()) {
      return DifferentShapes("var", layout_.gradient, old[0].shape().ToString(),
                             grad.shape().ToString());
    }
    return absl::OkStatus();
  }

  const Layout layout_ = Rule::GetLayout(false);
  Rule rule_;
};

// --- Sparse --------------------------------------------------------------------------------------

// Shapes of variables, gradient and indices of a row update. The only place that knows which are
// legal.
Status CheckRows(const PartialShape& var, const PartialShape& grad, const PartialShape& indices) {
  if (indices.has_rank() && indices.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("indices must be one-dimensional, got shape ", indices.ToString()));
  }
  if (var.has_rank() && var.rank() < 1) {
    return absl::InvalidArgumentError("var must be at least 1 dimensional, got shape []");
  }
  if (grad.has_rank() && indices.has_rank() &&
      (grad.rank() < 1 ||
       (grad.dim(0) != indices.dim(0) && grad.dim(0) >= 0 && indices.dim(0) >= 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat("grad must have one row for each of the indices (shape ", indices.ToString(),
                     "), got shape ", grad.ToString()));
  }
  if (var.has_rank() && grad.has_rank()) {
    bool equal = var.rank() == grad.rank();
    for (int i = 1; equal && i < var.rank(); ++i) {
      equal = var.dim(i) == grad.dim(i) || var.dim(i) < 0 || grad.dim(i) < 0;
    }
    if (!equal) {
      return absl::InvalidArgumentError(
          absl::StrCat("var and grad must match in all dimensions after the first, got ",
                       var.ToString(), " and ", grad.ToString()));
    }
  }
  return absl::OkStatus();
}

template <typename Rule, bool kResource>
class SparseKernel : public Kernel {
 public:
  using E = typename Rule::E;

  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(exclusive_, c->GetAttr<bool>("use_locking"));
    return rule_.Init(c);
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& indices = ctx->input(layout_.indices_input);
    MR_RETURN_IF_ERROR(indices.dtype() == DT_INT64 ? Update<int64_t>(ctx, indices)
                                                   : Update<int32_t>(ctx, indices));
    return absl::OkStatus();
  }

 private:
  template <typename Index>
  Status Update(KernelContext* ctx, const Tensor& indices) const {
    const int count = static_cast<int>(layout_.variables.size());
    MR_ASSIGN_OR_RETURN(const Variables variables,
                        VariableInputs(ctx, count, kResource, DTypeOf<E>));
    MR_ASSIGN_OR_RETURN(const auto rates, rule_.Read(ctx, true));
    const Tensor& grad = ctx->input(layout_.gradient_input);
    const E* gradient = static_cast<const E*>(grad.raw_data());
    int64_t row = 0;
    MR_RETURN_IF_ERROR(VariableStorage::UpdateRows<Index>(
        Pointers(variables), indices.raw<Index>(),
        ParallelRows(ctx, exclusive_,
                     Rule::kCostNs * static_cast<double>(grad.num_elements()) /
                         static_cast<double>(indices.num_elements() + 1)),
        [&](absl::Span<const Shape> shapes) -> Status {
          MR_RETURN_IF_ERROR(CheckShapes(shapes, grad.shape(), indices.shape()));
          row = shapes[0].NumElements(1, shapes[0].rank());
          return absl::OkStatus();
        },
        [&](int64_t i, absl::Span<char* const> rows) {
          std::array<UpdateArray<E>, 2> arrays{};
          for (size_t k = 0; k < rows.size(); ++k) {
            E* values = reinterpret_cast<E*>(rows[k]);
            arrays[k] = {values, values};
          }
          rule_.Run(rates, arrays.data(), gradient + i * row, row);
        }));
    if (!kResource) ctx->set_output_ref(0, variables[0]);
    return absl::OkStatus();
  }

  // Under the locks of the variables: their shapes may have changed until then.
  Status CheckShapes(absl::Span<const Shape> shapes, const Shape& grad,
                     const Shape& indices) const {
    for (size_t i = 1; i < shapes.size(); ++i) {
      if (shapes[i] != shapes[0]) {
        return DifferentShapes("var", layout_.variables[i], shapes[0].ToString(),
                               shapes[i].ToString());
      }
    }
    return CheckRows(shapes[0], grad, indices);
  }

  const Layout layout_ = Rule::GetLayout(true);
  bool exclusive_ = false;
  Rule rule_;
};

// --- Shape functions -----------------------------------------------------------------------------

// The shape of variable input i: of what the handle holds, or of the reference.
PartialShape VariableShape(InferenceContext* c, int i, bool resource) {
  if (!resource) return c->input(i);
  const std::optional<HandleData>& data = c->input_handle(i);
  return data.has_value() ? data->shape : PartialShape();
}

// The merged shape of the variables; scalars are checked.
StatusOr<PartialShape> CheckInputs(InferenceContext* c, const Layout& layout, bool resource) {
  PartialShape shape = VariableShape(c, 0, resource);
  const int count = static_cast<int>(layout.variables.size());
  for (int i = 1; i < count; ++i) {
    const PartialShape slot = VariableShape(c, i, resource);
    StatusOr<PartialShape> merged = shape.MergeWith(slot);
    if (!merged.ok()) {
      return DifferentShapes("var", layout.variables[static_cast<size_t>(i)], shape.ToString(),
                             slot.ToString());
    }
    shape = *std::move(merged);
  }
  for (int i = count; i < c->num_inputs(); ++i) {
    if (i == layout.gradient_input || i == layout.indices_input) continue;
    MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  }
  return shape;
}

template <typename Rule, bool kResource>
Status DenseShape(InferenceContext* c) {
  const Layout layout = Rule::GetLayout(false);
  MR_ASSIGN_OR_RETURN(const PartialShape var, CheckInputs(c, layout, kResource));
  const PartialShape& grad = c->input(layout.gradient_input);
  StatusOr<PartialShape> merged = var.MergeWith(grad);
  if (!merged.ok()) {
    return DifferentShapes("var", layout.gradient, var.ToString(), grad.ToString());
  }
  if (!kResource) c->set_output(0, *std::move(merged));
  return absl::OkStatus();
}

template <typename Rule, bool kResource>
Status SparseShape(InferenceContext* c) {
  const Layout layout = Rule::GetLayout(true);
  MR_ASSIGN_OR_RETURN(PartialShape var, CheckInputs(c, layout, kResource));
  MR_RETURN_IF_ERROR(
      CheckRows(var, c->input(layout.gradient_input), c->input(layout.indices_input)));
  if (!kResource) c->set_output(0, std::move(var));
  return absl::OkStatus();
}

// --- Definitions ---------------------------------------------------------------------------------

constexpr char kNumbers[] =
    "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, uint16, complex128, half, uint32, uint64}";

// `inputs`: "var m v lr grad indices ..."; the first `num_variables` are variables.
template <bool kResource>
OpSpec UpdateSpec(absl::string_view op, std::initializer_list<const char*> inputs,
                  int num_variables, std::initializer_list<const char*> attrs, ShapeFn shape) {
  OpSpec spec(op);
  int i = 0;
  bool sparse = false;
  for (const char* input : inputs) {
    const bool is_indices = absl::string_view(input) == "indices";
    sparse = sparse || is_indices;
    const char* type =
        i < num_variables ? (kResource ? "resource" : "Ref(T)") : (is_indices ? "Tindices" : "T");
    spec.Input(absl::StrCat(input, ": ", type));
    ++i;
  }
  if (!kResource) spec.Output("out: Ref(T)");
  spec.Attr(kNumbers);
  if (sparse) spec.Attr("Tindices: {int32, int64}");
  for (const char* attr : attrs) spec.Attr(attr);
  if (kResource) spec.Stateful();
  return spec.Shape(std::move(shape)).NotDifferentiable();
}

constexpr char kUseLocking[] = "use_locking: bool = false";
constexpr char kUseNesterov[] = "use_nesterov: bool = false";
constexpr char kUpdateSlots[] = "update_slots: bool = true";

template <template <typename> typename Rule, bool kResource>
std::vector<KernelRegistration> DenseKernels(absl::string_view op) {
  return {KernelFor<DenseKernel<Rule<float>, kResource>>(op).template Type<float>("T"),
          KernelFor<DenseKernel<Rule<double>, kResource>>(op).template Type<double>("T"),
          KernelFor<DenseKernel<Rule<Half>, kResource>>(op).template Type<Half>("T"),
          KernelFor<DenseKernel<Rule<Bfloat16>, kResource>>(op).template Type<Bfloat16>("T")};
}
template <template <typename> typename Rule, bool kResource>
std::vector<KernelRegistration> SparseKernels(absl::string_view op) {
  return {KernelFor<SparseKernel<Rule<float>, kResource>>(op).template Type<float>("T"),
          KernelFor<SparseKernel<Rule<double>, kResource>>(op).template Type<double>("T"),
          KernelFor<SparseKernel<Rule<Half>, kResource>>(op).template Type<Half>("T"),
          KernelFor<SparseKernel<Rule<Bfloat16>, kResource>>(op).template Type<Bfloat16>("T")};
}

using FloatGradientDescent = GradientDescentRule<float>;
using FloatAdam = AdamRule<float>;
using FloatAdagrad = AdagradRule<float>;
using FloatMomentum = MomentumRule<float>;

template <bool kResource>
OpSpec GradientDescentSpec(absl::string_view op) {
  return UpdateSpec<kResource>(op, {"var", "alpha", "delta"}, 1, {kUseLocking},
                               DenseShape<FloatGradientDescent, kResource>);
}
const OpRegistration kApplyGradientDescent = GradientDescentSpec<false>("ApplyGradientDescent");
const OpRegistration kResourceApplyGradientDescent =
    GradientDescentSpec<true>("ResourceApplyGradientDescent");
const auto kApplyGradientDescentKernels =
    DenseKernels<GradientDescentRule, false>("ApplyGradientDescent");
const auto kResourceApplyGradientDescentKernels =
    DenseKernels<GradientDescentRule, true>("ResourceApplyGradientDescent");

template <bool kResource>
OpSpec AdamSpec(absl::string_view op) {
  return UpdateSpec<kResource>(
      op,
      {"var", "m", "v", "beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon", "grad"}, 3,
      {kUseLocking, kUseNesterov}, DenseShape<FloatAdam, kResource>);
}
const OpRegistration kApplyAdam = AdamSpec<false>("ApplyAdam");
const OpRegistration kResourceApplyAdam = AdamSpec<true>("ResourceApplyAdam");
const auto kApplyAdamKernels = DenseKernels<AdamRule, false>("ApplyAdam");
const auto kResourceApplyAdamKernels = DenseKernels<AdamRule, true>("ResourceApplyAdam");

template <bool kResource>
OpSpec AdagradSpec(absl::string_view op) {
  return UpdateSpec<kResource>(op, {"var", "accum", "lr", "grad"}, 2, {kUseLocking, kUpdateSlots},
                               DenseShape<FloatAdagrad, kResource>);
}
template <bool kResource>
OpSpec SparseAdagradSpec(absl::string_view op) {
  return UpdateSpec<kResource>(op, {"var", "accum", "lr", "grad", "indices"}, 2,
                               {kUseLocking, kUpdateSlots}, SparseShape<FloatAdagrad, kResource>);
}
const OpRegistration kApplyAdagrad = AdagradSpec<false>("ApplyAdagrad");
const OpRegistration kResourceApplyAdagrad = AdagradSpec<true>("ResourceApplyAdagrad");
const OpRegistration kSparseApplyAdagrad = SparseAdagradSpec<false>("SparseApplyAdagrad");
const OpRegistration kResourceSparseApplyAdagrad =
    SparseAdagradSpec<true>("ResourceSparseApplyAdagrad");
const auto kApplyAdagradKernels = DenseKernels<AdagradRule, false>("ApplyAdagrad");
const auto kResourceApplyAdagradKernels = DenseKernels<AdagradRule, true>("ResourceApplyAdagrad");
const auto kSparseApplyAdagradKernels = SparseKernels<AdagradRule, false>("SparseApplyAdagrad");
const auto kResourceSparseApplyAdagradKernels =
    SparseKernels<AdagradRule, true>("ResourceSparseApplyAdagrad");

template <bool kResource>
OpSpec MomentumSpec(absl::string_view op) {
  return UpdateSpec<kResource>(op, {"var", "accum", "lr", "grad", "momentum"}, 2,
                               {kUseLocking, kUseNesterov}, DenseShape<FloatMomentum, kResource>);
}
template <bool kResource>
OpSpec SparseMomentumSpec(absl::string_view op) {
  return UpdateSpec<kResource>(op, {"var", "accum", "lr", "grad", "indices", "momentum"}, 2,
                               {kUseLocking, kUseNesterov}, SparseShape<FloatMomentum, kResource>);
}
const OpRegistration kApplyMomentum = MomentumSpec<false>("ApplyMomentum");
const OpRegistration kResourceApplyMomentum = MomentumSpec<true>("ResourceApplyMomentum");
const OpRegistration kSparseApplyMomentum = SparseMomentumSpec<false>("SparseApplyMomentum");
const OpRegistration kResourceSparseApplyMomentum =
    SparseMomentumSpec<true>("ResourceSparseApplyMomentum");
const auto kApplyMomentumKernels = DenseKernels<MomentumRule, false>("ApplyMomentum");
const auto kResourceApplyMomentumKernels =
    DenseKernels<MomentumRule, true>("ResourceApplyMomentum");
const auto kSparseApplyMomentumKernels = SparseKernels<MomentumRule, false>("SparseApplyMomentum");
const auto kResourceSparseApplyMomentumKernels =
    SparseKernels<MomentumRule, true>("ResourceSparseApplyMomentum");

}  // namespace
}  // namespace millrace
