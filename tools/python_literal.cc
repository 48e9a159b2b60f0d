// SPDX-License-Identifier: Apache-2.0
#include "tools/python_literal.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <complex>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/utf8.h"
#include "tools/numpy_call.h"
#include "tools/numpy_format.h"

namespace millrace {
namespace {

using Kind = PythonValue::Kind;

class Parser {
 public:
  Parser(absl::string_view text, bool has_numpy) : text_(text), has_numpy_(has_numpy) {}

  StatusOr<PythonValue> Parse() {
    PythonValue value;
    MR_RETURN_IF_ERROR(Value(0, &value));
    Skip();
    if (at_ != text_.size()) return Error("the end");
    return value;
  }

 private:
  static bool IsNameChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  void Skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Status Error(absl::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat("literal: character ", at_, " must begin ",
                                                   expected, ", got '",
                                                   absl::CEscape(text_.substr(at_, 20)), "'"));
  }

  // `takes_type`: of a call.
  Status Value(int depth, PythonValue* value, bool takes_type = false) {
    if (depth > kMaxPythonDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("literal: nesting must be at most ", kMaxPythonDepth));
    }
    Skip();
    const char c = Peek();
    if (c == '[') return Sequence(depth, Kind::kList, ']', value);
    if (c == '(') return Sequence(depth, Kind::kTuple, ')', value);
    if (c == '{') return Dict(depth, value);
    if (c == '+' || c == '-' || c == '.' || std::isdigit(static_cast<unsigned char>(c))) {
      return Number(depth, value);
    }
    if (StringAhead()) return Strings(value);
    for (const auto& [word, kind, integer] :
         {std::tuple{absl::string_view("None"), Kind::kNone, 0},
          std::tuple{absl::string_view("True"), Kind::kBool, 1},
          std::tuple{absl::string_view("False"), Kind::kBool, 0}}) {
      if (absl::StartsWith(text_.substr(at_), word) && !IsNameChar(Peek(word.size()))) {
        at_ += word.size();
        value->kind = kind;
        value->integer = integer;
        return absl::OkStatus();
      }
    }
    if (has_numpy_ && std::isalpha(static_cast<unsigned char>(c))) {
      return Numpy(depth, takes_type, value);
    }
    return Error("a literal");
  }

  // --- Numpy's words ---

