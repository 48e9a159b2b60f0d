// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_TESTING_PREMADE_TEST_H_
#define MILLRACE_ESTIMATOR_CANNED_TESTING_PREMADE_TEST_H_

// What tests of pre-made Estimators need: a directory of their own, checkpoints that are written by
// hand, inputs that are a few tensors, the variables and summaries of what was trained.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "gtest/gtest.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_reader.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

namespace millrace {

using TensorList = std::vector<std::pair<std::string, Tensor>>;

class PremadeTest : public testing::Test {
 protected:
  PremadeTest()
      : dir_(absl::StrCat(testing::TempDir(), "/",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
    EXPECT_OK(fs()->RecursivelyCreateDirectory(dir_));
  }
  static FileSystem* fs() { return FileSystem::Posix(); }

  EstimatorOptions InDir(RunConfigFields fields = {}) const {
    fields.model_dir = dir_;
    if (!fields.save_checkpoints_steps) fields.save_checkpoints_steps = 1000;
    if (!fields.tf_random_seed) fields.tf_random_seed = 7;
    return {.config = *RunConfig::Make(fields, "")};
  }

  // A checkpoint of model_dir.
  void WriteCheckpoint(const TensorList& tensors, int64_t step = 0) {
    const std::string prefix = absl::StrCat(dir_, "/model.ckpt-", step);
    auto writer = BundleWriter::Open(fs(), prefix);
    ASSERT_OK(writer.status());
    for (const auto& [name, value] : tensors) ASSERT_OK((*writer)->Add(name, value));
    ASSERT_OK((*writer)->Add("global_step", Tensor::Scalar(step)));
    ASSERT_OK((*writer)->Finish());
    ASSERT_OK(WriteCheckpointState(fs(), dir_, {.latest = prefix, .all = {prefix}}));
  }

  // Rows in one batch; in kTrain again and again. The last tensor is the label, if it has none of
  // the other names.
  static InputFn Rows(TensorList features, std::vector<Tensor> label = {}) {
    return [features = std::move(features), label = std::move(label)](Mode mode) {
      std::vector<Tensor> tensors;
      DatasetColumns columns;
      for (const auto& [name, value] : features) {
        tensors.push_back(value);
        columns.names.push_back(name);
      }
      if (!label.empty()) {
        tensors.push_back(label[0]);
        columns.names.push_back("label");
        columns.labels = {"label"};
      }
      data::Dataset rows = data::Dataset::FromTensorSlices(tensors).Batch(tensors[0].dim(0));
      return Input(mode == Mode::kTrain ? rows.Repeat() : rows, columns);
    };
  }

  // Predictions of all rows.
  std::map<std::string, std::vector<Tensor>> Predicted(const Estimator& estimator,
                                                       const InputFn& input) {
    std::map<std::string, std::vector<Tensor>> result;
    auto stream = estimator.Predict(input);
    EXPECT_OK(stream.status());
    for (Prediction row; stream.ok();) {
      const StatusOr<bool> more = (*stream)->Next(&row);
      EXPECT_OK(more.status());
      if (!more.ok() || !*more) break;
      for (const auto& [name, value] : row.tensors) result[name].push_back(value);
    }
    return result;
  }

  // "<name> <dtype> <shape>[ in <n> parts]" of each, in the order of the names.
  static std::vector<std::string> VariablesIn(const std::string& checkpoint) {
    std::vector<std::string> result;
    auto reader = BundleReader::Open(fs(), checkpoint);
    EXPECT_OK(reader.status());
    if (!reader.ok()) return result;
    for (const BundleReader::Entry& entry : (*reader)->entries()) {
      result.push_back(
          absl::StrCat(entry.name, " ", DTypeName(entry.dtype), " ", entry.shape.ToString()));
      if (!entry.slices.empty()) absl::StrAppend(&result.back(), " in ", entry.slices.size());
    }
    return result;
  }

  float Number(const Estimator& estimator, const std::string& variable) {
    const StatusOr<Tensor> value = estimator.GetVariableValue(variable);
    EXPECT_OK(value.status());
    return value.ok() ? value->flat<float>()[0] : 0;
  }

  // The tags of the model's summaries of training, sorted.
  std::vector<std::string> SummaryTags() {
    std::vector<std::string> tags;
    auto events = EventReader::Open(fs(), dir_);
    EXPECT_OK(events.status());
    for (; events.ok();) {
      const auto event = (*events)->Next();
      if (!event.ok()) break;
      for (const auto& value : event->summary().value()) {
        if (!absl::StartsWith(value.tag(), "checkpoint/")) tags.push_back(value.tag());
      }
    }
    std::sort(tags.begin(), tags.end());
    tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
    return tags;
  }

  const std::string dir_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_TESTING_PREMADE_TEST_H_
