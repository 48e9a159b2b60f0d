// SPDX-License-Identifier: Apache-2.0
#include "serving/version_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

using State = VersionState;

constexpr State kAllStates[] = {
    State::kFound,    State::kQueued,    State::kLoading, State::kWarming, State::kAvailable,
    State::kDraining, State::kUnloading, State::kEnded,   State::kFailed,  State::kWaiting};

absl::Time At(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// "+2:waiting/3@40~": version 2, wanted, waiting after 3 tries, the last of which failed at 40 s;
// its files have changed. "2:loading@40!": a load that began at 40 s and was told to end.
// "2:failed/1?": its thread was left behind.
PlannedVersion Parse(absl::string_view text) {
  PlannedVersion v;
  v.wanted = absl::ConsumePrefix(&text, "+");
  v.files_changed = absl::ConsumeSuffix(&text, "~");
  v.left_behind = absl::ConsumeSuffix(&text, "?");
  v.cancelled = absl::ConsumeSuffix(&text, "!");
  const std::pair<std::string, std::string> number = absl::StrSplit(text, absl::MaxSplits(':', 1));
  EXPECT_TRUE(absl::SimpleAtoi(number.first, &v.version)) << text;
  const std::pair<std::string, std::string> time =
      absl::StrSplit(number.second, absl::MaxSplits('@', 1));
  const std::pair<std::string, std::string> tries =
      absl::StrSplit(time.first, absl::MaxSplits('/', 1));
  int seconds = 0;
  if (!time.second.empty()) {
    EXPECT_TRUE(absl::SimpleAtoi(time.second, &seconds)) << text;
    v.failed_at = v.load_began = At(seconds);
  }
  if (!tries.second.empty()) {
    EXPECT_TRUE(absl::SimpleAtoi(tries.second, &v.num_tries)) << text;
  }
  bool known = false;
  for (const State state : kAllStates) {
    if (VersionStateName(state) != tries.first) continue;
    v.state = state;
    known = true;
  }
  EXPECT_TRUE(known) << text;
  return v;
}

// Models are separated by "; ", versions by " ".
std::vector<PlannedModel> ParseModels(absl::string_view text) {
  std::vector<PlannedModel> models;
  for (const absl::string_view part : absl::StrSplit(text, "; ")) {
    models.emplace_back();
    for (const absl::string_view version : absl::StrSplit(part, ' ', absl::SkipEmpty())) {
      models.back().versions.push_back(Parse(version));
    }
  }
  return models;
}

std::string Text(const std::vector<PlannedModel>& models) {
  std::vector<std::string> parts;
  for (const PlannedModel& model : models) {
    std::vector<std::string> versions;
    for (const PlannedVersion& v : model.versions) {
      versions.push_back(absl::StrCat(
          v.wanted ? "+" : "", v.version, ":", VersionStateName(v.state), "/", v.num_tries,
          v.cancelled ? "!" : "", v.left_behind ? "?" : "", v.files_changed ? "~" : ""));
    }
    parts.push_back(absl::StrJoin(versions, " "));
  }
  return absl::StrJoin(parts, "; ");
}

absl::string_view ActionName(PlanAction action) {
  switch (action) {
    case PlanAction::kQueue:
      return "queue";
    case PlanAction::kRetry:
      return "retry";
    case PlanAction::kLoad:
      return "load";
    case PlanAction::kWait:
      return "wait";
    case PlanAction::kCancel:
      return "cancel";
    case PlanAction::kGiveUp:
      return "give up";
    case PlanAction::kDrain:
      return "drain";
    case PlanAction::kRest:
      return "rest";
    case PlanAction::kEnd:
      return "end";
  }
  return "?";
}

// "load 2, drain 1", with "m1/" before versions of other models than the first.
std::string StepsText(const std::vector<PlannedModel>& models, const Plan& plan) {
  std::vector<std::string> texts;
  for (const PlanStep& step : plan.steps) {
    texts.push_back(absl::StrCat(ActionName(step.action), " ",
                                 step.model == 0 ? "" : absl::StrCat("m", step.model, "/"),
                                 models[step.model].versions[step.version].version));
  }
  return absl::StrJoin(texts, ", ");
}

struct Row {
  const char* models;
  const char* steps;
  LoadOrder order = LoadOrder::kAvailabilityFirst;
  int max_loads = 2;
};
constexpr LoadOrder kResources = LoadOrder::kResourcesFirst;

// covers: serving: what loads and unloads next is TensorFlow Serving's availability- and
//   resource-preserving order; a failed version neither blocks nor replaces a good one
TEST(VersionPlanTest, StepsAreThoseOfTheTable) {
  const Row rows[] = {
      {"", ""},
      // What is found goes to the queue, what is queued loads.
      {"+1:found", "queue 1"},
      {"+1:queued", "load 1"},
      {"+1:loading", ""},
      {"+1:warming", ""},
      {"+1:available", ""},
      // The highest first; bounded.
      {"+1:queued +3:queued +2:queued", "load 3, load 2"},
      {"+1:queued +2:loading", "load 1"},
      {"+1:queued +2:loading +3:warming", ""},
      {"+1:queued +2:queued", "load 2", LoadOrder::kAvailabilityFirst, 1},
      {"+1:queued +2:queued", "", LoadOrder::kAvailabilityFirst, 0},
      // The old one stays until the wanted one is available.
      {"1:available +2:queued", "load 2"},
      {"1:available +2:loading", ""},
      {"1:available +2:warming", ""},
      {"1:available +2:available", "drain 1"},
      {"1:draining +2:available", ""},
      {"1:unloading +2:available", ""},
      {"1:ended +2:available", ""},
      // Several unwanted: the highest of them stays.
      {"1:available 2:available +3:loading", "drain 1"},
      {"1:available 4:available 2:available +3:failed/6", "drain 1, drain 2"},
      {"1:available 2:available +3:available", "drain 1, drain 2"},
      // Nothing is wanted.
      {"1:available 2:available", "drain 1, drain 2"},
      {"1:found 2:queued 3:failed/1 4:waiting/1@0", "end 1, end 2, end 3, end 4"},
      // A failed version never replaces a good one, and rests after its last try.
      {"1:available +2:failed/1", "wait 2"},
      {"1:available +2:failed/5", "wait 2"},
      {"1:available +2:failed/6", ""},
      {"1:available +2:waiting/1@50", ""},
      {"1:available +2:failed/6~", "queue 2"},
      {"1:available +2:waiting/1@50~", "queue 2"},
      {"1:available +2:waiting/1@40", "retry 2"},
      // Not before its last load has come back.
      {"1:available +2:failed/1?", ""},
      {"1:available +2:failed/1?~", ""},
      {"1:available 2:failed/1?", "drain 1, end 2"},
      {"1:available +2:ended/1?", ""},
      // The clock went back behind the failure.
      {"1:available +2:waiting/1@101", "retry 2"},
      // Tries come after first tries, also of other models.
      {"+1:queued/1 +2:queued; +1:queued", "load 2, load m1/1"},
      {"+1:queued/1; +1:queued", "load m1/1", LoadOrder::kAvailabilityFirst, 1},
      // Models with nothing available come first, then everybody's highest.
      {"+1:available +2:queued; +7:queued", "load m1/7", LoadOrder::kAvailabilityFirst, 1},
      {"+1:queued +2:queued; +7:queued +8:queued", "load 2, load m1/8"},
      // Wanted again: not before the old one is gone.
      {"+1:draining 2:available", ""},
      {"+1:unloading 2:available", ""},
      {"+1:ended 2:available", "queue 1"},
      {"+1:loading! 2:available", ""},
      // Unwanted while it loads.
      {"1:loading", "cancel 1"},
      {"1:warming", "cancel 1"},
      {"1:loading!", ""},
      {"1:loading +2:queued", "load 2"},
      {"1:loading +2:available", "cancel 1"},
      {"1:available +2:queued; 1:loading +2:failed/6", "load 2"},
      // Resources first.
      {"1:available +2:queued", "drain 1", kResources},
      {"1:draining +2:queued", "", kResources},
      {"1:unloading +2:queued", "", kResources},
      {"1:ended +2:queued", "load 2", kResources},
      {"1:loading +2:queued", "cancel 1", kResources},
      {"1:loading! +2:queued", "", kResources},
      {"+1:draining +2:queued", "", kResources},
      {"+1:available +2:queued", "load 2", kResources},
      {"1:available 3:available +2:found", "drain 1, drain 3, queue 2", kResources},
      // One model's unloads hold up no other model.
      {"1:draining +2:queued; +1:queued", "load m1/1", kResources},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.models);
    const std::vector<PlannedModel> models = ParseModels(row.models);
    const PlanOptions options = {.order = row.order, .max_loads = row.max_loads};
    EXPECT_EQ(StepsText(models, NextSteps(models, options, At(100))), row.steps);
  }
}