  absl::string_view TakeName() {
    const size_t begin = at_;
    while (IsNameChar(Peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // "np.ones(...)", "np.inf"; a type where one may stand.
  Status Numpy(int depth, bool takes_type, PythonValue* value) {
    const size_t begin = at_;
    absl::string_view name = TakeName();
    const bool is_numpys = (name == "np" || name == "numpy") && Peek() == '.';
    if (is_numpys) {
      ++at_;
      name = TakeName();
      Skip();
      if (Peek() == '(') return Call(depth, name, value);
      if (const std::optional<double> constant = NumpyConstant(name)) {
        value->kind = Kind::kFloat;
        value->real = *constant;
        return absl::OkStatus();
      }
    }
    constexpr absl::string_view kOwnTypes[] = {"bool", "bytes",  "complex", "float",
                                               "int",  "object", "str"};
    const bool is_type = is_numpys ? NumpyType(name).has_value()
                                   : std::find(std::begin(kOwnTypes), std::end(kOwnTypes), name) !=
                                         std::end(kOwnTypes);
    if (takes_type && is_type) {
      value->kind = Kind::kType;
      value->text = std::string(name);
      return absl::OkStatus();
    }
    at_ = begin;
    return Error(is_type ? "a value, not a type"
                         : "a literal or one of np.arange(), np.array(), np.full(), np.ones(), "
                           "np.zeros(), np.inf, np.nan");
  }

  Status Call(int depth, absl::string_view function, PythonValue* value) {
    ++at_;
    std::vector<NumpyArgument> arguments;
    bool comma = true;
    while (!Take(')')) {
      if (!comma) return Error("',' or ')'");
      Skip();
      NumpyArgument argument;
      const size_t begin = at_;
      if (const absl::string_view name = TakeName(); !name.empty() && Take('=')) {
        argument.name = std::string(name);
      } else {
        at_ = begin;
        if (!arguments.empty() && !arguments.back().name.empty()) {
          return Error("an argument with a name, as the one before it");
        }
      }
      MR_RETURN_IF_ERROR(Value(depth + 1, &argument.value, /*takes_type=*/true));
      arguments.push_back(std::move(argument));
      comma = Take(',');
    }
    MR_ASSIGN_OR_RETURN(value->array, CallNumpy(function, arguments));
    value->kind = Kind::kArray;
    return absl::OkStatus();
  }

  Status Sequence(int depth, Kind kind, char close, PythonValue* value) {
    ++at_;
    value->kind = kind;
    bool comma = false;
    while (!Take(close)) {
      if (!value->items.empty() && !comma) return Error("',' or the end of a sequence");
      value->items.emplace_back();
      PythonValue& item = value->items.back();
      MR_RETURN_IF_ERROR(Value(depth + 1, &item));
      comma = Take(',');
    }
    // Parentheses around one value do not make a tuple.
    if (kind == Kind::kTuple && value->items.size() == 1 && !comma) {
      PythonValue inner = std::move(value->items[0]);
      *value = std::move(inner);
      return absl::OkStatus();
    }
    for (PythonValue& item : value->items) {
      if (item.kind == Kind::kArray) {
        MR_ASSIGN_OR_RETURN(item, ListsOfArray(item.array));
      }
    }
    return absl::OkStatus();
  }

  Status Dict(int depth, PythonValue* value) {
    ++at_;
    value->kind = Kind::kDict;
    bool comma = true;
    while (!Take('}')) {
      if (!comma) return Error("',' or '}'");
      PythonValue key, item;
      MR_RETURN_IF_ERROR(Value(depth + 1, &key));
      if (key.kind == Kind::kList || key.kind == Kind::kDict || key.kind == Kind::kArray) {
        return Error("after a hashable key");
      }
      if (!Take(':')) return Error("':'");
      MR_RETURN_IF_ERROR(Value(depth + 1, &item));
      // The last of equal keys stays, in the place of the first.
      const std::string text = PythonRepr(key);
      const auto same = std::find_if(value->entries.begin(), value->entries.end(),
                                     [&](const auto& e) { return PythonRepr(e.first) == text; });
      if (same != value->entries.end()) {
        same->second = std::move(item);
      } else {
        value->entries.emplace_back(std::move(key), std::move(item));
      }
      comma = Take(',');
    }
    return absl::OkStatus();
  }

  Status Number(int depth, PythonValue* value) {
    bool negative = false;
    while (Peek() == '+' || Peek() == '-') {
      negative ^= Peek() == '-';
      ++at_;
      Skip();
    }
    const size_t begin = at_;
    if (has_numpy_ && std::isalpha(static_cast<unsigned char>(Peek()))) {
      MR_RETURN_IF_ERROR(Numpy(depth, /*takes_type=*/false, value));
      if (value->kind != Kind::kFloat) {
        at_ = begin;
        return Error("a number behind a sign");
      }
      if (negative) value->real = -value->real;
      return absl::OkStatus();
    }
    // Longest run of what a number may be made of; "1e-5" has a sign inside.
    while (at_ < text_.size() && (IsNameChar(Peek()) || Peek() == '.' ||
                                  ((Peek() == '+' || Peek() == '-') && at_ > begin &&
                                   (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E') &&
                                   !absl::StartsWithIgnoreCase(text_.substr(begin), "0x")))) {
      ++at_;
    }
    std::string digits;
    const absl::string_view raw = text_.substr(begin, at_ - begin);
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '_') {
        digits += raw[i];
      } else if (i == 0 || i + 1 == raw.size() || !IsNameChar(raw[i - 1]) ||
                 !IsNameChar(raw[i + 1]) || raw[i + 1] == '_') {
        at_ = begin;
        return Error("a number");
      }
    }
    int base = 10;
    if (absl::StartsWithIgnoreCase(digits, "0x")) base = 16;
    if (absl::StartsWithIgnoreCase(digits, "0o")) base = 8;
    if (absl::StartsWithIgnoreCase(digits, "0b")) base = 2;
    const bool integer =
        base != 10 || (!digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
          return std::isdigit(static_cast<unsigned char>(c));
        }));
    if (integer) {
      const std::string body = base == 10 ? digits : digits.substr(2);
      uint64_t magnitude = 0;
      bool ok = !body.empty() && !(base == 10 && body.size() > 1 && body[0] == '0' &&
                                   body.find_first_not_of('0') != std::string::npos);
      for (char c : body) {
        const int digit = std::isdigit(static_cast<unsigned char>(c)) ? c - '0'
                          : std::isalpha(static_cast<unsigned char>(c))
                              ? std::tolower(static_cast<unsigned char>(c)) - 'a' + 10
                              : 99;
        const uint64_t b = static_cast<uint64_t>(base);
        if (digit >= base ||
            magnitude > (std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(digit)) / b) {
          ok = false;
          break;
        }
        magnitude = magnitude * b + static_cast<uint64_t>(digit);
      }
      const uint64_t limit = uint64_t{1} << 63;
      if (!ok || magnitude > limit || (magnitude == limit && !negative)) {
        at_ = begin;
        return Error("an integer of 64 bits");
      }
      value->kind = Kind::kInt;
      value->integer = static_cast<int64_t>(negative ? ~magnitude + 1 : magnitude);
      return absl::OkStatus();
    }
    const bool plain = std::all_of(digits.begin(), digits.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) || c == '.' || c == 'e' || c == 'E' ||
             c == '+' || c == '-';
    });
    if (!plain || digits.empty() || !absl::SimpleAtod(digits, &value->real)) {
      at_ = begin;
      return Error("a number");
    }
    value->kind = Kind::kFloat;
    if (negative) value->real = -value->real;
    return absl::OkStatus();
  }

  // Length of a string prefix that is followed by a quote.
  bool StringAhead() const {
    size_t n = 0;
    while (n < 2 && absl::string_view("bBuUrR").find(Peek(n)) != absl::string_view::npos &&
           Peek(n) != '\0') {
      ++n;
    }
    return Peek(n) == '\'' || Peek(n) == '"';
  }

  Status Strings(PythonValue* value) {
    bool first = true;
    while (StringAhead()) {
      bool bytes = false, raw = false;
      while (Peek() != '\'' && Peek() != '"') {
        const char prefix = static_cast<char>(std::tolower(static_cast<unsigned char>(Peek())));
        if (prefix == 'b') bytes = true;
        if (prefix == 'r') raw = true;
        ++at_;
      }
      const Kind kind = bytes ? Kind::kBytes : Kind::kString;
      if (!first && kind != value->kind) return Error("a string of the same kind");
      first = false;
      value->kind = kind;
      MR_RETURN_IF_ERROR(OneString(bytes, raw, &value->text));
      Skip();
    }
    return absl::OkStatus();
  }

  Status OneString(bool bytes, bool raw, std::string* out) {
    const char quote = Peek();
    const bool triple = Peek(1) == quote && Peek(2) == quote;
    at_ += triple ? 3 : 1;
    while (true) {
      if (at_ >= text_.size() || (!triple && Peek() == '\n')) return Error("the end of a string");
      const char c = Peek();
      if (c == quote && (!triple || (Peek(1) == quote && Peek(2) == quote))) {
        at_ += triple ? 3 : 1;
        return absl::OkStatus();
      }
      ++at_;
      if (bytes && static_cast<unsigned char>(c) >= 0x80) return Error("ASCII in bytes");
      if (c != '\\') {
        *out += c;
        continue;
      }
      if (at_ >= text_.size()) return Error("the end of a string");
      const char e = Peek();
      if (raw) {
        *out += '\\';
        *out += e;
        ++at_;
        continue;
      }
      MR_RETURN_IF_ERROR(Escape(e, bytes, out));
    }
  }

  Status Escape(char e, bool bytes, std::string* out) {
    constexpr absl::string_view kNames = "\\'\"abfnrtv";
    constexpr absl::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const size_t known = kNames.find(e);
    if (known != absl::string_view::npos) {
      *out += kValues[known];
      ++at_;
    } else if (e == '\n') {
      ++at_;  // a continued line
    } else if (e >= '0' && e <= '7') {
      uint32_t code = 0;
      for (int i = 0; i < 3 && Peek() >= '0' && Peek() <= '7'; ++i, ++at_) {
        code = code * 8 + static_cast<uint32_t>(Peek() - '0');
      }
      if (bytes) {
        *out += static_cast<char>(code);
      } else {
        AppendUtf8(code, out);
      }
    } else if (e == 'x' || (!bytes && (e == 'u' || e == 'U'))) {
      const size_t width = e == 'x' ? 2 : e == 'u' ? 4 : 8;
      uint32_t code = 0;
      ++at_;
      for (size_t i = 0; i < width; ++i, ++at_) {
        const unsigned char digit = static_cast<unsigned char>(Peek());
        if (!std::isxdigit(digit)) return Error("a hexadecimal digit");
        code = code * 16 + static_cast<uint32_t>(
                               std::isdigit(digit) ? digit - '0' : std::tolower(digit) - 'a' + 10);
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return Error("a code point");
      if (bytes) {
        *out += static_cast<char>(code);
      } else {
        AppendUtf8(code, out);
      }
    } else {
      // Python keeps the backslash of what is no escape.
      *out += '\\';
      *out += e;
      ++at_;
    }
    return absl::OkStatus();
  }

  const absl::string_view text_;
  const bool has_numpy_;
  size_t at_ = 0;
};

