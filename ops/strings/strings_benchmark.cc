// SPDX-License-Identifier: Apache-2.0
//
// bazel run -c opt //ops/strings:strings_benchmark: ops on 1,024 strings of a census-like column,
// in a prepared step on one thread. Items are strings.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/strings/strings.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int64_t kStrings = 1024;

Tensor Words() {
  const char* const words[] = {
      " Machine-op-inspct", " Adm-clerical", " Exec-managerial", " Handlers-cleaners", " ?",
      " Prof-specialty"};
  std::vector<std::string> made;
  for (int64_t i = 0; i < kStrings; ++i) made.emplace_back(words[i * 7 % 6]);
  return Tensor::Vector<std::string>(made);
}
Tensor Numbers() {
  std::vector<std::string> made;
  for (int64_t i = 0; i < kStrings; ++i) made.push_back(absl::StrCat(" ", i * 7919 % 1000, ".25"));
  return Tensor::Vector<std::string>(made);
}
Tensor Ints() {
  std::vector<int64_t> made;
  for (int64_t i = 0; i < kStrings; ++i) made.push_back(i * 104729);
  return Tensor::Vector<int64_t>(made);
}

Output Fast(const Scope& s, Output x) { return StringToHashBucketFast(s, x, 1000); }
Output Strong(const Scope& s, Output x) { return StringToHashBucketStrong(s, x, 1000, {1, 2}); }
Output Old(const Scope& s, Output x) { return StringToHashBucket(s, x, 1000); }
Output ToFloat(const Scope& s, Output x) { return StringToNumber(s, x); }
Output AsText(const Scope& s, Output x) { return AsString(s, x); }
Output Lower(const Scope& s, Output x) { return StringLower(s, x); }
Output LowerUtf8(const Scope& s, Output x) { return StringLower(s, x, {.encoding = "utf-8"}); }
Output Strip(const Scope& s, Output x) { return StringStrip(s, x); }
Output Split(const Scope& s, Output x) { return StringSplitV2(s, x, Const(s, "-")).values; }
Output Cut(const Scope& s, Output x) { return Substr(s, x, Const(s, 1), Const(s, 5)); }
Output Replace(const Scope& s, Output x) { return StaticRegexReplace(s, x, "[^a-z]+", "_"); }
Output Match(const Scope& s, Output x) { return StaticRegexFullMatch(s, x, " [A-Z].*"); }
Output Base64(const Scope& s, Output x) { return DecodeBase64(s, EncodeBase64(s, x)); }

void Run(benchmark::State& state, Output (*op)(const Scope&, Output), Tensor (*input)()) {
  const Tensor fed = input();
  Scope root;
  const Output y = op(root, Placeholder(root.WithName("x"), fed.dtype(), {-1}));
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  if (!session.ok() || !(*session)->Extend(root).ok()) return state.SkipWithError("Extend");
  auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = {y.name()}});
  if (!step.ok()) return state.SkipWithError("Prepare");
  const std::vector<Tensor> feeds = {fed};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * kStrings);
}

BENCHMARK_CAPTURE(Run, HashBucketFast, Fast, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, HashBucketStrong, Strong, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, HashBucketOld, Old, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, StringToNumber, ToFloat, Numbers)->UseRealTime();
BENCHMARK_CAPTURE(Run, AsString, AsText, Ints)->UseRealTime();
BENCHMARK_CAPTURE(Run, Lower, Lower, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, LowerUtf8, LowerUtf8, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, Strip, Strip, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, Split, Split, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, Substr, Cut, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, RegexReplace, Replace, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, RegexFullMatch, Match, Words)->UseRealTime();
BENCHMARK_CAPTURE(Run, Base64AndBack, Base64, Words)->UseRealTime();

}  // namespace
}  // namespace millrace
