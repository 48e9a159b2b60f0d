// SPDX-License-Identifier: Apache-2.0
#include "stores/http_call.h"

#include <curl/curl.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/random_bits.h"

namespace millrace {
namespace {

// Above it a connection gains nothing on loopback; libcurl's own is 64 KB.
constexpr long kBufferBytes = 512 << 10;
// A server may send headers without end.
constexpr size_t kMaxHeaderBytes = 256 << 10;

struct HeaderList {
  ~HeaderList() { curl_slist_free_all(list); }
  void Add(const std::string& line) {
    curl_slist* const longer = curl_slist_append(list, line.c_str());
    if (longer != nullptr) list = longer;
  }
  curl_slist* list = nullptr;
};

// What the callbacks of one attempt fill.
struct Answer {
  HttpResponse response;
  uint64_t max_body_bytes = 0;
  size_t header_bytes = 0;
  bool body_too_long = false;
};

size_t TakeBody(char* data, size_t, size_t n, void* user) {
  Answer* const answer = static_cast<Answer*>(user);
  if (n > answer->max_body_bytes - answer->response.body.size()) {
    answer->body_too_long = true;
    return 0;
  }
  answer->response.body.append(data, n);
  return n;
}

size_t TakeHeader(char* data, size_t, size_t n, void* user) {
  Answer* const answer = static_cast<Answer*>(user);
  answer->header_bytes += n;
  if (answer->header_bytes > kMaxHeaderBytes) return 0;
  const absl::string_view line(data, n);
  if (absl::StartsWith(line, "HTTP/")) {
    answer->response.headers.clear();  // those of "100 Continue"
    return n;
  }
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return n;
  answer->response.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
      std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  return n;
}

// What another attempt cannot change.
bool IsFinal(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WRITE_ERROR:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

bool IsCertificate(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_SSL_CERTPROBLEM;
}

// "http://host:80" of a URL: paths and queries may be long, and may hold what is secret.
absl::string_view ServerOf(absl::string_view url) {
  const size_t scheme = url.find("://");
  const size_t end = url.find_first_of("/?", scheme == absl::string_view::npos ? 0 : scheme + 3);
  return url.substr(0, end);
}

bool IsRepeated(int status) {
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

}  // namespace

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

// Handles that no call uses: each keeps its connections.
struct HttpCaller::Handles {
  ~Handles() {
    for (CURL* const handle : free) curl_easy_cleanup(handle);
  }
  CURL* Take() {
    {
      const MutexLock lock(&mu);
      if (!free.empty()) {
        CURL* const handle = free.back();
        free.pop_back();
        return handle;
      }
    }
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    return curl_easy_init();
  }
  void Give(CURL* handle) {
    curl_easy_reset(handle);
    const MutexLock lock(&mu);
    free.push_back(handle);
  }

  Mutex mu;
  std::vector<CURL*> free ABSL_GUARDED_BY(mu);
};

HttpCaller::HttpCaller(HttpOptions options)
    : options_(std::move(options)), handles_(std::make_unique<Handles>()) {}

HttpCaller::~HttpCaller() = default;

StatusOr<HttpResponse> HttpCaller::Attempt(const HttpRequest& request, bool* may_help) {
  *may_help = false;
  CURL* const curl = handles_->Take();
  const std::string where = absl::StrCat("Server '", ServerOf(request.url), "'");
  if (curl == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(where, ": libcurl must give a handle, got none"));
  }
  Answer answer;
  answer.max_body_bytes = request.max_body_bytes;
  char reason[CURL_ERROR_SIZE] = "";
  HeaderList headers;
  headers.Add("Expect:");  // no wait for "100 Continue"
  if (request.headers.count("content-type") == 0) headers.Add("Content-Type:");
  for (const auto& [name, value] : request.headers) {
    if (name == "host") continue;
    headers.Add(value.empty() ? absl::StrCat(name, ";") : absl::StrCat(name, ": ", value));
  }

  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                   std::max(1L, static_cast<long>(absl::ToInt64Seconds(options_.stall_timeout))));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, TakeHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &answer);
  if (!options_.ca_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
  }
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else {
    if (request.method != "GET" && request.method != "DELETE") {
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
    }
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }

  const CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  handles_->Give(curl);

  if (code == CURLE_OK) {
    answer.response.status = static_cast<int>(status);
    return std::move(answer.response);
  }
  if (answer.body_too_long) {
    return absl::ResourceExhaustedError(absl::StrCat(where, ": an answer must have at most ",
                                                     request.max_body_bytes,
                                                     " bytes, got a longer one"));
  }
  const std::string text = reason[0] != '\0' ? reason : curl_easy_strerror(code);
  if (IsCertificate(code)) {
    return FailedPrecondition(where, ": its certificate must hold, got '", text,
                              "'; the authority may be in AWS_CA_BUNDLE");
  }
  *may_help = !IsFinal(code);
  return absl::UnavailableError(
      absl::StrCat(where, ": ", request.method, " must get an answer, got '", text, "'"));
}

StatusOr<HttpResponse> HttpCaller::Call(absl::FunctionRef<StatusOr<HttpRequest>()> prepare,
                                        absl::FunctionRef<bool(const HttpResponse&)> again) {
  absl::Duration longest = options_.first_backoff;
  for (int attempt = 1;; ++attempt) {
    MR_ASSIGN_OR_RETURN(const HttpRequest request, prepare());
    bool may_help = false;
    StatusOr<HttpResponse> response = Attempt(request, &may_help);
    if (response.ok()) {
      response->attempts = attempt;
      may_help =
          IsRepeated(response->status) || (attempt < options_.max_attempts && again(*response));
    }
    if (!may_help) return response;
    if (attempt >= options_.max_attempts) {
      if (response.ok() || attempt == 1) return response;
      return Suffixed(response.status(), absl::StrCat("; tried ", attempt, " times"));
    }
    // All of it by chance: many tasks that one answer of 503 stopped do not come back together.
    const double part = static_cast<double>(RandomUint64() >> 11) * 0x1p-53;
    absl::Duration wait = longest * part;
    int64_t seconds = 0;
    if (response.ok() && absl::SimpleAtoi(response->header("retry-after"), &seconds)) {
      wait = std::max(wait, std::min(absl::Seconds(seconds), options_.max_backoff));
    }
    options_.clock->SleepFor(wait);
    longest = std::min(longest * 2, options_.max_backoff);
  }
}

StatusOr<HttpResponse> HttpCaller::Call(const HttpRequest& request) {
  return Call([&]() -> StatusOr<HttpRequest> { return request; },
              [](const HttpResponse&) { return false; });
}

}  // namespace millrace
