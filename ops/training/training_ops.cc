// SPDX-License-Identifier: Apache-2.0
// Optimizers. Each is a class over the element type that names the inputs of its ops and updates a
// range of elements by a loop of ops/loops/training.h. OpsOf makes of it the ops that update whole
// variables or rows, by reference or by handle.
#include "ops/training/training_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_split.h"
#include "graph/later_attrs.h"
#include "graph/shape_inference.h"
#include "ops/kernels/element_block.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/kernels/variable_update.h"
#include "ops/loops/number.h"
#include "ops/loops/training.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using math::UpdateArray;
using math::Wide;

// --- Inputs --------------------------------------------------------------------------------------

// What an optimizer's ops take: variables, rates, the gradient, rates again and the step, in this
// order, names with blanks between them, and a bool attr. Forms for rows have the indices after the
// gradient.
struct Definition {
  const char* variables;  // the first is "var", the others are its slots
  const char* rates;
  const char* gradient = "grad";      // of the forms for whole variables
  const char* row_gradient = "grad";  // of the forms for rows
  const char* last_rates = "";
  const char* step = "";  // one more rate, given as an int64
  const char* attr = nullptr;
  bool attr_default = false;
  const char* later_attr = nullptr;  // a spec for LaterAttr
};

// The inputs of one of the ops, by position.
struct Inputs {
  Inputs(const Definition& op, bool for_rows) {
    num_variables = Add(op.variables);
    gradient = Add(op.rates);
    Add(for_rows ? op.row_gradient : op.gradient);
    if (for_rows) indices = Add("indices") - 1;
    const int rates_end = Add(op.last_rates);
    if (Add(op.step) > rates_end) step = rates_end;
  }
  int Add(absl::string_view list) {  // the number of inputs so far
    for (absl::string_view name : absl::StrSplit(list, ' ', absl::SkipEmpty())) {
      names.emplace_back(name);
    }
    return size();
  }
  int size() const { return static_cast<int>(names.size()); }
  const std::string& name(int i) const { return names[static_cast<size_t>(i)]; }
  bool IsRate(int i) const { return i >= num_variables && i != gradient && i != indices; }
  bool for_rows() const { return indices >= 0; }

  std::vector<std::string> names;
  int num_variables, gradient;
  int indices = -1, step = -1;
};

// --- Shapes --------------------------------------------------------------------------------------

// Gradient and indices of an update of rows of `var`.
Status CheckRows(const PartialShape& var, const PartialShape& grad, const PartialShape& indices) {
  if (indices.has_rank() && indices.rank() != 1) {
    return InvalidArgument("indices must be one-dimensional, got shape ", indices);
  }
  if (var.has_rank() && var.rank() < 1) {
    return InvalidArgument("var must be at least 1 dimensional, got shape []");
  }
  if (!grad.has_rank()) return absl::OkStatus();
  const auto differ = [](int64_t a, int64_t b) { return a != b && a >= 0 && b >= 0; };
  if (indices.has_rank() && (grad.rank() < 1 || differ(grad.dim(0), indices.dim(0)))) {
    return InvalidArgument("grad must have one row for each of the indices (shape ", indices,
                           "), got shape ", grad);
  }
  if (!var.has_rank()) return absl::OkStatus();
  bool match = var.rank() == grad.rank();
  for (int i = 1; match && i < var.rank(); ++i) match = !differ(var.dim(i), grad.dim(i));
  if (match) return absl::OkStatus();
  return InvalidArgument("var and grad must match in all dimensions after the first, got ", var,
                         " and ", grad);
}

// What is known of the variables' common shape, if gradient and indices go with it. The only place
// that knows which shapes are legal. variable(i) is the shape of variable i; `indices` counts in
// forms for rows only.
template <typename VariableShape>
StatusOr<PartialShape> CheckShapes(const Inputs& inputs, VariableShape variable,
                                   const PartialShape& grad, const PartialShape& indices) {
  PartialShape var = variable(0);
  const auto merge = [&](int i, const PartialShape& shape) -> Status {
    if (shape == var) return absl::OkStatus();
    StatusOr<PartialShape> merged = var.MergeWith(shape);
    if (!merged.ok()) {
      return InvalidArgument("var and ", inputs.name(i), " do not have the same shape ", var, " ",
                             shape);
    }
    var = *std::move(merged);
    return absl::OkStatus();
  };
  for (int i = 1; i < inputs.num_variables; ++i) MR_RETURN_IF_ERROR(merge(i, variable(i)));
  MR_RETURN_IF_ERROR(inputs.for_rows() ? CheckRows(var, grad, indices)
                                       : merge(inputs.gradient, grad));
  return var;
}

