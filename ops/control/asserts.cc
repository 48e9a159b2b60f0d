// SPDX-License-Identifier: Apache-2.0
#include "ops/control/asserts.h"

#include <atomic>
#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/escaping.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Values in messages --------------------------------------------------------------------------

template <typename T>
std::string ElementText(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return absl::CEscape(value);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return absl::StrCat(ToFloat(value));
  } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                       std::is_same_v<T, std::complex<double>>) {
    return absl::StrCat("(", value.real(), ",", value.imag(), ")");
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "1" : "0";
  } else {
    return absl::StrCat(+value);  // small integers as numbers
  }
}

// Appends the first `limit` elements, "[1 2][3 4]" for a matrix, as TensorFlow does.
template <typename T>
void AppendDim(const Shape& shape, absl::Span<const T> values, size_t limit, int dim, size_t* next,
               std::string* text) {
  if (*next >= limit) return;
  const int64_t n = shape.dim(dim);
  if (dim + 1 == shape.rank()) {
    for (int64_t i = 0; i < n; ++i) {
      if (*next >= limit) {
        if (dim != 0) absl::StrAppend(text, "...");
        return;
      }
      absl::StrAppend(text, i > 0 ? " " : "", ElementText(values[(*next)++]));
    }
    return;
  }
  for (int64_t i = 0; i < n && *next < limit; ++i) {
    absl::StrAppend(text, "[");
    AppendDim(shape, values, limit, dim + 1, next, text);
    absl::StrAppend(text, "]");
  }
}
template <typename T>
std::string ValuesText(const Tensor& t, int64_t summarize) {
  const absl::Span<const T> values = t.raw<T>();
  const size_t limit =
      summarize < 0 ? values.size() : std::min(values.size(), static_cast<size_t>(summarize));
  std::string text;
  if (t.rank() == 0) {
    if (limit > 0) text = ElementText(values[0]);
  } else {
    size_t next = 0;
    AppendDim(t.shape(), values, limit, 0, &next, &text);
  }
  if (values.size() > limit) absl::StrAppend(&text, "...");
  return text;
}

std::string Summary(const Tensor& t, int64_t summarize) {
  switch (t.dtype()) {
#define MR_SUMMARY(D, T) \
  case D:                \
    return ValuesText<T>(t, summarize);
    MR_SUMMARY(DT_FLOAT, float)
    MR_SUMMARY(DT_DOUBLE, double)
    MR_SUMMARY(DT_HALF, Half)
    MR_SUMMARY(DT_BFLOAT16, Bfloat16)
    MR_SUMMARY(DT_INT8, int8_t)
    MR_SUMMARY(DT_UINT8, uint8_t)
    MR_SUMMARY(DT_INT16, int16_t)
    MR_SUMMARY(DT_UINT16, uint16_t)
    MR_SUMMARY(DT_INT32, int32_t)
    MR_SUMMARY(DT_UINT32, uint32_t)
    MR_SUMMARY(DT_INT64, int64_t)
    MR_SUMMARY(DT_UINT64, uint64_t)
    MR_SUMMARY(DT_BOOL, bool)
    MR_SUMMARY(DT_STRING, std::string)
    MR_SUMMARY(DT_COMPLEX64, std::complex<float>)
    MR_SUMMARY(DT_COMPLEX128, std::complex<double>)
#undef MR_SUMMARY
    default:
      return absl::StrCat(DTypeName(t.dtype()), t.shape().ToString());
  }
}

// --- Assert --------------------------------------------------------------------------------------

Status AssertShape(InferenceContext* c) { return c->InputWithRank(0, 0).status(); }

class AssertKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(summarize_, c->GetAttr<int64_t>("summarize"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const bool holds, ctx->ScalarInput<bool>(0, "condition"));
    if (holds) return absl::OkStatus();
    std::string text = "assertion failed:";
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      absl::StrAppend(&text, " [", Summary(ctx->input(i), summarize_), "]");
    }
    return absl::InvalidArgumentError(text);
  }
  bool may_be_expensive() const override { return false; }

 private:
  int64_t summarize_ = 3;
};

const OpRegistration kAssert = OpSpec("Assert")
                                   .Input("condition: bool")
                                   .Input("data: T")
                                   .Attr("T: list(type) >= 1")
                                   .Attr("summarize: int = 3")
                                   .Stateful()
                                   .Shape(AssertShape)
                                   .NotDifferentiable();
