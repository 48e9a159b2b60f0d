// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rapidjson/error/en.h"
#include "rapidjson/prettywriter.h"
#include "serving/cut_text.h"

namespace millrace {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The digits of an exponent that begin at `i`: so many that RapidJSON's sum of exponents can
// overflow. Its own bound is 214748364, of nine digits.
constexpr size_t kManyDigits = 9;

size_t DigitsAt(absl::string_view text, size_t i) {
  size_t n = 0;
  while (i + n < text.size() && IsDigit(text[i + n])) ++n;
  return n;
}

bool HasLongExponent(absl::string_view text, char e) {
  for (size_t i = text.find(e); i != absl::string_view::npos; i = text.find(e, i + 1)) {
    if (i + 1 < text.size() && text[i + 1] == '-' && DigitsAt(text, i + 2) >= kManyDigits) {
      return true;
    }
  }
  return false;
}

// Outside of strings: e-123456789 becomes e-000099999. Both are 0 for any number that fits into a
// body: one with so many digits before its point would be too big.
std::string WithoutLongExponents(absl::string_view text) {
  std::string out(text);
  bool in_string = false;
  for (size_t i = 0; i < out.size(); ++i) {
    if (in_string) {
      if (out[i] == '\\') {
        ++i;
      } else if (out[i] == '"') {
        in_string = false;
      }
    } else if (out[i] == '"') {
      in_string = true;
    } else if (i > 0 && (out[i] == 'e' || out[i] == 'E') && IsDigit(out[i - 1]) &&
               i + 1 < out.size() && out[i + 1] == '-') {
      const size_t n = DigitsAt(out, i + 2);
      if (n < kManyDigits) continue;
      // Small numbers in many digits stay what they are.
      const size_t value = out.find_first_not_of('0', i + 2);
      if (value == std::string::npos || i + 2 + n < value + kManyDigits) continue;
      std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i + 2), n - 5, '0');
      std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i + 2 + n - 5), 5, '9');
    }
  }
  return out;
}

// So many bytes behind a bound show whether a character goes over it.
constexpr size_t kBytesBehind = 4;

// What PrettyWriter writes to: the first bytes of a text.
class ShownBytes {
 public:
  using Ch = char;
  explicit ShownBytes(size_t limit) : limit_(limit) {}
  void Put(char c) {
    if (text_.size() < limit_ + kBytesBehind) text_.push_back(c);
  }
  void Flush() {}
  bool cut() const { return text_.size() > limit_; }
  std::string Take() && { return CutText(text_, limit_); }

 private:
  const size_t limit_;
  std::string text_;
};

// Prints what the reader sees, until enough is printed.
class ShowEvents {
 public:
  explicit ShowEvents(ShownBytes* out) : out_(out), writer_(*out) {}
  bool Null() { return writer_.Null() && !out_->cut(); }
  bool Bool(bool value) { return writer_.Bool(value) && !out_->cut(); }
  bool Int(int value) { return writer_.Int(value) && !out_->cut(); }
  bool Uint(unsigned value) { return writer_.Uint(value) && !out_->cut(); }
  bool Int64(int64_t value) { return writer_.Int64(value) && !out_->cut(); }
  bool Uint64(uint64_t value) { return writer_.Uint64(value) && !out_->cut(); }
  bool Double(double value) { return writer_.Double(value) && !out_->cut(); }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return false; }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return writer_.String(text, size) && !out_->cut();
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    return writer_.Key(text, size) && !out_->cut();
  }
  bool StartObject() { return writer_.StartObject() && !out_->cut(); }
  bool EndObject(rapidjson::SizeType size) { return writer_.EndObject(size) && !out_->cut(); }
  bool StartArray() { return writer_.StartArray() && !out_->cut(); }
  bool EndArray(rapidjson::SizeType size) { return writer_.EndArray(size) && !out_->cut(); }
  Status stopped() const { return absl::OkStatus(); }

 private:
  ShownBytes* const out_;
  rapidjson::PrettyWriter<ShownBytes> writer_;
};

