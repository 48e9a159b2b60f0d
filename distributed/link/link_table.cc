// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/link_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// A peer that has refused our link because it has dialled, too, and whose own does not come: it may
// have failed.
constexpr absl::Duration kDialAgain = absl::Seconds(1);

// A program that has not answered for so long is taken for one that has ended, when another one
// comes under its name. Within the time that others wait for a link.
constexpr absl::Duration kSignOfLife = absl::Seconds(3);

Status BothDialled(const std::string& peer, const std::string& kept) {
  return absl::AlreadyExistsError(absl::StrCat("Link to ", peer,
                                               ": both tasks have dialled, and the link that ",
                                               kept, " has dialled is kept"));
}

// BYE need not be read by the peer.
void CloseAtOnce(ByteLink* link, const Status& reason) {
  link->Close(reason);
  link->Close(reason);
}

}  // namespace

// What is left when the table is gone and its links are not.
class LinkTable::Links : public std::enable_shared_from_this<LinkTable::Links> {
 public:
  explicit Links(LinkTableOptions options) : options_(std::move(options)) {}
  // Once, before all else.
  void MakeTimer();

  std::shared_ptr<Link> Find(const std::string& task) const;
  void Get(const std::string& task, Done done);
  void Accept(std::unique_ptr<ByteWire> wire);
  std::vector<std::shared_ptr<Link>> OpenLinks() const;
  int num_links() const;
  void CloseAll(const Status& reason);

 private:
  // Stands between a link and the end that its owner makes.
  class End;

  // The header draws them. A task without an entry has none.
  enum class State { kDialling, kExpecting, kAdmitted, kOpen };
  struct Waiter {
    absl::Time until;
    Done done;
  };
  struct Task {
    State state = State::kDialling;
    uint64_t id = 0;              // its link's; 0 while it is expected
    uint64_t incarnation = 0;     // admitted, open
    std::shared_ptr<Link> link;   // open
    uint64_t asked_for = 0;       // open: the incarnation that wants its place; 0: none
    absl::Time since;             // expecting
    std::vector<Waiter> waiters;  // none when it is open
  };
  // A link, from before it is opened until it is lost.
  struct Slot {
    std::shared_ptr<ByteLink> link;  // null before
    std::string task;                // empty until HELLO when others have dialled
    bool is_dialled = false;         // by this task
    Status unwanted;                 // an error: it is closed with it as soon as it is there
  };
  struct Closing {
    std::shared_ptr<ByteLink> link;
    Status reason;
  };
  // What a new link does to another one, after the lock.
  struct Effect {
    Closing replaced;
    std::shared_ptr<ByteLink> asked;  // for a sign of life; may be null
  };

