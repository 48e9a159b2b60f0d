// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_SCAN_H_
#define MILLRACE_SERVING_REST_JSON_SCAN_H_

// How the bodies of requests are read: RapidJSON's reader with TensorFlow Serving's flags, so that
// the same bodies are accepted and refused with the same words and offsets. What both servers
// accept is more than JSON: NaN, Inf, Infinity, bytes behind the value, text that is no UTF-8.
//
//   JsonBody body(request);
//   rapidjson::MemoryStream bytes(body.text().data(), body.text().size());
//   MR_RETURN_IF_ERROR(ScanJson(bytes, &handler));   // events in order, no tree
//
// Always: no recursion; memory for the reader's own stack is 8 bytes per open bracket (handlers
// bound their number) and the longest string.
// Thread-safety: pure functions. Failure: InvalidArgument, `JSON Parse error: ... at offset: N`.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "rapidjson/encodedstream.h"
#include "rapidjson/encodings.h"
#include "rapidjson/error/error.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/reader.h"

namespace millrace {

// Bounds of one request. What exceeds them is InvalidArgument.
struct JsonLimits {
  // Less than 2^31 / 10 at most: there RapidJSON's counters of digits would overflow.
  int64_t max_body_bytes = int64_t{128} << 20;
  // Open brackets at a time. A tensor of the largest rank, 254, in a request has 257.
  int max_depth = 1000;
  // Of all tensors, or of all features of all examples.
  int64_t max_elements = int64_t{1} << 28;
  int64_t max_bytes = int64_t{1} << 30;
  // Of a value that a message shows; longer ones end in "...TRUNCATED".
  size_t max_shown_bytes = 4096;
};

// InvalidArgument for a body that is larger than the bound.
Status CheckJsonSize(absl::string_view body, const JsonLimits& limits);

// The bytes of a request as the reader may see them. Exponents of nine and more digits, which make
// RapidJSON 1.1 read outside of its table of powers, are replaced by ones of the same value, zero,
// in a copy; offsets stay as they are.
class JsonBody {
 public:
  // `text` must outlive the body.
  explicit JsonBody(absl::string_view text);
  JsonBody(const JsonBody&) = delete;
  JsonBody& operator=(const JsonBody&) = delete;
  absl::string_view text() const { return text_; }

 private:
  std::string copy_;
  absl::string_view text_;
};

// A number as the text has it: integers stay integers while 64 bits hold them.
class JsonNumber {
 public:
  static JsonNumber Unsigned(uint64_t value) { return JsonNumber(Kind::kUnsigned, value, 0); }
  static JsonNumber Signed(int64_t value) {
    return value >= 0 ? Unsigned(static_cast<uint64_t>(value))
                      : JsonNumber(Kind::kNegative, static_cast<uint64_t>(value), 0);
  }
  static JsonNumber Decimal(double value) { return JsonNumber(Kind::kDecimal, 0, value); }

  bool is_decimal() const { return kind_ == Kind::kDecimal; }
  bool is_negative_integer() const { return kind_ == Kind::kNegative; }
  // Of an integer that is not negative.
  uint64_t magnitude() const { return bits_; }
  // Of a negative integer.
  int64_t negative() const { return static_cast<int64_t>(bits_); }
  double ToDouble() const {
    if (is_decimal()) return decimal_;
    return is_negative_integer() ? static_cast<double>(negative()) : static_cast<double>(bits_);
  }
  // As messages show it.
  std::string ToString() const;

 private:
  enum class Kind { kUnsigned, kNegative, kDecimal };
  JsonNumber(Kind kind, uint64_t bits, double decimal)
      : kind_(kind), bits_(bits), decimal_(decimal) {}

  Kind kind_;
  uint64_t bits_;
  double decimal_;
};

// The shortest of TensorFlow Serving's forms that reads back as `value`: 6 digits, else 9 of a
// float and 17 of a double; ".0" behind whole numbers; NaN, Infinity, -Infinity. Writes at most
// kMaxJsonDecimal bytes and returns their number.
inline constexpr size_t kMaxJsonDecimal = 40;
size_t WriteJsonDecimal(float value, char* out);
size_t WriteJsonDecimal(double value, char* out);

// A string in quotes, with the escapes of RapidJSON's writer.
std::string QuotedJson(absl::string_view text, size_t max_bytes);

// The value that begins at `offset` of a body that was read without an error, as RapidJSON's
// PrettyWriter prints it; at most `max_bytes` of it. A NaN or an infinity inside of a list or an
// object ends the text, as it does there.
std::string ShownJson(absl::string_view body, size_t offset, size_t max_bytes);

// TensorFlow Serving's, and by them its acceptance.
inline constexpr unsigned kJsonFlags = rapidjson::kParseIterativeFlag |
                                       rapidjson::kParseNanAndInfFlag |
                                       rapidjson::kParseStopWhenDoneFlag;

// "JSON Parse error: Invalid value. at offset: 3".
Status JsonParseError(rapidjson::ParseErrorCode code, size_t offset);

// A handler of events says here why it stopped the reader.
template <typename Handler>
Status ScanJson(rapidjson::MemoryStream& bytes, Handler* handler) {
  // What the reader says of blanks only has an offset and a dot.
  if (bytes.size_ == 0) return InvalidArgument("JSON Parse error: The document is empty");
  rapidjson::EncodedInputStream<rapidjson::UTF8<>, rapidjson::MemoryStream> stream(bytes);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse<kJsonFlags>(stream, *handler);
  if (!result.IsError()) return absl::OkStatus();
  if (result.Code() == rapidjson::kParseErrorTermination) return handler->stopped();
  return JsonParseError(result.Code(), result.Offset());
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_SCAN_H_
