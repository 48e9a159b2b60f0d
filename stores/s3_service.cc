// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_service.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/sha256.h"
#include "pugixml.hpp"

namespace millrace {
namespace {

constexpr absl::string_view kScheme = "s3";
constexpr size_t kMaxKeyBytes = 1024;
constexpr char kWriter[] = "x-amz-meta-millrace-writer";
// Stores refuse 15 minutes; what is less needs no correction.
constexpr int64_t kClockSeconds = 240;

bool IsSuccess(int status) { return status >= 200 && status < 300; }

// The store's code and text of an error; "" without one.
struct StoreError {
  std::string code;
  std::string message;
};

StoreError ErrorOf(const HttpResponse& response) {
  StoreError error;
  if (!absl::StrContains(response.body, "<Error>")) return error;
  pugi::xml_document document;
  if (!document.load_buffer(response.body.data(), response.body.size())) return error;
  const pugi::xml_node node = document.child("Error");
  error.code = node.child_value("Code");
  error.message = node.child_value("Message");
  return error;
}

bool HelpsToRepeat(absl::string_view code) {
  return code == "SlowDown" || code == "RequestTimeout" || code == "InternalError" ||
         code == "ServiceUnavailable" || code == "OperationAborted" ||
         code == "ConditionalRequestConflict" || code == "Throttling" || code == "BadDigest";
}

// What a user may do about it.
absl::string_view HintOf(absl::string_view code, int status) {
  if (code == "SignatureDoesNotMatch") return "; check AWS_SECRET_ACCESS_KEY and AWS_REGION";
  if (code == "InvalidAccessKeyId") return "; check AWS_ACCESS_KEY_ID";
  if (code == "ExpiredToken" || code == "InvalidToken") return "; renew AWS_SESSION_TOKEN";
  if (code == "RequestTimeTooSkewed") return "; set the clock of this machine";
  if (code == "NoSuchBucket") return "; create the bucket, or check AWS_ENDPOINT_URL";
  if (status == 301 || status == 307 || code == "AuthorizationHeaderMalformed") {
    return "; set AWS_REGION to the bucket's region";
  }
  if (status == 403) return "; check what the keys may do";
  return "";
}

absl::StatusCode CodeOf(absl::string_view code, int status) {
  if (status == 404) return absl::StatusCode::kNotFound;
  if (status == 401 || status == 403) return absl::StatusCode::kPermissionDenied;
  if (status == 412 || status == 301 || status == 307 || code == "AuthorizationHeaderMalformed") {
    return absl::StatusCode::kFailedPrecondition;
  }
  if (status == 416) return absl::StatusCode::kOutOfRange;
  if (status == 501) return absl::StatusCode::kUnimplemented;
  if (status == 507 || code == "QuotaExceeded") return absl::StatusCode::kResourceExhausted;
  if (status == 429 || status >= 500 || IsSuccess(status) || HelpsToRepeat(code)) {
    return absl::StatusCode::kUnavailable;
  }
  return absl::StatusCode::kInvalidArgument;
}

absl::Time HttpTime(const std::string& text) {
  absl::Time time = absl::UnixEpoch();
  std::string error;
  absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, absl::UTCTimeZone(), &time, &error);
  return time;
}

std::string Md5Base64(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  // DeleteObjects wants it: a checksum against accidents.
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_md5(), nullptr);
  return absl::Base64Escape(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::string XmlText(const pugi::xml_document& document) {
  std::ostringstream out;
  document.save(out, "", pugi::format_raw);
  return out.str();
}

Status NoXml(const S3Path& path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("File '", path.ToString(), "': ", what,
                                             ": the store must answer in XML, got another text"));
}

}  // namespace

std::string S3Path::ToString() const {
  return absl::StrCat(kScheme, "://", bucket, key.empty() ? "" : "/", key);
}

