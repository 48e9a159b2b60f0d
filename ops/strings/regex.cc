// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/regex.h"

#include <re2/re2.h>

#include <memory>
#include <utility>

#include "core/mutex.h"
#include "ops/strings/each_string.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kMatchNs = 300;

StatusOr<std::shared_ptr<const RE2>> Compile(const std::string& pattern) {
  RE2::Options options;
  options.set_log_errors(false);
  auto regex = std::make_shared<const RE2>(pattern, options);
  if (regex->ok()) return std::shared_ptr<const RE2>(std::move(regex));
  return InvalidArgument("Invalid pattern: ", pattern, ", error: ", regex->error());
}

Status CheckRewrite(const RE2& regex, const std::string& rewrite) {
  std::string error;
  if (regex.CheckRewriteString(rewrite, &error)) return absl::OkStatus();
  return InvalidArgument("Invalid rewrite: ", rewrite, ", error: ", error);
}

Status Replace(KernelContext* ctx, const RE2& regex, const std::string& rewrite, bool all) {
  return EachString<std::string>(ctx, kMatchNs, [&](const std::string& text, std::string* out) {
    *out = text;
    if (all) {
      RE2::GlobalReplace(out, regex, rewrite);
    } else {
      RE2::Replace(out, regex, rewrite);
    }
  });
}

Status FullMatch(KernelContext* ctx, const RE2& regex) {
  return EachString<bool>(ctx, kMatchNs, [&](const std::string& text, bool* out) {
    *out = RE2::FullMatch(text, regex);
  });
}

// --- The pattern is an attr ----------------------------------------------------------------------

struct StaticRegexReplaceRule : UnchangedShapeRule {
  std::shared_ptr<const RE2> regex;
  std::string rewrite;
  bool replace_global = true;

  Status Init(const NodeAttrs& attrs) {
    std::string pattern;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "pattern", &pattern, "rewrite", &rewrite, "replace_global",
                                 &replace_global));
    MR_ASSIGN_OR_RETURN(regex, Compile(pattern));
    return CheckRewrite(*regex, rewrite);
  }
};

Status RunStaticRegexReplace(KernelContext* ctx, const StaticRegexReplaceRule& rule) {
  return Replace(ctx, *rule.regex, rule.rewrite, rule.replace_global);
}

struct StaticRegexFullMatchRule : UnchangedShapeRule {
  std::shared_ptr<const RE2> regex;

  Status Init(const NodeAttrs& attrs) {
    std::string pattern;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "pattern", &pattern));
    MR_ASSIGN_OR_RETURN(regex, Compile(pattern));
    return absl::OkStatus();
  }
};

Status RunStaticRegexFullMatch(KernelContext* ctx, const StaticRegexFullMatchRule& rule) {
  return FullMatch(ctx, *rule.regex);
}

const OpRegistration kStaticRegexReplace =
    OpSpec("StaticRegexReplace", "input: string -> output: string",
           "pattern: string; rewrite: string; replace_global: bool = true")
        .With(RuledKernelFor<StaticRegexReplaceRule>(RunStaticRegexReplace))
        .NotDifferentiable();

const OpRegistration kStaticRegexFullMatch =
    OpSpec("StaticRegexFullMatch", "input: string -> output: bool", "pattern: string")
        .With(RuledKernelFor<StaticRegexFullMatchRule>(RunStaticRegexFullMatch))
        .NotDifferentiable();

// --- The pattern is an input ---------------------------------------------------------------------

// The pattern of the step before, compiled: mostly it is a constant.
class LastPattern {
 public:
  StatusOr<std::shared_ptr<const RE2>> Get(const std::string& pattern) const {
    {
      MutexLock lock(&mu_);
      if (regex_ != nullptr && regex_->pattern() == pattern) return regex_;
    }
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const RE2> regex, Compile(pattern));
    MutexLock lock(&mu_);
    regex_ = regex;
    return regex;
  }

 private:
  mutable Mutex mu_;
  mutable std::shared_ptr<const RE2> regex_ ABSL_GUARDED_BY(mu_);
};

struct RegexReplaceRule {
  bool replace_global = true;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "replace_global", &replace_global);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "pattern").status());
    MR_RETURN_IF_ERROR(c->InputWithRank(2, 0, "rewrite").status());
    return c->input(0);
  }
};

class RegexReplaceKernel : public RuledKernel<RegexReplaceRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const RE2> regex,
                        last_.Get(ctx->input(1).raw_scalar<std::string>()));
    const std::string& rewrite = ctx->input(2).raw_scalar<std::string>();
    MR_RETURN_IF_ERROR(CheckRewrite(*regex, rewrite));
    return Replace(ctx, *regex, rewrite, rule().replace_global);
  }

 private:
  const LastPattern last_;
};

struct RegexFullMatchRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "pattern").status());
    return c->input(0);
  }
};

class RegexFullMatchKernel : public RuledKernel<RegexFullMatchRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const RE2> regex,
                        last_.Get(ctx->input(1).raw_scalar<std::string>()));
    return FullMatch(ctx, *regex);
  }

 private:
  const LastPattern last_;
};

const OpRegistration kRegexReplace =
    OpSpec("RegexReplace", "input: string, pattern: string, rewrite: string -> output: string",
           "replace_global: bool = true")
        .With(KernelFor<RegexReplaceKernel>())
        .NotDifferentiable();

const OpRegistration kRegexFullMatch =
    OpSpec("RegexFullMatch", "input: string, pattern: string -> output: bool")
        .With(KernelFor<RegexFullMatchKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
