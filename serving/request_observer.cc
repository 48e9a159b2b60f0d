// SPDX-License-Identifier: Apache-2.0
#include "serving/request_observer.h"

#include <utility>

#include "core/exceptions.h"
#include "serving/served_model.h"

namespace millrace {
namespace {

using SteadyClock = std::chrono::steady_clock;

class Observers : public RequestObserver {
 public:
  explicit Observers(std::vector<std::shared_ptr<RequestObserver>> observers)
      : observers_(std::move(observers)) {}
  void Began(const ServedModel& served) override {
    for (const auto& observer : observers_) observer->Began(served);
  }
  void Ended(const RequestRecord& record) override {
    for (const auto& observer : observers_) observer->Ended(record);
  }

 private:
  const std::vector<std::shared_ptr<RequestObserver>> observers_;
};

}  // namespace

absl::string_view RequestApiName(RequestApi api) {
  switch (api) {
    case RequestApi::kPredict:
      return "Predict";
    case RequestApi::kClassify:
      return "Classify";
    case RequestApi::kRegress:
      return "Regress";
    case RequestApi::kMultiInference:
      return "MultiInference";
  }
  return "";
}

absl::string_view RequestEntrypointName(RequestEntrypoint entrypoint) {
  switch (entrypoint) {
    case RequestEntrypoint::kInProcess:
      return "in_process";
    case RequestEntrypoint::kGrpc:
      return "GRPC";
    case RequestEntrypoint::kRest:
      return "REST";
  }
  return "";
}

std::shared_ptr<RequestObserver> AllObservers(
    std::vector<std::shared_ptr<RequestObserver>> observers) {
  std::erase(observers, nullptr);
  if (observers.empty()) return nullptr;
  if (observers.size() == 1) return std::move(observers.front());
  return std::make_shared<Observers>(std::move(observers));
}

ObservedRequest::ObservedRequest(RequestObserver* observer, RequestApi api,
                                 const RequestOrigin& origin)
    : observer_(observer) {
  if (observer_ == nullptr) return;
  asked_ = SteadyClock::now();
  record_.api = api;
  record_.origin = origin;
}

ObservedRequest::~ObservedRequest() {
  // An exception is on its way.
  if (observer_ != nullptr && !has_ended_) {
    EndWithoutMessages(Internal("the request was left")).IgnoreError();
  }
}

void ObservedRequest::Found(const ServedModel& served) {
  if (observer_ == nullptr) return;
  record_.served = &served;
  NoExceptions("RequestObserver", [&]() -> Status {
    observer_->Began(served);
    return absl::OkStatus();
  }).IgnoreError();
}

void ObservedRequest::BeginRun() {
  if (observer_ != nullptr) run_began_ = SteadyClock::now();
}

void ObservedRequest::EndRun() {
  if (observer_ != nullptr) record_.run_time = absl::FromChrono(SteadyClock::now() - run_began_);
}

Status ObservedRequest::End(Status status) {
  if (observer_ != nullptr && !has_ended_) Tell(status);
  return status;
}

Status ObservedRequest::EndWithoutMessages(Status status) {
  if (observer_ == nullptr || has_ended_) return status;
  record_.signature = {};
  record_.request = record_.response = nullptr;
  record_.inputs = record_.outputs = {};
  return End(std::move(status));
}

void ObservedRequest::Tell(Status status) {
  has_ended_ = true;
  record_.status = std::move(status);
  record_.latency = absl::FromChrono(SteadyClock::now() - asked_);
  NoExceptions("RequestObserver", [&]() -> Status {
    observer_->Ended(record_);
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace millrace
