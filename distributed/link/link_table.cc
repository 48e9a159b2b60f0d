// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/link_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// A peer that has refused our link because it has dialled, too, and whose own does not come: it may
// have failed.
constexpr absl::Duration kDialAgain = absl::Seconds(1);

// A program that has not answered for so long is taken for one that has ended, when another one
// comes under its name. Within the time that others wait for a link.
constexpr absl::Duration kSignOfLife = absl::Seconds(3);

// Until the carrier of a pair must be open. A fraction of a millisecond on an idle host; who asks
// for a link still has time for one without it.
constexpr absl::Duration kMaxCarrierWait = absl::Seconds(3);
// What the peer wrote before it ended is read so long from a carrier whose witness was lost.
constexpr absl::Duration kReadsOn = absl::Seconds(2);
// A task whose carrier did not open is offered none, and one whose pool could not be read is told
// that it may have none.
constexpr absl::Duration kOfferAgain = absl::Minutes(1);

Status BothDialled(const std::string& peer, const std::string& kept) {
  return absl::AlreadyExistsError(absl::StrCat("Link to ", peer,
                                               ": both tasks have dialled, and the link that ",
                                               kept, " has dialled is kept"));
}

// Not the job's error: its steps take the other link.
void LogFallBack(const std::string& task, const Status& why) {
  LogInfo("Link to ", task,
          ": no link within the host, steps travel over the network: ", why.message());
}

// The end of a witness: whatever comes is an error of the peer.
class Witness : public LinkEnd {
 public:
  void OnOpen(std::shared_ptr<Link> link) override { link_ = std::move(link); }
  void OnBind(BindFrame) override { Refuse("BIND"); }
  void OnUnbind(uint64_t) override { Refuse("UNBIND"); }
  void OnRun(RunFrame) override { Refuse("RUN"); }
  void OnTensors(SentTensors) override { Refuse("TENSORS"); }
  void OnEnd(EndFrame) override { Refuse("END"); }
  void OnCancel(int64_t, const Status&) override { Refuse("CANCEL"); }
  void OnReceived(int64_t, uint64_t) override { Refuse("RECEIVED"); }
  void OnRefused(int64_t, const Status&) override { Refuse("TENSORS"); }
  void OnLost(const Status&, bool) override { link_ = nullptr; }

 private:
  void Refuse(const char* what) {
    if (link_ == nullptr) return;
    link_->Close(InvalidArgument("Link to ", link_->peer().task,
                                 ": steps must travel on the link within the host, got ", what,
                                 " on the other one"));
  }