// covers: serving: a load that takes too long is given up and takes no other's place; when all
//   threads are left behind no load begins
TEST(VersionPlanTest, LoadThatTakesTooLongIsGivenUp) {
  const PlanOptions options = {.max_load_time = absl::Seconds(60)};
  const auto plan = [&](const char* text) {
    const std::vector<PlannedModel> models = ParseModels(text);
    return StepsText(models, NextSteps(models, options, At(100)));
  };
  EXPECT_EQ(plan("+1:loading@40 +2:warming@40"), "give up 1, give up 2");
  EXPECT_EQ(plan("+1:loading@41 +2:loading@40!"), "give up 2");
  EXPECT_EQ(plan("1:loading@40 +2:queued"), "give up 1, load 2");
  // Two places, and four threads more.
  EXPECT_EQ(plan("+1:failed/1? +2:failed/1? +3:failed/1? +4:failed/1? +5:queued +6:queued"),
            "load 6, load 5");
  EXPECT_EQ(plan("+1:failed/1? +2:failed/1? +3:failed/1? +4:failed/1? +5:failed/1? +6:queued "
                 "+7:queued"),
            "load 7");
  EXPECT_EQ(plan("+1:failed/1? +2:failed/1? +3:failed/1? +4:failed/1? +5:failed/1? 6:ended/1? "
                 "+7:queued"),
            "");
  EXPECT_EQ(NextSteps(ParseModels("+1:loading@41 +2:loading@40!"), options, At(100)).next_time,
            At(101));
}

