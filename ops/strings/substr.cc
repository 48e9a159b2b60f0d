// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/substr.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "ops/loops/broadcast.h"
#include "ops/strings/each_string.h"
#include "ops/strings/unicode.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status ReadUnit(const NodeAttrs& attrs, bool* in_characters) {
  std::string unit;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "unit", &unit));
  *in_characters = unit == "UTF8_CHAR";
  return absl::OkStatus();
}

// --- Substr --------------------------------------------------------------------------------------

struct SubstrRule {
  bool in_characters = false;

  Status Init(const NodeAttrs& attrs) { return ReadUnit(attrs, &in_characters); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const StatusOr<PartialShape> place = c->input(1).MergeWith(c->input(2));
    if (!place.ok()) {
      return InvalidArgument("pos and len should have the same shape, got: ", c->input(1), " vs. ",
                             c->input(2));
    }
    return BroadcastShape(c->input(0), *place);
  }
};

// What there is of a text from `pos` on, at most `len`; none when it has no such place. |pos| and
// |len| are far from overflow.
std::optional<absl::string_view> Bytes(absl::string_view text, int64_t pos, int64_t len) {
  const int64_t size = static_cast<int64_t>(text.size());
  if (pos < 0) pos += size;
  if (pos < 0 || pos > size) return std::nullopt;
  const size_t most = len < 0 ? absl::string_view::npos : static_cast<size_t>(len);
  return text.substr(static_cast<size_t>(pos), most);
}

std::optional<absl::string_view> Characters(absl::string_view text, int64_t pos, int64_t len) {
  if (pos >= 0) {
    size_t begin = 0;
    if (!SkipCharacters(text, pos, &begin)) return std::nullopt;
    size_t end = begin;
    SkipCharacters(text, len, &end);
    return text.substr(begin, end - begin);
  }
  if (len < 0) return std::nullopt;
  // From the end: what is behind the part, then the part.
  const int64_t behind = std::max<int64_t>(0, -pos - len);
  size_t end = text.size();
  if (!SkipCharactersBack(text, behind, &end)) return std::nullopt;
  size_t begin = end;
  if (!SkipCharactersBack(text, -pos - behind, &begin)) return std::nullopt;
  return text.substr(begin, end - begin);
}

// Beyond every string, and far from overflow when it is added to.
int64_t Bounded(int64_t x) {
  constexpr int64_t kMost = int64_t{1} << 60;
  return std::clamp(x, -kMost, kMost);
}

Status RunSubstr(KernelContext* ctx, const SubstrRule& rule) {
  const Tensor& input = ctx->input(0);
  const absl::Span<const std::string> texts = input.raw<std::string>();
  const IntSpan pos = ctx->input(1).ints(), len = ctx->input(2).ints();
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const absl::Span<std::string> out = output->mutable_raw<std::string>();
  if (out.empty()) return absl::OkStatus();
  const BroadcastPlan plan(output->shape().dims(),
                           {input.shape().dims(), ctx->input(1).shape().dims()});
  const bool one_text = plan.is_scalar_in_run(0), one_place = plan.is_scalar_in_run(1);
  Status status;
  plan.ForEachRun(0, plan.num_elements(), [&](const BroadcastPlan::Run& run) {
    for (int64_t i = 0; i < run.size && status.ok(); ++i) {
      const size_t from = static_cast<size_t>(run.offset[0] + (one_text ? 0 : i));
      const size_t place = static_cast<size_t>(run.offset[1] + (one_place ? 0 : i));
      const int64_t p = Bounded(pos[place]), l = Bounded(len[place]);
      const std::optional<absl::string_view> part =
          rule.in_characters ? Characters(texts[from], p, l) : Bytes(texts[from], p, l);
      if (part) {
        out[static_cast<size_t>(run.out + i)].assign(part->data(), part->size());
      } else if (rule.in_characters) {
        status =
            InvalidArgument("pos ", pos[place], " out of range for string at index ", run.out + i);
      } else {
        status = InvalidArgument("pos ", pos[place], " out of range for string b'", texts[from],
                                 "' at index ", run.out + i);
      }
    }
  });
  return status;
}

const OpRegistration kSubstr = OpSpec("Substr", "input: string, pos: T, len: T -> output: string",
                                      "T: {int32, int64}; unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'")
                                   .With(RuledKernelFor<SubstrRule>(RunSubstr))
                                   .NotDifferentiable();

// --- StringLength --------------------------------------------------------------------------------

struct StringLengthRule : UnchangedShapeRule {
  bool in_characters = false;

  Status Init(const NodeAttrs& attrs) { return ReadUnit(attrs, &in_characters); }
};

Status RunStringLength(KernelContext* ctx, const StringLengthRule& rule) {
  const auto fits = [](int64_t length, int32_t* out) {
    *out = static_cast<int32_t>(length);
    return length <= std::numeric_limits<int32_t>::max();
  };
  const auto too_long = [](const std::string& text) {
    return InvalidArgument("input must have strings of at most 2147483647 bytes, got one of ",
                           text.size());
  };
  constexpr double kLengthNs = 2, kCountNs = 20;
  if (rule.in_characters) {
    return EachString<int32_t>(
        ctx, kCountNs,
        [&](const std::string& text, int32_t* out) { return fits(CountCharacters(text), out); },
        too_long);
  }
  return EachString<int32_t>(
      ctx, kLengthNs,
      [&](const std::string& text, int32_t* out) {
        return fits(static_cast<int64_t>(text.size()), out);
      },
      too_long);
}

const OpRegistration kStringLength =
    OpSpec("StringLength", "input: string -> output: int32", "unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'")
        .With(RuledKernelFor<StringLengthRule>(RunStringLength))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