std::string FloatRepr(double value) {
  // A float's repr is numpy's text of a float64 scalar.
  return NumpyString(Tensor::Scalar(value));
}

std::string StringRepr(const std::string& text) {
  const bool single = absl::StrContains(text, '\''), dual = absl::StrContains(text, '"');
  const char quote = single && !dual ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    const unsigned char u = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\\' || c == quote) {
      out += '\\';
      out += c;
    } else if (u < 0x20 || u == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<int>(u));
    } else {
      out += c;
    }
  }
  return out + quote;
}

Status Ragged() {
  return absl::InvalidArgumentError(
      "setting an array element with a sequence: rows must have one "
      "length and hold values of one kind");
}

// The dimensions of nested sequences: those of the first elements.
void DimsOf(const PythonValue& value, std::vector<int64_t>* dims) {
  if (value.kind != Kind::kList && value.kind != Kind::kTuple) return;
  dims->push_back(static_cast<int64_t>(value.items.size()));
  if (!value.items.empty()) DimsOf(value.items[0], dims);
}

// The elements in row-major order.
Status Leaves(const PythonValue& value, absl::Span<const int64_t> dims,
              std::vector<const PythonValue*>* leaves) {
  const bool sequence = value.kind == Kind::kList || value.kind == Kind::kTuple;
  if (dims.empty()) {
    if (sequence) return Ragged();
    leaves->push_back(&value);
    return absl::OkStatus();
  }
  if (!sequence || static_cast<int64_t>(value.items.size()) != dims[0]) return Ragged();
  for (const PythonValue& item : value.items) {
    MR_RETURN_IF_ERROR(Leaves(item, dims.subspan(1), leaves));
  }
  return absl::OkStatus();
}

