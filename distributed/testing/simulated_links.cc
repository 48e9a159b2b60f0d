// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/simulated_links.h"

#include <functional>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "distributed/link/link.h"
#include "distributed/link/link_table.h"
#include "distributed/master/master.h"
#include "distributed/task_link_end.h"
#include "distributed/worker/worker.h"

namespace millrace {
namespace {

Status Killed() { return absl::UnavailableError("killed"); }

// Of offers that are taken.
constexpr double kTakenInVain = 0.1;

}  // namespace

// Time of one way. What happens on it may wake threads at both ends.
class SimulatedLinks::Time : public SimulatedTime {
 public:
  Time(Simulation* simulation, SimulatedNetwork* network, Simulation::Place* dialler)
      : simulation_(simulation), network_(network), places_{dialler, nullptr} {}
  void Later(absl::Duration delay, std::function<void()> event) override {
    if (simulation_->Chance(network_->rates.long_delay)) {
      delay += simulation_->DrawTime(network_->rates.longest_delay);
    }
    for (Simulation::Place* const place : places_) {
      if (place != nullptr) place->Act();
    }
    simulation_->After(delay, [this, event = std::move(event)]() -> Simulation::Place* {
      event();
      return places_[0];
    });
    simulation_->After(delay, [this]() -> Simulation::Place* { return places_[1]; });
  }
  uint64_t Draw(uint64_t below) override { return simulation_->Draw(below); }
  void set_callee(Simulation::Place* callee) { places_[1] = callee; }

 private:
  Simulation* const simulation_;
  SimulatedNetwork* const network_;
  Simulation::Place* places_[2];
};

// What a life sends on: the observer hears of RUN and END, and of a life that is over nobody hears.
class SimulatedLinks::ObservedLink : public Link {
 public:
  ObservedLink(SimulatedLinks* links, std::shared_ptr<Life> life, std::shared_ptr<Link> link)
      : links_(links), life_(std::move(life)), link_(std::move(link)) {
    set_peer(link_->peer());
  }
  Status Send(LinkMessage message) override {
    if (life_->is_over) return Killed();
    const SimulatedNetwork::Observer& observer = links_->network_->observer;
    if (const auto* const run = std::get_if<RunFrame>(&message)) {
      const int64_t call = links_->NumberOf(run->step_id, peer().task);
      Trace(absl::StrCat("RUN #", call));
      if (observer.step_begins) observer.step_begins(*life_, call);
    } else if (const auto* const end = std::get_if<EndFrame>(&message)) {
      const int64_t call = links_->NumberOf(end->step_id, life_->task);
      Trace(absl::StrCat("END #", call, " ", absl::StatusCodeToString(end->status.code())));
      if (observer.step_answers) observer.step_answers(*life_, call, end->status);
    }
    return link_->Send(std::move(message));
  }
  void Flush() override { link_->Flush(); }
  void Acknowledge(int64_t step_id, uint64_t tensors) override {
    link_->Acknowledge(step_id, tensors);
  }
  void Ask(absl::AnyInvocable<void()> answered) override { link_->Ask(std::move(answered)); }
  void HoldCredit(int64_t bytes) override { link_->HoldCredit(bytes); }
  void LetGoOfCredit(int64_t bytes) override { link_->LetGoOfCredit(bytes); }
  int64_t queued_bytes() const override { return link_->queued_bytes(); }
  void Close(const Status& reason) override { link_->Close(reason); }

 private:
  void Trace(absl::string_view what) {
    links_->simulation_->TraceLine(
        absl::StrCat(ShortTask(life_->task), " => ", ShortTask(peer().task), " ", what));
  }

  SimulatedLinks* const links_;
  const std::shared_ptr<Life> life_;
  const std::shared_ptr<Link> link_;
};

// The way of one life to the others of the host.
class SimulatedLinks::Host : public SameHost {
 public:
  Host(SimulatedLinks* links, std::shared_ptr<Life> life) : links_(links), life_(std::move(life)) {}
  StatusOr<std::string> Offer(Came came) override {
    std::string offer = absl::StrCat("offer ", ++links_->num_offers_);
    links_->offers_[offer] = {life_, std::move(came)};
    return offer;
  }
  StatusOr<std::unique_ptr<ByteWire>> Take(const std::string& offer) override {
    return links_->Take(life_, offer);
  }
  void Tick() override {}
  void Close() override {}

