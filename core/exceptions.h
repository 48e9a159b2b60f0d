// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_EXCEPTIONS_H_
#define MILLRACE_CORE_EXCEPTIONS_H_

// The border that no exception crosses: libraries throw (bad_alloc before all), the API returns
// Statuses. Every public entry that may allocate runs its body inside of NoExceptions.
//
//   Status Session::Extend(...) {
//     return NoExceptions("Extend", [&] { return ExtendOrThrow(...); });
//   }
//
// What the body holds (locks, registrations, memory) must be held by objects that let go of it.
// Any thread.
// Failure: ResourceExhausted for std::bad_alloc, Internal for all others; when there is no memory
// for a message either, the Status has none.

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// Of the exception that is being handled.
inline Status StatusOfException(absl::string_view where) noexcept {
  absl::StatusCode code = absl::StatusCode::kInternal;
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      code = absl::StatusCode::kResourceExhausted;
      return Status(code, absl::StrCat(where, ": out of memory"));
    } catch (const std::exception& e) {
      return Status(code, absl::StrCat(where, ": an exception must not leave it, got ", e.what()));
    } catch (...) {
      return Status(code, absl::StrCat(where, ": an exception must not leave it, got one that is ",
                                       "no std::exception"));
    }
  } catch (...) {
    return Status(code, "");  // needs no memory
  }
}

// What `body` returns (a Status or StatusOr), or the Status of what it throws.
template <typename Body>
auto NoExceptions(absl::string_view where, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return StatusOfException(where);
  }
}

}  // namespace millrace

#endif  // MILLRACE_CORE_EXCEPTIONS_H_
