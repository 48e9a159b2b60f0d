// SPDX-License-Identifier: Apache-2.0
#include "tools/numpy_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/resource_handle.h"

namespace millrace {
namespace {

// numpy's default print options.
constexpr int kPrecision = 8;
constexpr int64_t kThreshold = 1000;
constexpr int64_t kEdgeItems = 3;
constexpr int64_t kLineWidth = 75;

// Magnitude of a number as digits d[0].d[1]d[2]... * 10^exponent; without trailing zeros, but with
// at least one digit.
struct Decimal {
  bool negative = false;
  std::string digits = "0";
  int exponent = 0;
};

// Reads "d.ddde+XX".
Decimal FromScientific(absl::string_view text, bool negative) {
  Decimal decimal;
  decimal.negative = negative;
  decimal.digits.clear();
  const size_t e = text.find('e');
  for (char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') decimal.digits += c;
  }
  decimal.exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  while (decimal.digits.size() > 1 && decimal.digits.back() == '0') decimal.digits.pop_back();
  return decimal;
}

// The fewest digits that read back as the same value of the type.
template <typename T>
Decimal Shortest(T value) {
  char text[64];
  const std::to_chars_result end =
      std::to_chars(text, text + sizeof(text), std::fabs(value), std::chars_format::scientific);
  return FromScientific(absl::string_view(text, static_cast<size_t>(end.ptr - text)),
                        std::signbit(value));
}

Decimal ShortestHalf(Half half) {
  const float value = ToFloat(half);
  const Half magnitude{static_cast<uint16_t>(half.bits & 0x7fff)};
  // Five digits tell any two halves apart.
  for (int digits = 0; digits < 5; ++digits) {
    const std::string text = absl::StrFormat("%.*e", digits, ToFloat(magnitude));
    if (ToHalf(std::strtof(text.c_str(), nullptr)).bits == magnitude.bits || digits == 4) {
      return FromScientific(text, std::signbit(value));
    }
  }
  return Decimal();
}

// A floating point element: its value (exact as a double) and its shortest digits.
struct Number {
  double value = 0;
  Decimal shortest;
};

Number MakeNumber(float value) {
  return {static_cast<double>(value), std::isfinite(value) ? Shortest(value) : Decimal()};
}
Number MakeNumber(double value) {
  return {value, std::isfinite(value) ? Shortest(value) : Decimal()};
}
Number MakeNumber(Half value) {
  const float f = ToFloat(value);
  return {static_cast<double>(f), std::isfinite(f) ? ShortestHalf(value) : Decimal()};
}
Number MakeNumber(Bfloat16 value) { return MakeNumber(ToFloat(value)); }

std::string Sign(const Decimal& decimal, bool plus) {
  return decimal.negative ? "-" : plus ? "+" : "";
}

// Integer and fraction part, the latter without trailing zeros.
struct Parts {
  std::string integer, fraction;
  int exponent = 0;  // scientific only
};

Parts Positional(const Number& number, bool plus, int precision) {
  const Decimal& d = number.shortest;
  Parts parts;
  const int fraction_digits = static_cast<int>(d.digits.size()) - 1 - d.exponent;
  if (fraction_digits > precision) {
    // Rounded from the exact value, not from the shortest digits.
    const std::string text = absl::StrFormat("%.*f", precision, std::fabs(number.value));
    const size_t point = text.find('.');
    parts.integer = text.substr(0, point);
    parts.fraction = point == std::string::npos ? "" : text.substr(point + 1);
  } else if (d.exponent < 0) {
    parts.integer = "0";
    parts.fraction = std::string(static_cast<size_t>(-d.exponent - 1), '0') + d.digits;
  } else {
    const size_t whole = static_cast<size_t>(d.exponent) + 1;
    parts.integer = d.digits.substr(0, whole);
    parts.integer.resize(whole, '0');
    if (d.digits.size() > whole) parts.fraction = d.digits.substr(whole);
  }
  while (!parts.fraction.empty() && parts.fraction.back() == '0') parts.fraction.pop_back();
  parts.integer = Sign(d, plus) + parts.integer;
  return parts;
}

Parts Scientific(const Number& number, bool plus, int precision) {
  Decimal d = number.shortest;
  if (static_cast<int>(d.digits.size()) - 1 > precision) {
    d = FromScientific(absl::StrFormat("%.*e", precision, std::fabs(number.value)), d.negative);
  }
  return {Sign(d, plus) + d.digits.substr(0, 1), number.value == 0 ? "" : d.digits.substr(1),
          d.exponent};
}

// "+05": at least `digits` digits.
std::string ExponentText(int exponent, size_t digits = 2) {
  std::string text = absl::StrCat(std::abs(exponent));
  if (text.size() < digits) text.insert(0, digits - text.size(), '0');
  return (exponent < 0 ? "-" : "+") + text;
}

std::string PadLeft(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

// The common form of the floats of one array.
class FloatFormat {
 public:
  // `ratio` divides in the precision of the element type.
  FloatFormat(const std::vector<Number>& numbers, bool plus,
              const std::function<double(double, double)>& ratio)
      : plus_(plus) {
    double largest = 0, smallest = std::numeric_limits<double>::infinity();
    bool any_finite = false, any_other = false, minus_infinity = false;
    for (const Number& n : numbers) {
      if (!std::isfinite(n.value)) {
        any_other = true;
        minus_infinity |= std::isinf(n.value) && n.value < 0;
        continue;
      }
      any_finite = true;
      if (n.value == 0) continue;
      largest = std::max(largest, std::fabs(n.value));
      smallest = std::min(smallest, std::fabs(n.value));
    }
    if (largest > 0) {
      scientific_ = largest >= 1e8 || smallest < 1e-4 || ratio(largest, smallest) > 1000;
    }
    for (const Number& n : numbers) {
      if (!std::isfinite(n.value)) continue;
      const Parts parts =
          scientific_ ? Scientific(n, plus, kPrecision) : Positional(n, plus, kPrecision);
      left_ = std::max(left_, parts.integer.size());
      fraction_ = std::max(fraction_, parts.fraction.size());
      if (scientific_) {
        exponent_digits_ = std::max(exponent_digits_, ExponentText(parts.exponent).size() - 1);
      }
    }
    // What follows the integer part except the point.
    right_ = scientific_ && any_finite ? fraction_ + exponent_digits_ + 2 : fraction_;
    if (any_other) {
      const size_t widest = std::max<size_t>(3, 3 + (plus || minus_infinity ? 1 : 0));
      if (widest > right_ + 1) left_ = std::max(left_, widest - right_ - 1);
    }
  }

  std::string operator()(const Number& n) const {
    if (!std::isfinite(n.value)) {
      const std::string text = std::isnan(n.value) ? (plus_ ? "+nan" : "nan")
                               : n.value < 0       ? "-inf"
                               : plus_             ? "+inf"
                                                   : "inf";
      return PadLeft(text, left_ + right_ + 1);
    }
    if (scientific_) {
      Parts parts = Scientific(n, plus_, kPrecision);
      parts.fraction.resize(fraction_, '0');
      return absl::StrCat(PadLeft(parts.integer, left_), ".", parts.fraction, "e",
                          ExponentText(parts.exponent, exponent_digits_));
    }
    Parts parts = Positional(n, plus_, kPrecision);
    parts.fraction.resize(fraction_, ' ');
    return absl::StrCat(PadLeft(parts.integer, left_), ".", parts.fraction);
  }

 private:
  const bool plus_;  // positive numbers get a sign
  bool scientific_ = false;
  size_t left_ = 0, fraction_ = 0, right_ = 0, exponent_digits_ = 0;
};

// A float that stands alone.
std::string ScalarText(const Number& n, bool plus = false, bool keep_point = true) {
  if (std::isnan(n.value)) return plus ? "+nan" : "nan";
  if (std::isinf(n.value)) return n.value < 0 ? "-inf" : plus ? "+inf" : "inf";
  const double magnitude = std::fabs(n.value);
  if (magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16)) {
    const Parts parts = Positional(n, plus, std::numeric_limits<int>::max());
    if (parts.fraction.empty() && !keep_point) return parts.integer;
    return absl::StrCat(parts.integer, ".", parts.fraction.empty() ? "0" : parts.fraction);
  }
  const Parts parts = Scientific(n, plus, std::numeric_limits<int>::max());
  return absl::StrCat(parts.integer, parts.fraction.empty() ? "" : ".", parts.fraction, "e",
                      ExponentText(parts.exponent));
}

// Lays words out in brackets.
class Layout {
 public:
  using Word = std::function<std::string(int64_t index)>;

