// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_CALL_GUARD_H_
#define MILLRACE_NET_CALL_GUARD_H_

// CallGuard: whether a server takes a call, before anything of its request is read, and whether it
// takes the request, before anything of it is decoded.
//
// It looks at the token, the caller's version and how many calls there are; then at the bytes of
// all requests. A Ticket counts one call, and gives back what it counted when it goes.
//
// Two kinds of calls are counted apart, each up to the same limits: those that run steps, and all
// others. A server that is full of steps still takes a probe, and what ends steps.
//
// Thread-safety: a CallGuard from any thread; a Ticket belongs to its call.
// Failure: Unauthenticated, FailedPrecondition (version), ResourceExhausted.

#include <grpcpp/generic/async_generic_service.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/call_limits.h"
#include "net/security.h"

namespace millrace {

// What a call is counted with.
enum class CallKind : int { kHeavy = 0, kOther = 1 };

// What gRPC names a peer, as others write it: "127.0.0.1:1234", "[::1]:1234", "unix".
std::string PeerName(std::string peer);

class CallGuard : public std::enable_shared_from_this<CallGuard> {
 public:
  class Ticket {
   public:
    Ticket() = default;
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    // Once, after the call was admitted.
    Status TakeRequest(const std::string& method, size_t bytes);
    // PeerName of the call; "" before it was admitted.
    absl::string_view peer() const {
      return caller_ == nullptr ? absl::string_view() : absl::string_view(*caller_);
    }

   private:
    friend class CallGuard;
    std::shared_ptr<CallGuard> guard_;     // null until it counts
    const std::string* caller_ = nullptr;  // of an entry of calls_of_, which counts the call
    size_t kind_ = 0;
    int64_t bytes_ = 0;
  };

  // `credentials` not null.
  CallGuard(std::shared_ptr<const Credentials> credentials, const CallLimits& limits)
      : credentials_(std::move(credentials)), limits_(limits) {}

  Status Admit(const grpc::GenericServerContext& call, CallKind kind, Ticket* ticket);

  const Credentials& credentials() const { return *credentials_; }
  const CallLimits& limits() const { return limits_; }
  // Callers have proved that they are members of the cluster, by a token or by a certificate.
  bool callers_are_members() const;

 private:
  using Counts = std::array<int64_t, 2>;  // by CallKind

  const std::shared_ptr<const Credentials> credentials_;
  const CallLimits limits_;
  Mutex mu_;
  std::unordered_map<std::string, Counts> calls_of_ ABSL_GUARDED_BY(mu_);  // by connection
  Counts calls_ ABSL_GUARDED_BY(mu_) = {};
  // Relaxed: a bound, no protocol.
  std::atomic<int64_t> bytes_{0};
};

}  // namespace millrace

#endif  // MILLRACE_NET_CALL_GUARD_H_
