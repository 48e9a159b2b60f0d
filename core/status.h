// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_STATUS_H_
#define MILLRACE_CORE_STATUS_H_

// Status: the one way in which anything fails.
//
// Functions that can fail return absl::Status or absl::StatusOr<T>; nothing is
// thrown across a border and no input aborts the process. A message is one
// sentence, `<where>: <what> <rule>, got <value>[; <hint>]`.
//
// The two macros below are the only ones of this project that hide control
// flow: they return early from the function that contains them.

#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

using absl::Status;
using absl::StatusOr;

// The same code and payloads, with `<where>: ` before the message. OK stays OK.
Status Prefixed(absl::string_view where, const Status& status);

// The same code and payloads, with `text` after the message. OK stays OK.
Status Suffixed(const Status& status, absl::string_view text);

// Ends the program with the status's message on stderr: for a mistake in the calling program where
// there is no place for a Status. Never for what a graph, file, message or peer can cause.
[[noreturn]] void EndProgram(const Status& status);

// A part of a message: what StrCat takes, what has a ToString() (shapes), or what has a
// `MessageText(part)` next to its type (dtypes, by their names).
template <typename T>
decltype(auto) MessagePart(const T& part) {
  if constexpr (requires { MessageText(part); }) {
    return MessageText(part);
  } else if constexpr (requires { part.ToString(); }) {
    return part.ToString();
  } else {
    return (part);
  }
}

// The error of the name, its message put together: InvalidArgument("size must be >= 0, got ", n).
template <typename... Parts>
Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(MessagePart(parts)...));
}
template <typename... Parts>
Status FailedPrecondition(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(MessagePart(parts)...));
}
template <typename... Parts>
Status OutOfRange(const Parts&... parts) {
  return absl::OutOfRangeError(absl::StrCat(MessagePart(parts)...));
}
template <typename... Parts>
Status Unimplemented(const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(MessagePart(parts)...));
}
template <typename... Parts>
Status Internal(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(MessagePart(parts)...));
}

}  // namespace millrace

#define MR_STATUS_CONCAT_INNER(a, b) a##b
#define MR_STATUS_CONCAT(a, b) MR_STATUS_CONCAT_INNER(a, b)

// Evaluates an expression of type Status; returns it unless it is OK.
#define MR_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                              \
    if (::absl::Status mr_status_ = (expr); ABSL_PREDICT_FALSE(!mr_status_.ok())) { \
      return mr_status_;                                                            \
    }                                                                               \
  } while (false)

// Evaluates an expression of type StatusOr<T>; assigns its value to `lhs` (which
// may declare a variable) or returns its Status.
#define MR_ASSIGN_OR_RETURN(lhs, expr) \
  MR_ASSIGN_OR_RETURN_INNER(MR_STATUS_CONCAT(mr_or_, __LINE__), lhs, expr)
#define MR_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr)         \
  auto tmp = (expr);                                      \
  if (ABSL_PREDICT_FALSE(!tmp.ok())) return tmp.status(); \
  lhs = std::move(tmp).value()

#endif  // MILLRACE_CORE_STATUS_H_
