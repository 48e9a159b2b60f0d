// SPDX-License-Identifier: Apache-2.0
//
// 1,000 links that are half open, of each kind, at real tasks whose job trains: TCP connections to
// their ports that say nothing or the begin of a greeting, calls of a link with half a HELLO, and
// Unix connections that say nothing or half a nonce. The job trains on, and when they have gone
// nothing of them is left.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/owned_fd.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/frame.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/unix_offer.h"
#include "distributed/link/unix_socket.h"
#include "distributed/testing/raw_link.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "tests/cluster/process.h"
#include "tests/cluster/process_state.h"

// covers: clusters: 1,000 half-open links to tasks that train, over gRPC, over TCP and over Unix
//   sockets: the job trains on, and when they close no descriptor and no memory is left

namespace millrace {
namespace {

constexpr int kStrangers = 1000;  // of each kind
// LinkTableOptions::max_unheard_links: beyond it the oldest is closed.
constexpr int kMaxUnheard = 256;
// What a task opens by itself meanwhile: of gRPC, for its threads.
constexpr int kOwnFds = 16;
constexpr int64_t kMaxGrowth = int64_t{64} << 20;
constexpr absl::Duration kGuard = absl::Minutes(2);

bool Await(absl::FunctionRef<bool()> is_so) {
  const absl::Time hang = absl::Now() + kGuard;
  while (!is_so()) {
    if (absl::Now() >= hang) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

// What a task says of itself (soak_task.cc).
struct Said {
  int64_t heap = 0, steps = 0;
};
Said LastSaid(const Process& process) {
  Said said;
  const auto line = process.FindLastLine("soak-end");
  if (!line.has_value()) return said;
  const std::vector<std::string> words = absl::StrSplit(*line, ' ');
  EXPECT_TRUE(words.size() == 4 && absl::SimpleAtoi(words[1], &said.heap) &&
              absl::SimpleAtoi(words[2], &said.steps))
      << *line;
  return said;
}

// A connection that has said `bytes`.
OwnedFd Stranger(int family, const sockaddr* address, socklen_t num_bytes, absl::string_view says) {
  OwnedFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_TRUE(socket.open());
  EXPECT_EQ(::connect(socket.get(), address, num_bytes), 0);
  if (!says.empty()) {
    // One that was dropped already cannot say it.
    (void)::send(socket.get(), says.data(), says.size(), MSG_NOSIGNAL);
  }
  return socket;
}

OwnedFd TcpStranger(int port, absl::string_view says) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Stranger(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address), says);
}

OwnedFd UnixStranger(absl::string_view name, absl::string_view says) {
  const AbstractAddress address(name);
  return Stranger(AF_UNIX, address.get(), address.num_bytes, says);
}

TEST(HalfOpenLinksTest, AThousandOfEachKindStopNoTrainingAndLeaveNothing) {
  // Of this process and of those that it starts.
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GT(limit.rlim_cur, rlim_t{3 * kStrangers + 500}) << "the system must give descriptors";

  ClusterPorts ports = FreeClusterPorts(1, 0, 1);
  ports.host = "127.0.0.1";
  const auto start = [&](const char* job) {
    return Process::Start({.name = job,
                           .program = "tests/cluster/soak_task",
                           .env = {{"TF_CONFIG", TfConfig(ports, job, 0)},
                                   {"MILLRACE_WIRE", "links"},
                                   {"MILLRACE_UNIX_LINKS", "1"}}});
  };
  ASSERT_OK_AND_ASSIGN(const auto ps, start("ps"));
  ASSERT_OK_AND_ASSIGN(const auto worker, start("worker"));
  const auto trains_on = [&](int64_t steps) {
    const int64_t goal = LastSaid(*worker).steps + steps;
    return Await([&] { return LastSaid(*worker).steps >= goal; });
  };
  ASSERT_TRUE(trains_on(20)) << worker->output();
  const std::vector<Process*> tasks = {ps.get(), worker.get()};
  std::vector<int> fds;
  std::vector<int64_t> heaps;
  std::set<std::string> listening;  // who has dialled listens for who was dialled
  for (Process* const task : tasks) {
    fds.push_back(NumFds(task->pid()));
    heaps.push_back(LastSaid(*task).heap);
    for (const std::string& name : UnixSocketsOf(task->pid())) {
      if (absl::StartsWith(name, absl::StrCat("@", UnixOffer::kNamePrefix))) listening.insert(name);
    }
  }
  ASSERT_FALSE(listening.empty()) << "the job must have a Unix link";

  std::vector<OwnedFd> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(
        TcpStranger(i % 4 < 2 ? ports.ps[0] : ports.worker[0], i % 2 == 0 ? "" : "PRI * HTTP/2.0"));
  }
  // They are there, and are not what is closed below.
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_TRUE(Await([&] { return NumFds(tasks[i]->pid()) >= fds[i] + kStrangers / 2 - kOwnFds; }))
        << tasks[i]->name() << ": " << fds[i] << " before, now " << NumFds(tasks[i]->pid());
  }
  for (const std::string& name : listening) {
    for (int i = 0; i < kStrangers; ++i) {
      strangers.push_back(UnixStranger(name.substr(1), i % 2 == 0 ? "" : "nonce ?"));
    }
  }
  EXPECT_TRUE(trains_on(20)) << worker->output();

  HelloFrame hello;
  hello.task = "/job:stranger/replica:0/task:0";
  const std::string half = FrameBytes(hello).substr(0, 9);
  std::vector<std::unique_ptr<RawLink>> links;
  const std::shared_ptr<RpcChannel> channels[] = {
      RpcChannel::Make(absl::StrCat("127.0.0.1:", ports.ps[0])),
      RpcChannel::Make(absl::StrCat("127.0.0.1:", ports.worker[0]))};
  for (const std::shared_ptr<RpcChannel>& channel : channels) {
    for (int i = 0; i < kStrangers; ++i) {
      links.push_back(RawLink::Dial(channel.get()));
      links.back()->Say(half);
    }
  }
  EXPECT_TRUE(Await([&] {
    return std::count_if(links.begin(), links.end(), [](const auto& link) {
             return link->is_closed();
           }) >= 2 * (kStrangers - kMaxUnheard);
  }));
  EXPECT_TRUE(trains_on(20)) << worker->output();

  links.clear();
  strangers.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    SCOPED_TRACE(tasks[i]->name());
    EXPECT_TRUE(Await([&] { return NumFds(tasks[i]->pid()) <= fds[i] + kOwnFds; }))
        << fds[i] << " before, now " << NumFds(tasks[i]->pid());
    EXPECT_TRUE(Await([&] { return LastSaid(*tasks[i]).heap <= heaps[i] + kMaxGrowth; }))
        << heaps[i] << " bytes before, now " << LastSaid(*tasks[i]).heap;
    EXPECT_EQ(tasks[i]->exit_code(), std::nullopt);
  }
  EXPECT_TRUE(trains_on(20)) << worker->output();
}

}  // namespace
}  // namespace millrace
