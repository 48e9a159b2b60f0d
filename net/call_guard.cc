// SPDX-License-Identifier: Apache-2.0
#include "net/call_guard.h"

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/dcheck.h"
#include "net/call_metadata.h"

namespace millrace {
namespace {

// Of a caller's version that is not ours.
constexpr size_t kMaxShownVersion = 20;

// What a call says of itself under `key`; nullopt when it says nothing.
std::optional<absl::string_view> MetadataOf(const grpc::ServerContextBase& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  if (found == call.client_metadata().end()) return std::nullopt;
  return absl::string_view(found->second.data(), found->second.size());
}

}  // namespace

std::string PeerName(std::string peer) {
  constexpr absl::string_view kV4 = "ipv4:", kV6 = "ipv6:";
  if (absl::StartsWith(peer, kV4)) return peer.erase(0, kV4.size());
  if (absl::StartsWith(peer, "unix")) return "unix";
  if (!absl::StartsWith(peer, kV6)) return peer;
  // As a part of a URI: "ipv6:%5B::1%5D:1234".
  peer.erase(0, kV6.size());
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

CallGuard::Ticket::~Ticket() {
  if (guard_ == nullptr) return;
  {
    MutexLock lock(&guard_->mu_);
    const auto it = guard_->calls_of_.find(*caller_);
    MR_DCHECK(it != guard_->calls_of_.end() && it->second[kind_] > 0 &&
                  guard_->calls_[kind_] >= it->second[kind_],
              "Admit has counted the call, in all and for its connection");
    --it->second[kind_];
    if (it->second == Counts{}) guard_->calls_of_.erase(it);
    --guard_->calls_[kind_];
  }
  guard_->bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
}

Status CallGuard::Ticket::TakeRequest(const std::string& method, size_t bytes) {
  MR_DCHECK(guard_ != nullptr && bytes_ == 0, "an admitted call takes its request once");
  const auto more = static_cast<int64_t>(bytes);
  int64_t before = guard_->bytes_.load(std::memory_order_relaxed);
  // What is refused is never counted: it would refuse others.
  do {
    if (more > guard_->limits_.max_pending_bytes - before) {
      return BeyondLimit(method, "the bytes of all requests at a time", "max_pending_bytes",
                         guard_->limits_.max_pending_bytes, before + more);
    }
  } while (!guard_->bytes_.compare_exchange_weak(before, before + more, std::memory_order_relaxed));
  bytes_ = more;
  return absl::OkStatus();
}

bool CallGuard::callers_are_members() const {
  const bool by_certificate = credentials_->is_tls() && !credentials_->ca.empty() &&
                              credentials_->require_client_certificate;
  return !credentials_->token.empty() || by_certificate;
}

Status CallGuard::Admit(const grpc::GenericServerContext& call, CallKind kind, Ticket* ticket) {
  if (!credentials_->token.empty()) {
    absl::string_view token = MetadataOf(call, kTokenKey).value_or("");
    const bool shown = absl::ConsumePrefix(&token, kTokenPrefix);
    if (!IsSameSecret(credentials_->token, shown ? token : "")) {
      return absl::UnauthenticatedError(
          absl::StrCat(call.method(), ": callers must show the token of this cluster, got ",
                       shown ? "another one" : "none", " from ", call.peer(),
                       "; set MILLRACE_TOKEN_FILE to the file that holds it"));
    }
  }
  const auto version = MetadataOf(call, kWireVersionKey);
  if (version.has_value() && *version != absl::StrCat(kWireVersion)) {
    return FailedPrecondition(call.method(), ": this task speaks version ", kWireVersion,
                              " of Millrace's wire and its callers must, got one of version ",
                              absl::CEscape(version->substr(0, kMaxShownVersion)), " at ",
                              call.peer(), "; run one version of Millrace on all tasks");
  }
  // With its port: a connection.
  std::string caller = PeerName(call.peer());
  const auto of = static_cast<size_t>(kind);
  const bool has_own = kind == CallKind::kOther && limits_.max_other_calls > 0;
  const int64_t most = has_own ? limits_.max_other_calls : limits_.max_calls;
  MutexLock lock(&mu_);
  if (calls_[of] >= most) {
    return BeyondLimit(call.method(), "calls at a time", has_own ? "max_other_calls" : "max_calls",
                       most, calls_[of] + 1);
  }
  const auto it = calls_of_.try_emplace(std::move(caller), Counts{}).first;
  if (!has_own && it->second[of] >= limits_.max_calls_of_connection) {
    const Status refused =
        BeyondLimit(call.method(), absl::StrCat("calls at a time of ", it->first),
                    "max_calls_of_connection", limits_.max_calls_of_connection, it->second[of] + 1);
    if (it->second == Counts{}) calls_of_.erase(it);  // a limit of 0
    return refused;
  }
  MR_DCHECK(ticket->guard_ == nullptr, "a ticket counts one call");
  ++it->second[of];
  ++calls_[of];
  ticket->kind_ = of;
  ticket->caller_ = &it->first;
  ticket->guard_ = shared_from_this();
  return absl::OkStatus();
}

}  // namespace millrace
