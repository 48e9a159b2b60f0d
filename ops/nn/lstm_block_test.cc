// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/lstm_block.h"

#include <algorithm>
#include <cmath>
#include <string>
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

// Numbers without a pattern, between -1 and 1.
Tensor Some(std::vector<int64_t> dims, uint32_t seed) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, *Shape::Make(dims));
  for (float& value : t.mutable_flat<float>()) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return t;
}

// --- A reference: a formula for each number ------------------------------------------------------

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Reference {
  int64_t batch, inputs, cells;
  std::vector<int> order;  // where i, ci, f, o are among the gates
  double forget_bias, clip;
  bool peephole;
  Tensor w, wci, wcf, wco, b;

  // One step: i, cs, f, o, ci, co, h.
  std::vector<std::vector<double>> Step(const std::vector<double>& x,
                                        const std::vector<double>& cs_prev,
                                        const std::vector<double>& h_prev) const {
    std::vector<std::vector<double>> out(7,
                                         std::vector<double>(static_cast<size_t>(batch * cells)));
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t c = 0; c < cells; ++c) {
        const auto gate = [&](int number) {
          const int64_t column = number * cells + c;
          double sum = b.flat<float>()[static_cast<size_t>(column)];
          for (int64_t k = 0; k < inputs + cells; ++k) {
            const double left = k < inputs ? x[static_cast<size_t>(n * inputs + k)]
                                           : h_prev[static_cast<size_t>(n * cells + k - inputs)];
            sum += left * w.at<float>(k, column);
          }
          return sum;
        };
        const size_t at = static_cast<size_t>(n * cells + c), cell = static_cast<size_t>(c);
        const double old = cs_prev[at];
        const double use = peephole ? 1 : 0;
        const double i = Sigmoid(gate(order[0]) + use * wci.flat<float>()[cell] * old);
        const double f =
            Sigmoid(gate(order[2]) + forget_bias + use * wcf.flat<float>()[cell] * old);
        const double ci = std::tanh(gate(order[1]));
        double cs = ci * i + old * f;
        if (clip > 0) cs = std::min(std::max(cs, -clip), clip);
        const double o = Sigmoid(gate(order[3]) + use * wco.flat<float>()[cell] * cs);
        const double co = std::tanh(cs);
        const double all[] = {i, cs, f, o, ci, co, co * o};
        for (size_t k = 0; k < 7; ++k) out[k][at] = all[k];
      }
    }
    return out;
  }
};

std::vector<double> Doubles(const Tensor& t) {
  return {t.flat<float>().begin(), t.flat<float>().end()};
}

void ExpectNear(const Tensor& got, int64_t offset, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got.flat<float>()[static_cast<size_t>(offset) + i], want[i], 2e-6) << i;
  }
}

struct Operands {
  Tensor x, cs, h, w, wci, wcf, wco, b;
};
Operands OperandsOf(const std::vector<int64_t>& x, int64_t batch, int64_t inputs, int64_t cells) {
  return {Some(x, 1),
          Some({batch, cells}, 2),
          Some({batch, cells}, 3),
          Some({inputs + cells, 4 * cells}, 4),
          Some({cells}, 5),
          Some({cells}, 6),
          Some({cells}, 7),
          Some({4 * cells}, 8)};
}
OpCall Call(const std::string& op, const Operands& in) {
  OpCall call(op);
  if (op != "LSTMBlockCell") call.Input(Tensor::Scalar<int64_t>(in.x.dim(0)));
  call.Input(in.x).Input(in.cs).Input(in.h).Input(in.w).Input(in.wci).Input(in.wcf).Input(in.wco);
  return call.Input(in.b);
}

