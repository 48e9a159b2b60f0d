// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_TESTING_TEST_CERTIFICATES_H_
#define MILLRACE_NET_TESTING_TEST_CERTIFICATES_H_

// Certificates that a test makes when it runs: an authority, and what it signs, as files.
//
// Thread-safety: one thread at a time. Failure: fails the test.

#include <cstdint>
#include <string>

#include "core/status.h"

namespace millrace {

struct TestCertificate {
  std::string certificate_file, key_file;
};

class TestAuthority {
 public:
  // Its files lie in `directory`, which exists, and begin with `name`.
  TestAuthority(std::string directory, std::string name);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  const std::string& ca_file() const { return ca_file_; }
  // For a subject alternative name as OpenSSL writes it: "IP:127.0.0.1", "DNS:host7". It begins
  // `begins` seconds from now (a day ago) and ends after `seconds`.
  TestCertificate Sign(const std::string& name, const std::string& host, int64_t seconds = 3600,
                       int64_t begins = -24 * 60 * 60);

 private:
  struct Keys;
  const std::string directory_, name_, ca_file_;
  Keys* const keys_;
};

// Writes a file with this mode.
void WriteTestFile(const std::string& path, const std::string& text, int mode);

}  // namespace millrace

#endif  // MILLRACE_NET_TESTING_TEST_CERTIFICATES_H_