  Layout(const Shape& shape, Word word)
      : shape_(shape), summarised_(shape.num_elements() > kThreshold), word_(std::move(word)) {}

  // The indices of the elements that are shown.
  std::vector<int64_t> Shown() const {
    std::vector<int64_t> shown;
    Visit(0, 0, &shown);
    return shown;
  }

  std::string Text() const { return Part(0, 0, " ", kLineWidth); }

 private:
  bool Cut(int axis) const { return summarised_ && shape_.dim(axis) > 2 * kEdgeItems; }

  // Calls `f` with each position of the axis that is shown, and with -1 for the dots.
  template <typename F>
  void Positions(int axis, F f) const {
    const int64_t size = shape_.dim(axis);
    for (int64_t i = 0; i < size; ++i) {
      if (Cut(axis) && i == kEdgeItems) {
        f(-1);
        i = size - kEdgeItems;
      }
      f(i);
    }
  }

  void Visit(int axis, int64_t base, std::vector<int64_t>* shown) const {
    if (axis == shape_.rank()) {
      shown->push_back(base);
      return;
    }
    Positions(axis, [&](int64_t i) {
      if (i >= 0) Visit(axis + 1, base * shape_.dim(axis) + i, shown);
    });
  }

  std::string Part(int axis, int64_t base, const std::string& indent, int64_t width) const {
    const int64_t size = shape_.dim(axis);
    std::string text;
    if (axis == shape_.rank() - 1) {
      const size_t limit = static_cast<size_t>(std::max<int64_t>(0, width - 1));
      std::string line = indent;
      bool first = true;
      Positions(axis, [&](int64_t i) {
        if (!first) line += ' ';
        first = false;
        const std::string word = i < 0 ? "..." : word_(base * size + i);
        // A line with nothing on it yet would not get shorter by a break.
        if (line.size() + word.size() > limit && line.size() > indent.size()) {
          line.erase(line.find_last_not_of(' ') + 1);
          text += line + "\n";
          line = indent;
        }
        line += word;
      });
      text += line;
    } else {
      const std::string separator(static_cast<size_t>(shape_.rank() - axis - 1), '\n');
      bool first = true;
      Positions(axis, [&](int64_t i) {
        if (!first) text += separator;
        first = false;
        text += indent;
        text += i < 0 ? "..." : Part(axis + 1, base * size + i, indent + " ", width - 1);
      });
    }
    return absl::StrCat("[", absl::string_view(text).substr(indent.size()), "]");
  }

