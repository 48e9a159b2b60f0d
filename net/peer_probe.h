// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_PEER_PROBE_H_
#define MILLRACE_NET_PEER_PROBE_H_

// Peer probe: whether a peer that cannot be called refuses us, or is only not there yet.
//
// gRPC tells what became of a connection in words of its own, and every way to close one looks the
// same to it: a peer that refuses us, a task that is just ending, a proxy whose task is not there.
// So we connect once more, begin a TLS handshake, and look at what the peer itself says:
//
//   it says                         we speak TLS                 we do not
//   nothing, or it closes           it may come: wait            wait
//   HTTP/2                          sure: it speaks no TLS       as we do: wait
//   TLS                             its certificate is judged    sure: it wants TLS
//
//   and then, over TLS 1.2, which takes a client's certificate before it ends the handshake:
//   by our CA its certificate is out of date, another authority's, another host's     sure
//   we were given no CA, and OpenSSL does not know its authority     wait: gRPC may
//   it asked for ours, and broke off when it had it (or heard that there is none)     sure
//   the handshake ends, or breaks off elsewhere     wait
//
// What is sure has been seen twice: a task that is just ending may break off anywhere.
//
// Thread-safety: all functions, from any thread; they block, for kProbeTime and the host's name.
// Failure: none; what cannot be found out is not sure.

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/security.h"

namespace millrace {

inline constexpr absl::Duration kProbeTime = absl::Seconds(2);

struct PeerView {
  // Nothing but another configuration, here or there, can help.
  bool refuses = false;
  std::string what = "";  // for messages; "": nothing to say
};

// `address`: "host:port", also with gRPC's "ipv4:", "ipv6:" or "dns:" before it.
PeerView LookAtPeer(const std::string& address, const Credentials& credentials);

// The probe of one channel; it looks once a second at most, in one thread.
class PeerProbe {
 public:
  using Look = std::function<PeerView(const std::string& address, const Credentials&)>;
  PeerProbe(std::string address, std::shared_ptr<const Credentials> credentials,
            Look look = LookAtPeer);

  // The status, which is Unavailable, with what the peer says; AsRefusal when that is sure. Who
  // comes while another one looks gets what was seen before: a host whose name is slow to find
  // takes one thread.
  Status Explain(const Status& unavailable);

 private:
  const std::string address_;
  const std::shared_ptr<const Credentials> credentials_;
  const Look look_;
  Mutex mu_;
  bool looking_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  PeerView view_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_NET_PEER_PROBE_H_
