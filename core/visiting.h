// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_VISITING_H_
#define MILLRACE_CORE_VISITING_H_

// Visiting: whether this thread is taking a message off the network for a Visit (visit.h). Until
// the visit ends, nothing else is read there, so what may take long must run on another thread when
// the visit does not take it.

namespace millrace {

// Between the construction and the End of a Visit of the calling thread.
bool IsVisiting();

}  // namespace millrace

#endif  // MILLRACE_CORE_VISITING_H_
