// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/value_summary.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/histogram.h"
#include "core/record.h"
#include "core/tensor_proto.h"
#include "core/testing/shared_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "runtime/testing/op_test.h"

// covers: events: a histogram has TensorFlow's limits, and each value its bucket
// covers: events: summary ops make TensorFlow's bytes; values that are not finite, repeated tags
//   and non-images are refused by name

namespace millrace {
namespace {

using tensorflow::Summary;
using ::testing::ElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Summary Parsed(const Tensor& summary) {
  Summary parsed;
  EXPECT_EQ(summary.dtype(), DT_STRING);
  EXPECT_TRUE(parsed.ParseFromString(summary.scalar<std::string>()));
  return parsed;
}

OpCall Scalar(const Tensor& tags, const Tensor& values) {
  return OpCall("ScalarSummary").Input(tags).Input(values);
}
OpCall HistogramOf(const Tensor& values) {
  return OpCall("HistogramSummary").Input(Tensor::Scalar("h")).Input(values);
}
OpCall Merge(const std::vector<Tensor>& inputs) {
  return OpCall("MergeSummary").Inputs({inputs.begin(), inputs.end()});
}

TEST(ScalarSummary, HasAValuePerTag) {
  const Summary one = Parsed(RunOp1(Scalar(Tensor::Scalar("loss"), Tensor::Scalar(0.25f))));
  EXPECT_EQ(one.ShortDebugString(), R"(value { tag: "loss" simple_value: 0.25 })");
  const Summary two = Parsed(RunOp1(Scalar(Tensor::Of({"a", "b"}), Tensor::Of<int64_t>({3, -4}))));
  EXPECT_EQ(two.ShortDebugString(),
            R"(value { tag: "a" simple_value: 3 } value { tag: "b" simple_value: -4 })");
  EXPECT_EQ(RunOp1(Scalar(TensorOf<std::string>({0}, {}), TensorOf<float>({0}, {}))),
            Tensor::Scalar(""));
}

TEST(ScalarSummary, TakesEveryRealNumber) {
  const auto expect_two = [](const Tensor& two) {
    EXPECT_EQ(Parsed(RunOp1(Scalar(Tensor::Scalar("x"), two))).value(0).simple_value(), 2)
        << DTypeName(two.dtype());
  };
  expect_two(Tensor::Scalar(2.0));
  expect_two(Tensor::Scalar(ToHalf(2)));
  expect_two(Tensor::Scalar(ToBfloat16(2)));
  expect_two(Tensor::Scalar<int8_t>(2));
  expect_two(Tensor::Scalar<uint8_t>(2));
  expect_two(Tensor::Scalar<int16_t>(2));
  expect_two(Tensor::Scalar<uint16_t>(2));
  expect_two(Tensor::Scalar<int32_t>(2));
  expect_two(Tensor::Scalar<uint32_t>(2));
  expect_two(Tensor::Scalar<uint64_t>(2));
  EXPECT_TRUE(std::isnan(
      Parsed(RunOp1(Scalar(Tensor::Scalar("x"), Tensor::Scalar(NAN)))).value(0).simple_value()));
}

TEST(ScalarSummary, WantsOneShape) {
  ExpectOpError(Scalar(Tensor::Of({"a"}), Tensor::Scalar(1.0f)), kInvalid,
                "tags and values must have one shape, got [1] and []");
  EXPECT_SHAPE("ScalarSummary", {}, {"[2]", "<unknown>"}, "[]");
  EXPECT_SHAPE_ERROR("ScalarSummary", {}, {"[2]", "[3]"}, "got [2] and [3]");
}

TEST(HistogramSummary, CountsValues) {
  const Summary summary = Parsed(RunOp1(HistogramOf(TensorOf<float>({2, 2}, {0, 0, 1, -2}))));
  ASSERT_EQ(summary.value_size(), 1);
  EXPECT_EQ(summary.value(0).tag(), "h");
  const auto& histo = summary.value(0).histo();
  EXPECT_EQ(histo.num(), 4);
  EXPECT_EQ(histo.min(), -2);
  EXPECT_EQ(histo.max(), 1);
  EXPECT_EQ(histo.sum(), -1);
  EXPECT_EQ(histo.sum_squares(), 5);
  EXPECT_THAT(histo.bucket(), ElementsAre(0, 1, 0, 2, 0, 1, 0));
  const Summary zero = Parsed(RunOp1(HistogramOf(Tensor::Scalar<int32_t>(0))));
  EXPECT_THAT(zero.value(0).histo().bucket_limit(), ElementsAre(0, 1e-12, DBL_MAX));
  const Summary none = Parsed(RunOp1(HistogramOf(TensorOf<double>({0}, {}))));
  EXPECT_THAT(none.value(0).histo().bucket_limit(), ElementsAre(DBL_MAX));
}

TEST(HistogramSummary, RefusesWhatIsNotFinite) {
  ExpectOpError(HistogramOf(Tensor::Of({1.0f, NAN})).Name("w/h"), kInvalid,
                "Nan in summary histogram for: w/h");
  ExpectOpError(HistogramOf(Tensor::Vector<double>({1, -INFINITY})).Name("w/h"), kInvalid,
                "Infinity in summary histogram for: w/h");
  ExpectOpError(HistogramOf(Tensor::Scalar(ToHalf(1e9f))).Name("w/h"), kInvalid,
                "Infinity in summary histogram for: w/h");
  EXPECT_SHAPE("HistogramSummary", {}, {"[]", "[?,3]"}, "[]");
  EXPECT_SHAPE_ERROR("HistogramSummary", {}, {"[1]", "[3]"}, "tag must have rank 0, got shape [1]");
}

TEST(MergeSummary, HasTheValuesOfAllInputs) {
  const Tensor a = RunOp1(Scalar(Tensor::Scalar("a"), Tensor::Scalar(1.0f)));
  const Tensor b = RunOp1(Scalar(Tensor::Of({"b", "c"}), Tensor::Of({2.0f, 3.0f})));
  const Tensor pair = Tensor::Of({a.scalar<std::string>(), b.scalar<std::string>()});
  const Summary want = [&] {
    Summary all = Parsed(a);
    all.MergeFrom(Parsed(b));
    return all;
  }();
  EXPECT_EQ(RunOp1(Merge({a, b})), Tensor::Scalar(want.SerializeAsString()));
  EXPECT_EQ(RunOp1(Merge({pair})), Tensor::Scalar(want.SerializeAsString()));
  EXPECT_EQ(RunOp1(Merge({a})), a);
  EXPECT_SHAPE("MergeSummary", {{"N", int64_t{2}}}, {"[]", "[?]"}, "[]");
}

TEST(MergeSummary, RefusesTwoValuesOfOneTagAndOtherBytes) {
  const Tensor a = RunOp1(Scalar(Tensor::Scalar("a"), Tensor::Scalar(1.0f)));
  ExpectOpError(Merge({a, a}), kInvalid, "Duplicate tag a found in summary inputs");
  ExpectOpError(Merge({a, Tensor::Scalar("\x0a\xff")}), kInvalid,
                "inputs[1] must be a serialized Summary message, got 2 bytes that are none");
}

TEST(TensorSummary, HoldsATensor) {
  const Tensor x = TensorOf<int32_t>({2, 1}, {7, 8});
  const Summary old = Parsed(RunOp1(OpCall("TensorSummary").Input(x).Name("model/x")));
  ASSERT_EQ(old.value_size(), 1);
  EXPECT_EQ(old.value(0).node_name(), "model/x");
  EXPECT_EQ(old.value(0).tag(), "");
  ASSERT_OK_AND_ASSIGN(const Tensor got, TensorFromProto(old.value(0).tensor()));
  ExpectTensorEqual(got, x);

  tensorflow::SummaryMetadata metadata;
  metadata.mutable_plugin_data()->set_plugin_name("text");
  const auto call = [](const Tensor& tensor, const std::string& bytes) {
    return OpCall("TensorSummaryV2")
        .Input(Tensor::Scalar("note"))
        .Input(tensor)
        .Input(Tensor::Scalar(bytes));
  };
  const Summary text =
      Parsed(RunOp1(call(Tensor::Of({"hello", ""}), metadata.SerializeAsString())));
  EXPECT_EQ(text.value(0).tag(), "note");
  EXPECT_EQ(text.value(0).metadata().plugin_data().plugin_name(), "text");
  ASSERT_OK_AND_ASSIGN(const Tensor words, TensorFromProto(text.value(0).tensor()));
  ExpectTensorEqual(words, Tensor::Of({"hello", ""}));
  ExpectOpError(call(x, "\x0a\xff"), kInvalid,
                "serialized_summary_metadata must be a serialized SummaryMetadata message");
  EXPECT_SHAPE("TensorSummary", {}, {"[?]"}, "[]");
  EXPECT_SHAPE("TensorSummaryV2", {}, {"[]", "[2]", "[]"}, "[]");
  EXPECT_SHAPE_ERROR("TensorSummaryV2", {}, {"[1]", "[2]", "[]"}, "tag must have rank 0");
  EXPECT_SHAPE_ERROR("TensorSummaryV2", {}, {"[]", "[2]", "[2]"},
                     "serialized_summary_metadata must have rank 0");
}

// What these ops make of the values in TensorFlow's files is what TensorFlow made of them.
TEST(SummaryOps, MakeTensorFlowsBytes) {
  const std::string path = SharedDataPath("events/babyweight_train.tfevents");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no events/babyweight_train.tfevents";
  ASSERT_OK_AND_ASSIGN(auto records, RecordReader::Open(FileSystem::Posix(), path));
  int scalars = 0, histograms = 0;
  for (;;) {
    const auto record = records->Next();
    if (absl::IsOutOfRange(record.status())) break;
    ASSERT_OK(record);
    tensorflow::Event event;
    ASSERT_TRUE(event.ParseFromArray(record->data(), static_cast<int>(record->size())));
    if (!event.has_summary()) continue;
    std::vector<Tensor> parts;
    for (const Summary::Value& value : event.summary().value()) {
      Summary alone;
      *alone.add_value() = value;
      parts.push_back(Tensor::Scalar(alone.SerializeAsString()));
      if (value.has_histo()) {
        // The values are not in the file; where they may lie is.
        ++histograms;
        double counted = 0;
        const auto& histo = value.histo();
        for (int i = 0; i < histo.bucket_size(); ++i) {
          counted += histo.bucket(i);
          EXPECT_TRUE(std::binary_search(Histogram::Limits().begin(), Histogram::Limits().end(),
                                         histo.bucket_limit(i)))
              << histo.bucket_limit(i);
          EXPECT_FALSE(i > 0 && histo.bucket(i) == 0 && histo.bucket(i - 1) == 0);
        }
        EXPECT_EQ(counted, histo.num());
        EXPECT_EQ(histo.bucket(0), 0);
        EXPECT_EQ(histo.bucket_limit(histo.bucket_size() - 1), DBL_MAX);
      } else {
        ++scalars;
        const Tensor ours =
            RunOp1(Scalar(Tensor::Scalar(value.tag()), Tensor::Scalar(value.simple_value())));
        EXPECT_EQ(ours, parts.back()) << value.tag();
      }
    }
    EXPECT_EQ(RunOp1(Merge(parts)), Tensor::Scalar(event.summary().SerializeAsString()));
  }
  EXPECT_EQ(scalars, 79);
  EXPECT_EQ(histograms, 40);
}

}  // namespace
}  // namespace millrace
