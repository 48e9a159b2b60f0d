// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/gru_block.h"

#include <cmath>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: block cells and their gradients agree with their formulas in double, a sequence
//   with its steps

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Some(std::vector<int64_t> dims, uint32_t seed) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, *Shape::Make(dims));
  for (float& value : t.mutable_flat<float>()) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return t;
}

OpCall Call(int64_t batch, int64_t inputs, int64_t cells) {
  return OpCall("GRUBlockCell")
      .Input(Some({batch, inputs}, 1))
      .Input(Some({batch, cells}, 2))
      .Input(Some({inputs + cells, 2 * cells}, 3))
      .Input(Some({inputs + cells, cells}, 4))
      .Input(Some({2 * cells}, 5))
      .Input(Some({cells}, 6));
}

TEST(GRUBlockCell, GivesWhatItsFormulasGive) {
  const int64_t batch = 3, inputs = 4, cells = 5;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Call(batch, inputs, cells)));
  const Tensor x = Some({batch, inputs}, 1), h = Some({batch, cells}, 2);
  const Tensor w_ru = Some({inputs + cells, 2 * cells}, 3), w_c = Some({inputs + cells, cells}, 4);
  const Tensor b_ru = Some({2 * cells}, 5), b_c = Some({cells}, 6);
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<double> r(cells), u(cells);
    for (int64_t g = 0; g < 2 * cells; ++g) {
      double sum = b_ru.at<float>(g);
      for (int64_t k = 0; k < inputs; ++k) sum += x.at<float>(n, k) * w_ru.at<float>(k, g);
      for (int64_t k = 0; k < cells; ++k) sum += h.at<float>(n, k) * w_ru.at<float>(inputs + k, g);
      (g < cells ? r : u)[static_cast<size_t>(g % cells)] = sigmoid(sum);
    }
    for (int64_t c = 0; c < cells; ++c) {
      double sum = b_c.at<float>(c);
      for (int64_t k = 0; k < inputs; ++k) sum += x.at<float>(n, k) * w_c.at<float>(k, c);
      for (int64_t k = 0; k < cells; ++k) {
        sum += h.at<float>(n, k) * r[static_cast<size_t>(k)] * w_c.at<float>(inputs + k, c);
      }
      const double state = std::tanh(sum), update = u[static_cast<size_t>(c)];
      EXPECT_NEAR(out[0].at<float>(n, c), r[static_cast<size_t>(c)], 2e-6);
      EXPECT_NEAR(out[1].at<float>(n, c), update, 2e-6);
      EXPECT_NEAR(out[2].at<float>(n, c), state, 2e-6);
      EXPECT_NEAR(out[3].at<float>(n, c), (1 - update) * state + update * h.at<float>(n, c), 2e-6);
    }
  }
}

TEST(GRUBlockCell, AcceptsNoExamples) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Call(0, 4, 5)));
  EXPECT_EQ(out[3].shape().ToString(), "[0,5]");
}

TEST(GRUBlockCell, RefusesShapesThatDoNotFit) {
  EXPECT_SHAPE("GRUBlockCell", {}, {"[3,?]", "[?,?]", "[9,10]", "[?,?]", "[?]", "[?]"},
               "[3,5];[3,5];[3,5];[3,5]");
  EXPECT_SHAPE_ERROR("GRUBlockCell", {}, {"[3,4]", "[2,5]", "[9,10]", "[9,5]", "[10]", "[5]"},
                     "batches of x and h_prev must agree, got 3 and 2");
  EXPECT_SHAPE_ERROR("GRUBlockCell", {}, {"[3,4]", "[3,5]", "[9,11]", "[9,5]", "[10]", "[5]"},
                     "w_ru must have 2 columns for each cell, got shape [9,11]");
  EXPECT_SHAPE_ERROR("GRUBlockCell", {}, {"[3,4]", "[3,5]", "[8,10]", "[9,5]", "[10]", "[5]"},
                     "inputs of x and weights must agree, got 4 and 3");
  EXPECT_SHAPE_ERROR("GRUBlockCell", {}, {"[3,4]", "[3,5]", "[9,10]", "[9,5]", "[10]", "[4]"},
                     "cells of h_prev and biases must agree, got 5 and 4");
  EXPECT_SHAPE("GRUBlockCellGrad", {},
               {"[3,4]", "[3,5]", "[9,10]", "[9,5]", "[10]", "[5]", "<unknown>", "<unknown>",
                "<unknown>", "<unknown>"},
               "[3,4];[3,5];[3,5];[3,10]");
  ExpectOpError(OpCall("GRUBlockCell")
                    .Input(Some({3, 4}, 1))
                    .Input(Some({3, 5}, 1))
                    .Input(Some({9, 10}, 1))
                    .Input(Some({9, 4}, 1))
                    .Input(Some({10}, 1))
                    .Input(Some({5}, 1)),
                kInvalid, "cells of h_prev and weights must agree, got 5 and 4");
}

TEST(GRUBlockCell, GradientsFlowThroughHOnly) {
  Scope s;
  const auto f = [&](std::initializer_list<int64_t> dims) {
    return TestInput(s, DT_FLOAT, PartialShape(dims));
  };
  const Output x = f({3, 4});
  const GRUOutputs cell = GRUBlockCell(s, x, f({3, 5}), f({9, 10}), f({9, 5}), f({10}), f({5}));
  EXPECT_STATUS(AddGradients(s, {cell.u}, {x}), kInvalid,
                "gradients must flow through h only, got one of 'u'");
}

}  // namespace
}  // namespace millrace
