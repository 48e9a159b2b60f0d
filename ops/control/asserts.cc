// SPDX-License-Identifier: Apache-2.0
#include "ops/control/asserts.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdio>
#include <string>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Values in messages --------------------------------------------------------------------------

template <typename T>
auto Number(T value) {
  if constexpr (requires { ToFloat(value); }) {
    return ToFloat(value);
  } else {
    return +value;  // small integers as numbers
  }
}
template <typename T>
std::string ElementText(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return absl::CEscape(value);
  } else if constexpr (requires { value.imag(); }) {
    return absl::StrCat("(", value.real(), ",", value.imag(), ")");
  } else {
    return absl::StrCat(Number(value));
  }
}

// In how many dimensions, not counting the first, does a new row begin at element i?
size_t RowsThatBegin(const Shape& shape, int64_t i) {
  size_t count = 0;
  for (int d = 1; d < shape.rank(); ++d) count += i % shape.NumElements(d, shape.rank()) == 0;
  return count;
}

// The first elements as TensorFlow shows them: "[1 2][3 4]" for a matrix, "[1 2][3...]..." when
// some are left out.
template <typename T>
std::string ValuesText(const Tensor& t, int64_t summarize) {
  const absl::Span<const T> values = t.raw<T>();
  const int64_t n = t.num_elements();
  const int64_t limit = summarize < 0 ? n : std::min(n, summarize);
  std::string text;
  for (int64_t i = 0; i < limit; ++i) {
    const size_t begins = RowsThatBegin(t.shape(), i);
    text.append(begins, '[');
    if (begins == 0 && i > 0) text += " ";
    text += ElementText(values[static_cast<size_t>(i)]);
    text.append(RowsThatBegin(t.shape(), i + 1), ']');
  }
  if (limit == n) return text;
  const size_t begins = RowsThatBegin(t.shape(), limit);
  if (t.rank() > 1 && begins == 0) text += "...";
  for (int d = 1 + static_cast<int>(begins); d < t.rank(); ++d) text += "]";
  return text + "...";
}

// dtype and shape when it is of none of these types.
template <typename... Ts>
std::string SummaryOfOne(const Tensor& t, int64_t summarize) {
  std::string text = absl::StrCat(DTypeName(t.dtype()), t.shape().ToString());
  ((t.dtype() == DTypeOf<Ts> ? void(text = ValuesText<Ts>(t, summarize)) : void()), ...);
  return text;
}
std::string Summary(const Tensor& t, int64_t summarize) {
  return SummaryOfOne<float, double, Half, Bfloat16, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                      uint32_t, int64_t, uint64_t, bool, std::string, std::complex<float>,
                      std::complex<double>>(t, summarize);
}

// --- Assert --------------------------------------------------------------------------------------

class AssertKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "summarize", &summarize_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const bool holds, ctx->ScalarInput<bool>(0, "condition"));
    if (holds) return absl::OkStatus();
    std::string text = "assertion failed:";
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      absl::StrAppend(&text, " [", Summary(ctx->input(i), summarize_), "]");
    }
    return InvalidArgument(text);
  }
  bool may_be_expensive() const override { return false; }

 private:
  int64_t summarize_ = 3;
};

const OpRegistration kAssert =
    OpSpec("Assert", "condition: bool, data: T", "T: list(type) >= 1; summarize: int = 3")
        .Stateful()
        .Shape([](InferenceContext* c) { return c->InputWithRank(0, 0, "condition").status(); })
        .NotDifferentiable()
        .With(KernelFor<AssertKernel>());

// --- CheckNumerics -------------------------------------------------------------------------------

struct CheckNumericsRule : UnchangedShapeRule {
  std::string message;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "message", &message); }
};

template <typename T>
Status RunCheckNumerics(KernelContext* ctx, const CheckNumericsRule& rule) {
  const T* values = ctx->input(0).raw<T>().data();
  std::atomic<bool> has_inf{false}, has_nan{false};  // relaxed: read after the loop has ended
  ctx->ParallelFor(ctx->input(0).num_elements(), 1, [&](int64_t begin, int64_t end) {
    bool inf = false, nan = false;
    for (int64_t i = begin; i < end; ++i) {
      const auto v = Number(values[i]);
      inf |= std::isinf(v);
      nan |= std::isnan(v);
    }
    if (inf) has_inf.store(true, std::memory_order_relaxed);
    if (nan) has_nan.store(true, std::memory_order_relaxed);
  });
  if (!has_inf && !has_nan) return ctx->PassInput(0);
  return InvalidArgument(rule.message, " : Tensor had ",
                         has_inf && has_nan ? "Inf and NaN"
                         : has_inf          ? "Inf"
                                            : "NaN",
                         " values");
}

Output CheckNumericsGradient(GradientContext* c) {
  return CheckNumerics(c->scope(), c->dense_grad(),
                       "Not a number (NaN) or infinity (Inf) values detected in gradient.");
}

const OpRegistration kCheckNumerics =
    OpSpec("CheckNumerics", "tensor: T -> output: T",
           "T: {bfloat16, half, float, double}; message: string")
        .Stateful()
        .With(RuledKernelsFor<CheckNumericsRule, float, double, Half, Bfloat16>(
            "T", []<typename T>() { return &RunCheckNumerics<T>; }))
        .Gradient(CheckNumericsGradient);

// --- Print ---------------------------------------------------------------------------------------

struct PrintRule : UnchangedShapeRule {
  std::string message;
  int64_t first_n = -1, summarize = 3;
  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "message", &message, "first_n", &first_n, "summarize", &summarize);
  }
};

class PrintKernel : public RuledKernel<PrintRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    const int64_t first_n = rule().first_n;
    if (first_n < 0 || count_.fetch_add(1, std::memory_order_relaxed) < first_n) {
      std::string line = rule().message;
      for (int i = 1; i < ctx->num_inputs(); ++i) {
        absl::StrAppend(&line, "[", Summary(ctx->input(i), rule().summarize), "]");
      }
      line += "\n";
      std::fputs(line.c_str(), stderr);  // one call: lines of steps do not mix
    }
    return ctx->PassInput(0);
  }

 private:
  mutable std::atomic<int64_t> count_{0};  // relaxed: only counts
};

Output PrintGradient(GradientContext* c) { return c->dense_grad(); }

const OpRegistration kPrint = OpSpec("Print", "input: T, data: U -> output: T",
                                     "T: type; U: list(type) >= 0; message: string = ''; "
                                     "first_n: int = -1; summarize: int = 3")
                                  .Stateful()
                                  .Shape(UnchangedShape)  // what a handle holds goes on, too
                                  .Gradient(PrintGradient)
                                  .With(KernelFor<PrintKernel>());

}  // namespace
}  // namespace millrace
