// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/link_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/same_host.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/simulated_wire.h"
#include "gtest/gtest.h"
#include "net/timers.h"

namespace millrace {
namespace {

// The smaller name is the ps's.
constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

class SeededTimers : public Timers {
 public:
  explicit SeededTimers(SeededTime* time) : time_(time) {}
  Clock* clock() override { return time_->clock(); }
  std::shared_ptr<Timer> Make(absl::AnyInvocable<void()> fire) override {
    return std::make_shared<Seeded>(time_, std::move(fire));
  }

 private:
  class Seeded : public Timer, public std::enable_shared_from_this<Seeded> {
   public:
    Seeded(SeededTime* time, absl::AnyInvocable<void()> fire)
        : time_(time), fire_(std::move(fire)) {}
    void Set(absl::Time when) override {
      const absl::Duration left = std::max(when - time_->clock()->Now(), absl::ZeroDuration());
      time_->Later(left, [self = shared_from_this(), set = ++last_set_] {
        if (set == self->last_set_) self->fire_();
      });
    }
    void Cancel() override { ++last_set_; }

   private:
    SeededTime* const time_;
    absl::AnyInvocable<void()> fire_;
    int64_t last_set_ = 0;
  };

  SeededTime* const time_;
};

// A peer that reads, and says nothing.
class SilentPeer : public ByteWire::User {
 public:
  void OnBytes(absl::string_view bytes) override { received.append(bytes.data(), bytes.size()); }
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t) override {}
  void OnWritten() override {}
  void OnClosed(const Status&, bool) override { is_closed = true; }
  std::string received;
  bool is_closed = false;
};

using Answer = std::optional<StatusOr<std::shared_ptr<Link>>>;

// Tasks with a table each, and the ways between them.
class World {
 public:
  struct Task {
    std::string name;
    std::unique_ptr<LinkTable> table;
    std::vector<std::shared_ptr<RecordingEnd>> ends;  // that were made
    int dials = 0;
    // What its dials find instead of a task.
    Status unreachable;
    bool finds_silence = false;
  };

  explicit World(uint64_t seed = 1) : time(seed), timers_(&time) {}
  ~World() {
    for (const auto& task : tasks_) task->table = nullptr;
    RunFor(absl::Seconds(5));
    for (const auto& wire : silent_wires_) wire->Close();
    RunFor(absl::Seconds(1));
    for (const auto& task : tasks_) {
      for (const auto& end : task->ends) {
        EXPECT_EQ(end->num_losses(), 1);
        end->LetGo();
      }
    }
  }

  // The last one of a name is who is dialled by it.
  Task* Add(const std::string& name, uint64_t incarnation, LinkTableOptions options = {}) {
    tasks_.push_back(std::make_unique<Task>());
    Task* const task = tasks_.back().get();
    task->name = name;
    options.link.task = name;
    options.link.incarnation = incarnation;
    options.timers = &timers_;
    if (options.dial == nullptr) {
      options.dial = [this, task](const std::string& callee) { return Dial(task, callee); };
    }
    options.make_end = [task](const LinkPeer&) {
      task->ends.push_back(std::make_shared<RecordingEnd>());
      return task->ends.back();
    };
    task->table = std::make_unique<LinkTable>(std::move(options));
    by_name_[name] = task;
    return task;
  }

  // A wire whose other end says nothing.
  std::unique_ptr<ByteWire> SilentWire() {
    const auto way = SimulatedWay::Make(&time, SimulatedWay::Options());
    silent_peers.push_back(std::make_shared<SilentPeer>());
    silent_wires_.push_back(way->TakeWire(1));
    silent_wires_.back()->Start(silent_peers.back());
    return way->TakeWire(0);
  }

  std::shared_ptr<Answer> Get(Task* task, const std::string& peer) {
    auto answer = std::make_shared<Answer>();
    task->table->Get(peer, [answer](StatusOr<std::shared_ptr<Link>> link) {
      EXPECT_FALSE(answer->has_value()) << "called twice";
      *answer = std::move(link);
    });
    return answer;
  }

  void RunFor(absl::Duration duration) { EXPECT_TRUE(time.RunFor(duration)); }

  // What becomes of an offer that was taken.
  enum class Taken { kComes, kIsRefused, kIsNotHeard };

  // The way to other tasks of the host, which is the world's only one.
  class Host : public SameHost {
   public:
    explicit Host(World* world) : world_(world) {}
    StatusOr<std::string> Offer(Came came) override {
      MR_RETURN_IF_ERROR(may_offer);
      ++num_offers;
      std::string offer = absl::StrCat("offer ", ++world_->last_offer);
      world_->offers[offer] = std::move(came);
      return offer;
    }
    StatusOr<std::unique_ptr<ByteWire>> Take(const std::string& offer) override {
      MR_RETURN_IF_ERROR(may_take);
      const auto found = world_->offers.find(offer);
      if (found == world_->offers.end()) return absl::NotFoundError("another host");
      const auto came = std::make_shared<Came>(std::move(found->second));
      world_->offers.erase(found);
      const auto way = SimulatedWay::Make(&world_->time, world_->host_way);
      world_->host_ways.push_back(way);
      const auto delay = absl::Microseconds(static_cast<int64_t>(world_->time.Draw(3000)));
      if (world_->taken == Taken::kComes) {
        world_->time.Later(delay, [way, came] { (*came)(way->TakeWire(1)); });
      } else if (world_->taken == Taken::kIsRefused) {
        const std::shared_ptr<ByteWire> refusing = way->TakeWire(1);
        world_->time.Later(delay, [refusing] {
          refusing->Start(std::make_shared<SilentPeer>());
          refusing->Close();
        });
      }
      return way->TakeWire(0);
    }
    void Tick() override { ++num_ticks; }
    void Close() override { is_closed = true; }