TEST(VersionPlanTest, NextTimeIsThatOfTheNextTry) {
  const auto next = [](const char* text) {
    return NextSteps(ParseModels(text), PlanOptions(), At(100)).next_time;
  };
  EXPECT_EQ(next("+1:available"), absl::InfiniteFuture());
  EXPECT_EQ(next("+1:waiting/1@70"), At(130));
  EXPECT_EQ(next("+1:waiting/1@70 +2:waiting/1@60; +1:waiting/2@90"), At(120));
  EXPECT_EQ(next("1:waiting/1@70 +2:failed/6"), absl::InfiniteFuture());
}

// What a plan does to the states, as ModelVersions does it.
void Apply(const Plan& plan, absl::Time now, std::vector<PlannedModel>* models) {
  std::set<std::pair<size_t, size_t>> touched;
  std::set<size_t> rested;
  for (const PlanStep& step : plan.steps) {
    EXPECT_TRUE(touched.insert({step.model, step.version}).second)
        << "two actions on one version: " << Text(*models);
    PlannedVersion& v = (*models)[step.model].versions[step.version];
    const State before = v.state;
    switch (step.action) {
      case PlanAction::kQueue:
        v.num_tries = 0;
        v.state = State::kQueued;
        break;
      case PlanAction::kRetry:
        v.state = State::kQueued;
        break;
      case PlanAction::kLoad:
        ++v.num_tries;
        EXPECT_FALSE(v.left_behind) << "loaded twice: " << Text(*models);
        v.load_began = now;
        v.files_changed = false;
        v.cancelled = false;
        v.state = State::kLoading;
        break;
      case PlanAction::kWait:
        v.state = State::kWaiting;
        break;
      case PlanAction::kCancel:
        EXPECT_TRUE(IsLoad(v.state) && !v.cancelled && !(v.wanted && (*models)[step.model].asked))
            << Text(*models);
        v.cancelled = true;
        continue;
      case PlanAction::kGiveUp:
        v.cancelled = v.left_behind = true;
        v.failed_at = now;
        v.state = State::kFailed;
        break;
      case PlanAction::kRest:
        EXPECT_FALSE((*models)[step.model].has_waiting) << Text(*models);
        rested.insert(step.model);
        v.state = State::kDraining;
        break;
      case PlanAction::kDrain:
        v.state = State::kDraining;
        break;
      case PlanAction::kEnd:
        v.state = State::kEnded;
        break;
    }
    EXPECT_TRUE(IsLegalTransition(before, v.state))
        << VersionStateName(before) << " -> " << VersionStateName(v.state);
  }
  for (const size_t model : rested) (*models)[model].asked = false;
}

