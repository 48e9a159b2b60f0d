// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/linked_tasks.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/visit.h"
#include "distributed/cluster/link_environment.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/in_process_link.h"
#include "distributed/task_link_end.h"
#include "gtest/gtest.h"

namespace millrace {

// --- The network ---------------------------------------------------------------------------------

// Time and ways for bytes, under one lock that the network's thread holds while something arrives.
// Recursive: what arrives is answered at once.
class LinkedTasks::Network : public SimulatedTime {
 public:
  Network() : thread_([this] { Work(); }) {}
  ~Network() override {
    {
      const std::lock_guard<std::recursive_mutex> lock(mu_);
      is_over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  // By who holds the lock.
  void Later(absl::Duration delay, std::function<void()> event) override {
    events_.emplace(now_ + delay, std::move(event));
    wake_.notify_all();
  }
  uint64_t Draw(uint64_t below) override { return random_() % below; }

  std::recursive_mutex* mu() { return &mu_; }
  std::unique_ptr<ByteWire> Locked(std::unique_ptr<ByteWire> wire) {
    return std::make_unique<LockedWire>(this, std::move(wire));
  }

 private:
  class LockedWire : public ByteWire {
   public:
    LockedWire(Network* network, std::unique_ptr<ByteWire> wire)
        : network_(network), wire_(std::move(wire)) {}
    bool passes_descriptors() const override { return wire_->passes_descriptors(); }
    bool takes_megabytes() const override { return wire_->takes_megabytes(); }
    void Start(std::shared_ptr<User> user) override {
      const std::lock_guard<std::recursive_mutex> lock(network_->mu_);
      wire_->Start(std::move(user));
    }
    bool Write(ByteChain bytes) override {
      const std::lock_guard<std::recursive_mutex> lock(network_->mu_);
      return wire_->Write(std::move(bytes));
    }
    bool WriteLater(ByteChain bytes) override {
      const std::lock_guard<std::recursive_mutex> lock(network_->mu_);
      return wire_->WriteLater(std::move(bytes));
    }
    void Close() override {
      const std::lock_guard<std::recursive_mutex> lock(network_->mu_);
      wire_->Close();
    }

   private:
    Network* const network_;
    const std::unique_ptr<ByteWire> wire_;
  };

  void Work() {
    std::unique_lock<std::recursive_mutex> lock(mu_);
    for (;;) {
      wake_.wait(lock, [this] { return is_over_ || !events_.empty(); });
      if (events_.empty()) return;
      const auto first = events_.begin();
      now_ = std::max(now_, first->first);
      std::function<void()> event = std::move(first->second);
      events_.erase(first);
      Visit visit;
      event();
      event = nullptr;
      Visit::Work* const work = visit.End();
      if (work == nullptr) continue;
      lock.unlock();
      {
        LinkCork cork;
        Visit::Run(work);
      }
      lock.lock();
    }
  }

  std::recursive_mutex mu_;
  std::condition_variable_any wake_;
  bool is_over_ = false;
  absl::Time now_ = absl::UnixEpoch();
  std::mt19937_64 random_{1};
  std::multimap<absl::Time, std::function<void()>> events_;
  std::thread thread_;  // last: it uses the rest
};

// --- Ends ----------------------------------------------------------------------------------------

class LinkedTasks::Of : public PeerLinks {
 public:
  Of(LinkedTasks* tasks, std::string task) : tasks_(tasks), task_(std::move(task)) {}
  void Get(absl::string_view task, Got got) override {
    tasks_->Get(task_, std::string(task), std::move(got));
  }

 private:
  LinkedTasks* const tasks_;
  const std::string task_;
};

// The task's end, which counts what comes.
class LinkedTasks::End : public LinkEnd {
 public:
  End(LinkedTasks* tasks, Pair side, std::shared_ptr<LinkEnd> end)
      : tasks_(tasks), side_(std::move(side)), end_(std::move(end)) {}

  void OnOpen(std::shared_ptr<Link> link) override {
    link_ = link.get();
    end_->OnOpen(link);
    tasks_->Opened(side_, std::move(link));
  }
  void OnBind(BindFrame bind) override {
    Count([](Came* came) { ++came->binds; });
    end_->OnBind(std::move(bind));
  }
  void OnUnbind(uint64_t number) override { end_->OnUnbind(number); }
  void OnRun(RunFrame run) override {
    Count([](Came* came) { ++came->runs; });
    end_->OnRun(run);
  }
  void OnTensors(SentTensors tensors) override {
    if (tasks_->IsMuted(side_.second)) return;
    const auto n = static_cast<int64_t>(tensors.tensors.size());
    Count([n](Came* came) {
      ++came->tensor_messages;
      came->tensors += n;
    });
    end_->OnTensors(std::move(tensors));
  }
  bool acknowledges_edges() const override { return end_->acknowledges_edges(); }
  void OnEnd(EndFrame end) override {
    Count([](Came* came) { ++came->ends; });
    end_->OnEnd(std::move(end));
  }
  void OnCancel(int64_t step_id, const Status& status) override {
    Count([](Came* came) { ++came->cancels; });
    end_->OnCancel(step_id, status);
  }
  void OnReceived(int64_t step_id, uint64_t tensors) override {
    Count([tensors](Came* came) { came->received += static_cast<int64_t>(tensors); });
    end_->OnReceived(step_id, tensors);
  }
  void OnRefused(int64_t step_id, const Status& status) override {
    end_->OnRefused(step_id, status);
  }
  void OnLost(const Status& status, bool by_peer) override {
    tasks_->Lost(side_, status, link_);
    end_->OnLost(status, by_peer);
    end_ = nullptr;
    tasks_->EndLost(side_.first);
  }

 private:
  void Count(const std::function<void(Came*)>& count) {
    tasks_->Count({side_.second, side_.first}, count);
  }

  LinkedTasks* const tasks_;
  const Pair side_;  // own task and peer
  std::shared_ptr<LinkEnd> end_;
  const Link* link_ = nullptr;
};

// --- LinkedTasks ---------------------------------------------------------------------------------

LinkedTasks::LinkedTasks(Kind kind)
    : kind_(kind), network_(kind == Kind::kBytes ? std::make_unique<Network>() : nullptr) {}

LinkedTasks::~LinkedTasks() {
  std::vector<std::string> tasks;
  {
    MutexLock lock(&mu_);
    for (const auto& [task, worker] : lives_) tasks.push_back(task);
  }
  for (const std::string& task : tasks) Kill(task);
  network_.reset();  // its thread may be on its way out of an end
}

std::unique_ptr<LinkedTasks> LinkedTasks::OfEnvironment() {
  const char* const links = std::getenv("MILLRACE_LINK_KINDS");
  const absl::string_view kind = links == nullptr ? "in_process" : links;
  EXPECT_TRUE(kind == "in_process" || kind == "bytes")
      << "MILLRACE_LINK_KINDS must be in_process or bytes, got " << kind;
  return std::make_unique<LinkedTasks>(kind == "bytes" ? Kind::kBytes : Kind::kInProcess);
}

PeerLinks* LinkedTasks::of(const std::string& task) {
  MutexLock lock(&mu_);
  std::unique_ptr<Of>& of = of_[task];
  if (of == nullptr) of = std::make_unique<Of>(this, task);
  return of.get();
}

std::shared_ptr<LinkParts> LinkedTasks::parts(const std::string& task) {
  PeerLinks* const links = of(task);
  MutexLock lock(&mu_);
  std::shared_ptr<LinkParts>& parts = parts_[task];
  if (parts == nullptr) parts = std::make_shared<LinkParts>(links);
  return parts;
}

void LinkedTasks::Begin(Worker* worker) {
  parts(worker->task());
  MutexLock lock(&mu_);
  lives_[worker->task()] = worker;
}

void LinkedTasks::Kill(const std::string& task) {
  std::vector<std::shared_ptr<Link>> links;
  std::set<std::string> peers;
  {
    MutexLock lock(&mu_);
    if (lives_.erase(task) == 0) return;
    for (const auto& [pair, side] : sides_) {
      if (pair.first != task) continue;
      peers.insert(pair.second);
      if (side.link != nullptr) links.push_back(side.link);
    }
  }
  for (const auto& link : links) link->Close(absl::UnavailableError("Socket closed"));
  MutexLock lock(&mu_);
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (live_ends_[task] > 0) return false;
    for (const auto& [pair, side] : sides_) {
      if (pair.second == task && (side.link != nullptr || side.is_opening)) return false;
    }
    return true;
  };
  while (!is_over()) end_lost_.Wait(&mu_);
}

void LinkedTasks::Mute(const std::string& task, bool muted) {
  MutexLock lock(&mu_);
  if (muted) {
    muted_.insert(task);
  } else {
    muted_.erase(task);
  }
}

bool LinkedTasks::IsMuted(const std::string& task) const {
  MutexLock lock(&mu_);
  return muted_.count(task) != 0;
}

std::shared_ptr<Link> LinkedTasks::LinkOf(const std::string& task, const std::string& peer) {
  std::shared_ptr<Link> result;
  Notification got;
  Get(task, peer, [&](StatusOr<std::shared_ptr<Link>> link) {
    EXPECT_TRUE(link.ok()) << link.status();
    if (link.ok()) result = *std::move(link);
    got.Notify();
  });
  got.Wait();
  return result;
}

LinkedTasks::Came LinkedTasks::came(const std::string& from, const std::string& at) const {
  MutexLock lock(&mu_);
  const auto it = came_.find({from, at});
  return it == came_.end() ? Came() : it->second;
}

int64_t LinkedTasks::num_writes(const std::string& from, const std::string& to) {
  Way way;
  {
    MutexLock lock(&mu_);
    way = ways_[{std::min(from, to), std::max(from, to)}];
  }
  if (way.way == nullptr) return 0;
  const std::lock_guard<std::recursive_mutex> lock(*network_->mu());
  return way.way->num_writes(from == way.dialler ? 0 : 1);
}

void LinkedTasks::Count(const Pair& way, const std::function<void(Came*)>& count) {
  MutexLock lock(&mu_);
  count(&came_[way]);
}

void LinkedTasks::Get(const std::string& task, const std::string& peer, PeerLinks::Got got) {
  std::shared_ptr<Link> link;
  bool is_up = false;
  {
    MutexLock lock(&mu_);
    is_up = lives_.count(task) != 0 && lives_.count(peer) != 0;
    if (is_up) {
      Side& side = sides_[{task, peer}];
      link = side.link;
      if (link == nullptr) {
        side.waiting.push_back(std::move(got));
        if (side.is_opening) return;
        side.is_opening = sides_[{peer, task}].is_opening = true;
      }
    }
  }
  if (!is_up) return got(absl::UnavailableError(absl::StrCat("connection to ", peer, " refused")));
  if (link != nullptr) return got(std::move(link));
  Open(task, peer);
}

std::shared_ptr<LinkEnd> LinkedTasks::MakeEnd(const std::string& task, const std::string& peer) {
  ++live_ends_[task];
  const std::shared_ptr<Worker> worker(std::shared_ptr<Worker>(), lives_.at(task));  // borrowed
  return std::make_shared<End>(this, Pair(task, peer),
                               std::make_shared<TaskLinkEnd>(worker, parts_.at(task), nullptr));
}

void LinkedTasks::Open(const std::string& task, const std::string& peer) {
  std::shared_ptr<LinkEnd> own_end, peer_end;
  LinkPeer own = {task, 0}, other = {peer, 0};
  {
    MutexLock lock(&mu_);
    if (lives_.count(task) != 0 && lives_.count(peer) != 0) {
      own_end = MakeEnd(task, peer);
      peer_end = MakeEnd(peer, task);
      own.incarnation = lives_.at(task)->DeviceAttributes()[0].incarnation();
      other.incarnation = lives_.at(peer)->DeviceAttributes()[0].incarnation();
    }
  }
  if (own_end == nullptr) {
    const Status killed = absl::UnavailableError(absl::StrCat("connection to ", peer, " lost"));
    Lost({task, peer}, killed, nullptr);
    return Lost({peer, task}, killed, nullptr);
  }
  if (kind_ == Kind::kInProcess) {
    OpenInProcessLink(own, own_end, other, peer_end);
    return;
  }
  ByteLinkOptions dialler, dialled;
  dialler.task = task;
  dialler.incarnation = own.incarnation;
  dialler.peer_task = peer;
  dialler.peer_incarnation = other.incarnation;
  dialled.task = peer;
  dialled.incarnation = other.incarnation;
  const StatusOr<int64_t> shared_bytes =
      LinkSharedBytesOfEnvironment(ServerLimits().max_link_shared_bytes);
  EXPECT_TRUE(shared_bytes.ok()) << shared_bytes.status();
  dialler.max_pool_bytes = dialled.max_pool_bytes = shared_bytes.value_or(0);
  std::shared_ptr<SimulatedWay> way;
  {
    const std::lock_guard<std::recursive_mutex> lock(*network_->mu());
    SimulatedWay::Options way_options;
    way_options.passes_descriptors = true;
    way = SimulatedWay::Make(network_.get(), way_options);
  }
  {
    MutexLock lock(&mu_);
    ways_[{std::min(task, peer), std::max(task, peer)}] = {way, task};
  }
  ByteLink::Open(network_->Locked(way->TakeWire(0)), own_end, dialler);
  ByteLink::Open(network_->Locked(way->TakeWire(1)), peer_end, dialled);
}

void LinkedTasks::Opened(const Pair& side, std::shared_ptr<Link> link) {
  std::vector<PeerLinks::Got> waiting;
  bool is_killed = false;
  {
    MutexLock lock(&mu_);
    Side& opened = sides_[side];
    opened.is_opening = false;
    opened.link = link;
    opened.waiting.swap(waiting);
    is_killed = lives_.count(side.first) == 0;
  }
  for (PeerLinks::Got& got : waiting) got(link);
  if (is_killed) link->Close(absl::UnavailableError("Socket closed"));
}

void LinkedTasks::Lost(const Pair& side, const Status& status, const Link* link) {
  std::vector<PeerLinks::Got> waiting;
  {
    MutexLock lock(&mu_);
    Side& lost = sides_[side];
    if (lost.link.get() == link) {
      lost.link = nullptr;
      lost.is_opening = false;
      lost.waiting.swap(waiting);
    }
    end_lost_.SignalAll();
  }
  for (PeerLinks::Got& got : waiting) got(status);
}

void LinkedTasks::EndLost(const std::string& task) {
  MutexLock lock(&mu_);
  --live_ends_[task];
  end_lost_.SignalAll();
}

}  // namespace millrace