TEST(LSTMBlockCell, GivesWhatItsFormulasGive) {
  for (const bool peephole : {false, true}) {
    for (const float clip : {0.0f, 0.5f}) {
      const Operands in = OperandsOf({3, 4}, 3, 4, 5);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           RunOp(Call("LSTMBlockCell", in)
                                     .Attr("forget_bias", 0.75f)
                                     .Attr("cell_clip", clip)
                                     .Attr("use_peephole", peephole)));
      const Reference reference = {3,        4,    5,      {0, 1, 2, 3}, 0.75,   clip,
                                   peephole, in.w, in.wci, in.wcf,       in.wco, in.b};
      const auto want = reference.Step(Doubles(in.x), Doubles(in.cs), Doubles(in.h));
      for (size_t i = 0; i < 7; ++i) ExpectNear(out[i], 0, want[i]);
    }
  }
}

TEST(LSTMBlockCell, ComputesHalvesInFloat) {
  const Operands in = OperandsOf({3, 4}, 3, 4, 5);
  Operands half;
  const Tensor* from[] = {&in.x, &in.cs, &in.h, &in.w, &in.wci, &in.wcf, &in.wco, &in.b};
  Tensor* const to[] = {&half.x,   &half.cs,  &half.h,   &half.w,
                        &half.wci, &half.wcf, &half.wco, &half.b};
  for (size_t i = 0; i < 8; ++i) {
    *to[i] = *Tensor::Allocate(DT_HALF, from[i]->shape());
    for (size_t k = 0; k < from[i]->flat<float>().size(); ++k) {
      to[i]->mutable_flat<Half>()[k] = ToHalf(from[i]->flat<float>()[k]);
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Call("LSTMBlockCell", half)));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> wide, RunOp(Call("LSTMBlockCell", in)));
  for (size_t k = 0; k < 15; ++k) {
    EXPECT_NEAR(ToFloat(out[6].flat<Half>()[k]), wide[6].flat<float>()[k], 3e-3);
  }
}

TEST(BlockLSTM, GivesAStepAfterTheOther) {
  for (const std::string op : {"BlockLSTM", "BlockLSTMV2"}) {
    const bool is_v2 = op == "BlockLSTMV2";
    const Operands in = OperandsOf({4, 2, 3}, 2, 3, 5);
    OpCall call = Call(op, in).Attr("cell_clip", 0.9f).Attr("use_peephole", true);
    if (!is_v2) call.Attr("forget_bias", 0.5f);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
    const Reference reference = {
        2,
        3,
        5,
        is_v2 ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 1, 2, 3},
        is_v2 ? 0.0 : 0.5,
        0.9f,
        true,
        in.w,
        in.wci,
        in.wcf,
        in.wco,
        in.b};
    std::vector<double> cs = Doubles(in.cs), h = Doubles(in.h);
    const std::vector<double> x = Doubles(in.x);
    for (int64_t t = 0; t < 4; ++t) {
      const auto want = reference.Step({x.begin() + t * 6, x.begin() + (t + 1) * 6}, cs, h);
      for (size_t i = 0; i < 7; ++i) ExpectNear(out[i], t * 10, want[i]);
      cs = want[1];
      h = want[6];
    }
  }
}

TEST(BlockLSTM, LeavesStepsBehindTheLengthZero) {
  const Operands in = OperandsOf({4, 2, 3}, 2, 3, 5);
  const auto run = [&](int64_t length) {
    return RunOp(OpCall("BlockLSTM")
                     .Input(Tensor::Scalar<int64_t>(length))
                     .Input(in.x)
                     .Input(in.cs)
                     .Input(in.h)
                     .Input(in.w)
                     .Input(in.wci)
                     .Input(in.wcf)
                     .Input(in.wco)
                     .Input(in.b));
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> all, run(4));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> two, run(2));
  for (size_t i = 0; i < 7; ++i) {
    ExpectTensorEqual(two[i].Rows(0, 2), all[i].Rows(0, 2));
    for (const float value : two[i].Rows(2, 4).flat<float>()) EXPECT_EQ(value, 0);
  }
  EXPECT_STATUS(run(5), kInvalid, "seq_len_max must be in [0, 4], the steps of x, got 5");
  EXPECT_STATUS(run(-1), kInvalid, "seq_len_max must be in [0, 4], the steps of x, got -1");
}