Status DoesNotFit(absl::string_view text, DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("number must fit ", DTypeName(dtype), ", got ", text));
}

// A number of a literal as an element of the type.
template <typename T>
Status Store(const PythonValue& value, DType dtype, T* out) {
  const bool real = value.kind == Kind::kFloat;
  if constexpr (std::is_same_v<T, bool>) {
    *out = real ? value.real != 0 : value.integer != 0;
  } else if constexpr (std::is_same_v<T, Half>) {
    *out = ToHalf(static_cast<float>(real ? value.real : static_cast<double>(value.integer)));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    *out = ToBfloat16(static_cast<float>(real ? value.real : static_cast<double>(value.integer)));
  } else if constexpr (std::is_integral_v<T>) {
    if (real) {
      const double t = std::trunc(value.real);
      // The bounds are exact as doubles; the upper one is the first that does not fit.
      const double low = static_cast<double>(std::numeric_limits<T>::min());
      const double high = std::ldexp(1.0, std::numeric_limits<T>::digits);
      if (!(t >= low && t < high)) return DoesNotFit(FloatRepr(value.real), dtype);
      *out = static_cast<T>(t);
    } else {
      if (!std::in_range<T>(value.integer)) return DoesNotFit(absl::StrCat(value.integer), dtype);
      *out = static_cast<T>(value.integer);
    }
  } else {
    *out = real ? static_cast<T>(value.real) : static_cast<T>(value.integer);
  }
  return absl::OkStatus();
}