    Status may_offer, may_take;
    int num_offers = 0, num_ticks = 0;
    bool is_closed = false;

   private:
    World* const world_;
  };
  // With a way within the host.
  Task* AddOnHost(const std::string& name, uint64_t incarnation, LinkTableOptions options = {}) {
    hosts.push_back(std::make_shared<Host>(this));
    options.same_host = hosts.back();
    return Add(name, incarnation, std::move(options));
  }

  SeededTime time;
  std::map<std::string, SameHost::Came> offers;          // that nobody has taken
  int last_offer = 0;                                    // of all hosts
  std::vector<std::shared_ptr<SimulatedWay>> host_ways;  // of those that were, in their order
  std::vector<std::shared_ptr<Host>> hosts;              // of AddOnHost, in their order
  Taken taken = Taken::kComes;
  SimulatedWay::Options host_way;  // of those that come
  // Of dials between tasks, in their order.
  std::vector<std::shared_ptr<SimulatedWay>> ways;
  std::vector<std::string> diallers;
  std::vector<std::shared_ptr<SilentPeer>> silent_peers;

 private:
  StatusOr<std::unique_ptr<ByteWire>> Dial(Task* task, const std::string& callee) {
    ++task->dials;
    MR_RETURN_IF_ERROR(task->unreachable);
    if (task->finds_silence) return SilentWire();
    const auto way = SimulatedWay::Make(&time, SimulatedWay::Options());
    ways.push_back(way);
    diallers.push_back(task->name);
    // Whoever has the name when it arrives.
    time.Later(absl::Microseconds(static_cast<int64_t>(time.Draw(3000))), [this, way, callee] {
      Task* const called = by_name_.at(callee);
      if (called->table != nullptr) called->table->Accept(way->TakeWire(1));
    });
    return way->TakeWire(0);
  }

  SeededTimers timers_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::map<std::string, Task*> by_name_;
  std::vector<std::unique_ptr<ByteWire>> silent_wires_;
};

RunFrame RunOf(int64_t step_id) {
  RunFrame run;
  run.step_id = step_id;
  run.number = 1;
  return run;
}

bool IsOpen(const std::shared_ptr<Answer>& answer) {
  return answer->has_value() && (*answer)->ok();
}

Status Error(const std::shared_ptr<Answer>& answer) {
  if (!answer->has_value()) return absl::OkStatus();
  return (*answer)->status();
}

int64_t CountLines(const World::Task& task, absl::string_view prefix) {
  int64_t count = 0;
  for (const auto& end : task.ends) {
    for (const std::string& line : end->lines()) count += absl::StartsWith(line, prefix) ? 1 : 0;
  }
  return count;
}

// covers: clusters: two tasks have one link, whoever asks for it and however often
TEST(LinkTableTest, AllWhoAskHaveTheSameLink) {
  World world;
  World::Task* const ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  EXPECT_EQ(worker->table->Find(kPs), nullptr);
  const auto first = world.Get(worker, kPs), second = world.Get(worker, kPs);
  EXPECT_FALSE(first->has_value());
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first) && IsOpen(second));
  EXPECT_EQ(first->value().value(), second->value().value());
  EXPECT_EQ(worker->table->Find(kPs), first->value().value());
  const auto at_once = world.Get(ps, kWorker);
  ASSERT_TRUE(IsOpen(at_once));
  EXPECT_EQ(ps->table->Find(kWorker), ps->ends[0]->link());
  EXPECT_EQ(ps->table->OpenLinks().size(), 1u);
  EXPECT_EQ(worker->dials, 1);
  EXPECT_EQ(ps->dials, 0);
  EXPECT_EQ(ps->ends[0]->lines(), std::vector<std::string>{absl::StrCat("open ", kWorker, " 41")});
}

// covers: clusters: two tasks that dial each other at once keep the link of the smaller name, both
//   the same one, and what each sends on the link that it was given arrives
TEST(LinkTableTest, BothDialAtOnce) {
  int both = 0;  // worlds in which both have dialled
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    World::Task* const ps = world.Add(kPs, 42);
    World::Task* const worker = world.Add(kWorker, 41);
    int sent = 0;
    const auto send_to = [&sent](World::Task* task, const std::string& peer) {
      task->table->Get(peer, [&sent](StatusOr<std::shared_ptr<Link>> link) {
        EXPECT_OK(link);
        if (!link.ok()) return;
        EXPECT_OK((*link)->Send(RunOf(7)));
        ++sent;
      });
    };
    for (World::Task* const task : {ps, worker}) {
      world.time.Later(absl::Microseconds(static_cast<int64_t>(world.time.Draw(6000))),
                       [&send_to, task, ps] { send_to(task, task == ps ? kWorker : kPs); });
    }
    world.RunFor(absl::Seconds(5));
    EXPECT_EQ(sent, 2);
    EXPECT_EQ(CountLines(*ps, "run step=7"), 1);
    EXPECT_EQ(CountLines(*worker, "run step=7"), 1);
    // No end has opened and been lost.
    EXPECT_EQ(ps->ends.size(), 1u);
    EXPECT_EQ(worker->ends.size(), 1u);
    EXPECT_EQ(ps->table->num_links(), 1);
    EXPECT_EQ(worker->table->num_links(), 1);
    if (ps->dials == 0 || worker->dials == 0) continue;
    ++both;
    const auto kept = std::find(world.diallers.begin(), world.diallers.end(), kPs);
    ASSERT_TRUE(kept != world.diallers.end());
    const auto& way = world.ways[static_cast<size_t>(kept - world.diallers.begin())];
    const int64_t writes = way->num_writes(0);
    EXPECT_OK(ps->table->Find(kWorker)->Send(RunOf(8)));
    EXPECT_EQ(way->num_writes(0), writes + 1);
    world.RunFor(absl::Seconds(1));
    EXPECT_EQ(CountLines(*worker, "run step=8"), 1);
  }
  EXPECT_GE(both, 20);
}

