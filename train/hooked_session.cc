// SPDX-License-Identifier: Apache-2.0
#include "train/hooked_session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "graph/graph.h"
#include "proto/config.pb.h"

namespace millrace {
namespace {

// Steps of the program that are remembered by their names.
constexpr size_t kMaxStepsByName = 16;

bool Same(const FetchName& a, const FetchName& b) {
  return a.node_id() == b.node_id() && a.graph_id() == b.graph_id() && a.name() == b.name();
}

template <typename List>
bool SameNames(const List& a, absl::Span<const FetchName> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), Same);
}

Status OfHook(const std::string& name, const char* method, const Status& status) {
  if (status.ok()) return status;
  return Prefixed(absl::StrCat(name, ".", method), status);
}

// "x" is tensor "x:0".
std::string FullName(const FetchName& name) {
  return absl::StrContains(name.name(), ':') ? name.name() : absl::StrCat(name.name(), ":0");
}

}  // namespace

HookedSession::HookedSession(const Scope& scope, std::vector<SessionRunHook*> hooks, Clock* clock)
    : scope_(scope.WithRootPrefix().WithoutControlDependencies()), clock_(clock) {
  for (SessionRunHook* hook : hooks) hooks_.push_back({.hook = hook, .name = hook->name()});
  for (const bool guards : {true, false}) {
    for (size_t i = 0; i < hooks.size(); ++i) {
      if (hooks[i]->is_guard() == guards) after_run_order_.push_back(i);
    }
  }
  run_.clock = clock;
}

HookedSession::~HookedSession() = default;

Status HookedSession::Begin() {
  HookSetup setup(scope_);
  int bit = 0;
  for (Hook& hook : hooks_) {
    setup.StartHook(hook.name);
    MR_RETURN_IF_ERROR(OfHook(hook.name, "Begin", hook.hook->Begin(&setup)));
    // What a hook has added to the graph is its own.
    MR_RETURN_IF_ERROR(OfHook(hook.name, "Begin", scope_.status()));
    hook.groups = setup.TakeGroups();
    hook.first_bit = bit;
    bit += static_cast<int>(hook.groups.size());
    if (bit > kMaxHookGroups) {
      return InvalidArgument(hook.name,
                             ".Begin: all hooks of a session together must have at most ",
                             kMaxHookGroups, " groups, got ", bit);
    }
    std::vector<GroupRange> feeds;
    for (const HookGroup& group : hook.groups) {
      for (const auto* list : {&group.fetches, &group.feeds}) {
        for (const Output& output : *list) {
          if (output.valid() && output.node()->graph() == scope_.graph()) continue;
          return InvalidArgument(hook.name,
                                 ".Begin: fetches and feeds must be of the session's "
                                 "graph, got ",
                                 output.valid() ? absl::StrCat("'", output.name(), "' of another")
                                                : "an invalid Output");
        }
      }
      feeds.push_back({.first = run_.feeds.size(), .size = group.feeds.size()});
      run_.feeds.resize(run_.feeds.size() + group.feeds.size());
    }
    run_.feed_ranges.push_back(std::move(feeds));
  }
  last_step_ = setup.last_step();
  num_steps_ = setup.num_steps();
  return absl::OkStatus();
}

int64_t HookedSession::LastStepFrom(int64_t first_step) const {
  if (num_steps_ <= 0 || first_step < 0) return last_step_;
  const int64_t last = first_step + num_steps_;
  return last_step_ > 0 ? std::min(last_step_, last) : last;
}

Status HookedSession::Start(const CreatedSession& created) {
  Drop();
  run_.session = created.session.get();
  run_.now.reset();
  for (size_t i = 0; i < hooks_.size(); ++i) {
    RunContext context(&run_, i);
    MR_RETURN_IF_ERROR(OfHook(hooks_[i].name, "AfterCreateSession",
                              hooks_[i].hook->AfterCreateSession(&context, created)));
  }
  return absl::OkStatus();
}

void HookedSession::Drop() {
  run_.session = nullptr;
  for (Step& step : steps_) step.prepared.clear();
}

// --- Steps of the program ------------------------------------------------------------------------

HookedSession::Step HookedSession::MakeStep(std::vector<FetchName> feeds,
                                            std::vector<FetchName> fetches,
                                            std::vector<FetchName> targets) const {
  Step step = {
      .feeds = std::move(feeds), .fetches = std::move(fetches), .targets = std::move(targets)};
  for (const FetchName& fetch : step.fetches) {
    // As graph/signature.h: what has no outputs is run and gives no result.
    bool is_tensor = true;
    if (!absl::StrContains(fetch.name(), ':')) {
      const Node* const node = scope_.graph()->FindNode(fetch.name());
      is_tensor = node == nullptr || node->num_outputs() > 0;
    }
    if (is_tensor) ++step.num_results;
  }
  return step;
}