 private:
  SimulatedLinks* const links_;
  const std::shared_ptr<Life> life_;
};

// The links of one life.
class SimulatedLinks::Of : public PeerLinks {
 public:
  Of(SimulatedLinks* links, std::shared_ptr<Life> life)
      : life_(std::move(life)),
        links_(links),
        parts_(std::make_shared<LinkParts>(this, life_->place->clock())) {}

  void Get(absl::string_view task, Got got) override {
    if (table_ == nullptr) return got(Killed());
    table_->Get(std::string(task),
                [this, got = std::move(got)](StatusOr<std::shared_ptr<Link>> link) mutable {
                  if (!link.ok()) return got(link.status());
                  const auto observed = observed_.find(link->get());
                  if (observed == observed_.end()) return got(Killed());
                  got(observed->second);
                });
  }
  void Open();
  void Kill();
  void Accept(std::unique_ptr<ByteWire> wire) { table_->Accept(std::move(wire)); }
  std::shared_ptr<Link> Observe(const std::shared_ptr<Link>& link) {
    auto observed = std::make_shared<ObservedLink>(links_, life_, link);
    observed_[link.get()] = observed;
    return observed;
  }
  void Forget(const Link* link) { observed_.erase(link); }

  const std::shared_ptr<LinkParts>& parts() const { return parts_; }
  const std::shared_ptr<Life>& life() const { return life_; }

 private:
  const std::shared_ptr<Life> life_;
  SimulatedLinks* const links_;
  const std::shared_ptr<LinkParts> parts_;
  std::unique_ptr<LinkTable> table_;  // from Open to Kill
  std::map<const Link*, std::shared_ptr<ObservedLink>> observed_;
  std::vector<std::weak_ptr<End>> ends_;
};

// The task's end, until the link is lost or the life is over.
class SimulatedLinks::End : public LinkEnd {
 public:
  End(SimulatedLinks* links, Of* of)
      : links_(links),
        of_(of),
        end_(std::make_shared<TaskLinkEnd>(
            std::shared_ptr<Worker>(std::shared_ptr<Worker>(), of->life()->worker), of->parts(),
            [life = of->life()] {
              if (life->master != nullptr && !life->is_over) life->master->RenewLeases();
            })) {}

  void OnOpen(std::shared_ptr<Link> link) override {
    link_ = link.get();
    peer_ = link->peer().task;
    if (end_ != nullptr) end_->OnOpen(of_->Observe(link));
  }
  void OnBind(BindFrame bind) override {
    sessions_[bind.number] = bind.session_handle;
    if (hears()) end_->OnBind(std::move(bind));
  }
  void OnUnbind(uint64_t number) override {
    if (hears()) end_->OnUnbind(number);
  }
  void OnRun(RunFrame run) override {
    if (!hears()) return;
    const std::string& task = of_->life()->task;
    const int64_t call = links_->NumberOf(run.step_id, task);
    if (links_->simulation_->Chance(links_->network_->rates.lost_request)) {
      Trace(absl::StrCat("RUN #", call, " is lost"));
      is_lost_ = true;  // nothing behind it arrives either
      return links_->Break(task, peer_);
    }
    Trace(absl::StrCat("RUN #", call, " arrives"));
    const SimulatedNetwork::Observer& observer = links_->network_->observer;
    if (observer.step_arrives) observer.step_arrives(*of_->life(), call);
    if (observer.step_of_session) {
      observer.step_of_session(*of_->life(), sessions_[run.number], call);
    }
    end_->OnRun(run);
    if (!links_->simulation_->Chance(links_->network_->rates.lost_answer)) return;
    Trace(absl::StrCat("the answer to RUN #", call, " is lost"));
    is_lost_ = true;
    links_->Break(task, peer_);
  }
  void OnTensors(SentTensors tensors) override {
    if (hears()) end_->OnTensors(std::move(tensors));
  }
  bool acknowledges_edges() const override { return end_ != nullptr && end_->acknowledges_edges(); }
  void OnEnd(EndFrame end) override {
    if (hears()) end_->OnEnd(std::move(end));
  }
  void OnCancel(int64_t step_id, const Status& status) override {
    if (hears()) end_->OnCancel(step_id, status);
  }
  void OnReceived(int64_t step_id, uint64_t tensors) override {
    if (hears()) end_->OnReceived(step_id, tensors);
  }
  void OnRefused(int64_t step_id, const Status& status) override {
    if (hears()) end_->OnRefused(step_id, status);
  }
  void OnLost(const Status& status, bool by_peer) override {
    const std::shared_ptr<TaskLinkEnd> end = std::move(end_);
    end_ = nullptr;
    if (end == nullptr) return;
    of_->Forget(link_);
    end->OnLost(status, by_peer);
  }

