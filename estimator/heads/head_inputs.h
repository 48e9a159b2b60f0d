// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_HEAD_INPUTS_H_
#define MILLRACE_ESTIMATOR_HEADS_HEAD_INPUTS_H_

// HeadInputs: what a head is given, checked: logits, labels and weights of shapes that fit.
//
// What can be known is checked while the graph is built; where a dimension is known only in the
// step, a few small nodes look there, and what is returned waits for them: nothing is ever
// broadcast by mistake ([batch, 1] against [batch] is batch * batch losses).
//
// Thread-compatible; lives as long as the scope that it was made with.
// Failure: invalid Outputs, with the error in the scope.

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "estimator/heads/head.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

class HeadInputs {
 public:
  // `scope` is the head's own; `name` is how it is called in messages.
  HeadInputs(Scope scope, std::source_location where, const std::string& name);

  const Scope& scope() const { return scope_; }
  ScopeAt at() const { return ScopeAt(scope_, where_); }
  ScopeAt Named(const Scope& scope) const { return ScopeAt(scope, where_); }
  std::source_location where() const { return where_; }

  template <typename... Parts>
  Output Refuse(const Parts&... parts) const {
    scope_.UpdateStatus(InvalidArgument(title_, ": ", parts...), where_);
    return Output();
  }

  // As floats [D0, ..., dimension], in the scope "logits".
  Output Logits(const Output& logits, int64_t dimension) const;
  // The only one, dense, of any dtype and shape; `dimension` is for the message.
  Output OnlyLabel(const Labels& labels, int64_t dimension) const;
  // Strings, as a label_vocabulary wants them?
  bool AreWords(const Output& labels) const;
  // As [D0, ..., dimension] next to logits [D0, ..., n]; with a dimension of 1, [D0, ...] gets one.
  Output LabelsLike(Output labels, const Output& logits, int64_t dimension) const;
  // The same, once they are in [0, most].
  Output InRange(const Output& labels, int64_t most, absl::string_view hint) const;
  // Strings as indices (int64) into the vocabulary; one that is not in it ends the step.
  Output IndicesOf(const Output& words, const std::vector<std::string>& vocabulary) const;
  // Floats [D0, ..., 1], or with `per_logit` also the shape of logits. Invalid, and no error, for
  // no column.
  Output Weights(const Features& features, const WeightColumn& column, const Output& logits,
                 bool per_logit) const;
  // Losses of the shape of logits but for the last dimension.
  Output LossesLike(const Output& losses, const Output& logits, int64_t dimension) const;

 private:
  // x once `condition` holds; else the step ends with InvalidArgument, "<title>: <rule>, got" and
  // the tensors (without quotes, which would be escaped).
  Output Once(const Scope& in, const Output& condition, absl::string_view rule,
              absl::Span<const Output> got, const Output& x) const;
  // x (called `what`) once it has the shape of `logits` with `dimension` in place of the last one.
  Output OnceShaped(const char* what, const char* scope_name, const Output& x, const Output& logits,
                    int64_t dimension, bool or_like_logits) const;

  const Scope scope_;
  const std::source_location where_;
  const std::string title_;  // "Head 'head'"
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_HEAD_INPUTS_H_
