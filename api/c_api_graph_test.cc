// SPDX-License-Identifier: Apache-2.0
//
// The graph behind a handle, and what a session has of it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "api/c_api_internal.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"

// covers: c api: a session has exactly what a reader of its graph sees during edits; imports use
//   the shapes that the caller gave

namespace millrace::c_api {
namespace {

// Counts the nodes that it is shown.
class CountingSession : public Session {
 public:
  int num_nodes() const { return num_nodes_; }
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature&) override { return NoSteps(); }
  Status Close() override { return absl::OkStatus(); }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override { return NoSteps(); }

 protected:
  Status DoExtend(const tensorflow::GraphDef& graph) override {
    num_nodes_ += graph.node_size();
    return absl::OkStatus();
  }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions&, absl::Span<const Feed>,
                                      absl::Span<const FetchName>, absl::Span<const FetchName>,
                                      tensorflow::RunMetadata*) override {
    return NoSteps();
  }
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  static Status NoSteps() { return absl::UnimplementedError("only counts"); }
  int num_nodes_ = 0;
};

TEST(GraphStateTest, ASessionHasWhatItsReaderSees) {
  GraphState graph;
  CountingSession session;
  GraphState::Position position;
  std::atomic<bool> over{false};
  std::thread editor([&] {
    for (int i = 0; i < 20'000 && !over.load(); ++i) {
      EXPECT_OK(graph.Edit([&](const Scope& scope) -> Status {
        Const(scope, 1.f);
        return absl::OkStatus();
      }));
    }
  });
  int seen = 0;
  for (int i = 0; i < 100 || seen == 0; ++i) {
    ASSERT_OK(graph.Read(&session, &position, [&](const Scope& scope) -> Status {
      EXPECT_EQ(scope.graph()->num_nodes(), session.num_nodes());
      seen = scope.graph()->num_nodes();
      return absl::OkStatus();
    }));
    std::this_thread::yield();
  }
  over.store(true);
  editor.join();
  EXPECT_GT(seen, 0);
}

// Between two of its locks an edit would come that the session lacks.
TEST(GraphStateTest, ReadingForASessionLocksTheGraphOnce) {
  GraphState graph;
  CountingSession session;
  GraphState::Position position;
  const auto locks_of_a_read = [&] {
    const int64_t before = MutexLockCountForTesting();
    EXPECT_OK(graph.Read(&session, &position, [](const Scope&) { return absl::OkStatus(); }));
    return MutexLockCountForTesting() - before;
  };
  EXPECT_EQ(locks_of_a_read(), 1);
  EXPECT_OK(graph.Edit([](const Scope& scope) -> Status {
    Const(scope, 1.f);
    return absl::OkStatus();
  }));
  const int64_t before = MutexLockCountForTesting();
  EXPECT_OK(CountingSession().Extend(tensorflow::GraphDef()));
  const int64_t locks_of_an_extend = MutexLockCountForTesting() - before;
  EXPECT_EQ(locks_of_a_read(), 1 + locks_of_an_extend);
  EXPECT_EQ(session.num_nodes(), 1);
}

}  // namespace
}  // namespace millrace::c_api
