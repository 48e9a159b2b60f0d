// SPDX-License-Identifier: Apache-2.0
#include "net/peer_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/refusal.h"
#include "net/openssl_pointers.h"

namespace millrace {
namespace {

constexpr absl::Duration kLookPeriod = absl::Seconds(1);
// Of an HTTP/2 frame: length (3), type (1), flags (1), stream (4).
constexpr size_t kFrameHeaderBytes = 9;
constexpr char kSettingsFrame = 4;

using ContextPtr = std::unique_ptr<SSL_CTX, OpensslFreer<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, OpensslFreer<SSL_free>>;

// A connection that gives up at its deadline.
class Connection {
 public:
  Connection(const addrinfo& to, absl::Time deadline)
      : fd_(::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol)),
        deadline_(deadline) {
    if (fd_ < 0) return;
    if (::connect(fd_, to.ai_addr, to.ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !Await(POLLOUT)) return;
      int error = 0;
      socklen_t size = sizeof(error);
      if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return;
    }
    is_open_ = true;
  }
  ~Connection() {
    if (fd_ >= 0) ::close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_open() const { return is_open_; }
  bool SendAll(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n >= 0) {
        bytes.remove_prefix(static_cast<size_t>(n));
      } else if (errno == EAGAIN ? !Await(POLLOUT) : errno != EINTR) {
        return false;
      }
    }
    return true;
  }
  // Bytes that have come; 0 when the peer has closed, -1 when the time is over.
  ssize_t Receive(char* buffer, size_t size) {
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, size, 0);
      if (n >= 0) return n;
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return 0;  // reset
      if (!Await(POLLIN)) return -1;
    }
  }

 private:
  bool Await(int16_t events) {
    for (;;) {
      const absl::Duration left = deadline_ - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      pollfd waited = {fd_, events, 0};
      const int n = ::poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
      if (n > 0) return true;
      if (n < 0 && errno != EINTR) return false;
    }
  }

  const int fd_;
  const absl::Time deadline_;
  bool is_open_ = false;
};

enum class Speech { kNothing, kTls, kHttp2, kOther };

// Of the bytes that a peer said first; kNothing until they tell.
Speech SpeechOf(absl::string_view bytes) {
  // A record that is a handshake's or an alert: type, and the version's first byte.
  if (bytes.size() >= 2 && (bytes[0] == '\x16' || bytes[0] == '\x15') && bytes[1] == '\x03') {
    return Speech::kTls;
  }
  if (bytes.size() < kFrameHeaderBytes) return Speech::kNothing;
  const bool is_settings = bytes[0] == '\0' && bytes[3] == kSettingsFrame &&
                           bytes.substr(5, 4) == absl::string_view("\0\0\0\0", 4);
  return is_settings ? Speech::kHttp2 : Speech::kOther;
}

// What came of one handshake.
struct Attempt {
  bool connected = false;
  Speech speech = Speech::kNothing;
  bool done = false;        // the handshake
  bool broken_off = false;  // by the peer: closed, or an alert
  bool asked = false;       // for our certificate
  long verified = X509_V_OK;
  bool is_named = true;  // the peer's certificate is for its host
};

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// What we show and which peers we trust, as gRPC does.
ContextPtr MakeContext(const Credentials& credentials, bool* asked) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr || !credentials.is_tls()) return context;
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_cert_cb(
      context.get(),
      [](SSL*, void* seen) {
        *static_cast<bool*>(seen) = true;
        return 1;
      },
      asked);
  if (!credentials.ca.empty()) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
    const BioPtr bio = BioOf(credentials.ca);
    X509_STORE* const store = SSL_CTX_get_cert_store(context.get());
    for (;;) {
      const CertificatePtr next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
      if (next == nullptr) break;
      X509_STORE_add_cert(store, next.get());
    }
  }
  if (!credentials.certificate.empty()) {
    const BioPtr bio = BioOf(credentials.certificate), key_bio = BioOf(credentials.key);
    const CertificatePtr own(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    const auto no_password = [](char*, int, int, void*) { return -1; };
    const KeyPtr key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, no_password, nullptr));
    if (own == nullptr || key == nullptr ||
        SSL_CTX_use_certificate(context.get(), own.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
      return nullptr;
    }
    while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
      // Takes it, when it can.
      if (SSL_CTX_add0_chain_cert(context.get(), next) != 1) X509_free(next);
    }
  }
  return context;
}

// The handshake as far as it goes. Where we speak no TLS, as far as the peer's first bytes.
void ShakeHands(SSL* ssl, bool only_first_bytes, Connection* connection, Attempt* attempt) {
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, in, out);  // owns them
  SSL_set_connect_state(ssl);
  std::string first;
  char buffer[4096];
  for (;;) {
    const int result = SSL_do_handshake(ssl);
    const int error = SSL_get_error(ssl, result);
    for (int n; (n = BIO_read(out, buffer, sizeof(buffer))) > 0;) {
      if (!connection->SendAll({buffer, static_cast<size_t>(n)})) break;  // the answer tells
    }
    attempt->done = result == 1;
    if (attempt->done) return;
    if (error != SSL_ERROR_WANT_READ) {
      // Reasons of alerts begin there.
      attempt->broken_off = ERR_GET_REASON(ERR_peek_error()) >= SSL_AD_REASON_OFFSET;
      return;
    }
    const ssize_t n = connection->Receive(buffer, sizeof(buffer));
    attempt->broken_off = n == 0;
    if (n <= 0) return;
    BIO_write(in, buffer, static_cast<int>(n));
    if (attempt->speech != Speech::kNothing) continue;
    // Nothing is given to TLS that may be none.
    first.append(buffer, static_cast<size_t>(n));
    attempt->speech = SpeechOf(first);
    if (attempt->speech == Speech::kHttp2 || attempt->speech == Speech::kOther) return;
    if (attempt->speech == Speech::kTls && only_first_bytes) return;
  }
}