// covers: clusters: a link that is lost is dialled again by the next who asks, not before
TEST(LinkTableTest, ALostLinkIsDialledAgain) {
  World world;
  World::Task* const ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first));
  world.ways[0]->BreakAfter(0, 0);
  world.RunFor(absl::Minutes(1));
  EXPECT_EQ(worker->table->Find(kPs), nullptr);
  EXPECT_EQ(worker->ends[0]->num_losses(), 1);
  EXPECT_EQ(worker->table->num_links(), 0);
  EXPECT_EQ(worker->dials, 1);
  const auto second = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(second));
  EXPECT_EQ(worker->dials, 2);
  EXPECT_EQ(ps->ends.size(), 2u);
  EXPECT_OK(worker->table->Find(kPs)->Send(RunOf(1)));
  world.RunFor(absl::Seconds(1));
  EXPECT_EQ(ps->ends[1]->lines().back(), "run step=1 number=1 timeout_us=0 args=0");
}

// covers: clusters: the link of a task that restarted takes the place of the old one, of which no
//   sign of life comes and whose steps hear that the task restarted
TEST(LinkTableTest, ATaskThatRestartedHasANewLink) {
  World world;
  World::Task* const old_ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first));
  // Its host was lost: nobody says so.
  world.ways[0]->StopReading(1);
  World::Task* const ps = world.Add(kPs, 43);
  const auto second = world.Get(ps, kWorker);
  world.RunFor(absl::Seconds(2));
  EXPECT_FALSE(second->has_value());
  EXPECT_EQ(worker->ends[0]->num_losses(), 0);
  world.RunFor(absl::Seconds(6));
  ASSERT_TRUE(IsOpen(second));
  EXPECT_STATUS(worker->ends[0]->lost(), absl::StatusCode::kAborted,
                "the task restarted (incarnation 42 expected, 43 found)");
  world.ways[0]->GoOnReading(1);
  world.RunFor(absl::Seconds(1));
  EXPECT_EQ(worker->table->Find(kPs), worker->ends[1]->link());
  EXPECT_EQ(worker->table->Find(kPs)->peer().incarnation, 43u);
  EXPECT_EQ(old_ps->table->num_links(), 0);
}

// covers: clusters: of two programs that were started as one task the first one keeps its links and
//   steps, and the second one hears why it has none
TEST(LinkTableTest, ASecondProgramUnderTheNameOfATaskIsRefused) {
  World world;
  World::Task* const ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first));
  World::Task* const second = world.Add(kPs, 43);
  // However often it comes.
  for (int i = 0; i < 3; ++i) {
    const auto refused = world.Get(second, kWorker);
    world.RunFor(absl::Seconds(5));
    EXPECT_STATUS(Error(refused), absl::StatusCode::kUnavailable,
                  "Link to /job:worker/replica:0/task:0: /job:ps/replica:0/task:0 must be one "
                  "program, got a second one (incarnation 43) while that of incarnation 42 "
                  "answers; were two programs started with one task index?");
  }
  EXPECT_TRUE(second->ends.empty());
  EXPECT_EQ(second->table->num_links(), 0);
  EXPECT_EQ(worker->ends.size(), 1u);
  EXPECT_EQ(worker->ends[0]->num_losses(), 0);
  EXPECT_OK(worker->table->Find(kPs)->Send(RunOf(7)));
  world.RunFor(absl::Seconds(1));
  EXPECT_EQ(CountLines(*ps, "run step=7"), 1);
  // The first one ends: the second one is the task.
  ps->table->CloseAll(absl::UnavailableError("the ps leaves"));
  world.RunFor(absl::Seconds(1));
  const auto taken = world.Get(second, kWorker);
  world.RunFor(absl::Seconds(1));
  EXPECT_TRUE(IsOpen(taken));
}

// covers: clusters: a second link of a task that has one is refused, and the first one goes on
TEST(LinkTableTest, ASecondLinkIsRefused) {
  World world;
  LinkTableOptions patient;
  patient.max_wait = absl::Seconds(4);
  World::Task* const ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first));
  World::Task* const same = world.Add(kWorker, 41, patient);
  const auto second = world.Get(same, kPs);
  world.RunFor(absl::Seconds(6));
  EXPECT_STATUS(Error(second), absl::StatusCode::kUnavailable,
                "Link to /job:ps/replica:0/task:0: must be open within 4s");
  EXPECT_GE(same->dials, 2);  // the other link might have been lost meanwhile
  EXPECT_TRUE(same->ends.empty());
  EXPECT_EQ(same->table->num_links(), 0);
  EXPECT_EQ(ps->ends.size(), 1u);
  EXPECT_EQ(ps->ends[0]->num_losses(), 0);
}

