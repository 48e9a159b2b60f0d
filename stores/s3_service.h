// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_S3_SERVICE_H_
#define MILLRACE_STORES_S3_SERVICE_H_

// S3Service: the calls of a store that speaks S3, each by its path "s3://bucket/key".
//
// A key is bytes without meaning to the store: "..", "//" and "%2F" are names like others. Each
// call is repeated as HttpCaller says, and for SlowDown, RequestTimeout, InternalError and the like
// whatever their status. A clock that differs from the store's is corrected from its Date, once per
// call, with a warning.
//
// A call that was repeated may have had its effect at the first time. What is conditional carries a
// writer's name (x-amz-meta-millrace-writer), by which the second answer "there is one" is told
// from another writer's object.
//
// Thread-safety: all methods, from any thread.
// Failure: NotFound (no object, no bucket), PermissionDenied (keys, rights), AlreadyExists (a
// conditional write), FailedPrecondition (an object that was replaced, another region),
// OutOfRange, Unavailable (attempts used up), InvalidArgument for what is no path; the message
// names the path, the operation and the store's own code.

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "stores/http_call.h"
#include "stores/s3_credentials.h"
#include "stores/s3_signature.h"

namespace millrace {

struct S3Path {
  std::string bucket;
  std::string key;  // "" for the bucket itself

  std::string ToString() const;
};
// The key loses slashes at its end. InvalidArgument without a bucket, or for a key above 1,024
// bytes: no store takes those.
StatusOr<S3Path> ParseS3Path(const std::string& path);

struct S3Options {
  std::string region = "us-east-1";
  std::string endpoint = "";  // "http://host:port"; "": Amazon's of the region
  bool path_style = false;    // http://host/bucket/key, not http://bucket.host/key
  HttpOptions http = {};
  EnvironmentOf environment = ProcessEnvironment;  // of the credentials

  // A file of more is sent in parts of so many bytes. Stores take no less than 5 MB.
  uint64_t part_bytes = uint64_t{8} << 20;
  // What a file may hold in memory: parts that are not whole, everything of one that is appended.
  uint64_t max_held_bytes = uint64_t{1} << 30;
  // An object of more is copied in parts of so many bytes. Stores take up to 5 GB.
  uint64_t copy_bytes = uint64_t{1} << 30;
  absl::Duration append_period = absl::Seconds(5);
};
// AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE,
// MILLRACE_S3_PATH_STYLE ("1", "0"; otherwise 1 with an endpoint of one's own).
S3Options S3OptionsOf(const EnvironmentOf& environment);

struct S3Object {
  uint64_t size = 0;
  std::string etag;  // with its quotes
  absl::Time modified = absl::UnixEpoch();
  std::string writer;  // of Head alone
};

struct S3Listing {
  std::vector<std::pair<std::string, S3Object>> objects;  // by key
  std::vector<std::string> prefixes;                      // with a delimiter: up to it, and with it
  std::string next = "";  // the token of the next page; "" for the last one
};

class S3Service {
 public:
  explicit S3Service(const S3Options& options);

  const S3Options& options() const { return options_; }
  Clock* clock() const { return options_.http.clock; }

  StatusOr<S3Object> Head(const S3Path& path);
  // n > 0 bytes; FailedPrecondition where the object is not the one of `etag` any more.
  StatusOr<std::string> Get(const S3Path& path, uint64_t offset, uint64_t n,
                            const std::string& etag);
  // `exclusive`: AlreadyExists where there is an object.
  Status Put(const S3Path& path, absl::string_view bytes, bool exclusive);
  // One page of the keys that begin with prefix.key; by `max_keys`, at most 1,000.
  StatusOr<S3Listing> List(const S3Path& prefix, bool delimited, const std::string& token,
                           int max_keys = 1000);
  // OK for keys that are not there. At most 1,000.
  Status Delete(const std::string& bucket, const std::vector<std::string>& keys);
  Status Copy(const S3Path& source, const S3Path& target);

  // An upload in parts: the object is there when FinishUpload succeeds.
  struct Upload {
    std::string id;
    std::string writer;
    std::map<int, std::string> etags = {};  // of parts, from 1
  };
  StatusOr<Upload> StartUpload(const S3Path& path);
  StatusOr<std::string> PutPart(const S3Path& path, const Upload& upload, int number,
                                absl::string_view bytes);
  Status FinishUpload(const S3Path& path, const Upload& upload, bool exclusive);
  Status AbortUpload(const S3Path& path, const Upload& upload);

 private:
  struct Call {
    absl::string_view what;  // for messages
    std::string method;
    S3Path path;
    QueryParameters query = {};
    std::map<std::string, std::string> headers = {};
    absl::string_view body = "";
    uint64_t max_body_bytes = uint64_t{16} << 20;
  };
  // Any answer of a store, the last attempt's.
  StatusOr<HttpResponse> Answer(const Call& call);
  // An error for what is no 2xx, and for 2xx with an <Error> in it.
  StatusOr<HttpResponse> Perform(const Call& call);
  StatusOr<HttpRequest> Signed(const Call& call, const std::string& body_sha256);
  bool CorrectClock(const HttpResponse& response, absl::string_view code);
  // Whether the object of `path` is what `writer` wrote.
  bool Wrote(const S3Path& path, const std::string& writer);
  Status CopyInParts(const S3Path& source, const S3Path& target, uint64_t size);

  const S3Options options_;
  HttpCaller http_;
  S3Credentials credentials_;
  std::string scheme_;  // "https://"
  std::string host_;
  std::string base_path_;
  // What the store's clock is ahead. Relaxed: a number alone.
  std::atomic<int64_t> ahead_seconds_{0};
};

}  // namespace millrace

#endif  // MILLRACE_STORES_S3_SERVICE_H_
