// SPDX-License-Identifier: Apache-2.0
//
// Variables of a ps that a worker reads in each step, in a cluster of this process: what has not
// changed does not travel again, and every value is the right one.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/transport/peer_counts.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: clusters: a worker that reads a variable of a ps in each step gets its bytes when they
//   have changed and not else, with the values of one process, also while others update it; a
//   training step keeps nothing, and a session's end leaves nothing kept

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/task:0";
constexpr char kWorker[] = "/job:worker/task:0";
constexpr int64_t kFloats = 25'600;
constexpr int64_t kBytes = kFloats * int64_t{sizeof(float)};

// A variable of the ps of which each element is the number of its updates; the worker reads it.
struct CountedVariable {
  Operation init, update;
  Output read;
};

CountedVariable MakeCounted(const Scope& root, const std::string& name, int64_t floats) {
  const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
  const auto all = [&](float value) {
    return Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(floats)}), Const(ps, value));
  };
  const Output v = VarHandleOp(ps.WithName(name), DT_FLOAT, {floats});
  return {.init = AssignVariableOp(ps, v, all(0)),
          .update = AssignAddVariableOp(ps, v, all(1)),
          .read = Identity(worker, ReadVariableOp(ps, v, DT_FLOAT))};
}

bool IsAll(const Tensor& tensor, float value) {
  const absl::Span<const float> elements = tensor.flat<float>();
  return std::all_of(elements.begin(), elements.end(), [&](float e) { return e == value; });
}

// What the ps has sent the worker, and what is kept.
PeerCounts FromPs(LoopbackCluster* cluster) {
  return CountsOf(*cluster->server("ps", 0)).peers["/job:worker/replica:0/task:0"];
}
ServerCounts OfPs(LoopbackCluster* cluster) { return CountsOf(*cluster->server("ps", 0)); }
ServerCounts OfWorker(LoopbackCluster* cluster) { return CountsOf(*cluster->server("worker", 0)); }

TEST(KeptReadsTest, AVariableTravelsWhenItHasChanged) {
  constexpr int kSteps = 12, kSame = 3;
  LoopbackCluster cluster;
  const Scope root;
  const CountedVariable v = MakeCounted(root, "v", kFloats);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {v.init}));
  const PeerCounts before = FromPs(&cluster);
  for (int i = 0; i < kSteps; ++i) {
    if (i > 0 && i % kSame == 0) {
      ASSERT_OK(session->Run({}, {}, {v.update}));
    }
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {v.read}));
    ASSERT_TRUE(IsAll(out[0], static_cast<float>(i / kSame))) << i << ": " << out[0];
  }
  const PeerCounts after = FromPs(&cluster);
  // Of the first three equal ones, one is only looked at, and one is sent to be kept; later ones
  // are sent once, as the edge has saved something. The receipt of a step rides before the RUN of
  // the next one, so the ps has it by then.
  constexpr int kKept = (kSame - 2) + (kSteps / kSame - 1) * (kSame - 1);
  EXPECT_EQ(OfPs(&cluster).kept_tensors, kKept);
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, (kSteps - kKept) * kBytes);
  // It is one tensor for each step, as without that.
  EXPECT_EQ(after.tensors_sent - before.tensors_sent, kSteps);
  EXPECT_EQ(OfWorker(&cluster).peers.at("/job:ps/replica:0/task:0").bytes_received,
            after.bytes_sent);
  // One value; the one before it, too, if the thread that has sent it has not come back yet.
  EXPECT_GE(OfWorker(&cluster).bytes_kept_for_peers, kBytes);
  EXPECT_LE(OfWorker(&cluster).bytes_kept_for_peers, 2 * kBytes);
  EXPECT_GE(OfPs(&cluster).bytes_kept_at_peers, kBytes);
  EXPECT_EQ(OfWorker(&cluster).kept_tensors, 0);

  // The session's end leaves nothing. What is to be forgotten rides on the next message to the
  // worker: the END of another session's steps.
  ASSERT_OK(session->Close());
  const auto other = cluster.NewSession(root);
  ASSERT_NE(other, nullptr);
  ASSERT_OK(other->Run({}, {}, {v.init}));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (OfWorker(&cluster).bytes_kept_for_peers > 0 || OfPs(&cluster).bytes_kept_at_peers > 0) {
    ASSERT_LT(absl::Now(), deadline) << OfWorker(&cluster).bytes_kept_for_peers;
    ASSERT_OK(other->Run({}, {}, {v.update}));
  }
  ASSERT_OK(other->Close());
}

TEST(KeptReadsTest, WithoutABoundAllTravels) {
  constexpr int kSteps = 6;
  ServerOptions options;
  options.limits.max_kept_bytes = 0;
  LoopbackCluster cluster(1, 1, options);
  const Scope root;
  const CountedVariable v = MakeCounted(root, "v", kFloats);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {v.init}));
  const PeerCounts before = FromPs(&cluster);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {v.read}));
    ASSERT_TRUE(IsAll(out[0], 0));
  }
  EXPECT_EQ(FromPs(&cluster).bytes_sent - before.bytes_sent, kSteps * kBytes);
  EXPECT_EQ(OfPs(&cluster).kept_tensors, 0);
  ASSERT_OK(session->Close());
}