  bool CanDial(const std::string& task) const;
  ByteLinkOptions OptionsOfLink() const;
  uint64_t AddSlot(const std::string& task, bool is_dialled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The link will be closed, by the caller after the lock or by whoever opens it.
  Closing Drop(uint64_t id, const Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Close(const Closing& closing);
  void Dial(uint64_t id, const std::string& task);
  void Open(uint64_t id, std::unique_ptr<ByteWire> wire, ByteLinkOptions options);

  // By links, on the threads that read them.
  Status AdmitCallee(uint64_t id, const LinkPeer& peer);
  Status AdmitCaller(uint64_t id, const LinkPeer& peer);
  Status AdmitCallerLocked(uint64_t id, const LinkPeer& peer, Effect* effect)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a caller of another incarnation takes the place of the task's link.
  Status MayReplace(const LinkPeer& peer, Task* task, Effect* effect)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Opened(uint64_t id, const std::shared_ptr<Link>& link);
  void Lost(uint64_t id, const Status& status, bool by_peer);

  void StartTicking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tick();

  const LinkTableOptions options_;
  std::shared_ptr<Timer> timer_;  // set by MakeTimer
  mutable Mutex mu_;
  Status closed_ ABSL_GUARDED_BY(mu_);  // of CloseAll
  bool ticks_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  int accepted_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> unheard_ ABSL_GUARDED_BY(mu_);  // accepted, no HELLO; the oldest first
  std::map<std::string, Task> tasks_ ABSL_GUARDED_BY(mu_);
};

class LinkTable::Links::End : public LinkEnd {
 public:
  End(std::shared_ptr<Links> links, uint64_t id) : links_(std::move(links)), id_(id) {}

  void OnOpen(std::shared_ptr<Link> link) override {
    end_ = links_->options_.make_end(link->peer());
    MR_DCHECK(end_ != nullptr, "make_end returns an end");
    end_->OnOpen(link);
    links_->Opened(id_, link);
  }
  void OnBind(BindFrame bind) override { end_->OnBind(std::move(bind)); }
  void OnUnbind(uint64_t number) override { end_->OnUnbind(number); }
  void OnRun(RunFrame run) override { end_->OnRun(run); }
  void OnTensors(SentTensors tensors) override { end_->OnTensors(std::move(tensors)); }
  bool acknowledges_edges() const override { return end_->acknowledges_edges(); }
  void OnEnd(EndFrame end) override { end_->OnEnd(std::move(end)); }
  void OnCancel(int64_t step_id, const Status& status) override { end_->OnCancel(step_id, status); }
  void OnReceived(int64_t step_id, uint64_t tensors) override {
    end_->OnReceived(step_id, tensors);
  }
  void OnRefused(int64_t step_id, const Status& status) override {
    end_->OnRefused(step_id, status);
  }
  // The table first: an end that dials again is not given the link that it has lost.
  void OnLost(const Status& status, bool by_peer) override {
    links_->Lost(id_, status, by_peer);
    if (end_ != nullptr) end_->OnLost(status, by_peer);
  }

 private:
  const std::shared_ptr<Links> links_;
  const uint64_t id_;
  std::shared_ptr<LinkEnd> end_;  // from OnOpen on; by the reading thread alone
};

void LinkTable::Links::MakeTimer() {
  timer_ = options_.timers->Make([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Tick();
  });
}

bool LinkTable::Links::CanDial(const std::string& task) const {
  return options_.dial != nullptr && (options_.can_dial == nullptr || options_.can_dial(task));
}

ByteLinkOptions LinkTable::Links::OptionsOfLink() const {
  ByteLinkOptions options = options_.link;
  options.clock = options_.timers->clock();
  return options;
}

uint64_t LinkTable::Links::AddSlot(const std::string& task, bool is_dialled) {
  const uint64_t id = ++last_id_;
  Slot& slot = slots_[id];
  slot.task = task;
  slot.is_dialled = is_dialled;
  if (!is_dialled) ++accepted_;
  return id;
}

LinkTable::Links::Closing LinkTable::Links::Drop(uint64_t id, const Status& reason) {
  const auto slot = slots_.find(id);
  if (slot == slots_.end()) return {};
  slot->second.unwanted = reason;
  return {slot->second.link, reason};
}

void LinkTable::Links::Close(const Closing& closing) {
  if (closing.link != nullptr) CloseAtOnce(closing.link.get(), closing.reason);
}

std::shared_ptr<Link> LinkTable::Links::Find(const std::string& task) const {
  MutexLock lock(&mu_);
  const auto found = tasks_.find(task);
  return found == tasks_.end() ? nullptr : found->second.link;
}

std::vector<std::shared_ptr<Link>> LinkTable::Links::OpenLinks() const {
  std::vector<std::shared_ptr<Link>> links;
  MutexLock lock(&mu_);
  for (const auto& [name, task] : tasks_) {
    if (task.link != nullptr) links.push_back(task.link);
  }
  return links;
}

int LinkTable::Links::num_links() const {
  MutexLock lock(&mu_);
  return static_cast<int>(slots_.size());
}

// --- Links that this task dials

void LinkTable::Links::Get(const std::string& task, Done done) {
  Status status;
  std::shared_ptr<Link> link;
  uint64_t dialled = 0;
  if (std::shared_ptr<Link> open = Find(task)) return done(std::move(open));
  const bool can_dial = CanDial(task);
  {
    MutexLock lock(&mu_);
    const auto found = tasks_.find(task);
    if (!closed_.ok()) {
      status = closed_;
    } else if (task == options_.link.task) {
      status = InvalidArgument("Link to ", task, ": must be to another task, got this one");
    } else if (found != tasks_.end() && found->second.link != nullptr) {
      link = found->second.link;
    } else if (found == tasks_.end() && options_.dial == nullptr) {
      status = FailedPrecondition("Link to ", task, ": that task must dial, got no link of it; ",
                                  "this one has no way to others");
    } else {
      Task& entry = tasks_[task];
      entry.waiters.push_back({options_.timers->Now() + options_.max_wait, std::move(done)});
      if (found == tasks_.end()) {
        if (can_dial) {
          entry.id = dialled = AddSlot(task, /*is_dialled=*/true);
        } else {
          entry.state = State::kExpecting;
          entry.since = absl::InfiniteFuture();  // and is not dialled again
        }
      }
      StartTicking();
    }
  }
  if (!status.ok()) return done(status);
  if (link != nullptr) return done(std::move(link));
  if (dialled != 0) Dial(dialled, task);
}

void LinkTable::Links::Dial(uint64_t id, const std::string& task) {
  StatusOr<std::unique_ptr<ByteWire>> wire =
      NoExceptions("Link", [&] { return options_.dial(task); });
  if (!wire.ok()) {
    return Lost(id, Prefixed(absl::StrCat("Link to ", task), wire.status()), /*by_peer=*/false);
  }
  ByteLinkOptions options = OptionsOfLink();
  options.peer_task = task;
  options.admit = [self = shared_from_this(), id](const LinkPeer& peer) {
    return self->AdmitCallee(id, peer);
  };
  Open(id, *std::move(wire), std::move(options));
}

void LinkTable::Links::Open(uint64_t id, std::unique_ptr<ByteWire> wire, ByteLinkOptions options) {
  const Status opened = NoExceptions("Link", [&] {
    std::shared_ptr<ByteLink> link = ByteLink::Open(
        std::move(wire), std::make_shared<End>(shared_from_this(), id), std::move(options));
    Closing closing;
    {
      MutexLock lock(&mu_);
      const auto slot = slots_.find(id);
      if (slot == slots_.end()) return absl::OkStatus();  // lost already
      slot->second.link = link;
      if (!slot->second.unwanted.ok()) closing = {std::move(link), slot->second.unwanted};
    }
    Close(closing);
    return absl::OkStatus();
  });
  if (!opened.ok()) Lost(id, opened, /*by_peer=*/false);
}

Status LinkTable::Links::AdmitCallee(uint64_t id, const LinkPeer& peer) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(closed_);
  const auto found = tasks_.find(peer.task);
  if (found == tasks_.end() || found->second.id != id) return BothDialled(peer.task, peer.task);
  found->second.state = State::kAdmitted;
  found->second.incarnation = peer.incarnation;
  return absl::OkStatus();
}

// --- Links that others dial

void LinkTable::Links::Accept(std::unique_ptr<ByteWire> wire) {
  uint64_t id;
  Closing oldest;
  {
    MutexLock lock(&mu_);
    id = AddSlot("", /*is_dialled=*/false);
    if (!closed_.ok()) {
      slots_[id].unwanted = closed_;
    } else if (accepted_ > options_.max_accepted_links) {
      slots_[id].unwanted = absl::UnavailableError(
          absl::StrCat("Link: this task must have at most ", options_.max_accepted_links,
                       " links that others dialled, got another one"));
    } else {
      unheard_.insert(id);
    }
    if (static_cast<int>(unheard_.size()) > options_.max_unheard_links) {
      const uint64_t first = *unheard_.begin();
      unheard_.erase(unheard_.begin());
      oldest = Drop(first, absl::UnavailableError(absl::StrCat("Link: HELLO must come before ",
                                                               options_.max_unheard_links,
                                                               " others dial, got none")));
    }
    StartTicking();
  }
  Close(oldest);
  ByteLinkOptions options = OptionsOfLink();
  options.waits_for_hello = true;
  options.admit = [self = shared_from_this(), id](const LinkPeer& peer) {
    return self->AdmitCaller(id, peer);
  };
  Open(id, std::move(wire), std::move(options));
}

Status LinkTable::Links::AdmitCaller(uint64_t id, const LinkPeer& peer) {
  if (options_.check_peer) MR_RETURN_IF_ERROR(options_.check_peer(peer));
  Effect effect;
  Status admitted;
  {
    MutexLock lock(&mu_);
    admitted = AdmitCallerLocked(id, peer, &effect);
  }
  if (effect.asked != nullptr) effect.asked->Ping();
  Close(effect.replaced);
  return admitted;
}

Status LinkTable::Links::MayReplace(const LinkPeer& peer, Task* task, Effect* effect) {
  const std::string name = absl::StrCat("Link to ", options_.link.task, ": ", peer.task);
  const Status comes_again = absl::AlreadyExistsError(
      absl::StrCat(name, " must have one link, got one of another incarnation, which comes again"));
  const auto slot = slots_.find(task->id);
  // Without a place it is just being lost; admitted, it is about to open.
  if (task->state != State::kOpen || slot == slots_.end() || slot->second.link == nullptr) {
    return comes_again;
  }
  if (task->asked_for != peer.incarnation) {
    task->asked_for = peer.incarnation;
    effect->asked = slot->second.link;
    return comes_again;
  }
  const absl::Duration silent = slot->second.link->Unanswered();
  if (silent >= kSignOfLife) return absl::OkStatus();
  if (silent > absl::ZeroDuration()) return comes_again;
  task->asked_for = 0;
  return absl::UnavailableError(
      absl::StrCat(name, " must be one program, got a second one (incarnation ", peer.incarnation,
                   ") while that of incarnation ", task->incarnation,
                   " answers; were two programs started with one task index?"));
}

Status LinkTable::Links::AdmitCallerLocked(uint64_t id, const LinkPeer& peer, Effect* effect) {
  unheard_.erase(id);
  const auto slot = slots_.find(id);
  if (slot == slots_.end()) return absl::UnavailableError("Link: lost");  // for want of memory
  MR_RETURN_IF_ERROR(slot->second.unwanted);
  MR_RETURN_IF_ERROR(closed_);
  const std::string& self = options_.link.task;
  if (peer.task.empty() || peer.task == self) {
    return FailedPrecondition("Link to ", self, ": the caller must be another task, got '",
                              peer.task, "'; do all tasks have the same cluster addresses?");
  }
  const auto found = tasks_.find(peer.task);
  if (found != tasks_.end()) {
    Task& task = found->second;
    switch (task.state) {
      case State::kDialling:
        if (self < peer.task) return BothDialled(self, self);
        effect->replaced = Drop(task.id, BothDialled(peer.task, peer.task));
        break;
      case State::kAdmitted:
      case State::kOpen:
        if (task.incarnation == peer.incarnation) {
          return absl::AlreadyExistsError(
              absl::StrCat("Link to ", self, ": ", peer.task, " must have one link, got another"));
        }
        MR_RETURN_IF_ERROR(MayReplace(peer, &task, effect));
        effect->replaced =
            Drop(task.id, absl::AbortedError(absl::StrCat(
                              "Link to ", peer.task, ": the task restarted (incarnation ",
                              task.incarnation, " expected, ", peer.incarnation, " found)")));
        break;
      case State::kExpecting:
        break;
    }
  }
  Task& task = tasks_[peer.task];
  task.state = State::kAdmitted;
  task.id = id;
  task.incarnation = peer.incarnation;
  task.link = nullptr;
  task.asked_for = 0;
  slot->second.task = peer.task;
  return absl::OkStatus();
}

// --- Open, and lost

void LinkTable::Links::Opened(uint64_t id, const std::shared_ptr<Link>& link) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mu_);
    const auto found = tasks_.find(link->peer().task);
    // Replaced, or all are closed: it is being closed, and others wait for its successor.
    if (found == tasks_.end() || found->second.id != id) return;
    MR_DCHECK(found->second.state == State::kAdmitted, "a link opens when it was admitted");
    found->second.state = State::kOpen;
    found->second.link = link;
    waiters.swap(found->second.waiters);
  }
  for (Waiter& waiter : waiters) waiter.done(link);
}

