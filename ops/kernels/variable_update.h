// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_
#define MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_

// variable = rule(variable, value), for whole variables and for rows: the kernels of the resource
// ops (AssignAddVariableOp, ResourceScatterAdd, ...) and of the reference ops (AssignAdd,
// ScatterAdd, ...).
//
//   OpSpec("AssignSub", ...).With(KernelsForNumbers<VariableUpdate<SubRule>::Dense>("T"))
//
// Shapes are checked under the locks of the variable, so an Assign from elsewhere either comes
// before the check or after the update.
//
// Thread-safety: any thread; updates of one variable are serial (dense) or row by row.
// Failure: InvalidArgument for a value of another shape or a bad index; nothing changes then.
// FailedPrecondition for a variable without value.

#include <complex>
#include <cstdint>
#include <vector>

#include "ops/kernels/element_block.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/loops/number.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {

// Integers wrap; half and bfloat16 compute in float.
struct AddRule {
  template <typename T>
  static T Apply(T a, T b) {
    return math::Store<T>(math::WrapAdd(math::Load(a), math::Load(b)));
  }
};
struct SubRule {
  template <typename T>
  static T Apply(T a, T b) {
    return math::Store<T>(math::WrapSub(math::Load(a), math::Load(b)));
  }
};
struct UpdateRule {
  template <typename T>
  static T Apply(T, T b) {
    return b;
  }
};

// The kernels of every type that has rules to add and subtract by.
template <template <typename> class K>
std::vector<KernelSpec> KernelsForNumbers(absl::string_view attr) {
  return KernelsFor<K, float, double, int32_t, int64_t, Half, Bfloat16, std::complex<float>>(attr);
}

// Row updates on the threads of the step. `ns_per_value`: what the arithmetic of one of the
// `num_values` values costs that go into `num_rows` rows.
inline RowUpdateOptions ParallelRows(KernelContext* ctx, bool exclusive, double ns_per_value,
                                     int64_t num_values, int64_t num_rows) {
  // A row comes from memory, not from a cache.
  constexpr double kFetchNs = 60;
  RowUpdateOptions options;
  options.exclusive = exclusive;
  options.row_cost_ns =
      kFetchNs + ns_per_value * static_cast<double>(num_values) / static_cast<double>(num_rows + 1);
  if (ctx->num_threads() > 1) {
    options.parallel_for = [ctx](int64_t n, double cost_ns,
                                 absl::FunctionRef<void(int64_t, int64_t)> body) {
      ctx->ParallelFor(n, cost_ns, body);
    };
  }
  return options;
}

template <typename Rule>
struct VariableUpdate {
  // Inputs: variable, value. Element by element.
  template <typename T>
  class Dense : public Kernel {
   public:
    Status Compute(KernelContext* ctx) const override {
      MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, DTypeOf<T>));
      const Tensor& value = ctx->input(1);
      VariableStorage* const variables[] = {variable.get()};
      MR_RETURN_IF_ERROR(VariableStorage::UpdateDense(
          variables,
          [&](absl::Span<const Tensor> old) -> Status {
            if (old[0].shape() == value.shape()) return absl::OkStatus();
            return InvalidArgument("value must have the shape of variable '", variable->name(),
                                   "' ", old[0].shape(), ", got ", value.shape());
          },
          [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) -> Status {
            const T* a = old[0].raw<T>().data();
            const T* b = value.raw<T>().data();
            T* out = fresh[0].mutable_raw<T>().data();
            ctx->ParallelBlocks(value.num_elements(), kElementBlock, 0.5,
                                [=](int64_t begin, int64_t end) {
                                  for (int64_t i = begin; i < end; ++i)
                                    out[i] = Rule::Apply(a[i], b[i]);
                                });
            return absl::OkStatus();
          }));
      PassReference(ctx, std::move(variable));
      return absl::OkStatus();
    }
  };

  // Inputs: variable, indices, updates. Row indices[i] = Rule(row, updates[i]), or
  // Rule(row, updates) for a scalar.
  template <typename T>
  class Rows : public Kernel {
   public:
    Status Init(KernelConstruction* c) override {
      // Ops on handles have no such attr.
      return HasAttr(c->node(), "use_locking") ? ReadAttrs(c->attrs(), "use_locking", &exclusive_)
                                               : absl::OkStatus();
    }
    Status Compute(KernelContext* ctx) const override {
      MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, DTypeOf<T>));
      MR_RETURN_IF_ERROR(ctx->input_dtype(1) == DT_INT64 ? Update<int64_t>(ctx, variable.get())
                                                         : Update<int32_t>(ctx, variable.get()));
      PassReference(ctx, std::move(variable));
      return absl::OkStatus();
    }

   private:
    template <typename Index>
    Status Update(KernelContext* ctx, VariableStorage* variable) const {
      const Tensor& indices = ctx->input(1);
      const Tensor& updates = ctx->input(2);
      const bool is_scalar = updates.shape().is_scalar();
      const T* from = updates.raw<T>().data();
      int64_t row = 0;
      return VariableStorage::UpdateRows<Index>(
          {&variable, 1}, indices.raw<Index>(),
          ParallelRows(ctx, exclusive_, 0.3, updates.num_elements(), indices.num_elements()),
          [&](absl::Span<const Shape> tables) -> Status {
            MR_RETURN_IF_ERROR(CheckUpdates(updates.shape(), indices.shape(), tables[0]));
            row = tables[0].NumElements(1, tables[0].rank());
            return absl::OkStatus();
          },
          [&](int64_t i, absl::Span<char* const> rows) {
            T* to = reinterpret_cast<T*>(rows[0]);
            for (int64_t j = 0; j < row; ++j) {
              to[j] = Rule::Apply(to[j], is_scalar ? *from : from[i * row + j]);
            }
          });
    }

    bool exclusive_ = false;
  };
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_VARIABLE_UPDATE_H_
