// SPDX-License-Identifier: Apache-2.0
#include "ops/math/add_n.h"

#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct AddNRule {
  PartialShape declared;  // by the attr of AccumulateNV2

  Status Init(const NodeAttrs& attrs) {
    if (!HasAttr(attrs.node(), "shape")) return absl::OkStatus();
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "shape", &declared));
    if (declared.IsFullyDefined()) return absl::OkStatus();
    return InvalidArgument("attr shape must be fully known, got ", declared);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape merged, MergeAll(c, 0, c->num_inputs()));
    StatusOr<PartialShape> shape = merged.MergeWith(declared);
    if (shape.ok()) return shape;
    return InvalidArgument("inputs must have the shape of the attr, ", declared, ", got ", merged);
  }
};

math::BinaryFn FindAdd(DType dtype) { return math::FindBinary(math::BinaryOp::kAdd, dtype); }

// One pass over the result in blocks that stay in the cache, adding all inputs to each.
Status RunAddN(KernelContext* ctx, const AddNRule&, math::BinaryFn add) {
  const int n = ctx->num_inputs();
  if (n == 1) return ctx->PassInput(0);
  const int64_t size = static_cast<int64_t>(DTypeSize(ctx->input_dtype(0)));
  std::vector<const char*> inputs;
  for (int i = 0; i < n; ++i) {
    inputs.push_back(static_cast<const char*>(ctx->input(i).raw_data()));
  }
  MR_ASSIGN_OR_RETURN(Tensor * sum, ctx->ForwardInputOrAllocateOutput({0, 1}, 0));
  char* out = static_cast<char*>(sum->mutable_raw_data());
  const double cost_ns = 0.1 * n * static_cast<double>(size);
  ctx->ParallelBlocks(sum->num_elements(), kElementBlock, cost_ns, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * size, count = end - begin;
    // The first two are read before the result, which may be one of them, is written.
    add(inputs[0] + at, false, inputs[1] + at, false, out + at, count);
    for (size_t i = 2; i < inputs.size(); ++i) {
      add(out + at, false, inputs[i] + at, false, out + at, count);
    }
  });
  return absl::OkStatus();
}

// Each input gets the gradient of the sum.
std::vector<Output> AddNGradient(GradientContext* c) {
  return std::vector<Output>(static_cast<size_t>(c->num_inputs()), c->dense_grad());
}

OpSpec AddNSpec(absl::string_view op, absl::string_view attrs) {
  return OpSpec(op, "inputs: N * T -> sum: T", attrs)
      .Aggregate()
      .Commutative()
      .With(
          RuledLoopKernelFor<AddNRule>(FindAdd, RunAddN)
              .TypesWith(
                  "T", [](DType dtype) { return dtype != DT_STRING && FindAdd(dtype) != nullptr; }))
      .Gradient(AddNGradient);
}

const OpRegistration kAddN = AddNSpec("AddN", "N: int >= 1; T: {numbertype, variant}");
const OpRegistration kAccumulateNV2 =
    AddNSpec("AccumulateNV2", "N: int >= 1; T: numbertype; shape: shape");

}  // namespace
}  // namespace millrace