const KernelRegistration kAssertKernel = KernelFor<AssertKernel>("Assert");

// --- CheckNumerics -------------------------------------------------------------------------------

template <typename T>
class CheckNumericsKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(message_, c->GetAttr<std::string>("message"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const T* values = ctx->input(0).raw<T>().data();
    std::atomic<bool> has_inf{false}, has_nan{false};  // relaxed: read after the loop has ended
    ctx->ParallelFor(ctx->input(0).num_elements(), 1, [&](int64_t begin, int64_t end) {
      bool inf = false, nan = false;
      for (int64_t i = begin; i < end; ++i) {
        const auto v = AsNumber(values[i]);
        inf |= std::isinf(v);
        nan |= std::isnan(v);
      }
      if (inf) has_inf.store(true, std::memory_order_relaxed);
      if (nan) has_nan.store(true, std::memory_order_relaxed);
    });
    if (has_inf || has_nan) {
      return absl::InvalidArgumentError(absl::StrCat(message_, " : Tensor had ",
                                                     has_inf && has_nan ? "Inf and NaN"
                                                     : has_inf          ? "Inf"
                                                                        : "NaN",
                                                     " values"));
    }
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  }

 private:
  static float AsNumber(Half v) { return ToFloat(v); }
  static float AsNumber(Bfloat16 v) { return ToFloat(v); }
  static float AsNumber(float v) { return v; }
  static double AsNumber(double v) { return v; }

  std::string message_;
};

Status CheckNumericsGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(
      0, CheckNumerics(c->scope(), c->dense_grad(0),
                       "Not a number (NaN) or infinity (Inf) values detected in gradient."));
  return absl::OkStatus();
}

const OpRegistration kCheckNumerics = OpSpec("CheckNumerics")
                                          .Input("tensor: T")
                                          .Output("output: T")
                                          .Attr("T: {bfloat16, half, float, double}")
                                          .Attr("message: string")
                                          .Stateful()
                                          .Shape(UnchangedShape)
                                          .Gradient(CheckNumericsGradient);
const KernelRegistration kCheckNumericsKernels[] = {
    KernelFor<CheckNumericsKernel<float>>("CheckNumerics").Type<float>("T"),
    KernelFor<CheckNumericsKernel<double>>("CheckNumerics").Type<double>("T"),
    KernelFor<CheckNumericsKernel<Half>>("CheckNumerics").Type<Half>("T"),
    KernelFor<CheckNumericsKernel<Bfloat16>>("CheckNumerics").Type<Bfloat16>("T"),
};

// --- Print ---------------------------------------------------------------------------------------

class PrintKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(message_, c->GetAttr<std::string>("message"));
    MR_ASSIGN_OR_RETURN(first_n_, c->GetAttr<int64_t>("first_n"));
    MR_ASSIGN_OR_RETURN(summarize_, c->GetAttr<int64_t>("summarize"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    if (first_n_ < 0 || count_.fetch_add(1, std::memory_order_relaxed) < first_n_) {
      std::string line = message_;
      for (int i = 1; i < ctx->num_inputs(); ++i) {
        absl::StrAppend(&line, "[", Summary(ctx->input(i), summarize_), "]");
      }
      line += "\n";
      std::fputs(line.c_str(), stderr);  // one call: lines of steps do not mix
    }
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  }

 private:
  std::string message_;
  int64_t first_n_ = -1;
  int64_t summarize_ = 3;
  mutable std::atomic<int64_t> count_{0};  // relaxed: only counts
};

Status PrintGradient(GradientContext* c) {
  if (c->has_grad(0)) c->set_input_grad(0, c->dense_grad(0));
  return absl::OkStatus();
}

const OpRegistration kPrint = OpSpec("Print")
                                  .Input("input: T")
                                  .Input("data: U")
                                  .Output("output: T")
                                  .Attr("T: type")
                                  .Attr("U: list(type) >= 0")
                                  .Attr("message: string = ''")
                                  .Attr("first_n: int = -1")
                                  .Attr("summarize: int = 3")
                                  .Stateful()
                                  .Shape(UnchangedShape)
                                  .Gradient(PrintGradient);
const KernelRegistration kPrintKernel = KernelFor<PrintKernel>("Print");

}  // namespace
}  // namespace millrace
