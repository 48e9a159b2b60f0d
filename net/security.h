// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_SECURITY_H_
#define MILLRACE_NET_SECURITY_H_

// Security: what the tasks of a cluster and its clients show each other (docs/security.md).
//
// A token is a secret that all members share and say with each call. Certificates make the calls
// TLS: with a certificate and its key a server proves that it is the host of its address; with a CA
// as well it asks the same of its callers (mutual TLS). All are files, read once.
//
//   MILLRACE_TOKEN_FILE, MILLRACE_CA_FILE, MILLRACE_CERTIFICATE_FILE, MILLRACE_KEY_FILE,
//   MILLRACE_REQUIRE_CLIENT_CERTIFICATE (0 or 1)
//
// say it for a whole process, servers and sessions alike; tools/launch passes them on.
//
// Thread-safety: all functions, from any thread; Credentials are immutable.
// Failure: InvalidArgument, FailedPrecondition and the file system's errors name the file and the
// rule. No message and no log line holds the token or a key.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// Paths; "": none.
struct SecurityOptions {
  // 16 to 1024 printable characters without spaces, and perhaps an end of line. Not to be read by
  // others than its owner and its group, nor written by others than its owner.
  std::string token_file = "";
  // PEM. The certificates whose signature a peer's certificate must bear.
  std::string ca_file = "";
  // PEM, its own first, then those between it and the CA's. Its subject alternative names are the
  // hosts by which others call this task.
  std::string certificate_file = "";
  // PEM. Guarded like the token.
  std::string key_file = "";
  // Of callers, by a server that has a CA.
  bool require_client_certificate = true;

  // The environment variables above.
  static StatusOr<SecurityOptions> FromEnvironment();
};

// What the files hold.
struct Credentials {
  std::string token;  // "": none is shown, and none is asked for
  std::string ca, certificate, key;
  bool require_client_certificate = true;

  bool is_tls() const { return !ca.empty() || !certificate.empty(); }

  static StatusOr<std::shared_ptr<const Credentials>> Load(const SecurityOptions& options);
  // Whether these are enough for a server.
  Status CheckServer() const;
};

// Of all channels and servers that this process makes from now on and that are given none of their
// own; instead of what the environment says.
Status SetClusterSecurity(const SecurityOptions& options);
// What was set, or else what the environment says, which is read once.
StatusOr<std::shared_ptr<const Credentials>> ClusterCredentials();

// Equal, and neither secret is empty. Their digests are compared, in constant time: what it takes
// tells nothing of `secret` but its length in steps of 64 bytes.
bool IsSameSecret(absl::string_view secret, absl::string_view shown);

}  // namespace millrace

#endif  // MILLRACE_NET_SECURITY_H_
