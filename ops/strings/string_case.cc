// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_case.h"

#include "absl/strings/ascii.h"
#include "ops/strings/each_string.h"
#include "ops/strings/unicode.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kBytesNs = 30, kCharactersNs = 300;

struct StringCaseRule : UnchangedShapeRule {
  bool is_utf8 = false;

  Status Init(const NodeAttrs& attrs) {
    std::string encoding;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "encoding", &encoding));
    is_utf8 = encoding == "utf-8";
    if (is_utf8 || encoding.empty()) return absl::OkStatus();
    return InvalidArgument("only utf-8 or '' (no encoding) is supported, received ", encoding);
  }
};

Status RunLower(KernelContext* ctx, const StringCaseRule& rule) {
  if (rule.is_utf8) {
    return EachString<std::string>(
        ctx, kCharactersNs,
        [](const std::string& text, std::string* out) { *out = Utf8ToLower(text); });
  }
  return EachString<std::string>(ctx, kBytesNs, [](const std::string& text, std::string* out) {
    *out = absl::AsciiStrToLower(text);
  });
}

Status RunUpper(KernelContext* ctx, const StringCaseRule& rule) {
  if (rule.is_utf8) {
    return EachString<std::string>(
        ctx, kCharactersNs,
        [](const std::string& text, std::string* out) { *out = Utf8ToUpper(text); });
  }
  return EachString<std::string>(ctx, kBytesNs, [](const std::string& text, std::string* out) {
    *out = absl::AsciiStrToUpper(text);
  });
}

Status RunStrip(KernelContext* ctx, const UnchangedShapeRule&) {
  return EachString<std::string>(ctx, kBytesNs, [](absl::string_view text, std::string* out) {
    text = absl::StripAsciiWhitespace(text);
    out->assign(text.data(), text.size());
  });
}

const OpRegistration kStringLower =
    OpSpec("StringLower", "input: string -> output: string", "encoding: string = ''")
        .With(RuledKernelFor<StringCaseRule>(RunLower))
        .NotDifferentiable();

const OpRegistration kStringUpper =
    OpSpec("StringUpper", "input: string -> output: string", "encoding: string = ''")
        .With(RuledKernelFor<StringCaseRule>(RunUpper))
        .NotDifferentiable();

const OpRegistration kStringStrip = OpSpec("StringStrip", "input: string -> output: string")
                                        .With(RuledKernelFor<UnchangedShapeRule>(RunStrip))
                                        .NotDifferentiable();

}  // namespace
}  // namespace millrace