bool IsNamed(X509* certificate, const std::string& host) {
  return X509_check_host(certificate, host.c_str(), 0, 0, nullptr) == 1 ||
         X509_check_ip_asc(certificate, host.c_str(), 0) == 1;
}

Attempt TryAddress(const addrinfo& to, const std::string& host, const Credentials& credentials,
                   absl::Time deadline) {
  Attempt attempt;
  Connection connection(to, deadline);
  attempt.connected = connection.is_open();
  if (!attempt.connected) return attempt;
  ERR_clear_error();
  const ContextPtr context = MakeContext(credentials, &attempt.asked);
  const SslPtr ssl(context == nullptr ? nullptr : SSL_new(context.get()));
  if (ssl != nullptr) {
    constexpr unsigned char kHttp2Protocol[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl.get(), kHttp2Protocol, sizeof(kHttp2Protocol));
    SSL_set_tlsext_host_name(ssl.get(), host.c_str());
    ERR_clear_error();
    ShakeHands(ssl.get(), !credentials.is_tls(), &connection, &attempt);
    attempt.verified = SSL_get_verify_result(ssl.get());
    X509* const theirs = SSL_get0_peer_certificate(ssl.get());
    attempt.is_named = theirs == nullptr || IsNamed(theirs, host);
  }
  ERR_clear_error();
  return attempt;
}

// By the CA that we were given.
PeerView JudgeCertificate(const Attempt& attempt, const std::string& address) {
  switch (attempt.verified) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {true, "its certificate has expired"};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {true, "its certificate is not valid yet"};
    default:
      return {true,
              absl::StrCat("its certificate is not signed by the CA of MILLRACE_CA_FILE here (",
                           X509_verify_cert_error_string(attempt.verified), ")")};
  }
  if (attempt.is_named) return {};
  return {true, absl::StrCat("its certificate is not for the host of ", address,
                             "; name it in the certificate's subject alternative names")};
}

PeerView Judge(const Attempt& attempt, const std::string& address, const Credentials& credentials) {
  if (!attempt.connected) return {};
  switch (attempt.speech) {
    case Speech::kNothing:
      return {.what =
                  "it takes connections and says nothing, like a proxy whose task is not there"};
    case Speech::kOther:
      return {.what = "it speaks neither TLS nor HTTP/2"};
    case Speech::kHttp2:
      if (!credentials.is_tls()) return {};
      return {true,
              "it speaks no TLS, but this process was given a CA or a certificate; set "
              "MILLRACE_CERTIFICATE_FILE and MILLRACE_KEY_FILE there, or no MILLRACE_CA_FILE here"};
    case Speech::kTls:
      break;
  }
  if (!credentials.is_tls()) {
    return {true, "it speaks TLS, but this process was given no CA; set MILLRACE_CA_FILE here"};
  }
  if (credentials.ca.empty()) {
    // The peers that gRPC trusts then are not known here.
    if (attempt.verified != X509_V_OK) {
      return {.what =
                  "its certificate must be signed by an authority of the system, because this "
                  "process was given no CA; else set MILLRACE_CA_FILE here"};
    }
  } else if (PeerView view = JudgeCertificate(attempt, address); view.refuses) {
    return view;
  }
  if (attempt.done || !attempt.asked || !attempt.broken_off) return {};
  return {true, credentials.certificate.empty()
                    ? "it asks for a certificate; set MILLRACE_CERTIFICATE_FILE and "
                      "MILLRACE_KEY_FILE here"
                    : "it does not take this process's certificate, which its CA must have signed "
                      "and which must be valid"};
}

}  // namespace

PeerView LookAtPeer(const std::string& address, const Credentials& credentials) {
  absl::string_view rest = address;
  for (const char* scheme : {"ipv4:", "ipv6:", "dns:///", "dns:"}) {
    if (absl::ConsumePrefix(&rest, scheme)) break;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return {};
  std::string host(rest.substr(0, colon));
  const std::string port(rest.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  const absl::Time deadline = absl::Now() + kProbeTime;
  PeerView view;
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const Attempt attempt = TryAddress(*to, host, credentials, deadline);
    if (!attempt.connected) continue;
    view = Judge(attempt, address, credentials);
    if (!view.refuses) return view;
    view = Judge(TryAddress(*to, host, credentials, deadline), address, credentials);
    return view;
  }
  return view;
}

PeerProbe::PeerProbe(std::string address, std::shared_ptr<const Credentials> credentials, Look look)
    : address_(std::move(address)), credentials_(std::move(credentials)), look_(std::move(look)) {}

Status PeerProbe::Explain(const Status& unavailable) {
  PeerView view;
  bool looks = false;
  {
    MutexLock lock(&mu_);
    looks = !looking_ && absl::Now() - looked_ >= kLookPeriod;
    if (looks) looking_ = true;
    view = view_;
  }
  if (looks) {
    try {
      view = look_(address_, *credentials_);
    } catch (...) {
      MutexLock lock(&mu_);
      looking_ = false;  // the next one looks again
      throw;
    }
    MutexLock lock(&mu_);
    looking_ = false;
    looked_ = absl::Now();
    view_ = view;
  }
  if (view.what.empty()) return unavailable;
  const Status explained = Suffixed(unavailable, absl::StrCat("; ", view.what));
  return view.refuses ? AsRefusal(explained) : explained;
}

}  // namespace millrace