Status UpdateShape(const Inputs& inputs, bool resource, InferenceContext* c) {
  for (int i = 0; i < inputs.size(); ++i) {
    if (inputs.IsRate(i)) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0, inputs.name(i)).status());
  }
  const auto variable = [&](int i) { return resource ? HandleOf(c, i).shape : c->input(i); };
  MR_ASSIGN_OR_RETURN(PartialShape var,
                      CheckShapes(inputs, variable, c->input(inputs.gradient),
                                  inputs.for_rows() ? c->input(inputs.indices) : PartialShape()));
  if (!resource) c->set_output(0, std::move(var));
  return absl::OkStatus();
}

// --- Optimizers ----------------------------------------------------------------------------------

// Run updates n elements of the variables by the rates in the order of the inputs and the value of
// the attr. kCostNs: what one element costs. CheckRates, where there is one, refuses rates that
// would make nonsense of a variable.

template <typename E>
struct GradientDescent {
  static constexpr Definition kDefinition = {
      .variables = "var", .rates = "alpha", .gradient = "delta"};
  static constexpr double kCostNs = 0.3;
  static void Run(const UpdateArray<E>* v, const E* delta, const Wide<E>* rates, bool, int64_t n) {
    math::GradientDescent<E>(v[0], delta, rates[0], n);
  }
};

template <typename E>
struct Adam {
  static constexpr Definition kDefinition = {
      .variables = "var m v",
      .rates = "beta1_power beta2_power lr beta1 beta2 epsilon",
      .attr = "use_nesterov"};
  static constexpr double kCostNs = 1.0;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool use_nesterov,
                  int64_t n) {
    const Wide<E> step = rates[2] * std::sqrt(1 - rates[1]) / (1 - rates[0]);
    math::Adam<E>(v[0], v[1], v[2], grad, {step, rates[3], rates[4], rates[5]}, use_nesterov, n);
  }
};

template <typename E>
struct Adagrad {
  static constexpr Definition kDefinition = {
      .variables = "var accum", .rates = "lr", .attr = "update_slots", .attr_default = true};
  static constexpr double kCostNs = 0.8;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool update_slots,
                  int64_t n) {
    math::Adagrad<E>(v[0], v[1], grad, rates[0], update_slots, n);
  }
};

template <typename E>
struct Momentum {
  static constexpr Definition kDefinition = {
      .variables = "var accum", .rates = "lr", .last_rates = "momentum", .attr = "use_nesterov"};
  static constexpr double kCostNs = 0.6;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool use_nesterov,
                  int64_t n) {
    math::Momentum<E>(v[0], v[1], grad, rates[0], rates[1], use_nesterov, n);
  }
};

template <typename E>
struct RmsProp {
  static constexpr Definition kDefinition = {.variables = "var ms mom",
                                             .rates = "lr rho momentum epsilon"};
  static constexpr double kCostNs = 1.0;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::RmsProp<E>(v[0], v[1], v[2], grad, {rates[0], rates[1], rates[2], rates[3]}, n);
  }
};

template <typename E>
struct CenteredRmsProp {
  static constexpr Definition kDefinition = {.variables = "var mg ms mom",
                                             .rates = "lr rho momentum epsilon"};
  static constexpr double kCostNs = 1.2;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::CenteredRmsProp<E>(v[0], v[1], v[2], v[3], grad, {rates[0], rates[1], rates[2], rates[3]},
                             n);
  }
};

