// SPDX-License-Identifier: Apache-2.0
//
// The op libraries of op_library_test, one for each KIND: good ones, and all that must be refused.

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "graph/gradient.h"
#include "graph/node_builder.h"
#include "graph/partial_value.h"
#include "runtime/kernel.h"
#include "runtime/op_library.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

#define GOOD 1
#define ALSO_GOOD 2
#define KERNEL_ONLY 3
#define OTHER_VERSION 4
#define NO_VERSION 5
#define NOTHING 6
#define KNOWN_OP 7
#define KNOWN_KERNEL 8
#define BAD_SPEC 9
#define TWICE 10
#define TWO_KERNELS 11
#define KERNEL_OF_NO_OP 12
#define THROWS 13
#define LOADS_ANOTHER 14
#define MISSING_SYMBOL 15
#define OPENED_OTHERWISE 16

#if KIND == OTHER_VERSION
MILLRACE_OP_LIBRARY_FOR("0.1.9");
#elif KIND != NO_VERSION
MILLRACE_OP_LIBRARY();
#endif

namespace millrace {
namespace {

#if KIND == OTHER_VERSION || KIND == NO_VERSION
// Its code must not run.
[[maybe_unused]] const bool kRuns = [] {
  std::abort();
  return true;
}();
#endif

// y = x + x.
template <typename T>
Status RunDouble(KernelContext* ctx, const UnchangedShapeRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0));
  const absl::Span<const T> x = ctx->input(0).raw<T>();
  const absl::Span<T> to = y->mutable_raw<T>();
  for (size_t i = 0; i < x.size(); ++i) to[i] = x[i] + x[i];
  return absl::OkStatus();
}

Output DoubleGradient(GradientContext* c) {
  return BuildOp(c->scope(), c->node().op(), {c->dense_grad()});
}

[[maybe_unused]] std::optional<PartialValue> DoubleValue(PartialValueContext* c) {
  std::optional<PartialValue> value = c->input(0);
  if (value) {
    for (std::optional<int64_t>& element : value->elements) {
      if (element) element = IfItFits(*element * 2, c->dtype());
    }
  }
  return value;
}

[[maybe_unused]] OpSpec DoubleSpec(const std::string& name) {
  return OpSpec(name, "x: T -> y: T", "T: {float, double, int32}")
      .With(RuledKernelsFor<UnchangedShapeRule, float, double, int32_t>(
          "T", []<typename T> { return &RunDouble<T>; }))
      .Gradient(DoubleGradient);
}

#if KIND != NOTHING && KIND != KERNEL_ONLY && KIND != MISSING_SYMBOL
// Of its own in each library; of one that is refused it must not stay.
const OpRegistration kOwn =
    DoubleSpec("LibraryOp_" TEXT(KIND_NAME)).With(PartialValueRule(DoubleValue));
#endif

#if KIND == KERNEL_ONLY
const KernelRegistration kKernel(
    "TestForLibrary", RuledKernelFor<UnchangedShapeRule>(RunDouble<float>).Type<float>("T"));
#elif KIND == KNOWN_OP
const OpRegistration kKnown = DoubleSpec("MatMul");
#elif KIND == KNOWN_KERNEL
const KernelRegistration kKernel("MatMul", RuledKernelFor<UnchangedShapeRule>(RunDouble<float>)
                                               .Types("T", {DT_STRING, DT_FLOAT}));
#elif KIND == BAD_SPEC
const OpRegistration kBad = OpSpec("LibraryBad", "x float").Rule<UnchangedShapeRule>();
#elif KIND == TWICE
const OpRegistration kAgain = DoubleSpec("LibraryOp_" TEXT(KIND_NAME));
#elif KIND == TWO_KERNELS
const KernelRegistration kKernel("LibraryOp_" TEXT(KIND_NAME),
                                 RuledKernelFor<UnchangedShapeRule>(RunDouble<float>));
#elif KIND == KERNEL_OF_NO_OP
const KernelRegistration kKernel("LibraryNoOp",
                                 RuledKernelFor<UnchangedShapeRule>(RunDouble<float>));
#elif KIND == THROWS
[[maybe_unused]] const int kThrows = std::stoi("") + 1;
#elif KIND == LOADS_ANOTHER
[[maybe_unused]] const bool kLoads = [] {
  throw std::runtime_error(std::string(LoadOpLibrary("another.so").status().message()));
  return true;
}();
#elif KIND == MISSING_SYMBOL
}  // namespace
void NobodyDefinesThis();
namespace {
[[maybe_unused]] const bool kCalls = (NobodyDefinesThis(), true);
#endif

}  // namespace
}  // namespace millrace