// covers: clusters: links that others dial and that never say HELLO are bounded, and do not keep
//   out a task that does
TEST(LinkTableTest, AThousandHalfOpenLinksAreBounded) {
  World world;
  LinkTableOptions options;
  options.max_unheard_links = 100;
  World::Task* const ps = world.Add(kPs, 42, std::move(options));
  World::Task* const worker = world.Add(kWorker, 41);
  for (int i = 0; i < 500; ++i) ps->table->Accept(world.SilentWire());
  const auto link = world.Get(worker, kPs);
  for (int i = 0; i < 500; ++i) {
    ps->table->Accept(world.SilentWire());
    if (i % 50 == 0) world.RunFor(absl::Milliseconds(10));
  }
  world.RunFor(absl::Milliseconds(100));
  EXPECT_TRUE(IsOpen(link));
  EXPECT_EQ(ps->table->num_links(), 101);
  EXPECT_TRUE(world.silent_peers[0]->is_closed);
  EXPECT_TRUE(absl::StrContains(world.silent_peers[0]->received,
                                "HELLO must come before 100 others dial, got none"));
  EXPECT_FALSE(world.silent_peers[999]->is_closed);
  world.RunFor(absl::Seconds(15));
  EXPECT_EQ(ps->table->num_links(), 1);
  EXPECT_TRUE(world.silent_peers[999]->is_closed);
  EXPECT_EQ(ps->ends.size(), 1u);
}

// covers: clusters: links that others dialled are bounded, and who is refused hears the bound and
//   may come again
TEST(LinkTableTest, AcceptedLinksAreBounded) {
  World world;
  LinkTableOptions options;
  options.max_accepted_links = 1;
  world.Add(kPs, 42, std::move(options));
  World::Task* const worker = world.Add(kWorker, 41);
  World::Task* const other = world.Add("/job:worker/replica:0/task:1", 43);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  const auto second = world.Get(other, kPs);
  world.RunFor(absl::Seconds(3));
  EXPECT_TRUE(IsOpen(first));
  EXPECT_STATUS(Error(second), absl::StatusCode::kUnavailable,
                "must have at most 1 links that others dialled");
}

// covers: clusters: who asks for a link to a task that does not answer hears it within a limit
TEST(LinkTableTest, APeerThatNeverGreetsIsGivenUp) {
  World world;
  LinkTableOptions impatient, patient;
  impatient.max_wait = absl::Seconds(5);
  patient.max_wait = absl::Seconds(30);
  World::Task* const soon = world.Add("/job:worker/replica:0/task:1", 1, std::move(impatient));
  World::Task* const late = world.Add("/job:worker/replica:0/task:2", 2, std::move(patient));
  soon->finds_silence = late->finds_silence = true;
  const auto first = world.Get(soon, kPs), second = world.Get(late, kPs);
  world.RunFor(absl::Seconds(7));
  EXPECT_STATUS(Error(first), absl::StatusCode::kUnavailable,
                "Link to /job:ps/replica:0/task:0: must be open within 5s, got no answer");
  EXPECT_FALSE(second->has_value());
  world.RunFor(absl::Seconds(7));
  EXPECT_STATUS(Error(second), absl::StatusCode::kUnavailable, "HELLO must come within 10s");
  EXPECT_EQ(soon->table->num_links(), 0);
  EXPECT_EQ(late->table->num_links(), 0);
  EXPECT_TRUE(soon->ends.empty() && late->ends.empty());
}

// covers: clusters: who asks for a link that cannot be hears why
TEST(LinkTableTest, WhoCannotHaveALinkHearsWhy) {
  World world;
  LinkTableOptions strict;
  strict.check_peer = [](const LinkPeer& peer) {
    return absl::PermissionDeniedError(absl::StrCat("no task of this cluster: ", peer.task));
  };
  World::Task* const ps = world.Add(kPs, 42, std::move(strict));
  World::Task* const worker = world.Add(kWorker, 41);
  const auto refused = world.Get(worker, kPs);
  const auto own = world.Get(worker, kWorker);
  EXPECT_STATUS(Error(own), absl::StatusCode::kInvalidArgument, "must be to another task");
  world.RunFor(absl::Seconds(2));
  EXPECT_STATUS(Error(refused), absl::StatusCode::kPermissionDenied,
                "Link to /job:ps/replica:0/task:0 was closed by the peer: no task of this cluster: "
                "/job:worker/replica:0/task:0");
  EXPECT_TRUE(ps->ends.empty() && worker->ends.empty());
  worker->unreachable = absl::UnavailableError("no such host");
  const auto unreachable = world.Get(worker, kPs);
  EXPECT_STATUS(Error(unreachable), absl::StatusCode::kUnavailable,
                "Link to /job:ps/replica:0/task:0: no such host");
  worker->unreachable = absl::ResourceExhaustedError("calls must be at most 7");
  const auto full = world.Get(worker, kPs);
  EXPECT_STATUS(Error(full), absl::StatusCode::kUnavailable, "calls must be at most 7");
  EXPECT_EQ(worker->table->num_links(), 0);
}

