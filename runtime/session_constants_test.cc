// SPDX-License-Identifier: Apache-2.0
//
// A session in this process holds the bytes of a graph's constants once, at any moment: measured as
// the process's own peak, so the test is a process of its own.
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "runtime/session.h"

// covers: steps: a local session holds the bytes of its constants once, at its peak

namespace millrace {
namespace {

constexpr int kConstants = 25;
constexpr int64_t kElements = int64_t{1} << 20;  // floats of each

// "VmRSS", "VmHWM" (the peak) of this process, in bytes.
int64_t MemoryOf(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!absl::StartsWith(line, field + ":")) continue;
    int64_t kib = 0;
    const size_t begin = line.find_first_of("0123456789");
    EXPECT_TRUE(absl::SimpleAtoi(line.substr(begin, line.find(' ', begin) - begin), &kib)) << line;
    return kib * 1024;
  }
  return 0;
}

Tensor Filled(float value) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, ShapeOf({kElements}));
  for (float& element : tensor.mutable_raw<float>()) element = value;
  return tensor;
}

TEST(SessionConstantsTest, ALocalSessionPeaksAtTheBytesOfItsConstants) {
  {
    // What the first session of a process costs whatever is in it.
    Scope root;
    const Output shape = ShapeOf(root, Const(root, Filled(0)));
    ASSERT_OK_AND_ASSIGN(auto session, NewSession({}));
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {shape}));
  }
  const int64_t before = MemoryOf("VmHWM");
  ASSERT_GT(before, 0);
  {
    Scope root;
    std::vector<FetchName> passed;
    for (int i = 0; i < kConstants; ++i) {
      passed.emplace_back(Identity(root, Const(root, Filled(static_cast<float>(i)))));
    }
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(auto session, NewSession({}));
    ASSERT_OK(session->Extend(root));
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK_AND_ASSIGN(const auto values, session->Run({}, passed));
      for (int i = 0; i < kConstants; ++i) {
        EXPECT_EQ(values[static_cast<size_t>(i)].flat<float>()[kElements - 1],
                  static_cast<float>(i));
      }
    }
  }
  const int64_t constants = int64_t{kConstants} * kElements * 4;
  const int64_t taken = MemoryOf("VmHWM") - before;
  RecordProperty("peak_of_constants", absl::StrCat(taken * 100 / constants, "%"));
  EXPECT_LE(taken, constants + constants * 15 / 100);
}

}  // namespace
}  // namespace millrace