bool WantsAny(const PlannedModel& model) {
  return model.asked && std::any_of(model.versions.begin(), model.versions.end(),
                                    [](const PlannedVersion& v) { return v.wanted; });
}
// Of what is loaded or loads, with the loads that were left behind.
int64_t BytesOf(const std::vector<PlannedModel>& models) {
  int64_t bytes = 0;
  for (const PlannedModel& model : models) {
    for (const PlannedVersion& v : model.versions) {
      if (HoldsMemory(v.state) || v.left_behind) bytes += v.num_bytes;
    }
  }
  return bytes;
}
bool HasAvailable(const PlannedModel& model, bool wanted_only = false) {
  return std::any_of(model.versions.begin(), model.versions.end(), [&](const PlannedVersion& v) {
    return v.state == State::kAvailable && (v.wanted || !wanted_only);
  });
}
int NumLoads(const std::vector<PlannedModel>& models) {
  int n = 0;
  for (const PlannedModel& model : models) {
    for (const PlannedVersion& v : model.versions) n += IsLoad(v.state);
  }
  return n;
}

// Plans until the plan is empty, and checks what always holds.
void Settle(const PlanOptions& options, absl::Time now, std::vector<PlannedModel>* models) {
  // Failed, waiting, queued, loading; or found, queued, loading: four rounds change something.
  constexpr int kMostRounds = 5;
  for (int round = 0;; ++round) {
    const std::vector<PlannedModel> before = *models;
    const int loads_before = NumLoads(before);
    const Plan plan = NextSteps(before, options, now);
    if (plan.steps.empty()) return;
    ASSERT_LT(round, kMostRounds) << "no rest: " << Text(before);
    Apply(plan, now, models);
    std::set<size_t> rested;
    for (const PlanStep& step : plan.steps) {
      if (step.action == PlanAction::kRest) rested.insert(step.model);
    }
    if (options.memory_limit > 0) {
      // Each version fits alone: what the plan begins never exceeds the limit.
      ASSERT_LE(BytesOf(*models), std::max(BytesOf(before), options.memory_limit)) << Text(before);
    }
    ASSERT_LE(NumLoads(*models), std::max(loads_before, options.max_loads)) << Text(before);
    for (size_t m = 0; m < before.size(); ++m) {
      if (options.order == LoadOrder::kAvailabilityFirst && WantsAny(before[m]) &&
          HasAvailable(before[m]) && !rested.contains(m)) {
        ASSERT_TRUE(HasAvailable((*models)[m])) << "nothing is available: " << Text(before);
      }
      if (options.order == LoadOrder::kResourcesFirst) {
        for (size_t i = 0; i < before[m].versions.size(); ++i) {
          const bool begins = before[m].versions[i].state == State::kQueued &&
                              (*models)[m].versions[i].state == State::kLoading;
          for (const PlannedVersion& other : before[m].versions) {
            ASSERT_FALSE(begins && !other.wanted && HoldsMemory(other.state))
                << "two at a time: " << Text(before);
          }
        }
      }
    }
  }
}

