// SPDX-License-Identifier: Apache-2.0
//
// What the tasks of a cluster in this process have exchanged, as each of them counts it: for tests
// (CountsOf), over the network (GetPeerCounts) and in the log at its end.
#include "distributed/transport/peer_counts.h"

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/raw_client.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "proto/worker_control.pb.h"
#include "runtime/session.h"

// covers: clusters: each task counts what it exchanges with each other

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr int kSteps = 5;

// A step sends two tensors of 400 bytes to the ps, which sends them back.
void RunSteps(LoopbackCluster* cluster) {
  const Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const Output x = Placeholder(worker, DT_FLOAT, {100});
  const Output y = Placeholder(worker, DT_FLOAT, {100});
  const Output there = Identity(ps.WithName("there"), x);
  const Output too = Identity(ps.WithName("too"), y);
  const Output back = Identity(worker.WithName("back"), there);
  const Output back_too = Identity(worker.WithName("back_too"), too);
  const auto session = cluster->NewSession(root);
  ASSERT_NE(session, nullptr);
  const Tensor value = *Tensor::Zeros(DT_FLOAT, Shape{100});
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK(session->Run({{x, value}, {y, value}}, {back, back_too}).status());
  }
  ASSERT_OK(session->Close());
}

TEST(PeerCountsTest, BothSidesCountTheSame) {
  LoopbackCluster cluster;
  EXPECT_TRUE(CountsOf(*cluster.server("ps", 0)).peers.empty());
  RunSteps(&cluster);
  const ServerCounts at_ps = CountsOf(*cluster.server("ps", 0));
  const ServerCounts at_worker = CountsOf(*cluster.server("worker", 0));
  ASSERT_EQ(at_ps.peers.size(), 1u);
  ASSERT_EQ(at_worker.peers.size(), 1u);
  const PeerCounts& ps = at_ps.peers.at(kWorker);
  const PeerCounts& worker = at_worker.peers.at(kPs);
  EXPECT_EQ(ps.tensors_sent, 2 * kSteps);
  EXPECT_EQ(ps.tensors_received, 2 * kSteps);
  EXPECT_EQ(worker.tensors_sent, 2 * kSteps);
  EXPECT_EQ(worker.tensors_received, 2 * kSteps);
  // What one has sent the other has received, to the byte; tensors and some bytes for each.
  EXPECT_EQ(ps.bytes_sent, worker.bytes_received);
  EXPECT_EQ(ps.messages_sent, worker.messages_received);
  EXPECT_EQ(worker.bytes_sent, ps.bytes_received);
  EXPECT_EQ(worker.messages_sent, ps.messages_received);
  EXPECT_GE(ps.bytes_sent, kSteps * 800);
  EXPECT_LT(ps.bytes_sent, kSteps * 1200);
  EXPECT_GE(worker.bytes_sent, kSteps * 800);
  EXPECT_GT(ps.queued_ns, 0);
  EXPECT_GT(worker.queued_ns, 0);
}

TEST(PeerCountsTest, TheNetworkAndTheLogTell) {
  LoopbackCluster cluster;
  RunSteps(&cluster);
  RawClient client(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port()));
  wire::GetPeerCountsResponse response;
  const grpc::Status status =
      client.Call("/millrace.WorkerControl/GetPeerCounts", wire::GetPeerCountsRequest(), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.peer_size(), 1);
  const PeerCounts want = CountsOf(*cluster.server("ps", 0)).peers.at(kWorker);
  const wire::GetPeerCountsResponse::Peer& peer = response.peer(0);
  EXPECT_EQ(peer.task(), kWorker);
  EXPECT_EQ(peer.bytes_sent(), want.bytes_sent);
  EXPECT_EQ(peer.messages_sent(), want.messages_sent);
  EXPECT_EQ(peer.tensors_sent(), want.tensors_sent);
  EXPECT_EQ(peer.queued_ns(), want.queued_ns);
  EXPECT_EQ(peer.bytes_received(), want.bytes_received);
  EXPECT_EQ(peer.messages_received(), want.messages_received);
  EXPECT_EQ(peer.tensors_received(), want.tensors_received);

  testing::internal::CaptureStderr();
  cluster.server("ps", 0)->Stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(
      log, absl::StrCat("Server of ", kPs, ": tensors of steps: to ", kWorker, " ", 2 * kSteps,
                        " tensors in ", want.messages_sent, " messages of ", want.bytes_sent,
                        " bytes, which waited ")))
      << log;
}

TEST(PeerCountsTest, WhatIsNoRequestIsRefused) {
  LoopbackCluster cluster;
  RawClient client(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port()));
  EXPECT_EQ(client.Call("/millrace.WorkerControl/GetPeerCounts", std::string("\xff\xff\xff"))
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace millrace
