// SPDX-License-Identifier: Apache-2.0
//
// Models on a target in another process: what is sent there, and how its signatures are compiled.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/model.h"
#include "saver/servable_model.h"

// covers: clusters: a model in memory is opened on a server, its signatures compiled at once

namespace millrace {
namespace {

using absl::StatusCode;

constexpr int kSignatures = 4;

// y<i> = (i + 1) w x, with w = [2, 3] in memory.
StatusOr<Model> MakeModel() {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {2});
  const Variable w = MakeVariable(root.WithName("w"), Const(root, Tensor::Vector<float>({2, 3})));
  const Output product = Mul(root, w.value, x);
  std::vector<ServingSignature> signatures;
  for (int i = 0; i < kSignatures; ++i) {
    const Output y = Mul(root, product, Const(root, static_cast<float>(i + 1)));
    signatures.push_back(
        {.inputs = {{"x", x}}, .outputs = {{"y", y}}, .key = absl::StrCat("times_", i + 1)});
  }
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {w.initializer}).status());
  return MakeServingModel(session.get(), root, signatures);
}

void ExpectPredicts(const ServableModel& model) {
  ASSERT_EQ(model.num_signatures(), kSignatures);
  for (int i = 0; i < kSignatures; ++i) {
    const float times = static_cast<float>(i + 1);
    std::vector<Tensor> y(1);
    EXPECT_OK(model.Predict(i, {Tensor::Vector<float>({1, 10})}, absl::MakeSpan(y)));
    ExpectTensorEqual(y[0], Tensor::Vector<float>({2 * times, 30 * times}));
  }
}

TEST(RemoteModelTest, ValuesInMemoryGoOverTheWire) {
  const int port = FreePorts(1)[0];
  ASSERT_OK_AND_ASSIGN(
      const ClusterConfig config,
      ClusterConfig::Parse(absl::StrCat("{\"cluster\": {\"worker\": [\"127.0.0.1:", port,
                                        "\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}")));
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start(config));
  ASSERT_OK_AND_ASSIGN(const Model model, MakeModel());
  SessionOptions options;
  // gRPC's other name of the address: the server is not taken for one of this process.
  options.target = absl::StrCat("grpc://ipv4:127.0.0.1:", port);
  options.creation_timeout = absl::Seconds(30);
  ASSERT_OK_AND_ASSIGN(const ServableModel first, ServableModel::Load(model, options));
  ASSERT_OK_AND_ASSIGN(const ServableModel second, ServableModel::Load(model, options));
  ExpectPredicts(first);
  ExpectPredicts(second);
}

// --- At once -------------------------------------------------------------------------------------

// A session as on a server, whose Prepare waits until all signatures are being compiled, for a
// minute at most.
class GatheringSession : public Session {
 public:
  explicit GatheringSession(std::unique_ptr<Session> session) : session_(std::move(session)) {}
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature& signature) override {
    if (refused_ && signature.fetches[0] == "Mul_2:0") {
      return absl::UnavailableError("the server is gone");
    }
    {
      MutexLock lock(&mu_);
      if (++waiting_ == kSignatures) all_.Notify();
    }
    if (!refused_ && !all_.WaitFor(absl::Minutes(1))) {
      return absl::DeadlineExceededError("others must be compiled meanwhile, got none");
    }
    return session_->Prepare(signature);
  }
  Status Close() override { return session_->Close(); }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return session_->ListDevices();
  }
  static inline bool refused_ = false;  // one signature, of sessions that are made later

 protected:
  Status DoExtend(const tensorflow::GraphDef& graph) override { return session_->Extend(graph); }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    return session_->Run(options, feeds, fetches, targets, metadata);
  }
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  const std::unique_ptr<Session> session_;
  Mutex mu_;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  Notification all_;
};

const SessionFactoryRegistration registration(
    "gather://", [](const SessionOptions&) -> StatusOr<std::unique_ptr<Session>> {
      MR_ASSIGN_OR_RETURN(auto session, NewSession());
      return std::make_unique<GatheringSession>(std::move(session));
    });

TEST(RemoteModelTest, SignaturesAreCompiledAtOnce) {
  ASSERT_OK_AND_ASSIGN(const Model model, MakeModel());
  ASSERT_OK_AND_ASSIGN(const ServableModel served,
                       ServableModel::Load(model, {.target = "gather://there"}));
  ExpectPredicts(served);
}

TEST(RemoteModelTest, AServerThatDoesNotAnswerForOneSignatureFailsTheLoadByItsKey) {
  ASSERT_OK_AND_ASSIGN(const Model model, MakeModel());
  GatheringSession::refused_ = true;
  EXPECT_STATUS(ServableModel::Load(model, {.target = "gather://there"}).status(),
                StatusCode::kUnavailable,
                "Model 'serving model': signature 'times_2': the server is gone");
  GatheringSession::refused_ = false;
}

}  // namespace
}  // namespace millrace