 private:
  bool hears() const { return end_ != nullptr && !is_lost_; }
  void Trace(absl::string_view what) {
    links_->simulation_->TraceLine(
        absl::StrCat(ShortTask(of_->life()->task), " <= ", ShortTask(peer_), " ", what));
  }

  SimulatedLinks* const links_;
  Of* const of_;
  std::shared_ptr<TaskLinkEnd> end_;  // null when it is over
  const Link* link_ = nullptr;
  std::string peer_;
  bool is_lost_ = false;
  std::map<uint64_t, std::string> sessions_;  // by the numbers of graphs
};

void SimulatedLinks::Of::Open() {
  LinkTableOptions options;
  options.link.task = life_->task;
  options.link.incarnation = life_->worker->DeviceAttributes()[0].incarnation();
  options.timers = life_->place->timers();
  options.dial = [this](const std::string& task) { return links_->Dial(life_, task); };
  if (links_->within_host_) options.same_host = std::make_shared<Host>(links_, life_);
  options.make_end = [this](const LinkPeer&) {
    auto end = std::make_shared<End>(links_, this);
    ends_.push_back(end);
    return end;
  };
  table_ = std::make_unique<LinkTable>(std::move(options));
}

void SimulatedLinks::Of::Kill() {
  const std::unique_ptr<LinkTable> table = std::move(table_);
  table_ = nullptr;
  for (const std::weak_ptr<End>& weak : ends_) {
    if (const auto end = weak.lock()) end->OnLost(Killed(), /*by_peer=*/false);
  }
  ends_.clear();
}

// --- SimulatedLinks ------------------------------------------------------------------------------

SimulatedLinks::SimulatedLinks(Simulation* simulation, SimulatedNetwork* network, bool within_host)
    : simulation_(simulation), network_(network), within_host_(within_host) {}

SimulatedLinks::~SimulatedLinks() = default;

SimulatedLinks::Of* SimulatedLinks::Find(const std::shared_ptr<Life>& life) {
  std::unique_ptr<Of>& of = of_[life];
  if (of == nullptr) of = std::make_unique<Of>(this, life);
  return of.get();
}

PeerLinks* SimulatedLinks::of(const std::shared_ptr<Life>& life) { return Find(life); }

std::shared_ptr<LinkParts> SimulatedLinks::parts(const std::shared_ptr<Life>& life) {
  return Find(life)->parts();
}

void SimulatedLinks::Attach(const std::shared_ptr<Life>& life) {
  Of* const of = Find(life);
  of->Open();
  up_[life->task] = of;
}

void SimulatedLinks::Kill(const std::shared_ptr<Life>& life) {
  const auto up = up_.find(life->task);
  if (up != up_.end() && up->second->life() == life) up_.erase(up);
  for (const Way& way : ways_) {
    if (way.dialler == life || way.callee == life) way.way->BreakAfter(0, 0);
  }
  Find(life)->Kill();
}

int64_t SimulatedLinks::NumberOf(int64_t step_id, const std::string& task) {
  // Below those of calls.
  return numbers_.try_emplace({step_id, task}, -1 - static_cast<int64_t>(numbers_.size()))
      .first->second;
}

StatusOr<std::unique_ptr<ByteWire>> SimulatedLinks::Dial(const std::shared_ptr<Life>& from,
                                                         const std::string& to) {
  times_.push_back(std::make_unique<Time>(simulation_, network_, from->place));
  Time* const time = times_.back().get();
  SimulatedWay::Options options;
  options.longest_delay = network_->rates.usual_delay;
  ways_.push_back({SimulatedWay::Make(time, options), from, nullptr, to, false});
  Way* const way = &ways_.back();
  simulation_->TraceLine(absl::StrCat(ShortTask(from->task), " dials ", ShortTask(to)));
  from->place->Act();
  simulation_->After(simulation_->DrawTime(network_->rates.usual_delay),
                     [this, way, time]() -> Simulation::Place* {
                       Arrive(way, time);
                       return way->callee == nullptr ? nullptr : way->callee->place;
                     });
  if (IsCut(to, from->task)) way->way->StopReading(0);
  return way->way->TakeWire(0);
}

void SimulatedLinks::Arrive(Way* way, Time* time) {
  const std::string& from = way->dialler->task;
  if (IsCut(from, way->to)) return;  // the dialler waits for HELLO in vain
  const auto up = up_.find(way->to);
  if (up == up_.end()) return way->way->BreakAfter(0, 0);
  way->callee = up->second->life();
  time->set_callee(way->callee->place);
  up->second->Accept(way->way->TakeWire(1));
}

StatusOr<std::unique_ptr<ByteWire>> SimulatedLinks::Take(const std::shared_ptr<Life>& from,
                                                         const std::string& offer) {
  const auto found = offers_.find(offer);
  if (found == offers_.end()) return absl::NotFoundError("no such offer");
  const std::shared_ptr<Life> callee = found->second.life;
  const auto came = std::make_shared<SameHost::Came>(std::move(found->second.came));
  offers_.erase(found);
  if (callee->is_over) return Killed();
  times_.push_back(std::make_unique<Time>(simulation_, network_, from->place));
  Time* const time = times_.back().get();
  time->set_callee(callee->place);
  SimulatedWay::Options options;
  options.longest_delay = network_->rates.usual_delay;
  ways_.push_back({SimulatedWay::Make(time, options), from, callee, callee->task, true});
  const std::shared_ptr<SimulatedWay> way = ways_.back().way;
  simulation_->TraceLine(
      absl::StrCat(ShortTask(from->task), " takes the offer of ", ShortTask(callee->task)));
  if (IsCut(callee->task, from->task)) way->StopReading(0);
  if (IsCut(from->task, callee->task)) way->StopReading(1);
  if (simulation_->Chance(kTakenInVain)) return way->TakeWire(0);  // nobody is at the other end
  from->place->Act();
  simulation_->After(simulation_->DrawTime(network_->rates.usual_delay),
                     [way, came, callee]() -> Simulation::Place* {
                       if (callee->is_over) return nullptr;
                       (*came)(way->TakeWire(1));
                       return callee->place;
                     });
  return way->TakeWire(0);
}

void SimulatedLinks::Break(const std::string& task, const std::string& other) {
  // A carrier goes with its witness anyway, some time later.
  const bool spares_carriers = within_host_ && simulation_->Chance(0.5);
  for (const Way& way : ways_) {
    if (spares_carriers && way.is_within_host) continue;
    const std::string& from = way.dialler->task;
    if ((from == task && way.to == other) || (from == other && way.to == task)) {
      way.way->BreakAfter(0, 0);
    }
  }
}

void SimulatedLinks::Cut(const std::string& from, const std::string& to) {
  cut_.insert({from, to});
  for (const Way& way : ways_) {
    if (way.dialler->task == from && way.to == to) way.way->StopReading(1);
    if (way.dialler->task == to && way.to == from) way.way->StopReading(0);
  }
}

void SimulatedLinks::HealAll() {
  cut_.clear();
  for (const Way& way : ways_) {
    way.way->GoOnReading(0);
    way.way->GoOnReading(1);
  }
}

}  // namespace millrace