// lr, l1, l2, (l2_shrinkage,) lr_power; the last but one is 0 in the form without it.
template <typename E, bool kHasShrinkage>
struct FtrlForm {
  static constexpr Definition kDefinition = {
      .variables = "var accum linear",
      .rates = "",
      .last_rates = kHasShrinkage ? "lr l1 l2 l2_shrinkage lr_power" : "lr l1 l2 lr_power",
      .later_attr = "multiply_linear_by_lr: bool = false"};
  static constexpr double kCostNs = 1.5;
  static math::FtrlRates<Wide<E>> Rates(const Wide<E>* rates) {
    return {rates[0], rates[1], rates[2], kHasShrinkage ? rates[3] : Wide<E>(0),
            rates[kHasShrinkage ? 4 : 3]};
  }
  static Status CheckRates(const Wide<E>* rates) {
    const math::FtrlRates<Wide<E>> r = Rates(rates);
    if (!(r.lr > 0)) return InvalidArgument("lr must be > 0, got ", r.lr);
    if (!(r.l1 >= 0)) return InvalidArgument("l1 must be >= 0, got ", r.l1);
    if (!(r.l2 >= 0)) return InvalidArgument("l2 must be >= 0, got ", r.l2);
    if (!(r.l2_shrinkage >= 0)) {
      return InvalidArgument("l2_shrinkage must be >= 0, got ", r.l2_shrinkage);
    }
    if (!(r.lr_power <= 0)) return InvalidArgument("lr_power must be <= 0, got ", r.lr_power);
    return absl::OkStatus();
  }
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::Ftrl<E>(v[0], v[1], v[2], grad, Rates(rates), n);
  }
};
template <typename E>
using Ftrl = FtrlForm<E, false>;
template <typename E>
using FtrlV2 = FtrlForm<E, true>;

template <typename E>
struct Adadelta {
  static constexpr Definition kDefinition = {.variables = "var accum accum_update",
                                             .rates = "lr rho epsilon"};
  static constexpr double kCostNs = 1.2;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::Adadelta<E>(v[0], v[1], v[2], grad, {rates[0], rates[1], rates[2]}, n);
  }
};

template <typename E>
struct AdaMax {
  static constexpr Definition kDefinition = {.variables = "var m v",
                                             .rates = "beta1_power lr beta1 beta2 epsilon"};
  static constexpr double kCostNs = 1.0;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    const Wide<E> step = rates[1] / (1 - rates[0]);
    math::AdaMax<E>(v[0], v[1], v[2], grad, {step, rates[2], rates[3], rates[4]}, n);
  }
};

template <typename E>
struct AdagradV2 {
  static constexpr Definition kDefinition = {.variables = "var accum",
                                             .rates = "lr epsilon",
                                             .attr = "update_slots",
                                             .attr_default = true};
  static constexpr double kCostNs = 0.8;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool update_slots,
                  int64_t n) {
    math::AdagradWithEpsilon<E>(v[0], v[1], grad, rates[0], rates[1], update_slots, n);
  }
};

template <typename E>
struct ProximalGradientDescent {
  static constexpr Definition kDefinition = {
      .variables = "var", .rates = "alpha l1 l2", .gradient = "delta"};
  static constexpr double kCostNs = 0.5;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::ProximalGradientDescent<E>(v[0], grad, {rates[0], rates[1], rates[2]}, n);
  }
};

template <typename E>
struct ProximalAdagrad {
  static constexpr Definition kDefinition = {.variables = "var accum", .rates = "lr l1 l2"};
  static constexpr double kCostNs = 1.2;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::ProximalAdagrad<E>(v[0], v[1], grad, {rates[0], rates[1], rates[2]}, n);
  }
};

template <typename E>
struct AdagradDA {
  static constexpr Definition kDefinition = {
      .variables = "var gradient_accumulator gradient_squared_accumulator",
      .rates = "",
      .last_rates = "lr l1 l2",
      .step = "global_step"};
  static constexpr double kCostNs = 1.2;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::AdagradDualAveraging<E>(v[0], v[1], v[2], grad, {rates[0], rates[1], rates[2]}, rates[3],
                                  n);
  }
};

template <typename E>
struct AddSign {
  static constexpr Definition kDefinition = {.variables = "var m",
                                             .rates = "lr alpha sign_decay beta"};
  static constexpr double kCostNs = 0.8;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::AddSign<E>(v[0], v[1], grad, {rates[0], rates[1], rates[2], rates[3]}, n);
  }
};

template <typename E>
struct PowerSign {
  static constexpr Definition kDefinition = {.variables = "var m",
                                             .rates = "lr logbase sign_decay beta"};
  static constexpr double kCostNs = 0.8;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool, int64_t n) {
    math::PowerSign<E>(v[0], v[1], grad, {rates[0], rates[1], rates[2], rates[3]}, n);
  }
};

template <typename E>
struct KerasMomentum {
  static constexpr Definition kDefinition = {
      .variables = "var accum", .rates = "lr", .last_rates = "momentum", .attr = "use_nesterov"};
  static constexpr double kCostNs = 0.6;
  static void Run(const UpdateArray<E>* v, const E* grad, const Wide<E>* rates, bool use_nesterov,
                  int64_t n) {
    math::KerasMomentum<E>(v[0], v[1], grad, rates[0], rates[1], use_nesterov, n);
  }
};