void LinkTable::Links::Lost(uint64_t id, const Status& status, bool by_peer) {
  Slot lost;  // goes without the lock
  std::vector<Waiter> waiters;
  std::shared_ptr<Link> link;
  {
    MutexLock lock(&mu_);
    const auto slot = slots_.find(id);
    if (slot == slots_.end()) return;
    lost = std::move(slot->second);
    slots_.erase(slot);
    unheard_.erase(id);
    if (!lost.is_dialled) --accepted_;
    const auto found = tasks_.find(lost.task);
    if (found == tasks_.end() || found->second.id != id) return;
    Task& task = found->second;
    if (task.state == State::kDialling && by_peer && absl::IsAlreadyExists(status)) {
      task.state = State::kExpecting;
      task.id = 0;
      task.since = options_.timers->Now();
      return;
    }
    waiters.swap(task.waiters);
    link.swap(task.link);
    tasks_.erase(found);
  }
  for (Waiter& waiter : waiters) waiter.done(LossOfLink(status));
}

void LinkTable::Links::CloseAll(const Status& reason) {
  Status closed;
  std::vector<std::shared_ptr<ByteLink>> links;
  std::map<std::string, Task> tasks;
  {
    MutexLock lock(&mu_);
    if (!closed_.ok()) return;
    closed_ = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
    closed = closed_;
    tasks.swap(tasks_);
    unheard_.clear();
    for (auto& [id, slot] : slots_) {
      slot.unwanted = closed;
      if (slot.link != nullptr) links.push_back(slot.link);
    }
  }
  for (const std::shared_ptr<ByteLink>& link : links) link->Close(closed);
  for (auto& [name, task] : tasks) {
    for (Waiter& waiter : task.waiters) waiter.done(closed);
  }
}