// covers: clusters: a task that does not know the way to another one has the link that this one
//   dials, and waits for it within the limit
TEST(LinkTableTest, ATaskToWhichThereIsNoWayIsWaitedFor) {
  World world;
  LinkTableOptions options;
  options.can_dial = [](const std::string&) { return false; };
  World::Task* const ps = world.Add(kPs, 42, std::move(options));
  World::Task* const worker = world.Add(kWorker, 41);
  const auto waits = world.Get(ps, kWorker);
  world.RunFor(absl::Seconds(3));
  EXPECT_FALSE(waits->has_value());
  const auto dialled = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(waits) && IsOpen(dialled));
  EXPECT_EQ(waits->value().value(), ps->ends[0]->link());
  const auto never = world.Get(ps, "/job:worker/replica:0/task:1");
  world.RunFor(absl::Seconds(12));
  EXPECT_STATUS(Error(never), absl::StatusCode::kUnavailable,
                "Link to /job:worker/replica:0/task:1: must be open within 10s, got no answer");
  EXPECT_EQ(ps->dials, 0);
  EXPECT_EQ(ps->table->num_links(), 1);
}

// covers: clusters: two tasks of one host carry their steps on a link within the host, and both
//   ends agree on it before a step is sent
TEST(LinkTableTest, TwoTasksOfAHostHaveAPairOfLinks) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    World::Task* const ps = world.AddOnHost(kPs, 42);
    World::Task* const worker = world.AddOnHost(kWorker, 41);
    bool sent = false;
    // What is sent at once, too, goes within the host.
    worker->table->Get(kPs, [&](StatusOr<std::shared_ptr<Link>> link) {
      EXPECT_OK(link);
      if (!link.ok()) return;
      EXPECT_OK((*link)->Send(RunOf(6)));
      sent = true;
    });
    world.RunFor(absl::Seconds(2));
    ASSERT_TRUE(sent);
    ASSERT_EQ(world.ways.size(), 1u);
    ASSERT_EQ(world.host_ways.size(), 1u);
    for (World::Task* const task : {ps, worker}) {
      EXPECT_EQ(task->table->num_links(), 2);
      EXPECT_EQ(task->table->num_pairs(), 1);
      EXPECT_EQ(task->table->OpenLinks().size(), 1u);
      ASSERT_EQ(task->ends.size(), 1u);
      EXPECT_EQ(task->table->Find(task == ps ? kWorker : kPs), task->ends[0]->link());
    }
    EXPECT_EQ(worker->ends[0]->lines(),
              std::vector<std::string>{absl::StrCat("open ", kPs, " 42")});
    const int64_t by_worker = world.ways[0]->num_writes(0), by_ps = world.ways[0]->num_writes(1);
    EXPECT_OK(worker->ends[0]->link()->Send(RunOf(7)));
    EXPECT_OK(ps->ends[0]->link()->Send(RunOf(8)));
    world.RunFor(absl::Seconds(1));
    EXPECT_EQ(CountLines(*ps, "run step=6"), 1);
    EXPECT_EQ(CountLines(*ps, "run step=7"), 1);
    EXPECT_EQ(CountLines(*worker, "run step=8"), 1);
    EXPECT_EQ(world.ways[0]->num_writes(0), by_worker);
    EXPECT_EQ(world.ways[0]->num_writes(1), by_ps);
    EXPECT_GE(world.hosts[0]->num_ticks, 1);
    EXPECT_FALSE(world.hosts[0]->is_closed);
    ps->table->CloseAll(absl::UnavailableError("the ps leaves"));
    EXPECT_TRUE(world.hosts[0]->is_closed);
  }
}

// covers: clusters: two tasks of one host that dial each other at once have one pair of links
TEST(LinkTableTest, BothDialAtOnceOnAHost) {
  int both = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    World::Task* const ps = world.AddOnHost(kPs, 42);
    World::Task* const worker = world.AddOnHost(kWorker, 41);
    int sent = 0;
    for (World::Task* const task : {ps, worker}) {
      const char* const peer = task == ps ? kWorker : kPs;
      world.time.Later(absl::Microseconds(static_cast<int64_t>(world.time.Draw(6000))),
                       [&sent, task, peer] {
                         task->table->Get(peer, [&sent](StatusOr<std::shared_ptr<Link>> link) {
                           EXPECT_OK(link);
                           if (!link.ok()) return;
                           EXPECT_OK((*link)->Send(RunOf(7)));
                           ++sent;
                         });
                       });
    }
    world.RunFor(absl::Seconds(5));
    EXPECT_EQ(sent, 2);
    for (World::Task* const task : {ps, worker}) {
      EXPECT_EQ(CountLines(*task, "run step=7"), 1);
      EXPECT_EQ(task->ends.size(), 1u);
      EXPECT_EQ(task->table->num_links(), 2);
      EXPECT_EQ(task->table->num_pairs(), 1);
    }
    if (ps->dials > 0 && worker->dials > 0) ++both;
  }
  EXPECT_GE(both, 20);
}