StatusOr<S3Path> ParseS3Path(const std::string& path) {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, kScheme) || !absl::ConsumePrefix(&rest, "://")) {
    return InvalidArgument("File '", path, "': must be s3://bucket/key");
  }
  const size_t slash = rest.find('/');
  S3Path parsed;
  parsed.bucket = std::string(rest.substr(0, slash));
  if (slash != absl::string_view::npos) parsed.key = std::string(rest.substr(slash + 1));
  while (!parsed.key.empty() && parsed.key.back() == '/') parsed.key.pop_back();
  const bool is_name =
      !parsed.bucket.empty() && std::all_of(parsed.bucket.begin(), parsed.bucket.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
               c == '_';
      });
  if (!is_name) {
    return InvalidArgument("File '", path,
                           "': a bucket must be letters, digits, '-', '.' and '_', got '",
                           parsed.bucket, "'");
  }
  if (parsed.key.size() > kMaxKeyBytes) {
    return InvalidArgument("File '", path, "': a key must have at most ", kMaxKeyBytes,
                           " bytes, got ", parsed.key.size());
  }
  return parsed;
}

S3Options S3OptionsOf(const EnvironmentOf& environment) {
  S3Options options;
  options.environment = environment;
  for (const char* const name : {"AWS_DEFAULT_REGION", "AWS_REGION"}) {
    if (const std::string value = environment(name); !value.empty()) options.region = value;
  }
  for (const char* const name : {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) {
    if (const std::string value = environment(name); !value.empty()) options.endpoint = value;
  }
  options.http.ca_file = environment("AWS_CA_BUNDLE");
  const std::string style = environment("MILLRACE_S3_PATH_STYLE");
  options.path_style = style.empty() ? !options.endpoint.empty() : style != "0";
  return options;
}

S3Service::S3Service(const S3Options& options)
    : options_(options), http_(options.http), credentials_(options.environment, options.http) {
  absl::string_view rest = options_.endpoint;
  scheme_ = "https://";
  if (rest.empty()) {
    host_ = absl::StrCat("s3.", options_.region, ".amazonaws.com");
    return;
  }
  if (absl::ConsumePrefix(&rest, "http://")) {
    scheme_ = "http://";
  } else {
    absl::ConsumePrefix(&rest, "https://");
  }
  while (absl::ConsumeSuffix(&rest, "/")) {
  }
  const size_t slash = rest.find('/');
  host_ = std::string(rest.substr(0, slash));
  if (slash != absl::string_view::npos) base_path_ = std::string(rest.substr(slash));
  // As libcurl writes it in the header Host.
  host_ = std::string(absl::StripSuffix(host_, scheme_ == "http://" ? ":80" : ":443"));
}

StatusOr<HttpRequest> S3Service::Signed(const Call& call, const std::string& body_sha256) {
  MR_ASSIGN_OR_RETURN(const S3Keys keys, credentials_.Keys());
  // A certificate for *.host does not hold for a bucket with dots.
  const bool in_path =
      options_.path_style || (scheme_ == "https://" && absl::StrContains(call.path.bucket, '.'));
  S3Request signable{.method = call.method, .query = call.query, .headers = call.headers};
  signable.host = in_path ? host_ : absl::StrCat(call.path.bucket, ".", host_);
  signable.path = in_path ? absl::StrCat(base_path_, "/", call.path.bucket) : base_path_;
  if (!in_path || !call.path.key.empty()) absl::StrAppend(&signable.path, "/", call.path.key);
  const absl::Time now =
      clock()->Now() + absl::Seconds(ahead_seconds_.load(std::memory_order_relaxed));
  MR_RETURN_IF_ERROR(SignS3Request(keys, options_.region, now, body_sha256, &signable));
  HttpRequest request{.method = call.method,
                      .headers = std::move(signable.headers),
                      .body = call.body,
                      .max_body_bytes = call.max_body_bytes};
  request.url = absl::StrCat(scheme_, signable.host, UriEncode(signable.path, true));
  if (!call.query.empty()) absl::StrAppend(&request.url, "?", EncodedQuery(call.query));
  return request;
}

bool S3Service::CorrectClock(const HttpResponse& response, absl::string_view code) {
  // An answer to HEAD has no body, and so no code.
  if (response.status != 403 || !(code.empty() || code == "RequestTimeTooSkewed")) return false;
  const absl::Time theirs = HttpTime(response.header("date"));
  if (theirs == absl::UnixEpoch()) return false;
  const int64_t ahead = absl::ToInt64Seconds(theirs - clock()->Now());
  const int64_t known = ahead_seconds_.load(std::memory_order_relaxed);
  if (std::abs(ahead - known) < kClockSeconds) return false;
  ahead_seconds_.store(ahead, std::memory_order_relaxed);
  LogWarning("S3: the clock of this machine must be that of '", host_, "', got one that is ",
             std::abs(ahead), " s ", ahead > 0 ? "behind" : "ahead", "; requests are corrected");
  return true;
}

StatusOr<HttpResponse> S3Service::Answer(const Call& call) {
  MR_ASSIGN_OR_RETURN(const std::string digest, Sha256(call.body));
  const std::string body_sha256 = HexOf(digest);
  bool corrected = false;
  StatusOr<HttpResponse> response =
      http_.Call([&] { return Signed(call, body_sha256); },
                 [&](const HttpResponse& answer) {
                   if (IsSuccess(answer.status) && call.method == "GET")
                     return false;  // a file's bytes
                   const StoreError error = ErrorOf(answer);
                   if (HelpsToRepeat(error.code)) return true;
                   if (corrected || !CorrectClock(answer, error.code)) return false;
                   corrected = true;
                   return true;
                 });
  if (response.ok()) return response;
  return Prefixed(absl::StrCat("File '", call.path.ToString(), "': ", call.what),
                  response.status());
}

StatusOr<HttpResponse> S3Service::Perform(const Call& call) {
  MR_ASSIGN_OR_RETURN(HttpResponse response, Answer(call));
  StoreError error;
  if (!IsSuccess(response.status) || call.method != "GET") error = ErrorOf(response);
  if (IsSuccess(response.status) && error.code.empty()) return response;
  std::string tries;
  if (response.attempts > 1) tries = absl::StrCat(" after ", response.attempts, " attempts");
  return Status(
      CodeOf(error.code, response.status),
      absl::StrCat("File '", call.path.ToString(), "': ", call.what,
                   ": the store must accept it, got ", response.status,
                   error.code.empty() ? "" : " ", error.code, error.message.empty() ? "" : " '",
                   error.message, error.message.empty() ? "" : "'", tries,
                   HintOf(error.code, response.status)));
}

StatusOr<S3Object> S3Service::Head(const S3Path& path) {
  const Call head{.what = "find", .method = "HEAD", .path = path};
  StatusOr<HttpResponse> answer = Perform(head);
  if (!answer.ok() && !absl::IsNotFound(answer.status()) && !absl::IsUnavailable(answer.status())) {
    // An answer to HEAD has no body: GET says why, or that it is over.
    Call get{.what = "find", .method = "GET", .path = path};
    get.headers["range"] = "bytes=0-0";
    const Status why = Perform(get).status();
    if (!why.ok() && !absl::IsOutOfRange(why)) return why;
    answer = Perform(head);
  }
  MR_ASSIGN_OR_RETURN(const HttpResponse response, std::move(answer));
  S3Object object;
  if (!absl::SimpleAtoi(response.header("content-length"), &object.size)) {
    return absl::UnavailableError(
        absl::StrCat("File '", path.ToString(), "': find: the store must say the size, got none"));
  }
  object.etag = response.header("etag");
  object.modified = HttpTime(response.header("last-modified"));
  object.writer = response.header(kWriter);
  return object;
}

StatusOr<std::string> S3Service::Get(const S3Path& path, uint64_t offset, uint64_t n,
                                     const std::string& etag) {
  Call call{.what = "read", .method = "GET", .path = path};
  call.headers["range"] = absl::StrCat("bytes=", offset, "-", offset + n - 1);
  if (!etag.empty()) call.headers["if-match"] = etag;
  call.max_body_bytes = std::max<uint64_t>(n, 64 << 10);
  StatusOr<HttpResponse> response = Perform(call);
  if (absl::IsFailedPrecondition(response.status())) {
    return Suffixed(response.status(), "; the file was replaced while it was read");
  }
  MR_RETURN_IF_ERROR(response.status());
  if (response->body.size() != n) {
    return absl::UnavailableError(absl::StrCat("File '", path.ToString(), "': read: ", n,
                                               " bytes at offset ", offset, " must come, got ",
                                               response->body.size()));
  }
  return std::move(response->body);
}

bool S3Service::Wrote(const S3Path& path, const std::string& writer) {
  const StatusOr<S3Object> object = Head(path);
  return object.ok() && object->writer == writer;
}

Status S3Service::Put(const S3Path& path, absl::string_view bytes, bool exclusive) {
  Call call{.what = "write", .method = "PUT", .path = path, .body = bytes};
  call.headers["content-type"] = "application/octet-stream";
  if (!exclusive) return Perform(call).status();
  const std::string writer = RandomHexName();
  call.headers[kWriter] = writer;
  call.headers["if-none-match"] = "*";
  Status status = Perform(call).status();
  if (absl::IsUnimplemented(status)) {
    // An old store: whoever opened the file has seen that there is none.
    call.headers.erase("if-none-match");
    status = Perform(call).status();
  }
  if (!absl::IsFailedPrecondition(status)) return status;
  // An earlier attempt may have been it, whose answer did not come.
  if (Wrote(path, writer)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("File '", path.ToString(), "': create: exists already"));
}

StatusOr<S3Listing> S3Service::List(const S3Path& prefix, bool delimited, const std::string& token,
                                    int max_keys) {
  Call call{.what = "list", .method = "GET", .path = {prefix.bucket, ""}};
  call.query = {{"list-type", "2"},
                {"encoding-type", "url"},
                {"max-keys", absl::StrCat(max_keys)},
                {"prefix", prefix.key}};
  if (delimited) call.query.emplace_back("delimiter", "/");
  if (!token.empty()) call.query.emplace_back("continuation-token", token);
  MR_ASSIGN_OR_RETURN(const HttpResponse response, Perform(call));
  pugi::xml_document document;
  const pugi::xml_node root = document.load_buffer(response.body.data(), response.body.size())
                                  ? document.child("ListBucketResult")
                                  : pugi::xml_node();
  if (root.empty()) return NoXml(prefix, call.what);
  const bool encoded = absl::string_view(root.child_value("EncodingType")) == "url";
  const auto text = [&](const char* value) {
    return encoded ? UriDecode(value) : std::string(value);
  };
  S3Listing listing;
  for (const pugi::xml_node& node : root.children("Contents")) {
    S3Object object;
    if (!absl::SimpleAtoi(node.child_value("Size"), &object.size)) object.size = 0;
    object.etag = node.child_value("ETag");
    std::string error;
    absl::ParseTime(absl::RFC3339_full, node.child_value("LastModified"), &object.modified, &error);
    listing.objects.emplace_back(text(node.child_value("Key")), std::move(object));
  }
  for (const pugi::xml_node& node : root.children("CommonPrefixes")) {
    listing.prefixes.push_back(text(node.child_value("Prefix")));
  }
  if (absl::string_view(root.child_value("IsTruncated")) == "true") {
    listing.next = root.child_value("NextContinuationToken");
    // The same page for ever otherwise.
    if (listing.next.empty() || listing.next == token) return NoXml(prefix, call.what);
  }
  return listing;
}

Status S3Service::Delete(const std::string& bucket, const std::vector<std::string>& keys) {
  if (keys.empty()) return absl::OkStatus();
  if (keys.size() == 1) {
    const Call call{.what = "delete", .method = "DELETE", .path = {bucket, keys[0]}};
    const Status status = Perform(call).status();
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("Delete");
  root.append_child("Quiet").text().set("true");
  for (const std::string& key : keys) {
    root.append_child("Object").append_child("Key").text().set(key.c_str());
  }
  const std::string body = XmlText(document);
  Call call{.what = "delete", .method = "POST", .path = {bucket, ""}, .body = body};
  call.query = {{"delete", ""}};
  call.headers["content-md5"] = Md5Base64(body);
  call.headers["content-type"] = "application/xml";
  MR_ASSIGN_OR_RETURN(const HttpResponse response, Perform(call));
  pugi::xml_document answer;
  if (!answer.load_buffer(response.body.data(), response.body.size())) {
    return NoXml(call.path, call.what);
  }
  for (const pugi::xml_node& node : answer.child("DeleteResult").children("Error")) {
    const std::string code = node.child_value("Code");
    if (code == "NoSuchKey") continue;
    return Status(code == "AccessDenied" ? absl::StatusCode::kPermissionDenied
                                         : absl::StatusCode::kUnavailable,
                  absl::StrCat("File '", S3Path{bucket, node.child_value("Key")}.ToString(),
                               "': delete: the store must accept it, got ", code));
  }
  return absl::OkStatus();
}

Status S3Service::Copy(const S3Path& source, const S3Path& target) {
  MR_ASSIGN_OR_RETURN(const S3Object object, Head(source));
  if (object.size > options_.copy_bytes) return CopyInParts(source, target, object.size);
  Call call{.what = "copy", .method = "PUT", .path = target};
  call.headers["x-amz-copy-source"] =
      absl::StrCat("/", source.bucket, "/", UriEncode(source.key, true));
  return Perform(call).status();
}

Status S3Service::CopyInParts(const S3Path& source, const S3Path& target, uint64_t size) {
  MR_ASSIGN_OR_RETURN(Upload upload, StartUpload(target));
  const Status status = [&]() -> Status {
    int number = 0;
    for (uint64_t begin = 0; begin < size; begin += options_.copy_bytes) {
      const uint64_t end = std::min(size, begin + options_.copy_bytes);
      Call call{.what = "copy", .method = "PUT", .path = target};
      call.query = {{"partNumber", absl::StrCat(++number)}, {"uploadId", upload.id}};
      call.headers["x-amz-copy-source"] =
          absl::StrCat("/", source.bucket, "/", UriEncode(source.key, true));
      call.headers["x-amz-copy-source-range"] = absl::StrCat("bytes=", begin, "-", end - 1);
      MR_ASSIGN_OR_RETURN(const HttpResponse response, Perform(call));
      pugi::xml_document document;
      document.load_buffer(response.body.data(), response.body.size());
      upload.etags[number] = document.child("CopyPartResult").child_value("ETag");
      if (upload.etags[number].empty()) return NoXml(target, call.what);
    }
    return FinishUpload(target, upload, /*exclusive=*/false);
  }();
  if (!status.ok()) AbortUpload(target, upload).IgnoreError();
  return status;
}

StatusOr<S3Service::Upload> S3Service::StartUpload(const S3Path& path) {
  Upload upload;
  upload.writer = RandomHexName();
  Call call{.what = "start an upload", .method = "POST", .path = path};
  call.query = {{"uploads", ""}};
  call.headers["content-type"] = "application/octet-stream";
  call.headers[kWriter] = upload.writer;
  MR_ASSIGN_OR_RETURN(const HttpResponse response, Perform(call));
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  upload.id = document.child("InitiateMultipartUploadResult").child_value("UploadId");
  if (upload.id.empty()) return NoXml(path, call.what);
  return upload;
}

StatusOr<std::string> S3Service::PutPart(const S3Path& path, const Upload& upload, int number,
                                         absl::string_view bytes) {
  Call call{.what = "write a part", .method = "PUT", .path = path, .body = bytes};
  call.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}};
  MR_ASSIGN_OR_RETURN(const HttpResponse response, Perform(call));
  return response.header("etag");
}