template <typename T>
Status StoreAll(const std::vector<const PythonValue*>& leaves, Tensor* tensor) {
  absl::Span<T> out = tensor->mutable_flat<T>();
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Kind kind = leaves[i]->kind;
    if (kind != Kind::kBool && kind != Kind::kInt && kind != Kind::kFloat) {
      return absl::InvalidArgumentError(absl::StrCat("element must be a number for ",
                                                     DTypeName(tensor->dtype()), ", got ",
                                                     PythonRepr(*leaves[i])));
    }
    if constexpr (std::is_same_v<T, std::complex<float>>) {
      float real = 0;
      MR_RETURN_IF_ERROR(Store(*leaves[i], tensor->dtype(), &real));
      out[i] = real;
    } else if constexpr (std::is_same_v<T, std::complex<double>>) {
      double real = 0;
      MR_RETURN_IF_ERROR(Store(*leaves[i], tensor->dtype(), &real));
      out[i] = real;
    } else {
      MR_RETURN_IF_ERROR(Store(*leaves[i], tensor->dtype(), &out[i]));
    }
  }
  return absl::OkStatus();
}

// Calls f with a null pointer to the element type of a numeric dtype or bool.
template <typename F>
Status WithNumericType(DType dtype, F f) {
  switch (dtype) {
    case DT_BOOL:
      return f(static_cast<bool*>(nullptr));
    case DT_INT8:
      return f(static_cast<int8_t*>(nullptr));
    case DT_UINT8:
      return f(static_cast<uint8_t*>(nullptr));
    case DT_INT16:
      return f(static_cast<int16_t*>(nullptr));
    case DT_UINT16:
      return f(static_cast<uint16_t*>(nullptr));
    case DT_INT32:
      return f(static_cast<int32_t*>(nullptr));
    case DT_UINT32:
      return f(static_cast<uint32_t*>(nullptr));
    case DT_INT64:
      return f(static_cast<int64_t*>(nullptr));
    case DT_UINT64:
      return f(static_cast<uint64_t*>(nullptr));
    case DT_HALF:
      return f(static_cast<Half*>(nullptr));
    case DT_BFLOAT16:
      return f(static_cast<Bfloat16*>(nullptr));
    case DT_FLOAT:
      return f(static_cast<float*>(nullptr));
    case DT_DOUBLE:
      return f(static_cast<double*>(nullptr));
    case DT_COMPLEX64:
      return f(static_cast<std::complex<float>*>(nullptr));
    case DT_COMPLEX128:
      return f(static_cast<std::complex<double>*>(nullptr));
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "value must be of a numeric type, Boolean or string, got ", DTypeName(dtype)));
  }
}

template <typename To, typename From>
Status ConvertElement(From from, DType dtype, To* to) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, Bfloat16>) {
    return ConvertElement(ToFloat(from), dtype, to);
  } else if constexpr (std::is_same_v<From, std::complex<float>> ||
                       std::is_same_v<From, std::complex<double>>) {
    if constexpr (std::is_same_v<To, std::complex<float>> ||
                  std::is_same_v<To, std::complex<double>>) {
      *to = To(static_cast<typename To::value_type>(from.real()),
               static_cast<typename To::value_type>(from.imag()));
      return absl::OkStatus();
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("complex numbers cannot be made ", DTypeName(dtype)));
    }
  } else if constexpr (std::is_same_v<To, std::complex<float>> ||
                       std::is_same_v<To, std::complex<double>>) {
    *to = To(static_cast<typename To::value_type>(from), 0);
    return absl::OkStatus();
  } else if constexpr (std::is_same_v<To, bool>) {
    *to = from != From{0};
    return absl::OkStatus();
  } else if constexpr (std::is_same_v<To, Half>) {
    *to = ToHalf(static_cast<float>(from));
    return absl::OkStatus();
  } else if constexpr (std::is_same_v<To, Bfloat16>) {
    *to = ToBfloat16(static_cast<float>(from));
    return absl::OkStatus();
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    PythonValue value;
    value.kind = Kind::kFloat;
    value.real = static_cast<double>(from);
    return Store(value, dtype, to);
  } else {
    // Between integers as numpy: modulo 2^n.
    *to = static_cast<To>(from);
    return absl::OkStatus();
  }
}

}  // namespace

StatusOr<PythonValue> ParsePythonLiteral(absl::string_view text) {
  return Parser(text, /*has_numpy=*/false).Parse();
}

StatusOr<PythonValue> ParsePythonExpression(absl::string_view text) {
  return Parser(text, /*has_numpy=*/true).Parse();
}

std::string PythonStr(const PythonValue& value) {
  return value.kind == Kind::kString ? value.text : PythonRepr(value);
}

