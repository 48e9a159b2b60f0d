// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/work_queue.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/logging.h"

namespace millrace {
namespace {

constexpr absl::string_view kFirstLine = "millrace work queue 1";
// More than any run gets to; those behind it can still be counted.
constexpr int64_t kMostEpochs = int64_t{1} << 53;

// The next of the numbers that begin with `*state` (SplitMix64, Steele, Lea and Flood 2014): the
// same on every machine, which std::shuffle does not promise.
uint64_t NextNumber(uint64_t* state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::vector<size_t> OrderOf(size_t size, uint64_t seed, int64_t epoch) {
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  if (seed == 0) return order;
  uint64_t state = seed;
  state = NextNumber(&state) ^ static_cast<uint64_t>(epoch);
  for (size_t i = size; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(NextNumber(&state) % i)]);
  }
  return order;
}

std::string TextOf(const FileRange& range) {
  return absl::StrCat("'", range.file, "' [", range.begin, ", ", range.end, ")");
}

Status CheckShards(absl::string_view queue, const std::vector<FileRange>& shards) {
  if (shards.empty()) {
    return InvalidArgument("WorkQueue '", queue, "': there must be at least one shard, got none");
  }
  for (const FileRange& shard : shards) {
    if (shard.file.empty()) {
      return InvalidArgument("WorkQueue '", queue, "': a shard must name a file, got ''");
    }
    if (shard.begin < 0 || (shard.end != -1 && shard.end < shard.begin)) {
      return InvalidArgument("WorkQueue '", queue,
                             "': a shard must begin at 0 or later and end behind that, or at -1, "
                             "got ",
                             TextOf(shard));
    }
  }
  return absl::OkStatus();
}

Status CancelledTake() { return absl::CancelledError("the take of a shard was cancelled"); }

// "done <begin> <end> <file>", "open <epoch> <begin> <end> <file>", file names escaped.
void AppendShard(const FileRange& shard, std::string* text) {
  absl::StrAppend(text, shard.begin, " ", shard.end, " ", absl::CEscape(shard.file), "\n");
}

// Takes a number and the blank behind it from the front.
bool ConsumeNumber(absl::string_view* line, int64_t* number) {
  const size_t blank = line->find(' ');
  if (blank == absl::string_view::npos) return false;
  if (!absl::SimpleAtoi(line->substr(0, blank), number)) return false;
  line->remove_prefix(blank + 1);
  return true;
}

bool ConsumeWord(absl::string_view* line, absl::string_view word) {
  if (line->substr(0, word.size()) != word) return false;
  line->remove_prefix(word.size());
  return true;
}

bool ParseShard(absl::string_view line, FileRange* shard) {
  return ConsumeNumber(&line, &shard->begin) && ConsumeNumber(&line, &shard->end) &&
         absl::CUnescape(line, &shard->file) && !shard->file.empty();
}

}  // namespace

// --- WorkQueueState ------------------------------------------------------------------------------

std::string WorkQueueState::ToText() const {
  std::string text = absl::StrCat(kFirstLine, "\nepoch ", epoch, "\n");
  for (const FileRange& shard : done) {
    text += "done ";
    AppendShard(shard, &text);
  }
  for (const auto& [of, shard] : open) {
    absl::StrAppend(&text, "open ", of, " ");
    AppendShard(shard, &text);
  }
  return text;
}

StatusOr<WorkQueueState> WorkQueueState::Parse(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const auto bad = [&](size_t line) {
    return absl::DataLossError(
        absl::StrCat("the state of a work queue must have its epoch and shards, got line ",
                     line + 1, " '", absl::CEscape(lines[line].substr(0, 80)), "'"));
  };
  if (lines[0] != kFirstLine) return bad(0);
  WorkQueueState state;
  absl::string_view epoch = lines.size() > 1 ? lines[1] : absl::string_view();
  if (!ConsumeWord(&epoch, "epoch ") || !absl::SimpleAtoi(epoch, &state.epoch) || state.epoch < 0 ||
      state.epoch > kMostEpochs) {
    return bad(std::min<size_t>(1, lines.size() - 1));
  }
  std::set<std::pair<int64_t, FileRange>> open;
  // Each line ends with a line break, so the last of the parts is empty.
  if (!lines.back().empty()) return bad(lines.size() - 1);
  for (size_t i = 2; i + 1 < lines.size(); ++i) {
    absl::string_view line = lines[i];
    FileRange shard;
    if (ConsumeWord(&line, "done ")) {
      if (!ParseShard(line, &shard)) return bad(i);
      state.done.push_back(std::move(shard));
      continue;
    }
    int64_t of = 0;
    if (!ConsumeWord(&line, "open ") || !ConsumeNumber(&line, &of) || of < 0 || of >= state.epoch ||
        !ParseShard(line, &shard) || !open.emplace(of, shard).second) {
      return bad(i);
    }
    state.open.emplace_back(of, std::move(shard));
  }
  return state;
}

// --- WorkQueue -----------------------------------------------------------------------------------