// At rest, when no load, request or free runs and no time is waited for: what is wanted is
// available or has failed for good, what is not wanted is gone but for one that stands in.
void ExpectGoal(const PlanOptions& options, const std::vector<PlannedModel>& models) {
  for (const PlannedModel& model : models) {
    int num_stand_ins = 0;
    for (const PlannedVersion& v : model.versions) {
      if (v.wanted && !model.asked) {
        // It rests, and is known.
        ASSERT_TRUE(v.state == State::kFound || v.state == State::kEnded) << Text(models);
      } else if (v.wanted) {
        ASSERT_TRUE(
            v.state == State::kAvailable ||
            (v.state == State::kFailed && v.num_tries > options.max_retries && !v.left_behind))
            << Text(models);
      } else if (v.state == State::kAvailable) {
        ++num_stand_ins;
      } else {
        ASSERT_EQ(v.state, State::kEnded) << Text(models);
      }
    }
    const bool may_stand_in = options.order == LoadOrder::kAvailabilityFirst && WantsAny(model) &&
                              !HasAvailable(model, /*wanted_only=*/true);
    ASSERT_LE(num_stand_ins, may_stand_in ? 1 : 0) << Text(models);
  }
}

// covers: serving: a model rests when it was idle, or when one that was used later needs its room
TEST(VersionPlanTest, ModelsRestAndLoadOnDemand) {
  PlanOptions options;
  options.idle_unload = absl::Seconds(30);
  options.memory_limit = 100;
  struct Use {
    int64_t last_use;
    int64_t num_bytes;  // of each version
    bool asked = true, has_waiting = false;
  };
  const auto plan = [&](const char* text, const std::vector<Use>& uses) {
    std::vector<PlannedModel> models = ParseModels(text);
    EXPECT_EQ(models.size(), uses.size()) << text;
    for (size_t m = 0; m < uses.size(); ++m) {
      models[m].asked = uses[m].asked;
      models[m].has_waiting = uses[m].has_waiting;
      models[m].last_use = At(uses[m].last_use);
      for (PlannedVersion& v : models[m].versions) v.num_bytes = uses[m].num_bytes;
    }
    return StepsText(models, NextSteps(models, options, At(100)));
  };
  // Nobody asks.
  EXPECT_EQ(plan("+1:found +2:ended 3:found", {{0, 10, false}}), "end 3");
  EXPECT_EQ(plan("+1:queued +2:failed/1 +3:waiting/1@0", {{0, 10, false}}), "end 1, end 2, end 3");
  EXPECT_EQ(plan("+1:loading +2:available", {{0, 10, false}}), "cancel 1, drain 2");
  EXPECT_EQ(plan("+1:found +2:ended", {{99, 10}}), "queue 1, queue 2");
  // Idle for long enough, and not while it loads or requests wait.
  EXPECT_EQ(plan("+1:available", {{71, 10}}), "");
  EXPECT_EQ(plan("+1:available +2:available", {{70, 10}}), "rest 1, rest 2");
  EXPECT_EQ(plan("+1:available +2:loading", {{70, 10}}), "");
  EXPECT_EQ(plan("+1:available +2:ended", {{70, 10, true, true}}), "queue 2");
  // Room: the one used least recently goes, as far as needed, and what goes is waited for.
  EXPECT_EQ(plan("+1:queued; +1:available; +1:available", {{100, 40}, {90, 40}, {95, 40}}),
            "rest m1/1");
  EXPECT_EQ(plan("+1:queued; +1:draining; +1:available", {{100, 40}, {90, 40, false}, {95, 40}}),
            "");
  EXPECT_EQ(plan("+1:queued; +1:ended; +1:available", {{100, 40}, {90, 40, false}, {95, 40}}),
            "load 1");
  EXPECT_EQ(plan("+1:queued; +1:available; +1:available", {{100, 90}, {90, 40}, {95, 40}}),
            "rest m1/1, rest m2/1");
  // Not one that was used later, nor one for which requests wait.
  EXPECT_EQ(plan("+1:queued; +1:available; +1:available", {{92, 40}, {95, 40}, {96, 40}}), "");
  EXPECT_EQ(
      plan("+1:queued; +1:available; +1:available", {{100, 40}, {90, 40, true, true}, {95, 40}}),
      "rest m2/1");
  // What can never fit makes nobody go: its load says so.
  EXPECT_EQ(plan("+1:queued; +1:available", {{100, 101}, {95, 40}}), "load 1");
  EXPECT_EQ(plan("+1:available +2:queued; +1:available", {{100, 60}, {95, 40}}), "load 2");
  // A load that was left behind holds what it was to take; nobody can make it go.
  EXPECT_EQ(plan("+1:queued; +1:failed/6?", {{100, 60}, {90, 40}}), "load 1");
  EXPECT_EQ(plan("+1:queued; +1:failed/6?", {{100, 61}, {90, 40}}), "");
  EXPECT_EQ(plan("+1:queued; +1:failed/6?; +1:available", {{100, 40}, {90, 40}, {95, 40}}),
            "rest m2/1");
  // Larger than was thought: all but the one used last may go.
  EXPECT_EQ(plan("+1:available; +1:available; +1:available", {{99, 60}, {98, 50}, {97, 10}}),
            "rest m2/1, rest m1/1");
}