// covers: clusters: what keeps two tasks from a link within the host is a line in the log, unless
//   they are on two hosts, and their steps take the link that was dialled
TEST(LinkTableTest, WhatCannotBeTakenLeavesTheLinkThatWasDialled) {
  const struct {
    const char* what;
    Status may_offer, may_take;
    bool caller_is_on_host, callee_is_on_host;
    const char* log;  // null: nothing
  } cases[] = {
      {"no offer can be made",
       absl::UnavailableError("no random bytes"),
       {},
       true,
       true,
       "Link to /job:ps/replica:0/task:0: no link within the host, steps travel over the network: "
       "no random bytes"},
      {"another user",
       {},
       absl::PermissionDeniedError("of user 1"),
       true,
       true,
       "Link to /job:worker/replica:0/task:0: no link within the host, steps travel over the "
       "network: of user 1"},
      {"another host", {}, absl::NotFoundError("another host"), true, true, nullptr},
      {"switched off where it was dialled", {}, {}, true, false, nullptr},
      {"switched off where it dials", {}, {}, false, true, nullptr},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    World world;
    World::Task* const ps = c.callee_is_on_host ? world.AddOnHost(kPs, 42) : world.Add(kPs, 42);
    World::Task* const worker =
        c.caller_is_on_host ? world.AddOnHost(kWorker, 41) : world.Add(kWorker, 41);
    for (const auto& host : world.hosts) {
      host->may_offer = c.may_offer;
      host->may_take = c.may_take;
    }
    ::testing::internal::CaptureStderr();
    const auto link = world.Get(worker, kPs);
    world.RunFor(absl::Seconds(1));
    const std::string log = ::testing::internal::GetCapturedStderr();
    if (c.log == nullptr) {
      EXPECT_EQ(log, "");
    } else {
      EXPECT_TRUE(absl::StrContains(log, c.log)) << log;
      EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    }
    ASSERT_TRUE(IsOpen(link));
    EXPECT_EQ(worker->dials, 1);
    EXPECT_OK(link->value().value()->Send(RunOf(7)));
    world.RunFor(absl::Seconds(1));
    EXPECT_EQ(CountLines(*ps, "run step=7"), 1);
    EXPECT_TRUE(world.host_ways.empty());
    for (World::Task* const task : {ps, worker}) {
      EXPECT_EQ(task->table->num_links(), 1);
      EXPECT_EQ(task->table->num_pairs(), 0);
    }
  }
}

// covers: clusters: a link within the host that was agreed on and does not open costs those who
//   wait for it some seconds, and is tried again later
TEST(LinkTableTest, APairThatDoesNotOpenIsDialledAgainWithoutAnOffer) {
  for (const World::Taken taken : {World::Taken::kIsRefused, World::Taken::kIsNotHeard}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat("refused: ", taken == World::Taken::kIsRefused, " seed ", seed));
      World world(seed);
      world.taken = taken;
      World::Task* const ps = world.AddOnHost(kPs, 42);
      World::Task* const worker = world.AddOnHost(kWorker, 41);
      ::testing::internal::CaptureStderr();
      const auto link = world.Get(worker, kPs);
      std::shared_ptr<Answer> back;
      world.time.Later(absl::Milliseconds(static_cast<int64_t>(world.time.Draw(12))),
                       [&] { back = world.Get(ps, kWorker); });
      world.RunFor(absl::Milliseconds(9500));
      const std::string log = ::testing::internal::GetCapturedStderr();
      EXPECT_TRUE(absl::StrContains(log, "no link within the host, steps travel over the network"))
          << log;
      ASSERT_TRUE(IsOpen(link)) << Error(link);
      ASSERT_TRUE(IsOpen(back)) << Error(back);
      EXPECT_OK(link->value().value()->Send(RunOf(7)));
      world.RunFor(absl::Seconds(1));
      EXPECT_EQ(CountLines(*ps, "run step=7"), 1);
      // No end has opened and been lost.
      for (World::Task* const task : {ps, worker}) {
        EXPECT_EQ(task->ends.size(), 1u);
        EXPECT_EQ(task->table->num_links(), 1);
        EXPECT_EQ(task->table->num_pairs(), 0);
      }
    }
  }
}

// covers: clusters: a task of the same host is offered a link within it again when a minute has
//   passed since one did not open
TEST(LinkTableTest, AnOfferIsMadeAgainLater) {
  World world;
  world.taken = World::Taken::kIsRefused;
  world.AddOnHost(kPs, 42);
  World::Task* const worker = world.AddOnHost(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(5));
  ASSERT_TRUE(IsOpen(first));
  EXPECT_EQ(world.hosts[1]->num_offers, 1);
  world.taken = World::Taken::kComes;
  const auto dial_again = [&] {
    world.ways.back()->BreakAfter(0, 0);
    world.RunFor(absl::Seconds(31));
    const auto link = world.Get(worker, kPs);
    world.RunFor(absl::Seconds(3));
    return link;
  };
  ASSERT_TRUE(IsOpen(dial_again()));
  EXPECT_EQ(world.hosts[1]->num_offers, 1);
  EXPECT_EQ(worker->table->num_pairs(), 0);
  ASSERT_TRUE(IsOpen(dial_again()));
  EXPECT_EQ(world.hosts[1]->num_offers, 2);
  EXPECT_EQ(worker->table->num_pairs(), 1);
}

