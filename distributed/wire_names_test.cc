// SPDX-License-Identifier: Apache-2.0
//
// What other programs see of a server: the names of its methods, the version of its wire.

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/raw_client.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "gtest/gtest.h"
#include "net/call_metadata.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"

// covers: clusters: clients by both names of TensorFlow's services create, extend, run and close a
//   session; tasks of another version are refused, both named

namespace millrace {
namespace {

class WireNamesTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Master(const char* method) const {
    return absl::StrCat("/", GetParam(), ".MasterService/", method);
  }
  std::string Worker(const char* method) const {
    return absl::StrCat("/", GetParam(), ".WorkerService/", method);
  }
};

// TensorFlow's own stubs say "tensorflow", those that are made from its .proto files
// "tensorflow.grpc".
INSTANTIATE_TEST_SUITE_P(Packages, WireNamesTest,
                         ::testing::Values("tensorflow", "tensorflow.grpc"));

TEST_P(WireNamesTest, AClientOfThisNameCreatesExtendsRunsAndClosesASession) {
  TwoServers servers;
  RawClient client(servers.worker_address());
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto graph, model.root.ToGraphDef());

  tensorflow::CreateSessionRequest create;
  tensorflow::CreateSessionResponse created;
  grpc::Status status = client.Call(Master("CreateSession"), create, &created);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_FALSE(created.session_handle().empty());

  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(created.session_handle());
  extend.set_current_graph_version(created.graph_version());
  *extend.mutable_graph_def() = graph;
  tensorflow::ExtendSessionResponse extended;
  status = client.Call(Master("ExtendSession"), extend, &extended);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(extended.new_graph_version(), created.graph_version());

  tensorflow::RunStepRequest run;
  run.set_session_handle(created.session_handle());
  run.add_target("init");
  tensorflow::RunStepResponse ran;
  status = client.Call(Master("RunStep"), run, &ran);
  ASSERT_TRUE(status.ok()) << status.error_message();

  run.clear_target();
  run.add_fetch("loss:0");
  for (const char* name : {"x:0", "y:0"}) {
    auto* const feed = run.add_feed();
    feed->set_name(name);
    feed->mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
    feed->mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(2);
    feed->mutable_tensor()->add_float_val(3);
    feed->mutable_tensor()->add_float_val(1);
  }
  status = client.Call(Master("RunStep"), run, &ran);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(ran.tensor_size(), 1);
  EXPECT_EQ(ran.tensor(0).name(), "loss:0");
  // w = b = 0: the mean of 9 and 1.
  ASSERT_OK_AND_ASSIGN(const Tensor loss, TensorFromProto(ran.tensor(0).tensor()));
  EXPECT_EQ(loss.scalar<float>(), 5);

  tensorflow::CloseSessionRequest close;
  close.set_session_handle(created.session_handle());
  tensorflow::CloseSessionResponse closed;
  status = client.Call(Master("CloseSession"), close, &closed);
  EXPECT_TRUE(status.ok()) << status.error_message();
  status = client.Call(Master("RunStep"), run, &ran);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
}

TEST_P(WireNamesTest, AllMethodsThatWeHaveAreServed) {
  TwoServers servers;
  RawClient client(servers.ps_address());
  for (const char* method :
       {"CreateSession", "ExtendSession", "RunStep", "CloseSession", "ListDevices", "Reset",
        "MakeCallable", "RunCallable", "ReleaseCallable"}) {
    const grpc::Status status = client.Call(Master(method), "\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << status.error_message();
  }
  for (const char* method : {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession",
                             "RegisterGraph", "DeregisterGraph", "RunGraph", "CleanupGraph",
                             "CleanupAll", "RecvTensor", "Logging", "Tracing"}) {
    const grpc::Status status = client.Call(Worker(method), "\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << status.error_message();
  }
  for (const char* method :
       {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession", "RenewSessions", "FindRun",
        "EndRun", "RegisterGraph", "DeregisterGraph", "CleanupAll", "GetPeerCounts"}) {
    const grpc::Status status =
        client.Call(absl::StrCat("/millrace.WorkerControl/", method), "\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << status.error_message();
  }
  EXPECT_EQ(client.Call(Worker("NoMethod"), "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(WireVersionTest, ACallerOfAnotherVersionIsRefusedAndBothAreNamed) {
  TwoServers servers;
  RawClient client(servers.ps_address());
  const std::string method = "/millrace.WorkerControl/GetStatus";
  // Other programs say nothing.
  EXPECT_TRUE(client.Call(method, "").ok());
  client.SetMetadata({{kWireVersionKey, absl::StrCat(kWireVersion)}});
  EXPECT_TRUE(client.Call(method, "").ok());
  // 1: tasks that made steps by calls; 2: those that put terms beside TensorFlow's fields.
  for (const std::string& other :
       {std::string("1"), std::string("2"), absl::StrCat(kWireVersion + 1), std::string("next")}) {
    client.SetMetadata({{kWireVersionKey, other}});
    const grpc::Status status = client.Call(method, "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find(absl::StrCat("speaks version ", kWireVersion)),
              std::string::npos)
        << status.error_message();
    EXPECT_NE(status.error_message().find(absl::StrCat("got one of version ", other, " at ")),
              std::string::npos)
        << status.error_message();
  }
}

}  // namespace
}  // namespace millrace