// --- Time

void LinkTable::Links::StartTicking() {
  if (std::exchange(ticks_, true)) return;
  timer_->Set(options_.timers->Now() + options_.tick_every);
}

void LinkTable::Links::Tick() {
  std::vector<std::shared_ptr<ByteLink>> links;
  std::vector<std::pair<std::string, Waiter>> late;
  std::vector<std::pair<uint64_t, std::string>> dialled;
  const absl::Time now = options_.timers->Now();
  {
    MutexLock lock(&mu_);
    for (const auto& [id, slot] : slots_) {
      if (slot.link != nullptr) links.push_back(slot.link);
    }
    for (auto it = tasks_.begin(); it != tasks_.end();) {
      Task& task = it->second;
      // They came in the order of their limits.
      const auto in_time = std::find_if(task.waiters.begin(), task.waiters.end(),
                                        [&](const Waiter& waiter) { return waiter.until > now; });
      for (auto waiter = task.waiters.begin(); waiter != in_time; ++waiter) {
        late.emplace_back(it->first, std::move(*waiter));
      }
      task.waiters.erase(task.waiters.begin(), in_time);
      if (task.state == State::kExpecting && task.waiters.empty()) {
        it = tasks_.erase(it);
        continue;
      }
      if (task.state == State::kExpecting && now - task.since >= kDialAgain &&
          options_.dial != nullptr) {
        task.state = State::kDialling;
        task.id = AddSlot(it->first, /*is_dialled=*/true);
        dialled.emplace_back(task.id, it->first);
      }
      ++it;
    }
  }
  for (const std::shared_ptr<ByteLink>& link : links) link->Tick();
  for (auto& [task, waiter] : late) {
    waiter.done(absl::UnavailableError(absl::StrCat("Link to ", task, ": must be open within ",
                                                    absl::FormatDuration(options_.max_wait),
                                                    ", got no answer")));
  }
  for (const auto& [id, task] : dialled) Dial(id, task);
  MutexLock lock(&mu_);
  ticks_ = !slots_.empty() || !tasks_.empty();
  if (ticks_) timer_->Set(options_.timers->Now() + options_.tick_every);
}

// --- LinkTable

LinkTable::LinkTable(LinkTableOptions options)
    : links_(std::make_shared<Links>(std::move(options))) {
  links_->MakeTimer();
}

LinkTable::~LinkTable() { links_->CloseAll(absl::UnavailableError("Link: the task has ended")); }

std::shared_ptr<Link> LinkTable::Find(const std::string& task) const { return links_->Find(task); }

void LinkTable::Get(const std::string& task, Done done) { links_->Get(task, std::move(done)); }

void LinkTable::Accept(std::unique_ptr<ByteWire> wire) { links_->Accept(std::move(wire)); }

std::vector<std::shared_ptr<Link>> LinkTable::OpenLinks() const { return links_->OpenLinks(); }

int LinkTable::num_links() const { return links_->num_links(); }

void LinkTable::CloseAll(const Status& reason) { links_->CloseAll(reason); }

}  // namespace millrace