std::string PythonRepr(const PythonValue& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.integer != 0 ? "True" : "False";
    case Kind::kInt:
      return absl::StrCat(value.integer);
    case Kind::kFloat:
      return FloatRepr(value.real);
    case Kind::kString:
      return StringRepr(value.text);
    case Kind::kBytes:
      return PythonBytesRepr(value.text);
    case Kind::kArray:
      return absl::StrCat("array(", NumpyString(value.array), ")");
    case Kind::kType:
      return PythonTypeText(value);
    case Kind::kDict: {
      std::string text = "{";
      for (const auto& [key, item] : value.entries) {
        absl::StrAppend(&text, text.size() > 1 ? ", " : "", PythonRepr(key), ": ",
                        PythonRepr(item));
      }
      return text + "}";
    }
    case Kind::kList:
    case Kind::kTuple:
      break;
  }
  const bool tuple = value.kind == Kind::kTuple;
  std::string text = tuple ? "(" : "[";
  for (const PythonValue& item : value.items) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", PythonRepr(item));
  }
  if (tuple && value.items.size() == 1) text += ",";
  return text + (tuple ? ")" : "]");
}

std::string PythonTypeText(const PythonValue& value) {
  const char* name = "NoneType";
  switch (value.kind) {
    case Kind::kNone:
      break;
    case Kind::kBool:
      name = "bool";
      break;
    case Kind::kInt:
      name = "int";
      break;
    case Kind::kFloat:
      name = "float";
      break;
    case Kind::kString:
      name = "str";
      break;
    case Kind::kBytes:
      name = "bytes";
      break;
    case Kind::kList:
      name = "list";
      break;
    case Kind::kTuple:
      name = "tuple";
      break;
    case Kind::kDict:
      name = "dict";
      break;
    case Kind::kArray:
      name = "numpy.ndarray";
      break;
    case Kind::kType:
      name = value.text.c_str();
      break;
  }
  return absl::StrCat("<class '", name, "'>");
}

StatusOr<Tensor> TensorFromPython(const PythonValue& value, DType dtype) {
  if (value.kind == Kind::kArray) return ConvertForFeed(value.array, dtype);
  std::vector<int64_t> dims;
  DimsOf(value, &dims);
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  std::vector<const PythonValue*> leaves;
  MR_RETURN_IF_ERROR(Leaves(value, dims, &leaves));
  if (dtype == DT_INVALID) {
    bool text = false, real = leaves.empty(), integer = false;
    for (const PythonValue* leaf : leaves) {
      text |= leaf->kind == Kind::kString || leaf->kind == Kind::kBytes;
      real |= leaf->kind == Kind::kFloat;
      integer |= leaf->kind == Kind::kInt;
    }
    dtype = text ? DT_STRING : real ? DT_DOUBLE : integer ? DT_INT64 : DT_BOOL;
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  if (dtype == DT_STRING) {
    const absl::Span<std::string> out = tensor.mutable_flat<std::string>();
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i]->kind != Kind::kString && leaves[i]->kind != Kind::kBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("element must be a string, got ", PythonRepr(*leaves[i])));
      }
      out[i] = leaves[i]->text;
    }
    return tensor;
  }
  MR_RETURN_IF_ERROR(WithNumericType(dtype, [&](auto* type) {
    return StoreAll<std::remove_pointer_t<decltype(type)>>(leaves, &tensor);
  }));
  return tensor;
}

StatusOr<Tensor> ConvertForFeed(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype || dtype == DT_INVALID) return tensor;
  if (tensor.dtype() == DT_STRING || dtype == DT_STRING) {
    return absl::InvalidArgumentError(
        absl::StrCat("array must be of ", DTypeName(dtype), ", got ", DTypeName(tensor.dtype())));
  }
  MR_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(dtype, tensor.shape()));
  MR_RETURN_IF_ERROR(WithNumericType(dtype, [&](auto* to_type) {
    using To = std::remove_pointer_t<decltype(to_type)>;
    return WithNumericType(tensor.dtype(), [&](auto* from_type) {
      using From = std::remove_pointer_t<decltype(from_type)>;
      const absl::Span<const From> from = tensor.flat<From>();
      const absl::Span<To> to = result.mutable_flat<To>();
      for (size_t i = 0; i < from.size(); ++i) {
        MR_RETURN_IF_ERROR(ConvertElement(from[i], dtype, &to[i]));
      }
      return absl::OkStatus();
    });
  }));
  return result;
}

}  // namespace millrace