// covers: clusters: of the two links of two tasks of a host each ends both, and the next who asks
//   has new ones
// covers: clusters: a task that cannot take the memory of another one of its host has its tensors
//   through the socket for a while
TEST(LinkTableTest, WhoCannotReadAPoolHasNoneForAWhile) {
  World world(1);
  world.host_way.passes_descriptors = true;
  world.host_way.has_room_for_descriptors = false;
  LinkTableOptions options;
  options.link.max_pool_bytes = int64_t{1} << 20;
  World::Task* const ps = world.AddOnHost(kPs, 42, options);
  const auto pools = options.link.pools = std::make_shared<LinkPools>(int64_t{2} << 20);
  World::Task* const worker = world.AddOnHost(kWorker, 41, options);
  const auto send = [&] {
    const auto link = world.Get(worker, kPs);
    world.RunFor(absl::Seconds(2));
    ASSERT_TRUE(IsOpen(link)) << Error(link);
    SentTensors message;
    message.tensors.emplace_back().value =
        *Tensor::Zeros(DT_FLOAT, Shape{OutgoingTensors::kMinPooledBytes / 4});
    ASSERT_OK((**link).value()->Send(std::move(message)));
    world.RunFor(absl::Seconds(2));
  };
  send();
  EXPECT_EQ(pools->sent_tensors.load(), 1);
  EXPECT_EQ(CountLines(*ps, "tensors"), 0);
  EXPECT_EQ(CountLines(*ps, "lost"), 1);
  EXPECT_EQ(CountLines(*worker, "lost"), 1);
  // Another pair, without pools.
  send();
  EXPECT_EQ(pools->sent_tensors.load(), 1);
  EXPECT_EQ(CountLines(*ps, "tensors"), 1);
  EXPECT_EQ(ps->table->num_pairs(), 1);
  // Later one with pools.
  world.host_way.has_room_for_descriptors = true;
  world.RunFor(absl::Minutes(1));
  ps->table->Find(kWorker)->Close(absl::UnavailableError("for another one"));
  world.RunFor(absl::Seconds(2));
  send();
  EXPECT_EQ(pools->sent_tensors.load(), 2);
  EXPECT_EQ(CountLines(*ps, "tensors"), 2);
}

TEST(LinkTableTest, TheLossOfEitherLinkOfAPairIsTheLossOfBoth) {
  for (const bool of_witness : {true, false}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat("witness: ", of_witness, " seed ", seed));
      World world(seed);
      World::Task* const ps = world.AddOnHost(kPs, 42);
      World::Task* const worker = world.AddOnHost(kWorker, 41);
      const auto first = world.Get(worker, kPs);
      world.RunFor(absl::Seconds(1));
      ASSERT_TRUE(IsOpen(first));
      (of_witness ? world.ways : world.host_ways).at(0)->BreakAfter(0, 0);
      world.RunFor(absl::Minutes(1));
      for (World::Task* const task : {ps, worker}) {
        EXPECT_EQ(task->table->num_links(), 0);
        EXPECT_EQ(task->table->num_pairs(), 0);
        EXPECT_EQ(task->ends.at(0)->num_losses(), 1);
        EXPECT_EQ(task->ends.at(0)->lost().code(), absl::StatusCode::kUnavailable)
            << task->ends.at(0)->lost();
      }
      const auto second = world.Get(ps, kWorker);
      world.RunFor(absl::Seconds(1));
      ASSERT_TRUE(IsOpen(second));
      EXPECT_EQ(ps->table->num_pairs(), 1);
      EXPECT_EQ(worker->ends.size(), 2u);
    }
  }
}

// covers: clusters: what a task has sent on a link within the host before it stops arrives, though
//   the other link may be heard first
TEST(LinkTableTest, TheLastMessagesOfACarrierAreRead) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    World::Task* const ps = world.AddOnHost(kPs, 42);
    World::Task* const worker = world.AddOnHost(kWorker, 41);
    const auto first = world.Get(worker, kPs);
    world.RunFor(absl::Seconds(1));
    ASSERT_TRUE(IsOpen(first));
    EndFrame end;
    end.step_id = 7;
    EXPECT_OK(ps->ends.at(0)->link()->Send(end));
    ps->table->CloseAll(absl::UnavailableError("the ps leaves"));
    world.RunFor(absl::Seconds(4));
    EXPECT_EQ(CountLines(*worker, "end step=7"), 1);
    EXPECT_STATUS(worker->ends.at(0)->lost(), absl::StatusCode::kUnavailable, "the ps leaves");
    EXPECT_TRUE(worker->ends.at(0)->lost_by_peer());
    EXPECT_EQ(worker->table->num_links(), 0);
  }
}

// covers: clusters: a task of the same host that restarted has new links, and the steps of the old
//   ones hear that it restarted
TEST(LinkTableTest, ATaskOfTheHostThatRestartedHasANewPair) {
  World world;
  World::Task* const old_ps = world.AddOnHost(kPs, 42);
  World::Task* const worker = world.AddOnHost(kWorker, 41);
  const auto first = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(first));
  world.ways.at(0)->StopReading(1);
  world.host_ways.at(0)->StopReading(0);  // the ps was dialled, and has dialled there
  World::Task* const ps = world.AddOnHost(kPs, 43);
  const auto second = world.Get(ps, kWorker);
  world.RunFor(absl::Seconds(2));
  EXPECT_FALSE(second->has_value());
  world.RunFor(absl::Seconds(8));
  ASSERT_TRUE(IsOpen(second)) << Error(second);
  world.RunFor(absl::Seconds(4));
  EXPECT_STATUS(worker->ends.at(0)->lost(), absl::StatusCode::kAborted,
                "the task restarted (incarnation 42 expected, 43 found)");
  ASSERT_EQ(worker->ends.size(), 2u);
  EXPECT_EQ(worker->table->Find(kPs), worker->ends[1]->link());
  EXPECT_EQ(worker->table->Find(kPs)->peer().incarnation, 43u);
  EXPECT_EQ(worker->table->num_pairs(), 1);
  world.ways[0]->GoOnReading(1);
  world.host_ways[0]->GoOnReading(0);
  world.RunFor(absl::Seconds(5));
  EXPECT_EQ(old_ps->table->num_links(), 0);
  EXPECT_EQ(worker->table->num_links(), 2);
}

