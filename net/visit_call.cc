// SPDX-License-Identifier: Apache-2.0
#include "net/visit_call.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "core/io_pool.h"

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

IoPool* VisitPool() {
  static IoPool* const pool = new IoPool(std::numeric_limits<int>::max());
  return pool;
}

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

void RunVisitApart(Visit::Work* work) noexcept {
  // Once, also when Schedule throws.
  try {
    const auto once = std::make_shared<std::atomic<Visit::Work*>>(work);
    const auto run = [once] {
      if (Visit::Work* const mine = once->exchange(nullptr)) Visit::Run(mine);
    };
    try {
      VisitPool()->Schedule(run);
    } catch (...) {
      run();
    }
  } catch (...) {
    Visit::Run(work);  // nobody else would
  }
}

}  // namespace millrace