Status S3Service::FinishUpload(const S3Path& path, const Upload& upload, bool exclusive) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (const auto& [number, etag] : upload.etags) {
    pugi::xml_node part = root.append_child("Part");
    part.append_child("PartNumber").text().set(number);
    part.append_child("ETag").text().set(etag.c_str());
  }
  const std::string body = XmlText(document);
  Call call{.what = "finish an upload", .method = "POST", .path = path, .body = body};
  call.query = {{"uploadId", upload.id}};
  call.headers["content-type"] = "application/xml";
  if (exclusive) call.headers["if-none-match"] = "*";
  Status status = Perform(call).status();
  if (exclusive && absl::IsUnimplemented(status)) {
    call.headers.erase("if-none-match");
    status = Perform(call).status();
  }
  // An earlier attempt may have been it, whose answer did not come: then there is no upload any
  // more, or an object.
  if ((absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) &&
      Wrote(path, upload.writer)) {
    return absl::OkStatus();
  }
  if (exclusive && absl::IsFailedPrecondition(status)) {
    return absl::AlreadyExistsError(
        absl::StrCat("File '", path.ToString(), "': create: exists already"));
  }
  return status;
}

Status S3Service::AbortUpload(const S3Path& path, const Upload& upload) {
  const Call call{.what = "abort an upload",
                  .method = "DELETE",
                  .path = path,
                  .query = {{"uploadId", upload.id}}};
  const Status status = Perform(call).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace millrace