// covers: clusters: a peer that sends steps on the link that only proves who it is loses both
TEST(LinkTableTest, StepsOnAWitnessEndThePair) {
  World world;
  World::Task* const ps = world.AddOnHost(kPs, 42);
  std::unique_ptr<ByteWire> carrier;
  world.offers["of a stranger"] = [&](StatusOr<std::unique_ptr<ByteWire>> wire) {
    if (wire.ok()) carrier = *std::move(wire);
  };
  const auto way = SimulatedWay::Make(&world.time, SimulatedWay::Options());
  ByteLinkOptions options;
  options.task = kWorker;
  options.incarnation = 41;
  options.peer_task = kPs;
  options.offer = "of a stranger";
  options.clock = world.time.clock();
  const auto end = std::make_shared<RecordingEnd>();
  const auto link = ByteLink::Open(way->TakeWire(0), end, options);
  ps->table->Accept(way->TakeWire(1));
  world.RunFor(absl::Milliseconds(100));
  ASSERT_TRUE(end->link() != nullptr);
  EXPECT_TRUE(end->link()->peer().takes_offer);
  EXPECT_TRUE(carrier != nullptr);
  EXPECT_OK(link->Send(RunOf(7)));
  world.RunFor(absl::Seconds(5));
  EXPECT_STATUS(end->lost(), absl::StatusCode::kInvalidArgument,
                "steps must travel on the link within the host, got RUN on the other one");
  EXPECT_TRUE(ps->ends.empty());
  EXPECT_EQ(ps->table->num_links(), 0);
  end->LetGo();
}

// covers: clusters: a link that cannot last ends jobs with its own error, and one that was lost for
//   a while lets them open a new session
TEST(LossOfLinkTest, WhatLastsKeepsItsCodeAndTheRestIsUnavailable) {
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition,
                          absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated,
                          absl::StatusCode::kUnimplemented}) {
    EXPECT_STATUS(LossOfLink(Status(code, "for good")), code, "for good");
  }
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kAborted,
                          absl::StatusCode::kCancelled, absl::StatusCode::kDeadlineExceeded,
                          absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    EXPECT_STATUS(LossOfLink(Status(code, "for now")), absl::StatusCode::kUnavailable, "for now");
  }
}

// covers: clusters: a task without a way to others has the links that they dial, and says so to who
//   asks before
TEST(LinkTableTest, ATaskThatNeverDials) {
  SeededTime time(1);
  SeededTimers timers(&time);
  LinkTableOptions options;
  options.link.task = kPs;
  options.timers = &timers;
  options.make_end = [](const LinkPeer&) { return std::make_shared<RecordingEnd>(); };
  LinkTable table(std::move(options));
  Status status;
  table.Get(kWorker, [&](StatusOr<std::shared_ptr<Link>> link) { status = link.status(); });
  EXPECT_STATUS(status, absl::StatusCode::kFailedPrecondition,
                "that task must dial, got no link of it");
  EXPECT_TRUE(time.Run());  // no timer is left
}

// covers: clusters: a task that stops closes its links with the reason, and tells it to who waits
//   for one, and to who dials afterwards
TEST(LinkTableTest, CloseAllTellsAllWhoWait) {
  World world;
  World::Task* const ps = world.Add(kPs, 42);
  World::Task* const worker = world.Add(kWorker, 41);
  World::Task* const third = world.Add("/job:worker/replica:0/task:1", 43);
  const auto open = world.Get(worker, kPs);
  world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(IsOpen(open));
  ps->finds_silence = true;
  const auto waits = world.Get(ps, third->name), too = world.Get(ps, third->name);
  ps->table->CloseAll(absl::UnavailableError("the ps leaves"));
  for (const auto& answer : {waits, too, world.Get(ps, third->name), world.Get(ps, kWorker)}) {
    EXPECT_STATUS(Error(answer), absl::StatusCode::kUnavailable, "the ps leaves");
  }
  EXPECT_EQ(ps->table->Find(kWorker), nullptr);
  ps->table->CloseAll(absl::InternalError("a second call"));
  const auto late = world.Get(third, kPs);
  world.RunFor(absl::Seconds(3));
  EXPECT_STATUS(worker->ends[0]->lost(), absl::StatusCode::kUnavailable,
                "was closed by the peer: the ps leaves");
  EXPECT_TRUE(worker->ends[0]->lost_by_peer());
  EXPECT_FALSE(ps->ends[0]->lost_by_peer());
  EXPECT_STATUS(Error(late), absl::StatusCode::kUnavailable, "the ps leaves");
  EXPECT_EQ(ps->table->num_links(), 0);
}

}  // namespace
}  // namespace millrace