// covers: serving: for four versions in every state and both orders: one action on a version at a
//   time, never none available when one was and one is wanted, always rest
TEST(VersionPlanTest, EveryStateOfFourVersionsComesToRest) {
  // Each state wanted or not, loads that were told to end, and those whose thread was left behind.
  std::vector<PlannedVersion> kinds;
  for (const State state : kAllStates) {
    for (const bool wanted : {false, true}) {
      PlannedVersion v;
      v.state = state;
      v.wanted = wanted;
      v.failed_at = At(99);
      v.num_tries = state == State::kFailed ? 6 : state == State::kWaiting ? 1 : 0;
      kinds.push_back(v);
      v.cancelled = IsLoad(state);
      v.left_behind = state == State::kFailed || state == State::kEnded;
      if (v.cancelled || v.left_behind) kinds.push_back(v);
    }
  }
  const size_t n = kinds.size();
  for (const LoadOrder order : {LoadOrder::kAvailabilityFirst, LoadOrder::kResourcesFirst}) {
    const PlanOptions options = {.order = order, .max_loads = 2};
    for (size_t code = 0; code < n * n * n * n; ++code) {
      std::vector<PlannedModel> models(1);
      size_t rest = code;
      for (int64_t version = 1; version <= 4; ++version) {
        models[0].versions.push_back(kinds[rest % n]);
        models[0].versions.back().version = version;
        rest /= n;
      }
      Settle(options, At(100), &models);
      if (HasFatalFailure()) return;
      // The same when nobody asks for the model; of three versions.
      if (code >= n * n * n) continue;
      models.assign(1, {});
      rest = code;
      for (int64_t version = 1; version <= 3; ++version) {
        models[0].versions.push_back(kinds[rest % n]);
        models[0].versions.back().version = version;
        rest /= n;
      }
      models[0].asked = false;
      Settle(options, At(100), &models);
      if (HasFatalFailure()) return;
    }
  }
}

class History {
 public:
  History(unsigned seed, LoadOrder order) : random_(seed) {
    options_.order = order;
    options_.max_loads = Draw(1, 3);
    options_.max_retries = Draw(0, 2);
    if (Draw(0, 1) == 0) options_.max_load_time = absl::Seconds(Draw(1, 60));
    options_.max_left_behind = Draw(0, 2);
    if (Draw(0, 1) == 0) options_.idle_unload = absl::Seconds(Draw(1, 60));
    // Four versions of a model fit.
    if (Draw(0, 1) == 0) options_.memory_limit = 40;
    models_.resize(static_cast<size_t>(Draw(1, 3)));
    for (PlannedModel& model : models_) {
      for (int64_t version = 1; version <= 4; ++version) {
        PlannedVersion v;
        v.version = version;
        v.state = State::kEnded;
        v.num_bytes = Draw(1, 10);
        model.versions.push_back(v);
      }
    }
  }

