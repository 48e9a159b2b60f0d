// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that real TensorFlow wrote: names, dtypes, shapes and values of every tensor.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "saver/tensor_bundle.h"
#include "tests/compat/json_tensor.h"

// covers: values: checkpoints of both formats that TensorFlow wrote are listed
// covers: article 0-42: files of TensorFlow's formats

namespace millrace {
namespace {

using nlohmann::json;

void CheckTensor(const Tensor& tensor, const json& expected, const std::string& what) {
  ASSERT_EQ(NumpyName(tensor.dtype()), expected.at("dtype").get<std::string>()) << what;
  const auto dims = expected.at("shape").get<std::vector<int64_t>>();
  ASSERT_EQ(tensor.shape().dims(), absl::MakeConstSpan(dims)) << what;
  if (expected.contains("values")) {
    ASSERT_OK_AND_ASSIGN(const Tensor values, TensorFromJson(expected));
    EXPECT_EQ(Difference(tensor, values, 0, 0), "") << what;
    return;
  }
  const json& first = expected.at("first");
  const size_t count = std::min<size_t>(4, static_cast<size_t>(tensor.num_elements()));
  ASSERT_EQ(first.size(), count) << what;
  if (tensor.dtype() == DT_INT64) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(tensor.flat<int64_t>()[i], first[i].get<int64_t>()) << what;
    }
    return;
  }
  ASSERT_EQ(tensor.dtype(), DT_FLOAT) << what;
  for (size_t i = 0; i < count; ++i) {
    EXPECT_FLOAT_EQ(tensor.flat<float>()[i], first[i].get<float>()) << what;
  }
  double sum = 0, magnitude = 0;
  for (const float x : tensor.flat<float>()) {
    sum += static_cast<double>(x);
    magnitude += std::abs(static_cast<double>(x));
  }
  // The expectation was printed with about seven digits.
  EXPECT_NEAR(sum, expected.at("sum").get<double>(), 1e-5 * (1 + magnitude)) << what;
}

TEST(CheckpointsOfTensorFlow, HoldWhatTheListSays) {
  const std::vector<json> cases = CasesOfKind("checkpoint_list");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  for (const json& one : cases) {
    const std::string name = one.at("name");
    const std::string index = SharedDataPath(one.at("path").get<std::string>() + ".index");
    ASSERT_NE(index, "") << name;
    const std::string prefix = index.substr(0, index.size() - 6);
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(FileSystem::Posix(), prefix));
    EXPECT_OK(reader->CheckFiles()) << name;
    EXPECT_EQ(reader->num_shards(), one.at("num_shards").get<int>()) << name;
    const json& tensors = one.at("tensors");
    EXPECT_EQ(reader->entries().size(), tensors.size()) << name;
    for (const auto& [tensor_name, expected] : tensors.items()) {
      const std::string what = name + " " + tensor_name;
      ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader->Read(tensor_name));
      CheckTensor(tensor, expected, what);
    }
  }
  EXPECT_EQ(cases.size(), 23u);
}

}  // namespace
}  // namespace millrace
