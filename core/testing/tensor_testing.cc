// SPDX-License-Identifier: Apache-2.0
#include "core/testing/tensor_testing.h"

#include <cmath>
#include <complex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Where element `i` of row-major order is: "[1,0,2]".
std::string IndexText(const Shape& shape, int64_t i) {
  std::string text = "]";
  for (int d = shape.rank() - 1; d >= 0; --d) {
    text = absl::StrCat(d > 0 ? "," : "", i % shape.dim(d), text);
    i /= shape.dim(d);
  }
  return absl::StrCat("[", text);
}

// A number as a complex one in double precision.
template <typename T>
std::complex<double> Wide(T v) {
  return static_cast<double>(v);
}
std::complex<double> Wide(Half v) { return ToFloat(v); }
std::complex<double> Wide(Bfloat16 v) { return ToFloat(v); }
std::complex<double> Wide(std::complex<float> v) { return v; }
std::complex<double> Wide(std::complex<double> v) { return v; }

bool PartNear(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::abs(got - want) <= tolerance;
}

template <typename T>
void ExpectNear(const Tensor& got, const Tensor& want, double rtol, double atol) {
  constexpr int kMaxPrinted = 10;
  int num_different = 0;
  std::string report;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    const std::complex<double> g = Wide(got.flat<T>()[static_cast<size_t>(i)]);
    const std::complex<double> w = Wide(want.flat<T>()[static_cast<size_t>(i)]);
    const double size = std::abs(w);
    const double tolerance = atol + (std::isfinite(size) ? rtol * size : 0);
    if (PartNear(g.real(), w.real(), tolerance) && PartNear(g.imag(), w.imag(), tolerance)) {
      continue;
    }
    if (++num_different > kMaxPrinted) continue;
    const auto text = [](std::complex<double> v) {
      return v.imag() == 0 ? absl::StrCat(v.real())
                           : absl::StrCat("(", v.real(), ",", v.imag(), ")");
    };
    absl::StrAppend(&report, "\n  at ", IndexText(want.shape(), i), ": got ", text(g), ", want ",
                    text(w), ", difference ", std::abs(g - w));
  }
  if (num_different > 0) {
    ADD_FAILURE() << num_different << " of " << want.num_elements()
                  << " elements differ by more than " << atol << " + " << rtol
                  << " * |want|:" << report;
  }
}

bool SameKind(const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) {
    ADD_FAILURE() << "got  " << got.DebugString() << "\nwant " << want.DebugString();
    return false;
  }
  return true;
}

}  // namespace

Shape ShapeOf(std::initializer_list<int64_t> dims) {
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) {
    ADD_FAILURE() << "ShapeOf: " << shape.status();
    return Shape();
  }
  return *std::move(shape);
}

void ExpectTensorEqual(const Tensor& got, const Tensor& want) {
  if (!SameKind(got, want) || got == want) return;
  const Shape vector = Shape::Vector(static_cast<size_t>(want.num_elements()));
  const Tensor g = *got.Reshaped(vector), w = *want.Reshaped(vector);
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (g.Rows(i, i + 1) != w.Rows(i, i + 1)) {
      ADD_FAILURE() << "first difference at " << IndexText(want.shape(), i) << ": got "
                    << g.Rows(i, i + 1).DebugString() << ", want " << w.Rows(i, i + 1).DebugString()
                    << "\ngot  " << got.DebugString(64) << "\nwant " << want.DebugString(64);
      return;
    }
  }
}

void ExpectTensorNear(const Tensor& got, const Tensor& want, double rtol, double atol) {
  if (!SameKind(got, want)) return;
  switch (want.dtype()) {
    case DT_FLOAT:
      return ExpectNear<float>(got, want, rtol, atol);
    case DT_DOUBLE:
      return ExpectNear<double>(got, want, rtol, atol);
    case DT_HALF:
      return ExpectNear<Half>(got, want, rtol, atol);
    case DT_BFLOAT16:
      return ExpectNear<Bfloat16>(got, want, rtol, atol);
    case DT_COMPLEX64:
      return ExpectNear<std::complex<float>>(got, want, rtol, atol);
    case DT_COMPLEX128:
      return ExpectNear<std::complex<double>>(got, want, rtol, atol);
    case DT_INT8:
      return ExpectNear<int8_t>(got, want, rtol, atol);
    case DT_UINT8:
      return ExpectNear<uint8_t>(got, want, rtol, atol);
    case DT_INT16:
      return ExpectNear<int16_t>(got, want, rtol, atol);
    case DT_UINT16:
      return ExpectNear<uint16_t>(got, want, rtol, atol);
    case DT_INT32:
      return ExpectNear<int32_t>(got, want, rtol, atol);
    case DT_UINT32:
      return ExpectNear<uint32_t>(got, want, rtol, atol);
    case DT_INT64:
      return ExpectNear<int64_t>(got, want, rtol, atol);
    case DT_UINT64:
      return ExpectNear<uint64_t>(got, want, rtol, atol);
    default:
      return ExpectTensorEqual(got, want);
  }
}

namespace testing_internal {

::testing::AssertionResult IsOk(const char* expression, const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << expression << " must be OK, got " << status;
}

::testing::AssertionResult HasStatus(const char* expression, const absl::Status& status,
                                     absl::StatusCode code, absl::string_view substring) {
  if (status.code() == code && absl::StrContains(status.message(), substring)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << expression << " must be " << absl::StatusCodeToString(code) << " with '"
         << std::string(substring) << "', got " << status;
}

}  // namespace testing_internal
}  // namespace millrace