  void Run() {
    for (int i = 0; i < 60; ++i) {
      Disturb();
      Settle(options_, now_, &models_);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // Nothing comes any more: loads end, requests end, time passes.
    bool acts = true;
    // Each version has at most its tries of four outer events each, and what it was in the middle
    // of: queued, loading, warming, failed, back, waiting; or draining, unloading, ended.
    const int most = static_cast<int>(models_.size()) * 4 * (options_.max_retries + 3) * 8;
    for (int i = 0; acts; ++i) {
      ASSERT_LT(i, most) << "no rest: " << Text(models_);
      acts = false;
      for (PlannedModel& model : models_) {
        for (PlannedVersion& v : model.versions) acts |= Proceed(&v);
      }
      const absl::Time next = NextSteps(models_, options_, now_).next_time;
      if (next != absl::InfiniteFuture()) {
        now_ = next;
        acts = true;
      }
      Settle(options_, now_, &models_);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // Where memory is short a model may wait for one that was used later.
    if (options_.memory_limit == 0) ExpectGoal(options_, models_);
  }

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // What a load, a request or a free does at its end. False: nothing runs.
  bool Proceed(PlannedVersion* v) {
    if (v->left_behind) {
      v->left_behind = false;
      return true;
    }
    switch (v->state) {
      case State::kLoading:
      case State::kWarming:
        if (v->cancelled) {
          v->state = State::kEnded;
        } else if (Draw(0, 2) == 0) {
          v->state = State::kFailed;
          v->failed_at = now_;
        } else {
          v->state = v->state == State::kLoading ? State::kWarming : State::kAvailable;
        }
        return true;
      case State::kDraining:
        v->state = State::kUnloading;
        return true;
      case State::kUnloading:
        v->state = State::kEnded;
        return true;
      default:
        return false;
    }
  }

  void Disturb() {
    PlannedModel& model =
        models_[static_cast<size_t>(Draw(0, static_cast<int>(models_.size()) - 1))];
    PlannedVersion& v = model.versions[static_cast<size_t>(Draw(0, 3))];
    switch (Draw(0, 5)) {
      case 5:  // a request
        model.asked = true;
        model.last_use = now_;
        break;
      case 0:
        for (PlannedVersion& each : model.versions) each.wanted = Draw(0, 2) == 0;
        break;
      case 1:
        v.files_changed = true;
        break;
      case 2:
        now_ += absl::Seconds(Draw(-30, 90));  // clocks jump
        break;
      default:
        Proceed(&v);
    }
  }

  std::mt19937 random_;
  PlanOptions options_;
  std::vector<PlannedModel> models_;
  absl::Time now_ = At(1000);
};

// covers: serving: 1,000 random histories of loads, failures, changes of mind and clock jumps keep
//   an available version, load nothing twice and come to rest
TEST(VersionPlanTest, RandomHistoriesKeepTheRules) {
  const auto run = [](unsigned seed) {
    SCOPED_TRACE(absl::StrCat("MILLRACE_SEED=", seed));
    for (const LoadOrder order : {LoadOrder::kAvailabilityFirst, LoadOrder::kResourcesFirst}) {
      History(seed, order).Run();
    }
  };
  if (const char* const text = std::getenv("MILLRACE_SEED")) {
    unsigned seed;
    ASSERT_TRUE(absl::SimpleAtoi(text, &seed)) << text;
    return run(seed);
  }
  for (unsigned seed = 1; seed <= 1000 && !HasFatalFailure(); ++seed) run(seed);
}

}  // namespace
}  // namespace millrace
