// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_TESTING_FAKE_S3_H_
#define MILLRACE_STORES_TESTING_FAKE_S3_H_

// FakeS3: fake_s3.py as a process, for a test's time. It speaks at a free port of this machine.
//
// Thread-safety: Control() from any thread.
// Failure: Unavailable when the process does not start or answer.

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "stores/http_call.h"
#include "stores/s3_service.h"

namespace millrace {

class FakeS3 {
 public:
  // With TLS where there is a certificate.
  struct Tls {
    std::string certificate_file = "", key_file = "", ca_file = "";
  };
  static StatusOr<std::unique_ptr<FakeS3>> Start(const Tls& tls);
  static StatusOr<std::unique_ptr<FakeS3>> Start() { return Start(Tls()); }
  ~FakeS3();  // ends the process

  std::string endpoint() const;
  // With keys, parts of 8 KB, retries that wait a millisecond.
  S3Options Options() const;
  // What the page of fake_s3.py says; "" asks alone.
  nlohmann::json Control(absl::string_view wish = "");

 private:
  FakeS3(pid_t pid, int input, int port, const Tls& tls);

  const pid_t pid_;
  const int input_;  // its standard input: it ends when this is closed
  const int port_;
  const Tls tls_;
  HttpCaller http_;
};

}  // namespace millrace

#endif  // MILLRACE_STORES_TESTING_FAKE_S3_H_
