// SPDX-License-Identifier: Apache-2.0
#include "net/visit_call.h"

#include <memory>
#include <string>
#include <utility>

namespace millrace {
namespace {

class VisitCall final : public LongCall {
 public:
  explicit VisitCall(Visit::Work* work) : work_(work) {}
  void RunCall() override {
    if (Visit::Work* const work = std::exchange(work_, nullptr)) Visit::Run(work);
  }
  const std::string& call_name() const override {
    static const std::string* const name = new std::string("a step's work behind a message");
    return *name;
  }

 private:
  Visit::Work* work_;
};

}  // namespace

void RunVisitOn(CallThreads* threads, Visit::Work* work) {
  std::shared_ptr<VisitCall> visit;
  try {
    visit = std::make_shared<VisitCall>(work);
    threads->Run(visit, CallThreads::Urgency::kVisit);
  } catch (...) {
    // No memory. Nobody else would run it, and steps wait for it.
    if (visit == nullptr) return Visit::Run(work);
    visit->RunCall();
  }
}

}  // namespace millrace