size_t HookedSession::AddStep(std::vector<FetchName> feeds, std::vector<FetchName> fetches,
                              std::vector<FetchName> targets) {
  steps_.push_back(MakeStep(std::move(feeds), std::move(fetches), std::move(targets)));
  return steps_.size() - 1;
}

size_t HookedSession::FindOrAddStep(absl::Span<const Feed> feeds,
                                    absl::Span<const FetchName> fetches,
                                    absl::Span<const FetchName> targets) {
  ++uses_;
  size_t by_name = 0, oldest = steps_.size();
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (!step.by_name) continue;
    const bool same_feeds =
        std::equal(step.feeds.begin(), step.feeds.end(), feeds.begin(), feeds.end(),
                   [](const FetchName& name, const Feed& feed) { return Same(name, feed.name); });
    if (same_feeds && SameNames(step.fetches, fetches) && SameNames(step.targets, targets)) {
      step.last_used = uses_;
      return i;
    }
    ++by_name;
    if (oldest == steps_.size() || step.last_used < steps_[oldest].last_used) oldest = i;
  }
  std::vector<FetchName> feed_names;
  for (const Feed& feed : feeds) feed_names.push_back(feed.name);
  Step step = MakeStep(std::move(feed_names), {fetches.begin(), fetches.end()},
                       {targets.begin(), targets.end()});
  step.by_name = true;
  step.last_used = uses_;
  if (by_name >= kMaxStepsByName) {
    steps_[oldest] = std::move(step);
    return oldest;
  }
  steps_.push_back(std::move(step));
  return steps_.size() - 1;
}

// --- A run ---------------------------------------------------------------------------------------

StatusOr<GroupMask> HookedSession::AskHooks() {
  GroupMask all = kNoGroups;
  for (size_t i = 0; i < hooks_.size(); ++i) {
    const Hook& hook = hooks_[i];
    RunContext context(&run_, i);
    const StatusOr<GroupMask> mask = hook.hook->BeforeRun(&context);
    if (!mask.ok()) return OfHook(hook.name, "BeforeRun", mask.status());
    const size_t groups = hook.groups.size();
    if (groups < kMaxHookGroups && (*mask >> groups) != 0) {
      return InvalidArgument(hook.name,
                             ".BeforeRun: the groups must be of those that Begin has "
                             "added, ",
                             groups, " of them, got the mask ", *mask);
    }
    if (*mask != kNoGroups) all |= *mask << hook.first_bit;
  }
  return all;
}

StatusOr<HookedSession::Prepared*> HookedSession::Prepare(Step* step, GroupMask mask) {
  for (Prepared& prepared : step->prepared) {
    if (prepared.mask == mask) return &prepared;
  }
  Prepared made;
  made.mask = mask;
  made.feeds = step->feeds;
  made.targets = step->targets;
  std::map<std::string, std::string> fed_by;  // tensor -> who
  for (const FetchName& feed : step->feeds) fed_by.emplace(FullName(feed), "the program");
  for (size_t i = 0; i < hooks_.size(); ++i) {
    const Hook& hook = hooks_[i];
    std::vector<GroupRange> results(hook.groups.size());
    for (size_t g = 0; g < hook.groups.size(); ++g) {
      if ((mask & MaskOf(hook.first_bit + static_cast<int>(g))) == 0) continue;
      const HookGroup& group = hook.groups[g];
      results[g] = {.first = made.fetches.size(), .size = group.fetches.size()};
      for (const Output& fetch : group.fetches) made.fetches.emplace_back(fetch);
      for (const Operation& target : group.targets) made.targets.emplace_back(target);
      for (size_t f = 0; f < group.feeds.size(); ++f) {
        const auto [other, is_new] = fed_by.emplace(group.feeds[f].name(), hook.name);
        if (!is_new) {
          return InvalidArgument(hook.name, ".BeforeRun: tensor '", group.feeds[f].name(),
                                 "' must be fed once, got a feed of ", other->second, ", too");
        }
        made.feeds.emplace_back(group.feeds[f]);
        made.hook_feeds.push_back(run_.feed_ranges[i][g].first + f);
      }
    }
    made.results.push_back(std::move(results));
  }
  made.num_hook_results = made.fetches.size();
  for (const FetchName& fetch : step->fetches) made.fetches.push_back(fetch);
  auto prepared = run_.session->Prepare(made.feeds, made.fetches, made.targets);
  if (prepared.ok()) {
    made.step = *std::move(prepared);
  } else if (!absl::IsUnimplemented(prepared.status())) {
    return prepared.status();
  }
  std::vector<Prepared>& all = step->prepared;
  if (all.size() < kMaxPreparedSteps) {
    all.push_back(std::move(made));
    return &all.back();
  }
  const auto oldest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.last_used < b.last_used;
  });
  *oldest = std::move(made);
  return &*oldest;
}