// --- Kernels -------------------------------------------------------------------------------------

constexpr int kMaxVariables = 4;
constexpr int kMaxRates = 6;

// What the kernels know of an optimizer: they are compiled for a type, not for each optimizer too.
template <typename E>
struct Update {
  void (*run)(const UpdateArray<E>*, const E*, const Wide<E>*, bool, int64_t);
  Status (*check_rates)(const Wide<E>*);  // may be null
  double cost_ns;
  const char* attr;  // may be null
};

template <template <typename> class Optimizer, typename E>
constexpr Update<E> UpdateOf() {
  Update<E> update = {&Optimizer<E>::Run, nullptr, Optimizer<E>::kCostNs,
                      Optimizer<E>::kDefinition.attr};
  if constexpr (requires { &Optimizer<E>::CheckRates; }) {
    update.check_rates = &Optimizer<E>::CheckRates;
  }
  return update;
}

template <typename E>
class UpdateKernel : public Kernel {
 public:
  UpdateKernel(const Inputs& inputs, const Update<E>& update) : inputs_(inputs), update_(update) {}

  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "use_locking", &exclusive_));
    return update_.attr == nullptr ? absl::OkStatus() : ReadAttrs(c->attrs(), update_.attr, &attr_);
  }

  Status Compute(KernelContext* ctx) const override {
    absl::InlinedVector<std::shared_ptr<VariableStorage>, kMaxVariables> owners;
    absl::InlinedVector<VariableStorage*, kMaxVariables> variables;
    absl::InlinedVector<Wide<E>, kMaxRates> rates;
    for (int i = 0; i < inputs_.size(); ++i) {
      if (i < inputs_.num_variables) {
        MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, i, DTypeOf<E>));
        variables.push_back(variable.get());
        owners.push_back(std::move(variable));
      } else if (inputs_.IsRate(i)) {
        MR_ASSIGN_OR_RETURN(const Wide<E> rate, Rate(ctx, i));
        rates.push_back(rate);
      }
    }
    if (update_.check_rates != nullptr) MR_RETURN_IF_ERROR(update_.check_rates(rates.data()));
    if (!inputs_.for_rows()) {
      MR_RETURN_IF_ERROR(UpdateDense(ctx, variables, rates.data()));
    } else if (ctx->input_dtype(inputs_.indices) == DT_INT64) {
      MR_RETURN_IF_ERROR(UpdateRows<int64_t>(ctx, variables, rates.data()));
    } else {
      MR_RETURN_IF_ERROR(UpdateRows<int32_t>(ctx, variables, rates.data()));
    }
    PassReference(ctx, std::move(owners[0]));
    return absl::OkStatus();
  }

 private:
  using Variables = absl::Span<VariableStorage* const>;

  StatusOr<Wide<E>> Rate(KernelContext* ctx, int i) const {
    if (i == inputs_.step) {
      MR_ASSIGN_OR_RETURN(const int64_t step, ctx->ScalarInput<int64_t>(i, inputs_.name(i)));
      return static_cast<Wide<E>>(step);
    }
    MR_ASSIGN_OR_RETURN(const E rate, ctx->ScalarInput<E>(i, inputs_.name(i)));
    return math::Load(rate);
  }

  Status UpdateDense(KernelContext* ctx, Variables variables, const Wide<E>* rates) const {
    const Tensor& grad = ctx->input(inputs_.gradient);
    return VariableStorage::UpdateDense(
        variables,
        [&](absl::Span<const Tensor> old) -> Status {
          const bool equal = std::all_of(old.begin(), old.end(), [&](const Tensor& value) {
            return value.shape() == grad.shape();
          });
          if (equal) return absl::OkStatus();
          const auto variable = [&](int i) { return old[static_cast<size_t>(i)].shape(); };
          return CheckShapes(inputs_, variable, grad.shape(), {}).status();
        },
        [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          const auto body = [&](int64_t begin, int64_t end) {
            UpdateArray<E> part[kMaxVariables] = {};
            for (size_t i = 0; i < old.size(); ++i) {
              part[i] = {static_cast<const E*>(old[i].raw_data()) + begin,
                         static_cast<E*>(fresh[i].mutable_raw_data()) + begin};
            }
            const E* gradient = static_cast<const E*>(grad.raw_data()) + begin;
            update_.run(part, gradient, rates, attr_, end - begin);
          };
          ctx->ParallelBlocks(grad.num_elements(), kElementBlock, update_.cost_ns, body);
          return absl::OkStatus();
        });
  }

  template <typename Index>
  Status UpdateRows(KernelContext* ctx, Variables variables, const Wide<E>* rates) const {
    const Tensor& grad = ctx->input(inputs_.gradient);
    const Tensor& indices = ctx->input(inputs_.indices);
    const E* gradient = static_cast<const E*>(grad.raw_data());
    int64_t row = 0;
    RowUpdateOptions options =
        ParallelRows(ctx, exclusive_, update_.cost_ns, grad.num_elements(), indices.num_elements());
    const auto update_several = [&](int64_t first, int64_t count, absl::Span<char* const> rows) {
      UpdateSeveral(gradient + first * row, rates, row, count, variables.size(), rows);
    };
    options.update_several = std::cref(update_several);
    return VariableStorage::UpdateRows<Index>(
        variables, indices.raw<Index>(), options,
        [&](absl::Span<const Shape> shapes) -> Status {
          if (!AreMatrices(shapes, grad.shape(), indices.shape())) {
            const auto variable = [&](int i) { return shapes[static_cast<size_t>(i)]; };
            MR_RETURN_IF_ERROR(
                CheckShapes(inputs_, variable, grad.shape(), indices.shape()).status());
          }
          row = shapes[0].NumElements(1, shapes[0].rank());
          return absl::OkStatus();
        },
        [&](int64_t i, absl::Span<char* const> rows) {
          UpdateArray<E> arrays[kMaxVariables] = {};
          for (size_t k = 0; k < rows.size(); ++k) {
            E* values = reinterpret_cast<E*>(rows[k]);
            arrays[k] = {values, values};
          }
          update_.run(arrays, gradient + i * row, rates, attr_, row);
        });
  }

  // Tables of one shape, with a row of the gradient for each of the indices: what CheckShapes
  // mostly sees, and finds legal.
  static bool AreMatrices(absl::Span<const Shape> shapes, const Shape& grad, const Shape& indices) {
    return grad.rank() == 2 && indices.rank() == 1 && grad.dim(0) == indices.dim(0) &&
           shapes[0].rank() == 2 && shapes[0].dim(1) == grad.dim(1) &&
           std::all_of(shapes.begin(), shapes.end(),
                       [&](const Shape& shape) { return shape == shapes[0]; });
  }

  // Rows of `row` elements, of `count` records. Narrow ones are brought together, where one loop
  // passes over all of them.
  void UpdateSeveral(const E* gradient, const Wide<E>* rates, int64_t row, int64_t count,
                     size_t num_variables, absl::Span<char* const> rows) const {
    constexpr int64_t kNarrow = 8, kTogether = 512;
    UpdateArray<E> arrays[kMaxVariables] = {};
    if (row >= kNarrow || row * count > kTogether) {
      for (int64_t i = 0; i < count; ++i, rows.remove_prefix(num_variables)) {
        for (size_t k = 0; k < num_variables; ++k) {
          E* const values = reinterpret_cast<E*>(rows[k]);
          arrays[k] = {values, values};
        }
        update_.run(arrays, gradient + i * row, rates, attr_, row);
      }
      return;
    }
    E together[kMaxVariables][kTogether];
    for (size_t k = 0; k < num_variables; ++k) {
      arrays[k] = {together[k], together[k]};
      ForEachRow<const E>(rows.subspan(k), num_variables, row, count, together[k],
                          [](const E* in_table, E* value) { *value = *in_table; });
    }
    update_.run(arrays, gradient, rates, attr_, row * count);
    for (size_t k = 0; k < num_variables; ++k) {
      ForEachRow<E>(rows.subspan(k), num_variables, row, count, together[k],
                    [](E* in_table, const E* value) { *in_table = *value; });
    }
  }

  // copy(element of a row, its place in `together`) for rows[0], rows[step], ... that lie one
  // behind the other there. Rows of one element, those of linear models, have a loop of their own.
  template <typename InTable, typename Copy>
  static void ForEachRow(absl::Span<char* const> rows, size_t step, int64_t row, int64_t count,
                         E* together, Copy copy) {
    char* const* at = rows.data();
    if (row == 1) {
      for (int64_t i = 0; i < count; ++i, at += step) {
        copy(reinterpret_cast<InTable*>(*at), together + i);
      }
      return;
    }
    for (int64_t i = 0; i < count; ++i, at += step, together += row) {
      for (int64_t j = 0; j < row; ++j) copy(reinterpret_cast<InTable*>(*at) + j, together + j);
    }
  }

  const Inputs inputs_;
  const Update<E> update_;
  bool exclusive_ = false, attr_ = false;
};

