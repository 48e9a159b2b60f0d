// SPDX-License-Identifier: Apache-2.0
#include "train/monitored_session.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "train/monitored_loop.h"

namespace millrace {
namespace {

constexpr char kName[] = "MonitoredSession";

}  // namespace

StatusOr<std::unique_ptr<MonitoredSession>> MonitoredSession::Open(
    ScopeAt at, std::unique_ptr<SessionCreator> creator, MonitoredSessionOptions options) {
  MR_RETURN_IF_ERROR(at.scope.status());
  std::set<const SessionRunHook*> seen;
  for (const SessionRunHook* hook : options.hooks) {
    if (hook != nullptr && seen.insert(hook).second) continue;
    return InvalidArgument(kName, ": each hook must be given once, got ",
                           hook == nullptr ? "a null one" : absl::StrCat(hook->name(), " twice"));
  }
  creator->set_opened_at(at.where);
  auto loop = std::make_unique<MonitoredLoop>(at.here(), std::move(options));
  std::unique_ptr<MonitoredSession> session(new MonitoredSession(std::move(loop)));
  MR_RETURN_IF_ERROR(session->loop_->Open(creator.get()));
  return session;
}

MonitoredSession::MonitoredSession(std::unique_ptr<MonitoredLoop> loop) : loop_(std::move(loop)) {}

MonitoredSession::~MonitoredSession() {
  loop_->Close(absl::OkStatus(), /*in_order=*/false).IgnoreError();
}

StatusOr<std::vector<Tensor>> MonitoredSession::Run(const std::vector<Feed>& feeds,
                                                    const std::vector<FetchName>& fetches,
                                                    const std::vector<FetchName>& targets) {
  return loop_->RunByName(feeds, fetches, targets, /*recover=*/true);
}

StatusOr<MonitoredStep> MonitoredSession::Prepare(const std::vector<FetchName>& feeds,
                                                  const std::vector<FetchName>& fetches,
                                                  const std::vector<FetchName>& targets) {
  return MonitoredStep(loop_.get(), loop_->hooked()->AddStep(feeds, fetches, targets));
}

Status MonitoredSession::RunStepFn(absl::FunctionRef<Status(const StepContext&)> step) {
  MR_RETURN_IF_ERROR(loop_->CheckMayRun());
  const StepContext context(loop_.get());
  return loop_->Recovering([&] { return step(context); });
}

bool MonitoredSession::ShouldStop() const { return loop_->ShouldStop(); }

void MonitoredSession::RequestStop(absl::string_view reason) { loop_->job()->RequestStop(reason); }

void MonitoredSession::RequestLeave(const Status& result) { loop_->job()->RequestLeave(result); }

Status MonitoredSession::Loop(absl::FunctionRef<Status()> body) {
  Status status;
  while (status.ok() && !ShouldStop()) status = body();
  return Close(status);
}

Status MonitoredSession::Close(const Status& status) {
  return loop_->Close(status, /*in_order=*/true);
}

const std::string& MonitoredSession::end_reason() const { return loop_->end_reason(); }

Session* MonitoredSession::raw_session() const { return loop_->session(); }

int MonitoredSession::recoveries() const { return loop_->recoveries(); }

// --- What a program holds of it ------------------------------------------------------------------

Session* StepContext::session() const { return loop_->session(); }

StatusOr<std::vector<Tensor>> StepContext::RunWithHooks(
    const std::vector<Feed>& feeds, const std::vector<FetchName>& fetches,
    const std::vector<FetchName>& targets) const {
  return loop_->RunByName(feeds, fetches, targets, /*recover=*/false);
}

Status StepContext::RequestStop(absl::string_view reason) const {
  loop_->RequestStop(reason);
  return OutOfRange(reason);
}

Status MonitoredStep::RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) const {
  if (loop_ == nullptr) {
    return FailedPrecondition("MonitoredStep: a step must be prepared before it is run, got none");
  }
  return loop_->Run(step_, feeds, results);
}

StatusOr<std::unique_ptr<MonitoredSession>> SingularMonitoredSession(
    ScopeAt at, SessionCreatorOptions options, MonitoredSessionOptions session) {
  session.max_recoveries = 0;
  return MonitoredSession::Open(
      at, std::make_unique<ChiefSessionCreator>(at.scope, std::move(options)), std::move(session));
}

}  // namespace millrace
