// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/base64.h"

#include <array>

#include "ops/strings/each_string.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kBase64Ns = 50;
constexpr absl::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

struct EncodeRule : UnchangedShapeRule {
  bool pad = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "pad", &pad); }
};

void Encode(absl::string_view bytes, bool pad, std::string* text) {
  text->reserve((bytes.size() + 2) / 3 * 4);
  const auto byte = [&](size_t i) -> uint32_t {
    return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0;
  };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t k = 0; k < 4; ++k) {
      if (i + k <= bytes.size()) {
        text->push_back(kAlphabet[three >> (18 - 6 * k) & 63]);
      } else if (pad) {
        text->push_back('=');
      }
    }
  }
}

Status RunEncode(KernelContext* ctx, const EncodeRule& rule) {
  return EachString<std::string>(ctx, kBase64Ns, [&](const std::string& bytes, std::string* text) {
    Encode(bytes, rule.pad, text);
  });
}

// -1: no character of the alphabet.
constexpr std::array<int8_t, 256> kValues = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return values;
}();

absl::string_view WithoutPadding(absl::string_view text) {
  if (text.size() % 4 != 0 || text.empty() || text.back() != '=') return text;
  text.remove_suffix(1);
  if (text.back() == '=') text.remove_suffix(1);
  return text;
}

bool Decode(absl::string_view text, std::string* bytes) {
  text = WithoutPadding(text);
  if (text.size() % 4 == 1) return false;
  bytes->reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int8_t value = kValues[static_cast<uint8_t>(text[i])];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    // The first of four characters completes no byte; each of the others one.
    if (i % 4 > 0) bytes->push_back(static_cast<char>(bits >> (6 - 2 * (i % 4)) & 0xff));
  }
  return true;
}

Status RunDecode(KernelContext* ctx, const UnchangedShapeRule&) {
  return EachString<std::string>(ctx, kBase64Ns, Decode, [](const std::string& text) {
    if (WithoutPadding(text).size() % 4 == 1) {
      return absl::InvalidArgumentError("Base64 string length cannot be 1 modulo 4.");
    }
    return absl::InvalidArgumentError("Invalid character found in base64.");
  });
}

const OpRegistration kEncodeBase64 =
    OpSpec("EncodeBase64", "input: string -> output: string", "pad: bool = false")
        .With(RuledKernelFor<EncodeRule>(RunEncode))
        .NotDifferentiable();

const OpRegistration kDecodeBase64 = OpSpec("DecodeBase64", "input: string -> output: string")
                                         .With(RuledKernelFor<UnchangedShapeRule>(RunDecode))
                                         .NotDifferentiable();

}  // namespace
}  // namespace millrace