// --- Definitions ---------------------------------------------------------------------------------

OpSpec UpdateSpec(absl::string_view op, const Definition& definition, const Inputs& inputs,
                  bool resource) {
  OpSpec spec(op);
  for (int i = 0; i < inputs.size(); ++i) {
    const char* variable = resource ? "resource" : "Ref(T)";
    const char* other = i == inputs.indices ? "Tindices" : i == inputs.step ? "int64" : "T";
    spec.Input(absl::StrCat(inputs.name(i), ": ", i < inputs.num_variables ? variable : other));
  }
  if (!resource) spec.Output("out: Ref(T)");
  spec.Attr("T: numbertype");
  if (inputs.for_rows()) spec.Attr("Tindices: {int32, int64}");
  spec.Attr("use_locking: bool = false");
  if (definition.attr != nullptr) {
    spec.Attr(
        absl::StrCat(definition.attr, ": bool = ", definition.attr_default ? "true" : "false"));
  }
  if (definition.later_attr != nullptr) spec.With(LaterAttr(definition.later_attr));
  if (resource) spec.Stateful();
  return spec
      .Shape([inputs, resource](InferenceContext* c) { return UpdateShape(inputs, resource, c); })
      .NotDifferentiable();
}

// Apply<name> on references (if there are such forms) and ResourceApply<name> on handles;
// SparseApply<name> and ResourceSparseApply<name> where there are forms for rows.
template <template <typename> class Optimizer>
struct OpsOf {
  OpsOf(absl::string_view name, std::initializer_list<bool> for_rows,
        std::initializer_list<bool> resource_forms = {false, true}) {
    const Definition& definition = Optimizer<float>::kDefinition;
    for (const bool rows : for_rows) {
      const Inputs inputs(definition, rows);
      for (const bool resource : resource_forms) {
        const std::string op =
            absl::StrCat(resource ? "Resource" : "", rows ? "Sparse" : "", "Apply", name);
        OpRegistration(UpdateSpec(op, definition, inputs, resource)
                           .With(Kernels<float, double, Half, Bfloat16>(inputs)));
      }
    }
  }
  template <typename... Es>
  static std::vector<KernelSpec> Kernels(const Inputs& inputs) {
    return {
        KernelFor<UpdateKernel<Es>>(inputs, UpdateOf<Optimizer, Es>()).template Type<Es>("T")...};
  }
};

