// SPDX-License-Identifier: Apache-2.0
#include "net/security.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/sha256.h"
#include "net/openssl_pointers.h"

namespace millrace {
namespace {

constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 1024;
// Far above any chain of certificates.
constexpr int64_t kMaxFileBytes = 1 << 20;
// What nobody else may do with a secret: its group may read it (so Kubernetes mounts secrets).
constexpr mode_t kForbiddenModes = S_IWGRP | S_IXGRP | S_IRWXO;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// The whole file. `what` names it in errors.
StatusOr<std::string> ReadOwnFile(const char* what, const std::string& path, bool is_secret) {
  // O_NONBLOCK: a pipe without a writer must not hold us up.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    return FailedPrecondition("Security: the ", what, " '", path,
                              "' must be readable, got: ", std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxFileBytes) {
    return FailedPrecondition(
        "Security: the ", what, " '", path, "' must be a file of at most ", kMaxFileBytes,
        " bytes, got ",
        S_ISREG(info.st_mode) ? absl::StrCat(info.st_size, " bytes") : std::string("none"));
  }
  if (is_secret && (info.st_mode & kForbiddenModes) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return FailedPrecondition("Security: the ", what, " '", path,
                              "' must be for its owner alone (its group may read it), got mode ",
                              mode, "; chmod 600 '", path, "'");
  }
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || static_cast<int64_t>(text.size()) + n > kMaxFileBytes) {
      return FailedPrecondition("Security: the ", what, " '", path,
                                "' must be readable, got: ", std::strerror(n < 0 ? errno : EFBIG));
    }
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

StatusOr<std::string> ReadToken(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadOwnFile("token file", path, true));
  const absl::string_view token = absl::StripTrailingAsciiWhitespace(text);
  // Never the token itself in a message.
  const auto refuse = [&](const auto&... got) {
    return InvalidArgument("Security: the token file '", path, "' must hold ", kMinTokenBytes,
                           " to ", kMaxTokenBytes, " printable characters without spaces, got ",
                           got..., "; (umask 077; openssl rand -hex 32 > '", path, "')");
  };
  for (const char c : token) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return refuse("others");
  }
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) return refuse(token.size());
  return std::string(token);
}

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The first certificate; null when there is none.
CertificatePtr FirstCertificate(const std::string& pem) {
  const BioPtr bio = BioOf(pem);
  CertificatePtr result(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return result;
}

std::string TimeText(const ASN1_TIME* time) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Status CheckCertificate(const char* what, const std::string& path, const std::string& pem) {
  const CertificatePtr certificate = FirstCertificate(pem);
  if (certificate == nullptr) {
    return InvalidArgument("Security: the ", what, " '", path,
                           "' must hold a certificate in PEM, got none");
  }
  const ASN1_TIME* const begin = X509_get0_notBefore(certificate.get());
  if (X509_cmp_current_time(begin) > 0) {
    return FailedPrecondition("Security: the certificate of the ", what, " '", path,
                              "' must be valid now, got one that begins on ", TimeText(begin),
                              "; look at this machine's clock");
  }
  const ASN1_TIME* const end = X509_get0_notAfter(certificate.get());
  if (X509_cmp_current_time(end) < 0) {
    return FailedPrecondition("Security: the certificate of the ", what, " '", path,
                              "' must be valid now, got one that expired on ", TimeText(end));
  }
  return absl::OkStatus();
}

Status CheckKey(const SecurityOptions& options, const Credentials& credentials) {
  const BioPtr bio = BioOf(credentials.key);
  // Without a callback OpenSSL asks the terminal for the password of a key that has one.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  const CertificatePtr certificate = FirstCertificate(credentials.certificate);
  const bool fits = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return InvalidArgument("Security: the key file '", options.key_file,
                           "' must hold a private key in PEM without a password, got none");
  }
  if (!fits) {
    return InvalidArgument("Security: the key of '", options.key_file,
                           "' must be that of the certificate in '", options.certificate_file,
                           "', got another one");
  }
  return absl::OkStatus();
}