  const Shape& shape_;
  const bool summarised_;
  const Word word_;
};

double DivideAs(DType dtype, double a, double b) {
  switch (dtype) {
    case DT_DOUBLE:
    case DT_COMPLEX128:
      return a / b;
    case DT_HALF:
      return static_cast<double>(ToFloat(ToHalf(static_cast<float>(a / b))));
    default:
      return static_cast<double>(static_cast<float>(a) / static_cast<float>(b));
  }
}

template <typename T>
std::string Floats(const Tensor& tensor) {
  const absl::Span<const T> values = tensor.flat<T>();
  if (tensor.rank() == 0) return ScalarText(MakeNumber(values[0]));
  const DType dtype = tensor.dtype();
  std::vector<Number> numbers;
  for (int64_t i : Layout(tensor.shape(), nullptr).Shown()) {
    numbers.push_back(MakeNumber(values[static_cast<size_t>(i)]));
  }
  const FloatFormat format(numbers, /*plus=*/false,
                           [dtype](double a, double b) { return DivideAs(dtype, a, b); });
  return Layout(tensor.shape(),
                [&](int64_t i) { return format(MakeNumber(values[static_cast<size_t>(i)])); })
      .Text();
}

template <typename T>
std::string Complexes(const Tensor& tensor) {
  const absl::Span<const std::complex<T>> values = tensor.flat<std::complex<T>>();
  if (tensor.rank() == 0) {
    const std::complex<T> z = values[0];
    const std::string imaginary = ScalarText(MakeNumber(z.imag()), true, /*keep_point=*/false);
    // Python leaves out a real part that is +0.
    if (z.real() == 0 && !std::signbit(z.real())) {
      return ScalarText(MakeNumber(z.imag()), false, false) + "j";
    }
    return absl::StrCat("(", ScalarText(MakeNumber(z.real()), false, false), imaginary, "j)");
  }
  const DType dtype = tensor.dtype();
  std::vector<Number> real, imaginary;
  for (int64_t i : Layout(tensor.shape(), nullptr).Shown()) {
    real.push_back(MakeNumber(values[static_cast<size_t>(i)].real()));
    imaginary.push_back(MakeNumber(values[static_cast<size_t>(i)].imag()));
  }
  const auto ratio = [dtype](double a, double b) { return DivideAs(dtype, a, b); };
  const FloatFormat real_format(real, false, ratio), imaginary_format(imaginary, true, ratio);
  return Layout(tensor.shape(),
                [&](int64_t i) {
                  const std::complex<T> z = values[static_cast<size_t>(i)];
                  std::string text = imaginary_format(MakeNumber(z.imag()));
                  text.insert(text.find_last_not_of(' ') + 1, "j");
                  return real_format(MakeNumber(z.real())) + text;
                })
      .Text();
}

template <typename T, typename ToInteger>
std::string Integers(const Tensor& tensor, ToInteger to_integer) {
  const absl::Span<const T> values = tensor.flat<T>();
  if (tensor.rank() == 0) return absl::StrCat(to_integer(values[0]));
  size_t width = 0;
  for (int64_t i : Layout(tensor.shape(), nullptr).Shown()) {
    width = std::max(width, absl::StrCat(to_integer(values[static_cast<size_t>(i)])).size());
  }
  return Layout(tensor.shape(),
                [&](int64_t i) {
                  return PadLeft(absl::StrCat(to_integer(values[static_cast<size_t>(i)])), width);
                })
      .Text();
}

// Small integers widened so that they print as numbers.
template <typename T>
std::string PlainIntegers(const Tensor& tensor) {
  return Integers<T>(tensor, [](T v) {
    if constexpr (sizeof(T) < 4) {
      return static_cast<int>(v);
    } else {
      return v;
    }
  });
}

template <typename T>
std::string QuantizedIntegers(const Tensor& tensor) {
  return Integers<T>(tensor, [](T v) { return static_cast<int64_t>(v.value); });
}

}  // namespace

std::string PythonBytesRepr(absl::string_view bytes) {
  const bool single = bytes.find('\'') != absl::string_view::npos;
  const bool dual = bytes.find('"') != absl::string_view::npos;
  const char quote = single && !dual ? '"' : '\'';
  std::string text = "b";
  text += quote;
  for (char c : bytes) {
    const unsigned char u = static_cast<unsigned char>(c);
    if (c == '\t') {
      text += "\\t";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\r') {
      text += "\\r";
    } else if (c == '\\' || c == quote) {
      text += '\\';
      text += c;
    } else if (u < 0x20 || u >= 0x7f) {
      absl::StrAppendFormat(&text, "\\x%02x", static_cast<int>(u));
    } else {
      text += c;
    }
  }
  text += quote;
  return text;
}

std::string NumpyString(const Tensor& tensor) {
  if (!tensor.has_value()) return "<no value>";
  if (tensor.num_elements() == 0) return "[]";
  switch (tensor.dtype()) {
    case DT_FLOAT:
      return Floats<float>(tensor);
    case DT_DOUBLE:
      return Floats<double>(tensor);
    case DT_HALF:
      return Floats<Half>(tensor);
    case DT_BFLOAT16:
      return Floats<Bfloat16>(tensor);
    case DT_COMPLEX64:
      return Complexes<float>(tensor);
    case DT_COMPLEX128:
      return Complexes<double>(tensor);
    case DT_INT8:
      return PlainIntegers<int8_t>(tensor);
    case DT_UINT8:
      return PlainIntegers<uint8_t>(tensor);
    case DT_INT16:
      return PlainIntegers<int16_t>(tensor);
    case DT_UINT16:
      return PlainIntegers<uint16_t>(tensor);
    case DT_INT32:
      return PlainIntegers<int32_t>(tensor);
    case DT_UINT32:
      return PlainIntegers<uint32_t>(tensor);
    case DT_INT64:
      return PlainIntegers<int64_t>(tensor);
    case DT_UINT64:
      return PlainIntegers<uint64_t>(tensor);
    case DT_QINT8:
      return QuantizedIntegers<QInt8>(tensor);
    case DT_QUINT8:
      return QuantizedIntegers<QUInt8>(tensor);
    case DT_QINT16:
      return QuantizedIntegers<QInt16>(tensor);
    case DT_QUINT16:
      return QuantizedIntegers<QUInt16>(tensor);
    case DT_QINT32:
      return QuantizedIntegers<QInt32>(tensor);
    case DT_BOOL: {
      const absl::Span<const bool> values = tensor.flat<bool>();
      if (tensor.rank() == 0) return values[0] ? "True" : "False";
      return Layout(tensor.shape(),
                    [&](int64_t i) -> std::string {
                      return values[static_cast<size_t>(i)] ? " True" : "False";
                    })
          .Text();
    }
    case DT_STRING: {
      const absl::Span<const std::string> values = tensor.flat<std::string>();
      if (tensor.rank() == 0) return PythonBytesRepr(values[0]);
      return Layout(tensor.shape(),
                    [&](int64_t i) { return PythonBytesRepr(values[static_cast<size_t>(i)]); })
          .Text();
    }
    default:
      return absl::StrCat("<", DTypeName(tensor.dtype()), ">");
  }
}

}  // namespace millrace
