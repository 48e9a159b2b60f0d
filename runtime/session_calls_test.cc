// SPDX-License-Identifier: Apache-2.0
//
// The calls of Run that programs know from TensorFlow's ClientSession, and those of this project:
// each is one that the compiler takes, and gives what it says.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "runtime/session.h"

// covers: steps: the calls of Run that programs know from TensorFlow's ClientSession compile, with
//   lists in the call or in vectors, literals as feeds, results returned or by pointer

namespace millrace {
namespace {

using Tensors = std::vector<Tensor>;
using Result = StatusOr<Tensors>;

// y and t are what x and text are fed; `add` adds 1 to what `count` reads.
struct Model {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT);
  Output text = Placeholder(root.WithName("text"), DT_STRING);
  Output y = Identity(root.WithName("y"), x);
  Output t = Identity(root.WithName("t"), text);
  Output a = Const(root.WithName("a"), 7.0f);
  Output b = Const(root.WithName("b"), 8.0f);
  Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  Operation init = AssignVariableOp(root.WithName("init"), v, Const(root, 0.0f));
  Operation add = AssignAddVariableOp(root.WithName("add"), v, Const(root, 1.0f));
  Output count = ReadVariableOp(root.WithName("count"), v, DT_FLOAT);
};

// A call, as text and as code, and what it gives.
struct Call {
  const char* text;
  std::function<Result(Session&, const Model&)> run;
  Tensors want;
};

const Tensor k7 = Tensor::Scalar(7.0f), k8 = Tensor::Scalar(8.0f);
const Tensor kRow = Tensor::Of({1.0f, 2.0f});

// What ends up in `outputs`.
std::vector<Call> CallsWithOutputs() {
  return {
      {"Run({a, b}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({m.a, m.b}, &outputs));
         return outputs;
       },
       {k7, k8}},
      {"Run({a}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs = {kRow, kRow, kRow};  // replaced
         MR_RETURN_IF_ERROR(session.Run({m.a}, &outputs));
         return outputs;
       },
       {k7}},
      {"Run(vector<Output>, &outputs)",
       [](Session& session, const Model& m) -> Result {
         const std::vector<Output> fetches = {m.a, m.b};
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run(fetches, &outputs));
         return outputs;
       },
       {k7, k8}},
      {"Run({\"a:0\", \"b\"}, &outputs)",
       [](Session& session, const Model&) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({"a:0", "b"}, &outputs));
         return outputs;
       },
       {k7, k8}},
      {"Run({{x, 7.0f}}, {y}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({{m.x, 7.0f}}, {m.y}, &outputs));
         return outputs;
       },
       {k7}},
      {"Run({{x, tensor}, {text, \"word\"}}, {t, y}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({{m.x, k8}, {m.text, "word"}}, {m.t, m.y}, &outputs));
         return outputs;
       },
       {Tensor::Scalar("word"), k8}},
      {"Run({}, {a}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({}, {m.a}, &outputs));
         return outputs;
       },
       {k7}},
      {"Run(vector<Feed>, vector<Output>, &outputs)",
       [](Session& session, const Model& m) -> Result {
         const std::vector<Feed> feeds = {{m.x, {1.0f, 2.0f}}};
         const std::vector<Output> fetches = {m.y};
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run(feeds, fetches, &outputs));
         return outputs;
       },
       {kRow}},
      {"Run({{x, 7.0f}}, {y}, {add}, &outputs)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(session.Run({{m.x, 7.0f}}, {m.y}, {m.add}, &outputs));
         return outputs;
       },
       {k7}},
      {"Run({}, {}, vector<Operation>, &outputs)",
       [](Session& session, const Model& m) -> Result {
         const std::vector<Operation> targets = {m.add};
         Tensors outputs = {kRow};
         MR_RETURN_IF_ERROR(session.Run({}, {}, targets, &outputs));
         return outputs;
       },
       {}},
      {"Run(options, {{x, 7.0f}}, {y}, {}, &outputs, nullptr)",
       [](Session& session, const Model& m) -> Result {
         Tensors outputs;
         MR_RETURN_IF_ERROR(
             session.Run(tensorflow::RunOptions(), {{m.x, 7.0f}}, {m.y}, {}, &outputs, nullptr));
         return outputs;
       },
       {k7}},
  };
}