// What this process shows where nothing else is said.
struct ProcessCredentials {
  Mutex mu;
  std::shared_ptr<const Credentials> set ABSL_GUARDED_BY(mu);
};
ProcessCredentials& process_credentials() {
  static ProcessCredentials* const credentials = new ProcessCredentials;
  return *credentials;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

}  // namespace

StatusOr<SecurityOptions> SecurityOptions::FromEnvironment() {
  constexpr char kRequire[] = "MILLRACE_REQUIRE_CLIENT_CERTIFICATE";
  SecurityOptions options;
  options.token_file = Environment("MILLRACE_TOKEN_FILE");
  options.ca_file = Environment("MILLRACE_CA_FILE");
  options.certificate_file = Environment("MILLRACE_CERTIFICATE_FILE");
  options.key_file = Environment("MILLRACE_KEY_FILE");
  const std::string require = Environment(kRequire);
  if (require != "" && require != "0" && require != "1") {
    return InvalidArgument(kRequire, " must be 0 or 1, got '", require, "'");
  }
  options.require_client_certificate = require != "0";
  if (require == "1" && options.ca_file.empty()) {
    return InvalidArgument("Security: ", kRequire,
                           " must be given with a CA, got none; set MILLRACE_CA_FILE");
  }
  return options;
}

StatusOr<std::shared_ptr<const Credentials>> Credentials::Load(const SecurityOptions& options) {
  auto result = std::make_shared<Credentials>();
  result->require_client_certificate = options.require_client_certificate;
  if (!options.token_file.empty()) {
    MR_ASSIGN_OR_RETURN(result->token, ReadToken(options.token_file));
  }
  if (!options.ca_file.empty()) {
    MR_ASSIGN_OR_RETURN(result->ca, ReadOwnFile("CA file", options.ca_file, false));
    MR_RETURN_IF_ERROR(CheckCertificate("CA file", options.ca_file, result->ca));
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return InvalidArgument(
        "Security: certificate_file and key_file must be given together, got only ",
        options.key_file.empty() ? absl::StrCat("certificate_file '", options.certificate_file)
                                 : absl::StrCat("key_file '", options.key_file),
        "'");
  }
  if (!options.certificate_file.empty()) {
    MR_ASSIGN_OR_RETURN(result->certificate,
                        ReadOwnFile("certificate file", options.certificate_file, false));
    MR_RETURN_IF_ERROR(
        CheckCertificate("certificate file", options.certificate_file, result->certificate));
    MR_ASSIGN_OR_RETURN(result->key, ReadOwnFile("key file", options.key_file, true));
    MR_RETURN_IF_ERROR(CheckKey(options, *result));
  }
  return std::shared_ptr<const Credentials>(std::move(result));
}

Status Credentials::CheckServer() const {
  if (!is_tls() || !certificate.empty()) return absl::OkStatus();
  return InvalidArgument(
      "Security: a server with a CA must have a certificate and a key, got none; set "
      "MILLRACE_CERTIFICATE_FILE and MILLRACE_KEY_FILE");
}

Status SetClusterSecurity(const SecurityOptions& options) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const Credentials> loaded, Credentials::Load(options));
  ProcessCredentials& process = process_credentials();
  MutexLock lock(&process.mu);
  process.set = std::move(loaded);
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const Credentials>> ClusterCredentials() {
  ProcessCredentials& process = process_credentials();
  MutexLock lock(&process.mu);
  if (process.set == nullptr) {
    MR_ASSIGN_OR_RETURN(const SecurityOptions options, SecurityOptions::FromEnvironment());
    MR_ASSIGN_OR_RETURN(process.set, Credentials::Load(options));
  }
  return process.set;
}

bool IsSameSecret(absl::string_view secret, absl::string_view shown) {
  const StatusOr<std::string> wanted = Sha256(secret), got = Sha256(shown);
  return !secret.empty() && wanted.ok() && got.ok() &&
         CRYPTO_memcmp(wanted->data(), got->data(), wanted->size()) == 0;
}

}  // namespace millrace
