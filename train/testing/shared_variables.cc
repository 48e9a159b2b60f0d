// SPDX-License-Identifier: Apache-2.0
#include "train/testing/shared_variables.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "run/run_session.h"

namespace millrace {

struct SharedVariables::State {
  mutable Mutex mu;
  CondVar changed;
  std::shared_ptr<Session> variables ABSL_GUARDED_BY(mu);
  std::deque<Status> creations ABSL_GUARDED_BY(mu), steps ABSL_GUARDED_BY(mu);
  int made ABSL_GUARDED_BY(mu) = 0;
  int closed ABSL_GUARDED_BY(mu) = 0;
  int destroyed ABSL_GUARDED_BY(mu) = 0;
  std::vector<TrainingRun> runs ABSL_GUARDED_BY(mu);
  std::vector<RunEnd> ends ABSL_GUARDED_BY(mu);
  std::deque<RunTrainers> trainers ABSL_GUARDED_BY(mu);

  static Status Next(std::deque<Status>* statuses) {
    if (statuses->empty()) return absl::OkStatus();
    const Status status = statuses->front();
    statuses->pop_front();
    return status;
  }
};

namespace {

Mutex current_mu;

}  // namespace

// Its nodes carry the session's number inside, the variables' shared names do not.
class SharedVariablesSession : public Session, private RunSession {
 public:
  using State = SharedVariables::State;

  SharedVariablesSession(std::shared_ptr<State> state, std::shared_ptr<Session> variables,
                         int number, TrainingRun run)
      : state_(std::move(state)),
        variables_(std::move(variables)),
        prefix_(absl::StrCat("session_", number, "/")),
        run_(std::move(run)) {}
  ~SharedVariablesSession() override {
    MutexLock lock(&state_->mu);
    ++state_->destroyed;
    state_->changed.SignalAll();
  }

  static StatusOr<std::unique_ptr<Session>> Make(const SessionOptions& options) {
    const std::shared_ptr<State> state = Current();
    MutexLock lock(&state->mu);
    state->runs.push_back(*options.run);
    MR_RETURN_IF_ERROR(State::Next(&state->creations));
    ++state->made;
    return std::make_unique<SharedVariablesSession>(state, state->variables, state->made,
                                                    *options.run);
  }
  static void SetCurrent(std::shared_ptr<State> state) {
    MutexLock lock(&current_mu);
    Slot() = std::move(state);
  }

  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature&) override {
    return absl::UnimplementedError("not for this test");
  }
  Status Close() override {
    MutexLock lock(&state_->mu);
    ++state_->closed;
    state_->changed.SignalAll();
    return absl::OkStatus();
  }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return variables_->ListDevices();
  }
  RunSession* run_session() override { return this; }
  std::string run_id() const override { return run_.id; }
  Status EndRun(const RunEnd& end) override {
    MutexLock lock(&state_->mu);
    state_->ends.push_back(end);
    return absl::OkStatus();
  }
  StatusOr<RunTrainers> OtherTrainers() override {
    MutexLock lock(&state_->mu);
    if (state_->trainers.empty()) return RunTrainers();
    const RunTrainers trainers = state_->trainers.front();
    if (state_->trainers.size() > 1) state_->trainers.pop_front();
    return trainers;
  }

 protected:
  Status DoExtend(const tensorflow::GraphDef& graph) override {
    tensorflow::GraphDef mine = graph;
    for (tensorflow::NodeDef& node : *mine.mutable_node()) {
      node.set_name(Mine(node.name()));
      for (std::string& input : *node.mutable_input()) input = Mine(input);
      const auto group = node.mutable_attr()->find("_class");
      if (group == node.mutable_attr()->end()) continue;
      for (std::string& name : *group->second.mutable_list()->mutable_s()) {
        name = absl::StrCat("loc:@", Mine(name.substr(5)));
      }
    }
    return variables_->Extend(mine);
  }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    {
      MutexLock lock(&state_->mu);
      MR_RETURN_IF_ERROR(State::Next(&state_->steps));
    }
    std::vector<Feed> my_feeds;
    for (const Feed& feed : feeds) my_feeds.emplace_back(Mine(feed.name.name()), feed.value);
    std::vector<FetchName> my_fetches, my_targets;
    for (const FetchName& name : fetches) my_fetches.emplace_back(Mine(name.name()));
    for (const FetchName& name : targets) my_targets.emplace_back(Mine(name.name()));
    return variables_->Run(options, my_feeds, my_fetches, my_targets, metadata);
  }
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  static std::shared_ptr<State>& Slot() {
    static std::shared_ptr<State>* const slot = new std::shared_ptr<State>;
    return *slot;
  }
  static std::shared_ptr<State> Current() {
    MutexLock lock(&current_mu);
    return Slot();
  }
  std::string Mine(absl::string_view name) const {
    const bool control = absl::ConsumePrefix(&name, "^");
    return absl::StrCat(control ? "^" : "", prefix_, name);
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<Session> variables_;
  const std::string prefix_;
  const TrainingRun run_;
};

namespace {

const SessionFactoryRegistration registration(kSharedTarget, SharedVariablesSession::Make);

}  // namespace

SharedVariables::SharedVariables() : state_(std::make_shared<State>()) {
  SharedVariablesSession::SetCurrent(state_);
}

SharedVariables::~SharedVariables() { SharedVariablesSession::SetCurrent(nullptr); }

Status SharedVariables::Restart() {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession());
  MutexLock lock(&state_->mu);
  state_->variables = std::move(session);
  return absl::OkStatus();
}

std::shared_ptr<Session> SharedVariables::variables() const {
  MutexLock lock(&state_->mu);
  return state_->variables;
}

void SharedVariables::FailCreations(std::deque<Status> statuses) {
  MutexLock lock(&state_->mu);
  state_->creations = std::move(statuses);
}

void SharedVariables::FailRuns(std::deque<Status> statuses) {
  MutexLock lock(&state_->mu);
  state_->steps = std::move(statuses);
}

void SharedVariables::SetOtherTrainers(std::deque<RunTrainers> trainers) {
  MutexLock lock(&state_->mu);
  state_->trainers = std::move(trainers);
}

int SharedVariables::sessions_made() const {
  MutexLock lock(&state_->mu);
  return state_->made;
}

int SharedVariables::sessions_closed() const {
  MutexLock lock(&state_->mu);
  return state_->closed;
}

void SharedVariables::AwaitClosed(int number) const {
  MutexLock lock(&state_->mu);
  while (state_->closed < number) state_->changed.Wait(&state_->mu);
}

void SharedVariables::AwaitDestroyed(int number) const {
  MutexLock lock(&state_->mu);
  while (state_->destroyed < number) state_->changed.Wait(&state_->mu);
}

std::vector<TrainingRun> SharedVariables::runs() const {
  MutexLock lock(&state_->mu);
  return state_->runs;
}

std::vector<RunEnd> SharedVariables::ends() const {
  MutexLock lock(&state_->mu);
  return state_->ends;
}

}  // namespace millrace
