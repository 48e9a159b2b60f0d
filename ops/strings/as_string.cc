// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/as_string.h"

#include <charconv>
#include <complex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/parse_number.h"
#include "ops/strings/each_string.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- AsString ------------------------------------------------------------------------------------

// Of a number: a model must not make a text of two billion zeros.
constexpr int64_t kMostDigits = 1024;

struct AsStringRule : UnchangedShapeRule {
  std::string format;  // of one number, without its conversion letter: "%03.2"
  char conversion = 'f';

  Status Init(const NodeAttrs& attrs) {
    DType dtype = DT_INVALID;
    AsStringAttrs a;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "T", &dtype, "precision", &a.precision, "scientific",
                                 &a.scientific, "shortest", &a.shortest, "width", &a.width, "fill",
                                 &a.fill));
    if (!IsFloating(dtype) && !IsComplex(dtype)) {
      if (a.scientific || a.shortest) {
        return InvalidArgument("scientific and shortest format not supported for datatype ", dtype);
      }
      if (a.precision >= 0) {
        return InvalidArgument("precision not supported for datatype ", dtype);
      }
    }
    if (a.fill.size() > 1) {
      return InvalidArgument("Fill string must be one or fewer characters, got '", a.fill, "'");
    }
    if (!a.fill.empty() && absl::string_view(" +-0#").find(a.fill[0]) == absl::string_view::npos) {
      return InvalidArgument("fill must be one of ' ', '+', '-', '0', '#', got '", a.fill, "'");
    }
    if (a.scientific && a.shortest) {
      return absl::InvalidArgumentError("Cannot select both scientific and shortest notation");
    }
    if (a.width > kMostDigits || a.precision > kMostDigits) {
      return InvalidArgument("width and precision must be <= ", kMostDigits, ", got ", a.width,
                             " and ", a.precision);
    }
    format = "%";
    if (a.width > -1) absl::StrAppend(&format, a.fill, a.width);
    if (a.precision > -1) absl::StrAppend(&format, ".", a.precision);
    conversion = a.shortest ? 'g' : a.scientific ? 'e' : 'f';
    return absl::OkStatus();
  }
};

// The loop over all elements; `write(x, &text)`.
template <typename T, typename Write>
Status WriteEach(KernelContext* ctx, double cost_ns, Write write) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const absl::Span<const T> in = ctx->input(0).raw<T>();
  const absl::Span<std::string> out = output->mutable_raw<std::string>();
  ctx->ParallelFor(static_cast<int64_t>(in.size()), cost_ns, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      write(in[i], &out[i]);
    }
  });
  return absl::OkStatus();
}

constexpr double kPlainIntegerNs = 10, kFormatNs = 150;

template <typename T>
Status RunAsString(KernelContext* ctx, const AsStringRule& rule) {
  if constexpr (std::is_same_v<T, bool>) {
    return WriteEach<T>(ctx, kPlainIntegerNs,
                        [](bool x, std::string* text) { *text = x ? "true" : "false"; });
  } else if constexpr (std::is_integral_v<T>) {
    if (rule.format == "%") {
      return WriteEach<T>(ctx, kPlainIntegerNs, [](T x, std::string* text) {
        char digits[24];
        text->assign(digits, std::to_chars(digits, digits + sizeof(digits), x).ptr);
      });
    }
    const std::string one = rule.format + "d";
    const absl::UntypedFormatSpec format(one);
    return WriteEach<T>(ctx, kFormatNs, [&](T x, std::string* text) {
      absl::FormatUntyped(text, format, {absl::FormatArg(static_cast<int64_t>(x))});
    });
  } else {
    const std::string one = rule.format + rule.conversion;
    if constexpr (std::is_floating_point_v<T>) {
      const absl::UntypedFormatSpec format(one);
      return WriteEach<T>(ctx, kFormatNs, [&](T x, std::string* text) {
        absl::FormatUntyped(text, format, {absl::FormatArg(static_cast<double>(x))});
      });
    } else {
      const std::string two = absl::StrCat("(", one, ",", one, ")");
      const absl::UntypedFormatSpec format(two);
      return WriteEach<T>(ctx, 2 * kFormatNs, [&](T x, std::string* text) {
        absl::FormatUntyped(text, format,
                            {absl::FormatArg(static_cast<double>(x.real())),
                             absl::FormatArg(static_cast<double>(x.imag()))});
      });
    }
  }
}

const OpRegistration kAsString =
    OpSpec("AsString", "input: T -> output: string",
           "T: {int8, int16, int32, int64, complex64, complex128, float, double, bool}; "
           "precision: int = -1; scientific: bool = false; shortest: bool = false; "
           "width: int = -1; fill: string = ''")
        .With(RuledKernelsFor<AsStringRule, int8_t, int16_t, int32_t, int64_t, float, double, bool,
                              std::complex<float>, std::complex<double>>(
            "T", []<typename T> { return &RunAsString<T>; }))
        .NotDifferentiable();

// --- StringToNumber ------------------------------------------------------------------------------

constexpr double kParseNs = 20;

template <typename T>
Status RunStringToNumber(KernelContext* ctx, const UnchangedShapeRule&) {
  return EachString<T>(
      ctx, kParseNs, [](const std::string& text, T* out) { return ParseNumber(text, out); },
      [](const std::string& text) {
        return InvalidArgument("StringToNumberOp could not correctly convert string: ", text);
      });
}

const OpRegistration kStringToNumber =
    OpSpec("StringToNumber", "string_tensor: string -> output: out_type",
           "out_type: {float, double, int32, int64} = DT_FLOAT")
        .With(RuledKernelsFor<UnchangedShapeRule, float, double, int32_t, int64_t>(
            "out_type", []<typename T> { return &RunStringToNumber<T>; }))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