  std::shared_ptr<Link> link_;  // until it is lost
};

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
  int num_pairs() const;
  void CloseAll(const Status& reason);

 private:
  // Stands between a link and the end that its owner makes.
  class End;

  // The header draws them. A task without an entry has none.
  enum class State { kDialling, kExpecting, kAdmitted, kOpen };
  enum class Role { kOnly, kWitness, kCarrier };
  struct Loss {
    Status status;
    bool by_peer = false;
  };
  struct Waiter {
    absl::Time until;
    Done done;
  };
  struct Task {
    State state = State::kDialling;
    uint64_t id = 0;              // its link's, or its witness's; 0 while it is expected
    uint64_t carrier = 0;         // admitted, open: `id`, or its carrier's; 0 until that has come
    uint64_t incarnation = 0;     // admitted, open
    std::shared_ptr<Link> link;   // open: that carries steps
    uint64_t asked_for = 0;       // open: the incarnation that wants its place; 0: none
    absl::Time since;             // expecting, or waiting for its carrier
    bool can_dial = false;        // with waiters
    std::vector<Waiter> waiters;  // none when it is open
  };
  // A link, from before it is opened until it is lost.
  struct Slot {
    std::shared_ptr<ByteLink> link;  // null before
    std::string task;                // empty until HELLO when others have dialled
    bool is_dialled = false;         // by this task
    Status unwanted;                 // an error: it is closed with it as soon as it is there
    Role role = Role::kOnly;
    uint64_t other = 0;  // of the pair; 0: lost, or not there yet
    // Of a witness: its carrier's wire, which came before HELLO; null: none.
    std::unique_ptr<ByteWire> early_wire;
    bool is_taking = false;  // HELLO does not say yet that its carrier is there
    // Of a carrier whose witness was lost: it is cut then, and its end hears of that loss.
    absl::Time cut_at = absl::InfiniteFuture();
    Loss witness_loss;
    bool is_cut = false;
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

  // --- Pairs
  // What HELLO of a dialled link says; empty: nothing.
  std::string OfferTo(uint64_t id, const std::string& task);
  // The wire of who has taken the offer of link `id`.
  void CarrierCame(uint64_t id, StatusOr<std::unique_ptr<ByteWire>> wire);
  // Whether HELLO of the accepted link `id` says that the offer was taken.
  bool TakeOffer(uint64_t id, const LinkPeer& peer, const std::string& offer);
  // The slot of the carrier whose witness is `id`, the link of `task`.
  uint64_t AddCarrier(uint64_t id, Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OpenCarrier(uint64_t id, std::unique_ptr<ByteWire> wire, const LinkPeer& peer);
  Status AdmitCarrier(uint64_t id, const LinkPeer& peer);
  // A carrier of the task ends because its pool cannot be read here.
  void BadPool(const std::string& task);
  bool IsWitness(uint64_t id) const;
  // The other link of a pair when `lost` is: a witness closes at once, a carrier is read on.
  Closing LoseOther(const Slot& lost, const Loss& loss) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A pair of `name` that was not open is lost: the task is dialled again without an offer, by the
  // end that has dialled. Returns the slot of that dial, 0 without.
  uint64_t FallBack(const std::string& name, bool is_dialled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // By links, on the threads that read them.
  Status AdmitCallee(uint64_t id, const LinkPeer& peer);
  Status AdmitCaller(uint64_t id, const LinkPeer& peer);
  Status AdmitCallerLocked(uint64_t id, const LinkPeer& peer, Effect* effect)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a caller of another incarnation takes the place of the task's link.
  Status MayReplace(const LinkPeer& peer, Task* task, Effect* effect)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Opened(uint64_t id, const std::shared_ptr<Link>& link);
  // Returns what the link's end hears.
  Loss Lost(uint64_t id, const Status& status, bool by_peer);

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
  // Until when a task that is dialled is offered nothing. Of tasks that could be dialled, and so no
  // more than the cluster has.
  std::map<std::string, absl::Time> no_offers_ ABSL_GUARDED_BY(mu_);
  // Until when the carriers of a task have no pools.
  std::map<std::string, absl::Time> no_pools_ ABSL_GUARDED_BY(mu_);
};

class LinkTable::Links::End : public LinkEnd {
 public:
  End(std::shared_ptr<Links> links, uint64_t id) : links_(std::move(links)), id_(id) {}

  void OnOpen(std::shared_ptr<Link> link) override {
    if (links_->IsWitness(id_)) {
      end_ = std::make_shared<Witness>();
      return end_->OnOpen(std::move(link));
    }
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
    const Loss loss = links_->Lost(id_, status, by_peer);
    if (end_ != nullptr) end_->OnLost(loss.status, loss.by_peer);
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

int LinkTable::Links::num_pairs() const {
  MutexLock lock(&mu_);
  int pairs = 0;
  for (const auto& [name, task] : tasks_) {
    if (task.state == State::kOpen && task.carrier != task.id) ++pairs;
  }
  return pairs;
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
      entry.can_dial = can_dial;
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
    Lost(id, Prefixed(LinkName(options_.link, task), wire.status()), /*by_peer=*/false);
    return;
  }
  ByteLinkOptions options = OptionsOfLink();
  options.peer_task = task;
  options.offer = OfferTo(id, task);
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
  std::unique_ptr<ByteWire> early;  // goes without the lock when it is of no use
  uint64_t carrier = 0;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(closed_);
    const auto found = tasks_.find(peer.task);
    if (found == tasks_.end() || found->second.id != id) return BothDialled(peer.task, peer.task);
    const auto slot = slots_.find(id);
    MR_DCHECK(slot != slots_.end(), "a task goes with its link");
    Task& task = found->second;
    task.state = State::kAdmitted;
    task.incarnation = peer.incarnation;
    task.carrier = id;
    early = std::move(slot->second.early_wire);
    if (peer.takes_offer) {
      slot->second.role = Role::kWitness;
      task.carrier = 0;
      task.since = options_.timers->Now();
      if (early != nullptr) carrier = AddCarrier(id, &task);
    }
  }
  if (carrier != 0) OpenCarrier(carrier, std::move(early), peer);
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
  if (options_.same_host != nullptr) {
    options.takes_offer = [self = shared_from_this(), id](const LinkPeer& peer,
                                                          const std::string& offer) {
      return self->TakeOffer(id, peer, offer);
    };
  }
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
  task.id = task.carrier = id;
  task.incarnation = peer.incarnation;
  task.link = nullptr;
  task.asked_for = 0;
  slot->second.task = peer.task;
  return absl::OkStatus();
}

// --- Pairs

std::string LinkTable::Links::OfferTo(uint64_t id, const std::string& task) {
  if (options_.same_host == nullptr) return "";
  {
    MutexLock lock(&mu_);
    const auto none_until = no_offers_.find(task);
    if (none_until != no_offers_.end()) {
      if (options_.timers->Now() < none_until->second) return "";
      no_offers_.erase(none_until);
    }
  }
  StatusOr<std::string> offer = NoExceptions("Link", [&] {
    // The way outlives the table's links no longer than they want it.
    return options_.same_host->Offer(
        [weak = weak_from_this(), id](StatusOr<std::unique_ptr<ByteWire>> wire) {
          if (const auto self = weak.lock()) self->CarrierCame(id, std::move(wire));
        });
  });
  if (offer.ok()) return *std::move(offer);
  LogFallBack(task, offer.status());
  return "";
}

void LinkTable::Links::CarrierCame(uint64_t id, StatusOr<std::unique_ptr<ByteWire>> wire) {
  if (!wire.ok()) return;  // nobody has taken the offer; who said so is noticed by Tick
  LinkPeer peer;
  uint64_t carrier;
  {
    MutexLock lock(&mu_);
    const auto slot = slots_.find(id);
    if (slot == slots_.end() || !slot->second.unwanted.ok()) return;
    const auto found = tasks_.find(slot->second.task);
    if (found == tasks_.end() || found->second.id != id) return;
    Task& task = found->second;
    if (task.state == State::kDialling) {
      slot->second.early_wire = *std::move(wire);
      return;
    }
    if (task.state != State::kAdmitted || task.carrier != 0) return;
    peer.task = slot->second.task;
    peer.incarnation = task.incarnation;
    carrier = AddCarrier(id, &task);
  }
  OpenCarrier(carrier, *std::move(wire), peer);
}

bool LinkTable::Links::TakeOffer(uint64_t id, const LinkPeer& peer, const std::string& offer) {
  StatusOr<std::unique_ptr<ByteWire>> wire =
      NoExceptions("Link", [&] { return options_.same_host->Take(offer); });
  if (!wire.ok()) {
    if (!absl::IsNotFound(wire.status())) LogFallBack(peer.task, wire.status());
    return false;
  }
  uint64_t carrier;
  {
    MutexLock lock(&mu_);
    const auto slot = slots_.find(id);
    const auto found = tasks_.find(peer.task);
    if (slot == slots_.end() || !slot->second.unwanted.ok() || found == tasks_.end() ||
        found->second.id != id) {
      return false;  // replaced, or all are closed
    }
    slot->second.role = Role::kWitness;
    slot->second.is_taking = true;
    carrier = AddCarrier(id, &found->second);
  }
  OpenCarrier(carrier, *std::move(wire), peer);
  MutexLock lock(&mu_);
  const auto slot = slots_.find(id);
  if (slot == slots_.end()) return false;
  slot->second.is_taking = false;
  if (slot->second.other != 0) return true;
  // It was lost at once, and the peer has not heard of it.
  slot->second.role = Role::kOnly;
  const auto found = tasks_.find(peer.task);
  if (found != tasks_.end() && found->second.id == id) found->second.carrier = id;
  return false;
}

uint64_t LinkTable::Links::AddCarrier(uint64_t id, Task* task) {
  const uint64_t carrier = ++last_id_;
  Slot& witness = slots_[id];
  Slot& slot = slots_[carrier];
  slot.task = witness.task;
  slot.is_dialled = witness.is_dialled;
  slot.role = Role::kCarrier;
  slot.other = id;
  witness.other = carrier;
  task->carrier = carrier;
  return carrier;
}

void LinkTable::Links::OpenCarrier(uint64_t id, std::unique_ptr<ByteWire> wire,
                                   const LinkPeer& peer) {
  ByteLinkOptions options = OptionsOfLink();
  options.peer_task = peer.task;
  options.peer_incarnation = peer.incarnation;
  options.max_greeting = std::min(options.max_greeting, kMaxCarrierWait);
  if (options.max_pool_bytes > 0) {
    MutexLock lock(&mu_);
    const auto none_until = no_pools_.find(peer.task);
    if (none_until != no_pools_.end() && options_.timers->Now() < none_until->second) {
      options.max_pool_bytes = 0;
    }
  }
  options.on_bad_pool = [weak = weak_from_this(), task = peer.task] {
    if (const auto self = weak.lock()) self->BadPool(task);
  };
  options.admit = [self = shared_from_this(), id](const LinkPeer& admitted) {
    return self->AdmitCarrier(id, admitted);
  };
  Open(id, std::move(wire), std::move(options));
}

Status LinkTable::Links::AdmitCarrier(uint64_t id, const LinkPeer& peer) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(closed_);
  const auto found = tasks_.find(peer.task);
  const auto slot = slots_.find(id);
  const auto witness = slots_.find(slot == slots_.end() ? 0 : slot->second.other);
  // A peer that does not wait for HELLO of the other one has no carrier yet.
  if (found == tasks_.end() || found->second.carrier != id || witness == slots_.end() ||
      witness->second.is_taking) {
    return absl::UnavailableError(absl::StrCat(
        "Link to ", peer.task,
        ": the link within the host must have one that was dialled, got none that is open"));
  }
  return slot->second.unwanted;
}

void LinkTable::Links::BadPool(const std::string& task) {
  MutexLock lock(&mu_);
  no_pools_[task] = options_.timers->Now() + kOfferAgain;
}

bool LinkTable::Links::IsWitness(uint64_t id) const {
  MutexLock lock(&mu_);
  const auto slot = slots_.find(id);
  return slot != slots_.end() && slot->second.role == Role::kWitness;
}

LinkTable::Links::Closing LinkTable::Links::LoseOther(const Slot& lost, const Loss& loss) {
  const auto other = slots_.find(lost.other);
  if (other == slots_.end()) return {};
  other->second.other = 0;
  if (lost.role == Role::kWitness) {
    // Its end comes by itself when the peer has ended, behind what the peer wrote before.
    other->second.cut_at = options_.timers->Now() + kReadsOn;
    other->second.witness_loss = loss;
    return {};
  }
  if (other->second.is_taking) return {};
  return Drop(lost.other, loss.status);
}

uint64_t LinkTable::Links::FallBack(const std::string& name, bool is_dialled) {
  const auto found = tasks_.find(name);
  Task& task = found->second;
  task.id = task.carrier = 0;
  if (is_dialled || (task.can_dial && !task.waiters.empty())) {
    no_offers_[name] = options_.timers->Now() + kOfferAgain;
  }
  if (task.waiters.empty()) {
    tasks_.erase(found);
    return 0;
  }
  if (is_dialled) {
    task.state = State::kDialling;
    return task.id = AddSlot(name, /*is_dialled=*/true);
  }
  // The peer dials again; if it has ended, this task does.
  task.state = State::kExpecting;
  task.since = task.can_dial ? options_.timers->Now() : absl::InfiniteFuture();
  return 0;
}

// --- Open, and lost

void LinkTable::Links::Opened(uint64_t id, const std::shared_ptr<Link>& link) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mu_);
    const auto found = tasks_.find(link->peer().task);
    // Replaced, or all are closed: it is being closed, and others wait for its successor.
    if (found == tasks_.end() || found->second.carrier != id) return;
    MR_DCHECK(found->second.state == State::kAdmitted, "a link opens when it was admitted");
    found->second.state = State::kOpen;
    found->second.link = link;
    waiters.swap(found->second.waiters);
  }
  for (Waiter& waiter : waiters) waiter.done(link);
}