const OpsOf<GradientDescent> kGradientDescent("GradientDescent", {false});
const OpsOf<Adam> kAdam("Adam", {false});
const OpsOf<Adagrad> kAdagrad("Adagrad", {false, true});
const OpsOf<Momentum> kMomentum("Momentum", {false, true});
const OpsOf<RmsProp> kRmsProp("RMSProp", {false, true});
const OpsOf<Adadelta> kAdadelta("Adadelta", {false, true});
const OpsOf<AdaMax> kAdaMax("AdaMax", {false});
const OpsOf<AdagradV2> kAdagradV2("AdagradV2", {false, true});
const OpsOf<AdagradDA> kAdagradDA("AdagradDA", {false, true});
const OpsOf<ProximalGradientDescent> kProximalGradientDescent("ProximalGradientDescent",
                                                              {false, true});
const OpsOf<ProximalAdagrad> kProximalAdagrad("ProximalAdagrad", {false, true});
const OpsOf<AddSign> kAddSign("AddSign", {false});
const OpsOf<PowerSign> kPowerSign("PowerSign", {false});
const OpsOf<KerasMomentum> kKerasMomentum("KerasMomentum", {false, true}, {true});
const OpsOf<Ftrl> kFtrl("Ftrl", {false, true});
const OpsOf<FtrlV2> kFtrlV2("FtrlV2", {false, true});
const OpsOf<CenteredRmsProp> kCenteredRmsProp("CenteredRMSProp", {false, true});

}  // namespace
}  // namespace millrace