template <typename T>
bool ReadsBack(absl::string_view text, T value) {
  T read = 0;
  if constexpr (std::is_same_v<T, float>) {
    return absl::SimpleAtof(text, &read) && read == value;
  } else {
    return absl::SimpleAtod(text, &read) && read == value;
  }
}

size_t Copied(absl::string_view text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return text.size();
}

template <typename T>
size_t WriteDecimal(T value, char* out) {
  if (std::isnan(value)) return Copied("NaN", out);
  if (std::isinf(value)) return Copied(value < 0 ? "-Infinity" : "Infinity", out);
  // StrCat's number: printf's %g with 6 digits.
  const absl::AlphaNum six(value);
  size_t n = Copied(six.Piece(), out);
  if (!ReadsBack(six.Piece(), value)) {
    n = static_cast<size_t>(
        absl::SNPrintF(out, kMaxJsonDecimal, "%.*g", std::numeric_limits<T>::max_digits10, value));
  }
  if (std::memchr(out, '.', n) == nullptr && std::memchr(out, 'e', n) == nullptr) {
    n += Copied(".0", out + n);
  }
  return n;
}

}  // namespace

Status CheckJsonSize(absl::string_view body, const JsonLimits& limits) {
  // Where RapidJSON counts digits in 31 bits, ten times as much must not overflow.
  constexpr int64_t kMostBytes = std::numeric_limits<int32_t>::max() / 10 - 1000;
  const int64_t most = std::min(limits.max_body_bytes, kMostBytes);
  if (static_cast<int64_t>(body.size()) <= most) return absl::OkStatus();
  return InvalidArgument("JSON request: a body may have at most ", most, " bytes, got ",
                         body.size());
}

JsonBody::JsonBody(absl::string_view text) : text_(text) {
  if (!HasLongExponent(text, 'e') && !HasLongExponent(text, 'E')) return;
  copy_ = WithoutLongExponents(text);
  text_ = copy_;
}

std::string JsonNumber::ToString() const {
  if (is_negative_integer()) return absl::StrCat(negative());
  if (!is_decimal()) return absl::StrCat(bits_);
  char text[kMaxJsonDecimal];
  // Those that a float's range holds are shown as floats, with their digits.
  constexpr double kMaxFloat = 3.4028234e38;  // RapidJSON's
  const size_t n = decimal_ >= -kMaxFloat && decimal_ <= kMaxFloat
                       ? WriteJsonDecimal(static_cast<float>(decimal_), text)
                       : WriteJsonDecimal(decimal_, text);
  return std::string(text, n);
}

size_t WriteJsonDecimal(float value, char* out) { return WriteDecimal(value, out); }
size_t WriteJsonDecimal(double value, char* out) { return WriteDecimal(value, out); }

std::string QuotedJson(absl::string_view text, size_t max_bytes) {
  ShownBytes out(max_bytes);
  rapidjson::PrettyWriter<ShownBytes> writer(out);
  // Each byte is at least a byte of the text: what is behind them is not shown.
  writer.String(text.data(),
                static_cast<rapidjson::SizeType>(std::min(text.size(), max_bytes + kBytesBehind)));
  return std::move(out).Take();
}

std::string ShownJson(absl::string_view body, size_t offset, size_t max_bytes) {
  ShownBytes out(max_bytes);
  ShowEvents events(&out);
  rapidjson::MemoryStream bytes(body.data() + offset, body.size() - offset);
  // Read before without an error; the handler stops it when enough is shown.
  ScanJson(bytes, &events).IgnoreError();
  return std::move(out).Take();
}

Status JsonParseError(rapidjson::ParseErrorCode code, size_t offset) {
  return InvalidArgument("JSON Parse error: ", rapidjson::GetParseError_En(code),
                         " at offset: ", offset);
}

}  // namespace millrace