std::string WorkQueue::DebugString() const {
  MutexLock lock(&mu_);
  if (!is_filled_) return absl::StrCat("work queue '", name_, "': not filled");
  return absl::StrCat(
      "work queue '", name_, "': ", content_.shards.size(), " shards, epoch ", epoch_, " of ",
      content_.num_epochs < 0 ? "infinitely many" : absl::StrCat(content_.num_epochs),
      "; handed out ", ledger_.handed_out, ", done ", ledger_.done, ", given back ",
      ledger_.given_back, ", late ", ledger_.late, ", held ", held_.size());
}

WorkQueue::Ledger WorkQueue::ledger() const {
  MutexLock lock(&mu_);
  Ledger ledger = ledger_;
  ledger.held = static_cast<int64_t>(held_.size());
  return ledger;
}

Status WorkQueue::Fill(Content content) {
  MR_RETURN_IF_ERROR(CheckShards(name_, content.shards));
  if (content.num_epochs < -1 || content.num_epochs == 0) {
    return InvalidArgument("WorkQueue '", name_, "': num_epochs must be > 0, or -1, got ",
                           content.num_epochs);
  }
  std::map<FileRange, size_t> places;
  for (size_t i = 0; i < content.shards.size(); ++i) {
    if (!places.emplace(content.shards[i], i).second) {
      return InvalidArgument("WorkQueue '", name_, "': shards must differ, got ",
                             TextOf(content.shards[i]), " twice");
    }
  }
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (is_filled_) return;
    is_filled_ = true;
    content_ = std::move(content);
    places_ = std::move(places);
    TakeUp(restored_.value_or(WorkQueueState()));
    restored_.reset();
  });
  return absl::OkStatus();
}

void WorkQueue::BeginEpoch(int64_t epoch, std::vector<bool> is_done) {
  epoch_ = epoch;
  is_done_ = std::move(is_done);
  order_ = OrderOf(content_.shards.size(), content_.shuffle_seed, epoch);
  order_.erase(std::remove_if(order_.begin(), order_.end(),
                              [this](size_t shard)
                                  ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_[shard]; }),
               order_.end());
  next_ = 0;
}

void WorkQueue::TakeUp(const WorkQueueState& state) {
  int64_t gone = 0;
  std::vector<bool> is_done(content_.shards.size());
  for (const FileRange& shard : state.done) {
    const auto found = places_.find(shard);
    if (found != places_.end()) is_done[found->second] = true;
  }
  given_back_.clear();
  for (const auto& [epoch, shard] : state.open) {
    const auto found = places_.find(shard);
    if (found == places_.end()) {
      ++gone;
    } else if (content_.num_epochs < 0 || epoch < content_.num_epochs) {
      given_back_.push_back({epoch, found->second});
    }
  }
  if (gone > 0) {
    LogWarning("WorkQueue '", name_, "': ", gone,
               " shards of earlier epochs are not in the list any more and are not done");
  }
  BeginEpoch(state.epoch, std::move(is_done));
  // The run was to have more epochs when the state was saved.
  if (content_.num_epochs >= 0 && epoch_ >= content_.num_epochs) order_.clear();
}

std::optional<WorkQueue::Work> WorkQueue::NextWork() {
  if (!given_back_.empty()) {
    const Work work = given_back_.front();
    given_back_.pop_front();
    return work;
  }
  if (next_ == order_.size()) {
    if (is_last_epoch()) return std::nullopt;
    BeginEpoch(epoch_ + 1, std::vector<bool>(content_.shards.size()));
  }
  // A restored epoch may have nothing to do; the next one has all shards, of which there are some.
  return Work{epoch_, order_[next_++]};
}

bool WorkQueue::Serve(Attempt* attempt) {
  if (!is_filled_) return false;
  if (const std::optional<Work> work = NextWork()) {
    const int64_t id = ++last_id_;
    held_.emplace(id, Held{attempt->session, *work});
    ++ledger_.handed_out;
    attempt->result = std::optional<Taken>(Taken{id, work->epoch, content_.shards[work->shard]});
    return true;
  }
  if (!held_.empty()) {
    const std::string* const holder = attempt->may_wait ? OnlyHolder() : nullptr;
    if (holder == nullptr || *holder != attempt->session) return false;
  }
  attempt->result = absl::OutOfRangeError(absl::StrCat(
      "all shards of work queue '", name_, "' are done", held_.empty() ? "" : " or its own"));
  return true;
}

const std::string* WorkQueue::OnlyHolder() const {
  const std::string* holder = nullptr;
  for (const auto& [id, held] : held_) {
    if (holder != nullptr && *holder != held.session) return nullptr;
    holder = &held.session;
  }
  return holder;
}

void WorkQueue::EndWaitsForThemselves(Line* ended) {
  const std::string* const holder = line_.empty() ? nullptr : OnlyHolder();
  if (holder == nullptr) return;
  for (auto it = line_.begin(); it != line_.end();) {
    const auto attempt = it++;
    // There is nothing to hand out to it: then nobody would be in line.
    if ((*attempt)->session == *holder && Serve(attempt->get())) {
      ended->splice(ended->end(), line_, attempt);
    }
  }
}

