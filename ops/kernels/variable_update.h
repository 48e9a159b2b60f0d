// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_
#define MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_

// variable = rule(variable, value), for whole variables and for rows: what the resource ops
// (AssignAddVariableOp, ResourceScatterAdd, ...) and the reference ops (AssignAdd, ScatterAdd, ...)
// have in common. A rule is a template over the element type: AddRule, SubRule, UpdateRule.
//
// Shapes are checked under the locks of the variable, so an Assign from elsewhere either comes
// before the check or after the update.
//
// Thread-safety: any thread; updates of one variable are serial (dense) or row by row.
// Failure: InvalidArgument for a value of another shape or a bad index; nothing changes then.
// FailedPrecondition for a variable without value.

#include <complex>
#include <cstdint>

#include "ops/kernels/element_block.h"
#include "ops/loops/number.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {

// Integers wrap; half and bfloat16 compute in float.
template <typename T>
struct AddRule {
  static T Apply(T a, T b) { return math::Store<T>(math::WrapAdd(math::Load(a), math::Load(b))); }
};
template <typename T>
struct SubRule {
  static T Apply(T a, T b) { return math::Store<T>(math::WrapSub(math::Load(a), math::Load(b))); }
};
template <typename T>
struct UpdateRule {
  static T Apply(T, T b) { return b; }
};

// The kernels of every type that has rules to add and subtract by. Keep one alive as long as the
// program.
template <template <typename> class Kernels>
struct ForNumbers {
  Kernels<float> of_float;
  Kernels<double> of_double;
  Kernels<int32_t> of_int32;
  Kernels<int64_t> of_int64;
  Kernels<Half> of_half;
  Kernels<Bfloat16> of_bfloat16;
  Kernels<std::complex<float>> of_complex64;
};

// A scatter op's kernels for both types of indices. `type_attr` names the attr of the rows' type.
template <template <typename, typename, template <typename> class> class Kernel, typename T,
          template <typename> class Rule>
struct ScatterKernels {
  ScatterKernels(const char* op, const char* type_attr)
      : by_int32(KernelFor<Kernel<T, int32_t, Rule>>(op)
                     .template Type<T>(type_attr)
                     .template Type<int32_t>("Tindices")),
        by_int64(KernelFor<Kernel<T, int64_t, Rule>>(op)
                     .template Type<T>(type_attr)
                     .template Type<int64_t>("Tindices")) {}
  KernelRegistration by_int32, by_int64;
};

// variable = Rule(variable, value), element by element.
template <typename T, template <typename> class Rule>
Status UpdateDense(KernelContext* ctx, VariableStorage* variable, const Tensor& value) {
  VariableStorage* const variables[] = {variable};
  return VariableStorage::UpdateDense(
      variables,
      [&](absl::Span<const Tensor> old) -> Status {
        if (old[0].shape() != value.shape()) {
          return absl::InvalidArgumentError(
              absl::StrCat("value must have the shape of variable '", variable->name(), "' ",
                           old[0].shape().ToString(), ", got ", value.shape().ToString()));
        }
        return absl::OkStatus();
      },
      [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) -> Status {
        const T* a = old[0].raw<T>().data();
        const T* b = value.raw<T>().data();
        T* out = fresh[0].mutable_raw<T>().data();
        ctx->ParallelBlocks(value.num_elements(), kElementBlock, 0.5,
                            [=](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i)
                                out[i] = Rule<T>::Apply(a[i], b[i]);
                            });
        return absl::OkStatus();
      });
}

// Row updates on the threads of the step. `compute_ns`: what the arithmetic of one row costs.
inline RowUpdateOptions ParallelRows(KernelContext* ctx, bool exclusive, double compute_ns) {
  // A row comes from memory, not from a cache.
  constexpr double kFetchNs = 60;
  RowUpdateOptions options;
  options.exclusive = exclusive;
  options.row_cost_ns = kFetchNs + compute_ns;
  if (ctx->num_threads() > 1) {
    options.parallel_for = [ctx](int64_t n, double cost_ns,
                                 absl::FunctionRef<void(int64_t, int64_t)> body) {
      ctx->ParallelFor(n, cost_ns, body);
    };
  }
  return options;
}

// Row indices[i] = Rule(row, updates[i]), or Rule(row, updates) for a scalar.
template <typename T, typename Index, template <typename> class Rule>
Status ScatterRows(KernelContext* ctx, VariableStorage* variable, const Tensor& indices,
                   const Tensor& updates, bool exclusive) {
  const bool is_scalar = updates.shape().is_scalar();
  const T* from = updates.raw<T>().data();
  int64_t row = 0;
  VariableStorage* const variables[] = {variable};
  return VariableStorage::UpdateRows<Index>(
      variables, indices.raw<Index>(),
      ParallelRows(ctx, exclusive,
                   0.3 * static_cast<double>(updates.num_elements()) /
                       static_cast<double>(indices.num_elements() + 1)),
      [&](absl::Span<const Shape> tables) -> Status {
        MR_RETURN_IF_ERROR(CheckUpdates(updates.shape(), indices.shape(), tables[0]));
        row = tables[0].NumElements(1, tables[0].rank());
        return absl::OkStatus();
      },
      [&](int64_t i, absl::Span<char* const> rows) {
        T* to = reinterpret_cast<T*>(rows[0]);
        for (int64_t j = 0; j < row; ++j) {
          to[j] = Rule<T>::Apply(to[j], is_scalar ? *from : from[i * row + j]);
        }
      });
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_