// What the call returns.
std::vector<Call> CallsWithResults() {
  return {
      {"Run({}, {a, b})",
       [](Session& session, const Model& m) {
         return session.Run({}, {m.a, m.b});
       },
       {k7, k8}},
      {"Run({}, vector<Output>{a, b})",
       [](Session& session, const Model& m) {
         return session.Run({}, std::vector<Output>{m.a, m.b});
       },
       {k7, k8}},
      {"Run({}, vector<string>)",
       [](Session& session, const Model&) {
         const std::vector<std::string> names = {"a:0", "b:0"};
         return session.Run({}, names);
       },
       {k7, k8}},
      {"Run({{x, 7.0f}}, {y})",
       [](Session& session, const Model& m) {
         return session.Run({{m.x, 7.0f}}, {m.y});
       },
       {k7}},
      {"Run({{x, {1.0f, 2.0f}}}, {y})",
       [](Session& session, const Model& m) {
         return session.Run({{m.x, {1.0f, 2.0f}}}, {m.y});
       },
       {kRow}},
      {"Run({{x, {{1.0f, 2.0f}, {3.0f, 4.0f}}}}, {y})",
       [](Session& session, const Model& m) {
         return session.Run({{m.x, {{1.0f, 2.0f}, {3.0f, 4.0f}}}}, {m.y});
       },
       {Tensor::Of({{1.0f, 2.0f}, {3.0f, 4.0f}})}},
      {"Run({{text, string}}, {t})",
       [](Session& session, const Model& m) {
         const std::string word = "word";
         return session.Run({{m.text, word}}, {m.t});
       },
       {Tensor::Scalar("word")}},
      {"Run({{text, {\"a\", \"b\"}}}, {t})",
       [](Session& session, const Model& m) {
         return session.Run({{m.text, {"a", "b"}}}, {m.t});
       },
       {Tensor::Of({"a", "b"})}},
      {"Run({{\"x\", tensor}}, {\"y:0\"}, {\"add\"})",
       [](Session& session, const Model&) {
         return session.Run({{"x", k7}}, {"y:0"}, {"add"});
       },
       {k7}},
      {"Run(vector<Feed>, {y})",
       [](Session& session, const Model& m) {
         const std::vector<Feed> feeds = {{m.x, k7}};
         return session.Run(feeds, {m.y});
       },
       {k7}},
      {"Run({{x, tensor}}, vector<FetchName>, {add})",
       [](Session& session, const Model& m) {
         const std::vector<FetchName> fetches = {m.y, m.add};
         return session.Run({{m.x, k7}}, fetches, {m.add});
       },
       {k7}},
      {"Run({}, {a}, vector<Operation>)",
       [](Session& session, const Model& m) {
         return session.Run({}, {m.a}, std::vector<Operation>{m.add});
       },
       {k7}},
      {"Run({}, {begin, end})",
       [](Session& session, const Model& m) {
         const std::vector<Output> outputs = {m.a, m.b};
         return session.Run({}, {outputs.begin(), outputs.end()});
       },
       {k7, k8}},
      {"Run(options, {}, {a}, {}, nullptr)",
       [](Session& session, const Model& m) {
         return session.Run(tensorflow::RunOptions(), {}, {m.a}, {}, nullptr);
       },
       {k7}},
  };
}

class SessionCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(model_.root.status());
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
    ASSERT_OK(session_->Extend(model_.root));
    ASSERT_OK(session_->Run({}, {}, {model_.init}));
  }
  void ExpectEachGivesWhatItSays(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      SCOPED_TRACE(call.text);
      ASSERT_OK_AND_ASSIGN(const Tensors got, call.run(*session_, model_));
      ASSERT_EQ(got.size(), call.want.size());
      for (size_t i = 0; i < got.size(); ++i) ExpectTensorEqual(got[i], call.want[i]);
    }
  }
  float Count() {
    const Result count = session_->Run({}, {model_.count});
    EXPECT_OK(count);
    return count.ok() ? (*count)[0].scalar<float>() : -1;
  }

  Model model_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionCallsTest, ResultsComeByPointerAsInAClientSession) {
  ExpectEachGivesWhatItSays(CallsWithOutputs());
  EXPECT_EQ(Count(), 2);  // of the two calls with a target
}

TEST_F(SessionCallsTest, ResultsAreReturned) {
  ExpectEachGivesWhatItSays(CallsWithResults());
  EXPECT_EQ(Count(), 3);
}

// Three pairs of braces are three lists, and no pointer.
TEST_F(SessionCallsTest, EmptyListsAreARunOfNothing) {
  for (const Result& nothing : {session_->Run({}, {}), session_->Run({}, {}, {})}) {
    EXPECT_STATUS(nothing, absl::StatusCode::kInvalidArgument, "at least one target");
  }
}

TEST_F(SessionCallsTest, TargetsRunWithoutAPlaceForResults) {
  EXPECT_OK(session_->Run({}, {}, {model_.add}, nullptr));
  EXPECT_OK(session_->Run({{model_.x, 1.0f}}, {model_.y}, {model_.add}, nullptr));
  EXPECT_EQ(Count(), 2);
}

TEST_F(SessionCallsTest, AnErrorLeavesTheOutputsAsTheyWere) {
  Tensors outputs = {kRow};
  EXPECT_STATUS(session_->Run({"nobody"}, &outputs), absl::StatusCode::kNotFound, "nobody");
  EXPECT_STATUS(session_->Run({}, {model_.y}, &outputs), absl::StatusCode::kInvalidArgument, "'x'");
  // A literal has the type of its elements.
  EXPECT_STATUS(session_->Run({{model_.x, 1}}, {model_.y}, &outputs),
                absl::StatusCode::kInvalidArgument, "int32");
  ASSERT_EQ(outputs.size(), 1u);
  ExpectTensorEqual(outputs[0], kRow);
}

}  // namespace
}  // namespace millrace