void WorkQueue::Take(const std::string& session, CancellationManager* cancellation, bool may_wait,
                     DoneFn done) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->session = session;
  attempt->may_wait = may_wait;
  attempt->done = std::move(done);
  Line arrived = {attempt};
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A session's steps are cancelled before SessionEnded, so this one gets nothing after that.
    const bool goes_on =
        !left_.contains(attempt->session) &&
        (cancellation == nullptr ||
         cancellation->Register(&attempt->token,
                                [queue = shared_from_this(), attempt] { queue->Cancel(attempt); }));
    if (goes_on) attempt->cancellation = cancellation;
    if (!goes_on) attempt->result = CancelledTake();
    // Those who wait are not overtaken: they wait because there is nothing for anybody.
    const bool is_over = !goes_on || Serve(attempt.get()) || !may_wait;
    Line& place = is_over ? *ended : line_;
    place.splice(place.end(), arrived);
  });
}

void WorkQueue::Cancel(const std::shared_ptr<Attempt>& attempt) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = std::find(line_.begin(), line_.end(), attempt);
    if (found == line_.end()) return;  // ended by somebody else
    attempt->result = CancelledTake();
    ended->splice(ended->end(), line_, found);
  });
}

bool WorkQueue::Done(absl::string_view session, int64_t id) {
  bool counts = false;
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = held_.find(id);
    if (found == held_.end() || found->second.session != session) {
      ++ledger_.late;
      return;
    }
    const Work work = found->second.work;
    held_.erase(found);
    if (work.epoch == epoch_) is_done_[work.shard] = true;
    ++ledger_.done;
    counts = true;
  });
  return counts;
}

void WorkQueue::SessionEnded(absl::string_view session_handle) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<Work> back;
    for (auto it = held_.begin(); it != held_.end();) {
      if (it->second.session == session_handle) {
        back.push_back(it->second.work);
        it = held_.erase(it);
      } else {
        ++it;
      }
    }
    ledger_.given_back += static_cast<int64_t>(back.size());
    given_back_.insert(given_back_.begin(), back.begin(), back.end());
    left_.erase(std::string(session_handle));
    EndTakesOf(session_handle, ended);
  });
}

void WorkQueue::GiveBack(absl::string_view session, int64_t id) {
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = held_.find(id);
    if (found == held_.end() || found->second.session != session) return;
    given_back_.push_front(found->second.work);
    held_.erase(found);
    ++ledger_.given_back;
  });
}

void WorkQueue::Leave(const std::string& session, const CancellationManager* cancellation) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A session's steps are cancelled before SessionEnded: nobody would forget it after that.
    if (cancellation != nullptr && cancellation->IsCancelled()) return;
    left_.insert(session);
    EndTakesOf(session, ended);
  });
}

void WorkQueue::EndTakesOf(absl::string_view session, Line* ended) {
  for (auto it = line_.begin(); it != line_.end();) {
    const auto attempt = it++;
    if ((*attempt)->session != session) continue;
    (*attempt)->result = CancelledTake();
    ended->splice(ended->end(), line_, attempt);
  }
}

std::string WorkQueue::Save() const {
  MutexLock lock(&mu_);
  if (!is_filled_) return restored_ ? restored_->ToText() : "";
  WorkQueueState state;
  state.epoch = epoch_;
  for (size_t i = 0; i < is_done_.size(); ++i) {
    if (is_done_[i]) state.done.push_back(content_.shards[i]);
  }
  const auto add = [&](const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (work.epoch < epoch_) state.open.emplace_back(work.epoch, content_.shards[work.shard]);
  };
  for (const Work& work : given_back_) add(work);
  for (const auto& [id, held] : held_) add(held.work);
  return state.ToText();
}

Status WorkQueue::Restore(absl::string_view text) {
  WorkQueueState state;
  if (!text.empty()) {
    StatusOr<WorkQueueState> parsed = WorkQueueState::Parse(text);
    if (!parsed.ok()) {
      return Prefixed(absl::StrCat("WorkQueue '", name_, "'"), parsed.status());
    }
    state = *std::move(parsed);
  }
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!is_filled_) {
      restored_ = std::move(state);
      return;
    }
    ledger_.given_back += static_cast<int64_t>(held_.size());
    held_.clear();
    TakeUp(state);
  });
  return absl::OkStatus();
}

void WorkQueue::Change(absl::FunctionRef<void(Line* ended)> change) {
  Line ended;
  {
    MutexLock lock(&mu_);
    change(&ended);
    while (!line_.empty() && Serve(line_.front().get())) {
      ended.splice(ended.end(), line_, line_.begin());
    }
    EndWaitsForThemselves(&ended);
  }
  for (const std::shared_ptr<Attempt>& attempt : ended) {
    // When its callback has begun, it finds that the attempt has left its line.
    if (attempt->cancellation != nullptr) attempt->cancellation->Deregister(attempt->token);
    attempt->done(std::move(attempt->result));
  }
}

}  // namespace millrace
