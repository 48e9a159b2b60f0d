// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_STATUS_KIND_H_
#define MILLRACE_CORE_STATUS_KIND_H_

// Kinds of statuses: what a Status means beyond its code, known by the type of a payload.
//
// Payloads whose types begin with kKindPayloads travel with their status from task to task
// (net/status_payloads.h), so their types and values are a format of the wire. All other payloads
// stay in the process that attached them. What core itself must know of a kind stands here: with
// which code a program ends that ends with such a status (core/exit_code.h).
//
// Constants.

namespace millrace {

inline constexpr char kKindPayloads[] = "millrace.run/";

// The training run is over: the program is done (kExitOk).
inline constexpr char kRunEndKind[] = "millrace.run/end";
// The peer refuses us (core/refusal.h): another try changes nothing (kExitError).
inline constexpr char kRefusalKind[] = "millrace.run/refusal";

}  // namespace millrace

#endif  // MILLRACE_CORE_STATUS_KIND_H_
