// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REQUEST_OBSERVER_H_
#define MILLRACE_SERVING_REQUEST_OBSERVER_H_

// RequestObserver: what is told of each request that asks a model: metrics, logs.
//
//   asked -> found -> ended       Began, then Ended
//         -> ended                no such version: Ended alone
//
// ModelRequests makes an ObservedRequest for each request by messages, a front for each that it
// answers by tensors. Without an observer that costs a branch per call.
//
// Thread-safety: observers, from any thread. An ObservedRequest: one thread at a time.
// Lifetime: the observer outlives all requests; views and pointers of a record are valid during the
// call.
// Failure: what an observer throws is dropped.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace millrace {

class ServedModel;

enum class RequestApi { kPredict, kClassify, kRegress, kMultiInference };
inline constexpr int kNumRequestApis = 4;
enum class RequestEntrypoint { kInProcess, kGrpc, kRest };
inline constexpr int kNumRequestEntrypoints = 3;

// "Predict"; "in_process", "GRPC", "REST".
absl::string_view RequestApiName(RequestApi api);
absl::string_view RequestEntrypointName(RequestEntrypoint entrypoint);

// What a front knows of a request beside its message.
struct RequestOrigin {
  RequestEntrypoint entrypoint = RequestEntrypoint::kInProcess;
  absl::string_view client = {};  // "127.0.0.1:1234"; "": not known
  int64_t bytes_in = 0;           // 0: not known
};

// A request that has ended.
struct RequestRecord {
  RequestApi api = RequestApi::kPredict;
  RequestOrigin origin = {};
  absl::string_view model = {}, signature = {};  // as asked; no signature: ""
  const ServedModel* served = nullptr;           // null: no such version
  Status status = {};
  absl::Duration latency = absl::ZeroDuration();   // from when it was asked
  absl::Duration run_time = absl::ZeroDuration();  // in the model; zero: it did not come there
  int64_t num_examples = 0;                        // of Classify, Regress, MultiInference
  int64_t bytes_out = 0;                           // 0: not known
  // Of the API, or null. Without a response Predict has tensors, the outputs when it succeeded;
  // then the request, if there is one, has no inputs.
  const google::protobuf::Message* request = nullptr;
  const google::protobuf::Message* response = nullptr;
  absl::Span<const AliasedTensor> inputs = {}, outputs = {};
};

class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // The request has its version and runs from now on.
  virtual void Began(const ServedModel& served) = 0;
  // Once per request, before it lets go of its version and its reply is sent.
  virtual void Ended(const RequestRecord& record) = 0;
};

// Tells all of them in turn; those that are null are left out, null when none is left.
std::shared_ptr<RequestObserver> AllObservers(
    std::vector<std::shared_ptr<RequestObserver>> observers);

// One request on its way. It ends at the latest with this object.
class ObservedRequest {
 public:
  // `observer` may be null.
  ObservedRequest(RequestObserver* observer, RequestApi api, const RequestOrigin& origin);
  ~ObservedRequest();
  ObservedRequest(const ObservedRequest&) = delete;
  ObservedRequest& operator=(const ObservedRequest&) = delete;

  bool is_observed() const { return observer_ != nullptr; }
  // To be filled in before the end.
  RequestRecord* record() { return &record_; }

  // `served` stays until the end.
  void Found(const ServedModel& served);
  // Around the call of the model.
  void BeginRun();
  void EndRun();
  // Returns `status`. Only the first end counts.
  Status End(Status status);
  // The same when what the record points to may be gone.
  Status EndWithoutMessages(Status status);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  void Tell(Status status);

  RequestObserver* const observer_;
  bool has_ended_ = false;
  TimePoint asked_, run_began_;
  RequestRecord record_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_REQUEST_OBSERVER_H_
