// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TERMINATION_H_
#define MILLRACE_CORE_TERMINATION_H_

// TerminationRequest: while one lives, the first SIGTERM or SIGINT (Ctrl-C) is a request that the
// program looks at; the second one ends the process at once. (The same signal again within half a
// second is the same request: some who end processes send it to the process and to its group.)
//
//   TerminationRequest request;
//   while (request.signal() == 0) ...one step...
//
// A signal that the process ignores stays ignored. Where no request lives the signals do what they
// did before: the last one puts back what it found. A
// signal that came is seen by all that live then, also by those made after it, until the last of
// them is gone.
//
// Thread-safety: all methods, from any thread; objects may be made and destroyed on any.
// Cost: signal() is one load.

namespace millrace {

class TerminationRequest {
 public:
  TerminationRequest();
  ~TerminationRequest();
  TerminationRequest(const TerminationRequest&) = delete;
  TerminationRequest& operator=(const TerminationRequest&) = delete;

  // 0, SIGTERM or SIGINT.
  int signal() const;
  // A descriptor that poll finds readable once there is a signal; never read from it. -1 when the
  // system has no descriptor left: then poll passes it over and only signal() tells.
  int fd() const;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_TERMINATION_H_
