// SPDX-License-Identifier: Apache-2.0
#include "graph/signature.h"

#include <string>

#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool IsTrain(const std::string& name) { return name == "train"; }

Node* AddNode(Graph* graph, const char* name, const char* op, DType type,
              const PartialShape* shape = nullptr) {
  tensorflow::NodeDef def;
  def.set_name(name);
  def.set_op(op);
  SetAttr(type, &(*def.mutable_attr())[op == std::string("Placeholder") ? "dtype" : "T"]);
  if (shape != nullptr) SetAttr(*shape, &(*def.mutable_attr())["shape"]);
  return *graph->AddNode(def);
}

TEST(SignatureTest, ListsThatMeanTheSameHaveOneCanonicalSignature) {
  ASSERT_OK_AND_ASSIGN(
      const BoundSignature a,
      BindSignature({.feeds = {"y", "x:0"}, .fetches = {"b", "a", "train"}, .targets = {"t:0"}},
                    IsTrain));
  ASSERT_OK_AND_ASSIGN(const BoundSignature b, BindSignature({.feeds = {"x", "y:0"},
                                                              .fetches = {"a:0", "b:0", "a"},
                                                              .targets = {"train", "t"}},
                                                             IsTrain));
  EXPECT_EQ(SignatureKey(a.signature), SignatureKey(b.signature));
  EXPECT_THAT(a.signature.feeds, ElementsAre("x:0", "y:0"));
  EXPECT_THAT(a.signature.fetches, ElementsAre("a:0", "b:0"));
  EXPECT_THAT(a.signature.targets, ElementsAre("t", "train"));
  EXPECT_THAT(a.feed_to, ElementsAre(1u, 0u));
  EXPECT_FALSE(a.feeds_in_order);
  EXPECT_FALSE(a.results_in_order);
  EXPECT_TRUE(b.feeds_in_order);
  EXPECT_FALSE(b.results_in_order);
}

TEST(SignatureTest, ResultsComeFromWhatWasFedOrFetchedInTheCallersOrder) {
  ASSERT_OK_AND_ASSIGN(
      const BoundSignature bound,
      BindSignature({.feeds = {"x"}, .fetches = {"b", "x:0", "train", "a", "b"}}, IsTrain));
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1)};
  std::vector<Tensor> fetched = {Tensor::Scalar<float>(2), Tensor::Scalar<float>(3)};
  std::vector<Tensor> results(bound.results.size());
  ASSERT_OK(CheckFetched(bound.signature, fetched));
  ArrangeResults(bound, feeds, absl::MakeSpan(fetched), absl::MakeSpan(results));
  std::vector<float> values;
  for (const Tensor& t : results) values.push_back(t.scalar<float>());
  EXPECT_THAT(values, ElementsAre(3, 1, 2, 3));
  EXPECT_FALSE(fetched[0].has_value());
  EXPECT_TRUE(bound.runs());
}

TEST(SignatureTest, NothingRunsWhenEverythingThatIsFetchedWasFed) {
  ASSERT_OK_AND_ASSIGN(const BoundSignature bound,
                       BindSignature({.feeds = {"x"}, .fetches = {"x:0"}}, IsTrain));
  EXPECT_FALSE(bound.runs());
}

TEST(SignatureTest, APlaceholderOfAnOldProducerThatSaysScalarTakesAnyShape) {
  const PartialShape scalar = PartialShape::Scalar();
  for (const auto& [producer, accepted] : {std::pair(21, true), {22, false}}) {
    Graph graph;
    graph.mutable_versions()->set_producer(producer);
    AddNode(&graph, "x", "Placeholder", DT_FLOAT, &scalar);
    ASSERT_OK_AND_ASSIGN(const BoundSignature bound,
                         BindSignature({.feeds = {"x"}, .fetches = {"y"}}, IsTrain));
    ASSERT_OK_AND_ASSIGN(const auto rules, FeedRules(graph, bound.signature));
    const std::vector<Tensor> feeds = {*Tensor::Zeros(DT_FLOAT, ShapeOf({2}))};
    EXPECT_EQ(CheckFeeds(bound, rules, feeds).ok(), accepted) << producer;
  }
}

TEST(SignatureTest, FeedsThatCannotBeAreNamed) {
  Graph graph;
  AddNode(&graph, "x", "Placeholder", DT_FLOAT);
  for (const auto& [feed, text] :
       {std::pair("nope", "FeedInputs: unable to find feed output nope:0"),
        {"x:1", "FeedInputs: x:1 should have output index < 1"},
        {"^x", "Feed '^x' must name a tensor, got a control edge"}}) {
    ASSERT_OK_AND_ASSIGN(const BoundSignature bound,
                         BindSignature({.feeds = {feed}, .fetches = {"y"}}, IsTrain));
    EXPECT_THAT(std::string(FeedRules(graph, bound.signature).status().message()), HasSubstr(text));
  }
  EXPECT_THAT(
      std::string(
          BindSignature({.feeds = {"x", "x:0"}, .fetches = {"y"}}, IsTrain).status().message()),
      HasSubstr("Endpoint \"x:0\" fed more than once."));
}

TEST(SignatureTest, ADeadFetchSaysWhichItIs) {
  const RunSignature signature = {.fetches = {"a:0", "b:0"}};
  const std::vector<Tensor> fetched = {Tensor::Scalar<float>(2), Tensor()};
  const Status status = CheckFetched(signature, fetched);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("Retval[1] does not have value. The tensor returned for b:0 was not valid."));
}

}  // namespace
}  // namespace millrace