Status HookedSession::CheckHookFeeds(const Prepared& prepared, size_t num_program_feeds) const {
  for (size_t i = 0; i < prepared.hook_feeds.size(); ++i) {
    if (run_.feeds[prepared.hook_feeds[i]].has_value()) continue;
    return InvalidArgument("BeforeRun: tensor '", prepared.feeds[num_program_feeds + i].name(),
                           "' must be given a value by the hook that asked to feed it, got none");
  }
  return absl::OkStatus();
}

Status HookedSession::RunPrepared(const Prepared& prepared, absl::Span<const Tensor> feeds) {
  if (prepared.step != nullptr && run_.options == nullptr) {
    return prepared.step->RunInto(feeds, absl::MakeSpan(results_));
  }
  const tensorflow::RunOptions& options =
      run_.options != nullptr ? *run_.options : tensorflow::RunOptions::default_instance();
  if (run_.options != nullptr) metadata_ = std::make_unique<tensorflow::RunMetadata>();
  StatusOr<std::vector<Tensor>> results = absl::UnknownError("not run");
  if (prepared.step != nullptr) {
    results = prepared.step->Run(options, feeds, metadata_.get());
  } else {
    std::vector<Feed> named;
    for (size_t i = 0; i < feeds.size(); ++i) named.emplace_back(prepared.feeds[i], feeds[i]);
    results =
        run_.session->Run(options, named, prepared.fetches, prepared.targets, metadata_.get());
  }
  MR_RETURN_IF_ERROR(results.status());
  if (results->size() != results_.size()) {
    return Internal("Run: a step of ", results_.size(), " tensors has brought ", results->size());
  }
  std::move(results->begin(), results->end(), results_.begin());
  return absl::OkStatus();
}

Status HookedSession::Run(size_t number, absl::Span<const Tensor> feeds,
                          absl::Span<Tensor> results) {
  Step* const step = &steps_[number];
  for (Tensor& result : results) result = Tensor();
  if (feeds.size() != step->feeds.size() || results.size() != step->num_results) {
    return InvalidArgument("Run: a step of ", step->feeds.size(), " feeds and ", step->num_results,
                           " results must be given as many, got ", feeds.size(), " and ",
                           results.size());
  }
  for (Tensor& value : run_.feeds) value = Tensor();
  run_.options = nullptr;
  metadata_ = nullptr;
  run_.now.reset();
  MR_ASSIGN_OR_RETURN(const GroupMask mask, AskHooks());
  MR_ASSIGN_OR_RETURN(Prepared* const prepared, Prepare(step, mask));
  prepared->last_used = ++uses_;
  results_.resize(prepared->num_hook_results + step->num_results);
  Status status;
  if (prepared->hook_feeds.empty()) {
    status = RunPrepared(*prepared, feeds);
  } else {
    MR_RETURN_IF_ERROR(CheckHookFeeds(*prepared, feeds.size()));
    feed_values_.assign(feeds.begin(), feeds.end());
    for (const size_t place : prepared->hook_feeds) feed_values_.push_back(run_.feeds[place]);
    status = RunPrepared(*prepared, feed_values_);
    for (Tensor& value : feed_values_) value = Tensor();  // memory for the next batch
  }
  run_.now.reset();
  const absl::Span<const Tensor> of_hooks =
      absl::MakeConstSpan(results_).subspan(0, prepared->num_hook_results);
  for (const size_t i : after_run_order_) {
    if (!status.ok()) break;
    const Hook& hook = hooks_[i];
    RunContext context(&run_, i);
    const size_t groups = hook.groups.size();
    // A shift by the width of the mask is none.
    const GroupMask mine =
        groups == 0 ? kNoGroups
                    : (mask >> hook.first_bit) & (~GroupMask{0} >> (kMaxHookGroups - groups));
    status = OfHook(hook.name, "AfterRun",
                    hook.hook->AfterRun(&context, RunValues(mine, prepared->results[i], of_hooks,
                                                            metadata_.get())));
  }
  if (status.ok()) {
    ++run_.run_number;
    std::move(results_.begin() + static_cast<ptrdiff_t>(prepared->num_hook_results), results_.end(),
              results.begin());
  }
  for (Tensor& result : results_) result = Tensor();
  return status;
}

Status HookedSession::WhileOthersTrain() {
  run_.now.reset();
  for (size_t i = 0; i < hooks_.size(); ++i) {
    RunContext context(&run_, i);
    MR_RETURN_IF_ERROR(
        OfHook(hooks_[i].name, "WhileOthersTrain", hooks_[i].hook->WhileOthersTrain(&context)));
  }
  return absl::OkStatus();
}

Status HookedSession::End() {
  const LoopEnd end = {.session = run_.session, .nothing_to_save = run_.nothing_to_save};
  Status first;
  for (const Hook& hook : hooks_) {
    const Status status = OfHook(hook.name, "End", hook.hook->End(end));
    if (!status.ok() && !first.ok()) {
      LogWarning("A second hook has failed at the end: ", status.message());
    }
    first.Update(status);
  }
  return first;
}

}  // namespace millrace
