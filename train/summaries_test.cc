// SPDX-License-Identifier: Apache-2.0
#include "train/summaries.h"

#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"

// covers: events: summaries have TensorFlow's names, tags and collections

namespace millrace {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Collected(const Scope& scope, const std::string& name) {
  const auto& list = (*scope.collections())[name].node_list().value();
  return {list.begin(), list.end()};
}

tensorflow::Summary Fetched(const Scope& root, const Output& summary) {
  tensorflow::Summary parsed;
  auto session = NewSession();
  EXPECT_OK(session);
  EXPECT_OK((*session)->Extend(root));
  const auto out = (*session)->Run({}, {summary});
  EXPECT_OK(out);
  if (out.ok()) {
    EXPECT_TRUE(parsed.ParseFromString((*out)[0].scalar<std::string>()));
  }
  return parsed;
}

TEST(Summaries, AreNamedAsTensorFlowNamesThem) {
  Scope root;
  const Output x = Const(root, 2.0f);
  const Scope model = root.WithSubScope("model");
  EXPECT_EQ(AddScalarSummary(model, "loss", x).name(), "model/loss:0");
  EXPECT_EQ(AddScalarSummary(model, "loss", x).name(), "model/loss_1:0");
  EXPECT_EQ(AddHistogramSummary(root, "w eights", x).name(), "w_eights:0");
  EXPECT_EQ(AddScalarSummary(model, "/rate", x, {.family = "opt"}).name(), "model/opt/rate:0");
  EXPECT_NE(root.graph()->FindNode("model/loss/tags"), nullptr);
  EXPECT_NE(root.graph()->FindNode("w_eights/tag"), nullptr);
  EXPECT_EQ(AddScalarSummary(root, "eval", x, {.collections = {"a", "b"}}).name(), "eval:0");
  EXPECT_THAT(Collected(root, "summaries"),
              ElementsAre("model/loss:0", "model/loss_1:0", "w_eights:0", "model/opt/rate:0"));
  EXPECT_THAT(Collected(root, "a"), ElementsAre("eval:0"));
  EXPECT_THAT(Collected(root, "b"), ElementsAre("eval:0"));

  const Output all = MergeAllSummaries(root);
  EXPECT_EQ(all.name(), "Merge/MergeSummary:0");
  ASSERT_OK(root.status());
  const tensorflow::Summary summary = Fetched(root, all);
  ASSERT_EQ(summary.value_size(), 4);
  EXPECT_EQ(summary.value(0).tag(), "model/loss");
  EXPECT_EQ(summary.value(0).simple_value(), 2);
  EXPECT_EQ(summary.value(1).tag(), "model/loss_1");
  EXPECT_EQ(summary.value(2).tag(), "w_eights");
  EXPECT_EQ(summary.value(2).histo().num(), 1);
  EXPECT_EQ(summary.value(3).tag(), "opt/model/opt/rate");
}

TEST(Summaries, ShowImagesAndTexts) {
  Scope root;
  AddImageSummary(root, "digits", Const(root, TensorOf<uint8_t>({1, 1, 2, 1}, {0, 255})), 1);
  AddTextSummary(root, "note", Const(root, Tensor::Of({"a", "b"})));
  const Output all = MergeAllSummaries(root);
  ASSERT_OK(root.status());
  const tensorflow::Summary summary = Fetched(root, all);
  ASSERT_EQ(summary.value_size(), 2);
  EXPECT_EQ(summary.value(0).tag(), "digits/image");
  EXPECT_EQ(summary.value(0).image().width(), 2);
  EXPECT_EQ(summary.value(1).tag(), "note");
  EXPECT_EQ(summary.value(1).metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(summary.value(1).tensor().string_val(1), "b");
}

TEST(Summaries, OfNothingAreNone) {
  Scope root;
  EXPECT_FALSE(MergeAllSummaries(root).valid());
  EXPECT_OK(root.status());
}

TEST(Summaries, RefuseWhatTheyCannotShow) {
  {
    Scope root;
    EXPECT_FALSE(AddScalarSummary(root, "/", Const(root, 1.0f)).valid());
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "Summary: the name must not be empty, got '/'");
  }
  {
    Scope root;
    AddTextSummary(root, "note", Const(root, 1.0f));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "Summary 'note': text must be strings, got float from 'Const:0'");
  }
  {
    Scope root;
    AddScalarSummary(root, "text", Const(root, "a"));
    EXPECT_FALSE(root.ok());
  }
  {
    Scope root;
    root.AddToNodeCollection("summaries", "nobody:0");
    MergeAllSummaries(root);
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "Collection 'summaries' must have tensors of the graph, got 'nobody:0'");
  }
}

}  // namespace
}  // namespace millrace