TEST(LSTMBlock, AcceptsNoExamplesAndNoSteps) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> cell,
                       RunOp(Call("LSTMBlockCell", OperandsOf({0, 3}, 0, 3, 2))));
  EXPECT_EQ(cell[6].shape().ToString(), "[0,2]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> steps,
                       RunOp(Call("BlockLSTM", OperandsOf({0, 2, 3}, 2, 3, 2))));
  EXPECT_EQ(steps[6].shape().ToString(), "[0,2,2]");
}

TEST(LSTMBlock, RefusesShapesThatDoNotFit) {
  const auto with = [](auto change) {
    Operands in = OperandsOf({3, 4}, 3, 4, 5);
    change(&in);
    return Call("LSTMBlockCell", in);
  };
  ExpectOpError(with([](Operands* in) {
                  in->cs = Some({2, 5}, 1);
                }),
                kInvalid, "batches of x, cs_prev and h_prev must agree, got 3 and 2");
  ExpectOpError(with([](Operands* in) {
                  in->h = Some({3, 4}, 1);
                }),
                kInvalid, "cells of cs_prev and h_prev must agree, got 5 and 4");
  ExpectOpError(with([](Operands* in) {
                  in->w = Some({9, 19}, 1);
                }),
                kInvalid, "w must have 4 columns for each cell, got shape [9,19]");
  ExpectOpError(with([](Operands* in) {
                  in->w = Some({8, 20}, 1);
                }),
                kInvalid, "inputs of x and w must agree, got 4 and 3");
  ExpectOpError(with([](Operands* in) { in->wcf = Some({4}, 1); }), kInvalid,
                "cells of cs_prev and peephole weights must agree, got 5 and 4");
  ExpectOpError(with([](Operands* in) { in->b = Some({16}, 1); }), kInvalid,
                "cells of cs_prev and b must agree, got 5 and 4");
  ExpectOpError(with([](Operands* in) {
                  in->x = Some({3, 4, 1}, 1);
                }),
                kInvalid, "x must have rank 2");
  EXPECT_SHAPE("LSTMBlockCell", {},
               {"[?,4]", "[3,?]", "[?,?]", "[?,20]", "[?]", "[?]", "[?]", "[?]"},
               "[3,5];[3,5];[3,5];[3,5];[3,5];[3,5];[3,5]");
  EXPECT_SHAPE("BlockLSTMGrad", {{"use_peephole", false}},
               {"[]", "[7,?,4]", "[3,?]", "[?,?]", "[?,20]", "[?]", "[?]", "[?]", "[?]",
                "<unknown>", "<unknown>", "<unknown>", "<unknown>", "<unknown>", "<unknown>",
                "<unknown>", "<unknown>", "<unknown>"},
               "[7,3,4];[3,5];[3,5];[9,20];[5];[5];[5];[20]");
  EXPECT_SHAPE_ERROR(
      "BlockLSTMGrad", {{"use_peephole", false}},
      {"[]", "[7,3,4]", "[3,5]", "[3,5]", "[9,20]", "[5]", "[5]", "[5]", "[20]", "[7,3,5]",
       "[7,3,4]", "[7,3,5]", "[7,3,5]", "[7,3,5]", "[7,3,5]", "[7,3,5]", "[7,3,5]", "[7,3,5]"},
      "input 10 must have shape [7,3,5], got [7,3,4]");
}

TEST(LSTMBlock, GradientsFlowThroughCsAndHOnly) {
  Scope s;
  const auto f = [&](std::initializer_list<int64_t> dims) {
    return TestInput(s, DT_FLOAT, PartialShape(dims));
  };
  const Output x = f({3, 4});
  const LSTMOutputs cell =
      LSTMBlockCell(s, x, f({3, 5}), f({3, 5}), f({9, 20}), f({5}), f({5}), f({5}), f({20}));
  EXPECT_STATUS(AddGradients(s, {cell.ci}, {x}), kInvalid,
                "gradients must flow through cs and h only, got one of 'ci'");
}

}  // namespace
}  // namespace millrace
