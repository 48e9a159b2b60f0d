// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_S3_CREDENTIALS_H_
#define MILLRACE_STORES_S3_CREDENTIALS_H_

// S3Credentials: the keys that requests are signed with, from the first place that has some:
//
//   1. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN where it is set;
//   2. the profile AWS_PROFILE ("default") of AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials);
//   3. the container's endpoint: AWS_CONTAINER_CREDENTIALS_FULL_URI, or ..._RELATIVE_URI at
//      169.254.170.2, with AWS_CONTAINER_AUTHORIZATION_TOKEN or the file ..._TOKEN_FILE;
//   4. the instance's endpoint (IMDSv2), but not where AWS_EC2_METADATA_DISABLED is "true".
//
// Keys that end are fetched anew five minutes before; while that fails, the old ones are used as
// long as they last.
//
// Thread-safety: all methods, from any thread; one thread fetches, others wait for it.
// Failure: PermissionDenied that names the places, when none has keys; FailedPrecondition when a
// place that is set is wrong (half of a pair, a profile that the file lacks).

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/status.h"
#include "stores/http_call.h"
#include "stores/s3_signature.h"

namespace millrace {

// The value of an environment variable; "" where it is not set.
using EnvironmentOf = std::function<std::string(const char*)>;
std::string ProcessEnvironment(const char* name);

class S3Credentials {
 public:
  S3Credentials(EnvironmentOf environment, HttpOptions http);

  StatusOr<S3Keys> Keys();

 private:
  struct Found {
    S3Keys keys;
    absl::Time end = absl::InfiniteFuture();
  };
  StatusOr<Found> Find();
  StatusOr<Found> FromFile(const std::string& path, bool must);
  StatusOr<Found> FromContainer(const std::string& url);
  StatusOr<Found> FromInstance();
  StatusOr<Found> FromJson(absl::string_view where, const HttpResponse& response);

  const EnvironmentOf environment_;
  HttpCaller http_;
  Mutex mu_;
  std::unique_ptr<Found> found_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_STORES_S3_CREDENTIALS_H_
