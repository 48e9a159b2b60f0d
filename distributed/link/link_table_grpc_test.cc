// SPDX-License-Identifier: Apache-2.0
//
// Tables of links over gRPC and loopback sockets, with threads and the machine's time; as a server
// uses them. link_table_test.cc has what tables promise.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/grpc_wire.h"
#include "distributed/link/link.h"
#include "distributed/link/link_table.h"
#include "distributed/link/same_host.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/unix_same_host.h"
#include "gtest/gtest.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"

namespace millrace {
namespace {

constexpr absl::Duration kHang = absl::Seconds(30);
constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// False when it takes too long.
bool Await(const std::function<bool()>& condition) {
  const absl::Time hang = absl::Now() + kHang;
  while (!condition()) {
    if (absl::Now() >= hang) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

class GrpcTask {
 public:
  // `host`: its way to the others of the host; null: none.
  GrpcTask(const std::string& name, uint64_t incarnation, std::shared_ptr<SameHost> host = nullptr)
      : name_(name) {
    LinkTableOptions links;
    links.same_host = std::move(host);
    links.link.task = name;
    links.link.incarnation = incarnation;
    links.dial = [this](const std::string& task) -> StatusOr<std::unique_ptr<ByteWire>> {
      return DialGrpcWire(channels_.at(task).get());
    };
    links.make_end = [this](const LinkPeer&) {
      auto end = std::make_shared<RecordingEnd>();
      MutexLock lock(&mu_);
      ends_.push_back(end);
      return end;
    };
    table_ = std::make_unique<LinkTable>(std::move(links));
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.duplex_handlers[kLinkMethod] = [this](std::shared_ptr<DuplexCall> call) {
      table_->Accept(AcceptGrpcWire(std::move(call)));
    };
    auto server = RpcServer::Start(std::move(options));
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }
  ~GrpcTask() { Stop(absl::UnavailableError("the test is over")); }

  // Before it is asked for.
  void Knows(const GrpcTask& other) {
    channels_[other.name_] = RpcChannel::Make(absl::StrCat("127.0.0.1:", other.server_->port()));
  }
  void Stop(const Status& reason) {
    table_->CloseAll(reason);
    EXPECT_TRUE(Await([this] { return table_->num_links() == 0; }));
    for (const auto& end : ends()) {
      // A link leaves the table before its end hears of it: when the peer has read why, however
      // busy the machine is.
      EXPECT_TRUE(Await([&] { return end->num_losses() == 1; }));
      end->LetGo();
    }
    server_->Shutdown(absl::Now());
  }

  LinkTable* table() { return table_.get(); }
  std::vector<std::shared_ptr<RecordingEnd>> ends() {
    MutexLock lock(&mu_);
    return ends_;
  }
  // Waits. Null when there is none.
  std::shared_ptr<Link> Get(const std::string& task) {
    Notification done;
    std::shared_ptr<Link> got;
    table_->Get(task, [&](StatusOr<std::shared_ptr<Link>> link) {
      EXPECT_OK(link);
      if (link.ok()) got = *std::move(link);
      done.Notify();
    });
    done.Wait();
    return got;
  }

 private:
  const std::string name_;
  std::map<std::string, std::shared_ptr<RpcChannel>> channels_;
  Mutex mu_;
  std::vector<std::shared_ptr<RecordingEnd>> ends_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LinkTable> table_;
  std::unique_ptr<RpcServer> server_;  // goes first
};

// covers: clusters: two servers that dial each other at once have one link, and nothing that either
//   sends is lost
TEST(LinkTableGrpcTest, BothDialAtOnce) {
  for (int i = 0; i < 20; ++i) {
    GrpcTask ps(kPs, 42), worker(kWorker, 41);
    ps.Knows(worker);
    worker.Knows(ps);
    const auto greet = [](GrpcTask* task, const char* peer) {
      const std::shared_ptr<Link> link = task->Get(peer);
      ASSERT_TRUE(link != nullptr);
      RunFrame run;
      run.step_id = 7;
      EXPECT_OK(link->Send(run));
    };
    std::thread other([&] { greet(&worker, kPs); });
    greet(&ps, kWorker);
    other.join();
    for (GrpcTask* const task : {&ps, &worker}) {
      ASSERT_EQ(task->ends().size(), 1u);
      const auto end = task->ends()[0];
      EXPECT_TRUE(Await([&] { return end->lines().size() == 2; }));
      EXPECT_EQ(end->lines().back(), "run step=7 number=0 timeout_us=0 args=0");
      // The refused link goes.
      EXPECT_TRUE(Await([&] { return task->table()->num_links() == 1; }));
    }
  }
}

// covers: clusters: two servers of one host that dial each other at once have one pair of links,
//   over gRPC and a Unix socket, and nothing that either sends is lost
TEST(LinkTableGrpcTest, BothDialAtOnceOnAHost) {
  for (int i = 0; i < 20; ++i) {
    GrpcTask ps(kPs, 42, MakeUnixSameHost()), worker(kWorker, 41, MakeUnixSameHost());
    ps.Knows(worker);
    worker.Knows(ps);
    const auto greet = [](GrpcTask* task, const char* peer) {
      const std::shared_ptr<Link> link = task->Get(peer);
      ASSERT_TRUE(link != nullptr);
      RunFrame run;
      run.step_id = 7;
      EXPECT_OK(link->Send(run));
    };
    std::thread other([&] { greet(&worker, kPs); });
    greet(&ps, kWorker);
    other.join();
    for (GrpcTask* const task : {&ps, &worker}) {
      EXPECT_EQ(task->table()->num_pairs(), 1);
      ASSERT_EQ(task->ends().size(), 1u);
      const auto end = task->ends()[0];
      EXPECT_TRUE(Await([&] { return end->lines().size() == 2; }));
      EXPECT_EQ(end->lines().back(), "run step=7 number=0 timeout_us=0 args=0");
      // The refused link goes.
      EXPECT_TRUE(Await([&] { return task->table()->num_links() == 2; }));
    }
  }
}

// covers: clusters: what a server has sent within the host before it stops is read, though gRPC may
//   bring its farewell first
TEST(LinkTableGrpcTest, TheLastMessagesWithinTheHostAreRead) {
  for (int i = 0; i < 20; ++i) {
    GrpcTask worker(kWorker, 41, MakeUnixSameHost());
    GrpcTask ps(kPs, 42, MakeUnixSameHost());
    worker.Knows(ps);
    ASSERT_TRUE(worker.Get(kPs) != nullptr);
    const std::shared_ptr<Link> back = ps.Get(kWorker);
    ASSERT_TRUE(back != nullptr);
    EndFrame end;
    for (end.step_id = 1; end.step_id <= 1000; ++end.step_id) EXPECT_OK(back->Send(end));
    ps.Stop(absl::UnavailableError("the ps leaves"));
    const auto heard = worker.ends()[0];
    ASSERT_TRUE(Await([&] { return heard->num_losses() == 1; }));
    EXPECT_EQ(heard->last_end().step_id, 1000);
    EXPECT_STATUS(heard->lost(), absl::StatusCode::kUnavailable, "the ps leaves");
    EXPECT_TRUE(heard->lost_by_peer());
    EXPECT_TRUE(Await([&] { return worker.table()->num_links() == 0; }));
  }
}

// covers: clusters: a server that stops tells its peers why over their links, and one that takes
//   its place is dialled by the next who asks
TEST(LinkTableGrpcTest, AServerThatStopsIsHeardAndItsSuccessorIsDialled) {
  GrpcTask worker(kWorker, 41);
  {
    GrpcTask ps(kPs, 42);
    worker.Knows(ps);
    ASSERT_TRUE(worker.Get(kPs) != nullptr);
    ps.Stop(absl::UnavailableError("the ps leaves"));
    const auto end = worker.ends()[0];
    ASSERT_TRUE(Await([&] { return end->num_losses() == 1; }));
    EXPECT_STATUS(end->lost(), absl::StatusCode::kUnavailable,
                  "Link to /job:ps/replica:0/task:0 was closed by the peer: the ps leaves");
    EXPECT_TRUE(end->lost_by_peer());
  }
  GrpcTask ps(kPs, 43);
  worker.Knows(ps);
  EXPECT_TRUE(Await([&] { return worker.table()->Find(kPs) == nullptr; }));
  const std::shared_ptr<Link> link = worker.Get(kPs);
  ASSERT_TRUE(link != nullptr);
  EXPECT_EQ(link->peer().incarnation, 43u);
}

}  // namespace
}  // namespace millrace