// A reader may write what it has got, and the worker's kernels where they may: the next reader gets
// what was sent.
TEST(KeptReadsTest, NothingIsWrittenWhereItIsKept) {
  LoopbackCluster cluster;
  const Scope root;
  const Scope worker = root.WithDevice(kWorker);
  const CountedVariable v = MakeCounted(root, "v", kFloats);
  // The last user of its input.
  const Output negated = Neg(worker, Neg(worker, v.read));
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {v.init}));
  ASSERT_OK(session->Run({}, {}, {v.update}));
  for (int i = 0; i < 6; ++i) {
    ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {v.read}));
    ASSERT_TRUE(IsAll(out[0], 1));
    for (float& element : out[0].mutable_flat<float>()) element = 7;
    ASSERT_OK_AND_ASSIGN(auto other, session->Run({}, {negated}));
    ASSERT_TRUE(IsAll(other[0], 1));
    for (float& element : other[0].mutable_flat<float>()) element = 8;
  }
  EXPECT_GT(OfPs(&cluster).kept_tensors, 0);
  ASSERT_OK(session->Close());
}

// Steps overlap: each gets the value of a moment between its begin and its end.
TEST(KeptReadsTest, ReadersThatOverlapWithUpdatesGetOneValue) {
  constexpr int kReaders = 3, kReads = 60, kUpdates = 20;
  LoopbackCluster cluster;
  const Scope root;
  const CountedVariable v = MakeCounted(root, "v", kFloats);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {v.init}));
  std::atomic<int> begun{0}, done{0}, reads{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&] {
      for (int i = 0; i < kReads; ++i) {
        const int least = done.load();
        const auto out = session->Run({}, {v.read});
        const int most = begun.load();
        reads.fetch_add(1);
        EXPECT_OK(out.status());
        if (!out.ok()) continue;
        const float got = (*out)[0].flat<float>()[0];
        EXPECT_TRUE(IsAll((*out)[0], got));
        EXPECT_GE(got, static_cast<float>(least));
        EXPECT_LE(got, static_cast<float>(most));
      }
    });
  }
  for (int i = 1; i <= kUpdates; ++i) {
    // Some reads of each value: an update is no time, and reads may be slow.
    while (reads.load() < std::min(i * kReads * kReaders / (kUpdates + 1), kReads * kReaders)) {
      std::this_thread::yield();
    }
    begun.store(i);
    EXPECT_OK(session->Run({}, {}, {v.update}));
    done.store(i);
  }
  for (std::thread& reader : readers) reader.join();
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {v.read}));
  EXPECT_TRUE(IsAll(out[0], kUpdates));
  ASSERT_OK(session->Close());
}

// Any order of updates and reads of several variables, by two signatures: the values of one process
// that counts.
TEST(KeptReadsTest, RandomStepsReadWhatWasWritten) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    LoopbackCluster cluster;
    const Scope root;
    std::vector<CountedVariable> variables;
    for (const int64_t floats : {500, 2'000, 30'000, 100'000}) {
      variables.push_back(MakeCounted(root, absl::StrCat("v", variables.size()), floats));
    }
    const std::vector<std::vector<size_t>> signatures = {{0, 1, 2}, {3, 1}};
    const auto session = cluster.NewSession(root);
    ASSERT_NE(session, nullptr);
    std::vector<float> want(variables.size(), 0);
    for (const CountedVariable& v : variables) ASSERT_OK(session->Run({}, {}, {v.init}));
    for (int step = 0; step < 150; ++step) {
      if (random() % 5 == 0) {
        const size_t i = random() % variables.size();
        ASSERT_OK(session->Run({}, {}, {variables[i].update}));
        ++want[i];
        continue;
      }
      const std::vector<size_t>& signature = signatures[random() % signatures.size()];
      std::vector<FetchName> fetches;
      for (const size_t i : signature) fetches.push_back(variables[i].read);
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, fetches));
      for (size_t k = 0; k < signature.size(); ++k) {
        ASSERT_TRUE(IsAll(out[k], want[signature[k]])) << "step " << step << " variable " << k;
      }
    }
    EXPECT_GT(OfPs(&cluster).kept_tensors, 0);
    ASSERT_OK(session->Close());
  }
}

// The variable and its update change in each step.
TEST(KeptReadsTest, ATrainingStepKeepsNothing) {
  constexpr int kSteps = 220;  // edges are looked at more than twice
  LoopbackCluster cluster;
  const Scope root;
  const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
  const Output v = VarHandleOp(ps.WithName("w"), DT_FLOAT, {kFloats});
  const Operation init = AssignVariableOp(
      ps, v, Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(kFloats)}), Const(ps, 1.0f)));
  const Output update =
      Mul(worker, Identity(worker, ReadVariableOp(ps, v, DT_FLOAT)), Const(worker, 0.01f));
  const Operation train = AssignAddVariableOp(ps, v, update);
  const auto session = cluster.NewSession(root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {init}));
  const PeerCounts before = FromPs(&cluster);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK(session->Run({}, {}, {train}));
    ASSERT_EQ(OfPs(&cluster).bytes_kept_at_peers, 0);
    ASSERT_EQ(OfWorker(&cluster).bytes_kept_at_peers, 0);
  }
  const PeerCounts after = FromPs(&cluster);
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, kSteps * kBytes);
  EXPECT_EQ(after.bytes_received - before.bytes_received, kSteps * kBytes);
  EXPECT_EQ(after.tensors_sent - before.tensors_sent, kSteps);
  for (const ServerCounts& counts : {OfPs(&cluster), OfWorker(&cluster)}) {
    EXPECT_EQ(counts.kept_tensors, 0);
    EXPECT_EQ(counts.bytes_kept_for_peers, 0);
  }
  ASSERT_OK(session->Close());
}

}  // namespace
}  // namespace millrace
