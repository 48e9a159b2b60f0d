// SPDX-License-Identifier: Apache-2.0
#include "serving/version_state.h"

namespace millrace {

absl::string_view VersionStateName(VersionState state) {
  switch (state) {
    case VersionState::kFound:
      return "found";
    case VersionState::kQueued:
      return "queued";
    case VersionState::kLoading:
      return "loading";
    case VersionState::kWarming:
      return "warming";
    case VersionState::kAvailable:
      return "available";
    case VersionState::kDraining:
      return "draining";
    case VersionState::kUnloading:
      return "unloading";
    case VersionState::kEnded:
      return "ended";
    case VersionState::kFailed:
      return "failed";
    case VersionState::kWaiting:
      return "waiting";
  }
  return "unknown";
}

int ServingStateNumber(VersionState state) {
  constexpr int kStart = 10, kLoading = 20, kAvailable = 30, kUnloading = 40, kEnd = 50;
  switch (state) {
    case VersionState::kFound:
    case VersionState::kQueued:
      return kStart;
    case VersionState::kLoading:
    case VersionState::kWarming:
    case VersionState::kWaiting:
      return kLoading;
    case VersionState::kAvailable:
      return kAvailable;
    case VersionState::kDraining:
    case VersionState::kUnloading:
      return kUnloading;
    case VersionState::kEnded:
    case VersionState::kFailed:
      return kEnd;
  }
  return 0;
}

bool IsLegalTransition(VersionState from, VersionState to) {
  using State = VersionState;
  switch (from) {
    case State::kFound:
      return to == State::kQueued || to == State::kEnded;
    case State::kQueued:
      return to == State::kLoading || to == State::kEnded;
    case State::kLoading:
      return to == State::kWarming || to == State::kFailed || to == State::kEnded;
    case State::kWarming:
      return to == State::kAvailable || to == State::kFailed || to == State::kEnded;
    case State::kAvailable:
      return to == State::kDraining;
    case State::kDraining:
      return to == State::kUnloading;
    case State::kUnloading:
      return to == State::kEnded;
    case State::kEnded:
      return to == State::kQueued;
    case State::kFailed:
      return to == State::kWaiting || to == State::kQueued || to == State::kEnded;
    case State::kWaiting:
      return to == State::kQueued || to == State::kEnded;
  }
  return false;
}

}  // namespace millrace
