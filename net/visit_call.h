// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_VISIT_CALL_H_
#define MILLRACE_NET_VISIT_CALL_H_

// What a message made ready (core/visit.h), on the thread that took it off the network.
//
// Threads: that of an event, as the last thing that it does. Failure: none: the work runs also when
// there is no memory.

#include "core/visit.h"
#include "net/call_threads.h"

namespace millrace {

// The thread polls no more until the work is done.
void RunVisitOn(CallThreads* threads, Visit::Work* work);

// On another thread, of any number: visits may wait for each other, so Visit::Offer alone bounds
// them.
void RunVisitApart(Visit::Work* work) noexcept;

}  // namespace millrace

#endif  // MILLRACE_NET_VISIT_CALL_H_