LinkTable::Links::Loss LinkTable::Links::Lost(uint64_t id, const Status& status, bool by_peer) {
  Loss loss = {status, by_peer};
  Slot lost;  // goes without the lock
  Closing other;
  std::vector<Waiter> waiters;
  std::shared_ptr<Link> link;
  bool falls_back = false;
  uint64_t dialled = 0;
  {
    MutexLock lock(&mu_);
    const auto slot = slots_.find(id);
    if (slot == slots_.end()) return loss;
    lost = std::move(slot->second);
    slots_.erase(slot);
    unheard_.erase(id);
    if (!lost.is_dialled && lost.role != Role::kCarrier) --accepted_;
    if (lost.is_cut) loss = lost.witness_loss;
    const auto witness = slots_.find(lost.role == Role::kCarrier ? lost.other : 0);
    const bool is_taking = witness != slots_.end() && witness->second.is_taking;
    other = LoseOther(lost, loss);
    const auto found = tasks_.find(lost.task);
    // Else it has another link by now, or is lost already by the other one of the pair.
    const bool has_it =
        found != tasks_.end() && (found->second.id == id || found->second.carrier == id);
    if (is_taking) {
      falls_back = true;  // TakeOffer goes on without it
    } else if (has_it && found->second.state == State::kDialling && by_peer &&
               absl::IsAlreadyExists(status)) {
      found->second.state = State::kExpecting;
      found->second.id = 0;
      found->second.since = options_.timers->Now();
    } else if (has_it && found->second.state == State::kAdmitted && lost.role != Role::kOnly) {
      falls_back = true;
      dialled = FallBack(lost.task, lost.is_dialled);
    } else if (has_it) {
      waiters.swap(found->second.waiters);
      link.swap(found->second.link);
      tasks_.erase(found);
    }
  }
  if (falls_back) LogFallBack(lost.task, loss.status);
  Close(other);
  for (Waiter& waiter : waiters) waiter.done(LossOfLink(loss.status));
  if (dialled != 0) Dial(dialled, lost.task);
  return loss;
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
  if (options_.same_host != nullptr) options_.same_host->Close();
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
  std::vector<Closing> closings;
  const absl::Time now = options_.timers->Now();
  {
    MutexLock lock(&mu_);
    for (auto& [id, slot] : slots_) {
      if (slot.link != nullptr) links.push_back(slot.link);
      if (slot.cut_at > now) continue;
      slot.cut_at = absl::InfiniteFuture();
      slot.is_cut = true;
      closings.push_back(Drop(id, slot.witness_loss.status));
    }
    for (auto it = no_pools_.begin(); it != no_pools_.end();) {
      it = it->second <= now ? no_pools_.erase(it) : std::next(it);
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
      if (task.state == State::kAdmitted && task.carrier == 0 &&
          now - task.since >= kMaxCarrierWait) {
        task.since = absl::InfiniteFuture();
        closings.push_back(
            Drop(task.id, absl::UnavailableError(absl::StrCat(
                              "Link to ", it->first, ": the link within the host must come within ",
                              absl::FormatDuration(kMaxCarrierWait), ", got none"))));
      }
      ++it;
    }
  }
  if (options_.same_host != nullptr) options_.same_host->Tick();
  for (const Closing& closing : closings) Close(closing);
  for (const std::shared_ptr<ByteLink>& link : links) link->Tick();
  for (auto& [task, waiter] : late) {
    waiter.done(absl::UnavailableError(
        absl::StrCat(LinkName(options_.link, task), ": must be open within ",
                     absl::FormatDuration(options_.max_wait), ", got no answer")));
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

int LinkTable::num_pairs() const { return links_->num_pairs(); }

void LinkTable::CloseAll(const Status& reason) { links_->CloseAll(reason); }

}  // namespace millrace
