// SPDX-License-Identifier: Apache-2.0
#include "layers/rnn.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "layers/rnn_cell.h"
#include "layers/testing/layer_test.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: values: cells and recurrent layers give the values of their formulas, TensorFlow's
//   variable names, gradients of finite differences; each example ends at its length

namespace millrace {
namespace {

using Outputs = std::vector<Output>;
using Names = std::vector<std::string>;

Tensor Some(std::vector<int64_t> dims, uint32_t seed) {
  Tensor t = *Tensor::Allocate(DT_DOUBLE, *Shape::Make(dims));
  for (double& value : t.mutable_flat<double>()) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<double>(seed >> 8) / (1 << 23) - 1;
  }
  return t;
}

// Variables, in the order in which they were made, with values without a pattern.
std::vector<std::pair<Output, Tensor>> Weights(const Scope& s) {
  std::vector<std::pair<Output, Tensor>> weights;
  uint32_t seed = 7;
  for (const Variable& v : VariablesOf(s)) {
    const Shape shape = *v.shape.ToShape();
    weights.emplace_back(v.value, Some({shape.dims().begin(), shape.dims().end()}, ++seed));
  }
  return weights;
}

std::vector<Feed> Feeds(const std::vector<std::pair<Output, Tensor>>& values) {
  std::vector<Feed> feeds;
  for (const auto& [output, value] : values) feeds.emplace_back(output, value);
  return feeds;
}

Tensor SomeFloats(std::vector<int64_t> dims, uint32_t seed) {
  const Tensor wide = Some(dims, seed);
  Tensor t = *Tensor::Allocate(DT_FLOAT, wide.shape());
  float* to = t.mutable_flat<float>().data();
  for (const double value : wide.flat<double>()) *to++ = static_cast<float>(value);
  return t;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// --- References ----------------------------------------------------------------------------------

// [x, h] * kernel + bias, one example.
std::vector<double> Affine(std::vector<double> x, const std::vector<double>& h,
                           const Tensor& kernel, const Tensor& bias) {
  x.insert(x.end(), h.begin(), h.end());
  std::vector<double> out(bias.flat<double>().begin(), bias.flat<double>().end());
  for (size_t k = 0; k < x.size(); ++k) {
    for (size_t n = 0; n < out.size(); ++n) {
      out[n] += x[k] * kernel.at<double>(static_cast<int64_t>(k), static_cast<int64_t>(n));
    }
  }
  return out;
}

std::vector<double> RowOf(const Tensor& x, int64_t batch, int64_t t) {
  std::vector<double> row;
  for (int64_t i = 0; i < x.dim(2); ++i) row.push_back(x.at<double>(batch, t, i));
  return row;
}

TEST(DynamicRnn, RunsAnLstmAsItsFormulasSay) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 2});
  const LSTMCell cell(3,
                      {.use_peepholes = true, .cell_clip = 0.8, .num_proj = 2, .forget_bias = 0.5});
  const RnnOutputs rnn = DynamicRnn(s, cell, x);
  ASSERT_OK(s.status());
  EXPECT_EQ(NamesOf(s, "trainable_variables"),
            (Names{"rnn/lstm_cell/kernel", "rnn/lstm_cell/bias", "rnn/lstm_cell/w_f_diag",
                   "rnn/lstm_cell/w_i_diag", "rnn/lstm_cell/w_o_diag",
                   "rnn/lstm_cell/projection/kernel"}));
  EXPECT_EQ(s.shape(rnn.outputs).ToString(), "[2,3,2]");
  EXPECT_EQ(s.shape(rnn.state[0]).ToString(), "[2,3]");
  auto weights = Weights(s);
  const Tensor kernel = weights[0].second, bias = weights[1].second, wf = weights[2].second,
               wi = weights[3].second, wo = weights[4].second, projection = weights[5].second;
  const Tensor in = Some({2, 3, 2}, 1);
  weights.emplace_back(x, in);
  ASSERT_OK_AND_ASSIGN(
      const auto out, RunInitialized(s, Feeds(weights), {rnn.outputs, rnn.state[0], rnn.state[1]}));
  for (int64_t b = 0; b < 2; ++b) {
    std::vector<double> c(3), h(2);
    for (int64_t t = 0; t < 3; ++t) {
      const std::vector<double> gates = Affine(RowOf(in, b, t), h, kernel, bias);
      std::vector<double> m(3);
      for (size_t n = 0; n < 3; ++n) {
        const double i = Sigmoid(gates[n] + wi.flat<double>()[n] * c[n]);
        const double f = Sigmoid(gates[6 + n] + 0.5 + wf.flat<double>()[n] * c[n]);
        c[n] = f * c[n] + i * std::tanh(gates[3 + n]);
        c[n] = std::min(std::max(c[n], -0.8), 0.8);
        m[n] = Sigmoid(gates[9 + n] + wo.flat<double>()[n] * c[n]) * std::tanh(c[n]);
      }
      h.assign(2, 0);
      for (size_t n = 0; n < 3; ++n) {
        for (size_t k = 0; k < 2; ++k) {
          h[k] += m[n] * projection.at<double>(static_cast<int64_t>(n), static_cast<int64_t>(k));
        }
      }
      for (int64_t k = 0; k < 2; ++k) {
        EXPECT_NEAR(out[0].at<double>(b, t, k), h[static_cast<size_t>(k)], 1e-12);
      }
    }
    for (int64_t n = 0; n < 3; ++n) {
      EXPECT_NEAR(out[1].at<double>(b, n), c[static_cast<size_t>(n)], 1e-12);
    }
  }
}

TEST(DynamicRnn, RunsGruAndBasicCellsAsTheirFormulasSay) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {1, 4, 2});
  const RnnOutputs gru = DynamicRnn(s.WithName("a"), GRUCell(3), x);
  const RnnOutputs basic = DynamicRnn(s.WithName("b"), BasicRNNCell(3), x);
  ASSERT_OK(s.status());
  EXPECT_EQ(
      NamesOf(s, "trainable_variables"),
      (Names{"a/gru_cell/gates/kernel", "a/gru_cell/gates/bias", "a/gru_cell/candidate/kernel",
             "a/gru_cell/candidate/bias", "b/basic_rnn_cell/kernel", "b/basic_rnn_cell/bias"}));
  auto weights = Weights(s);
  const Tensor in = Some({1, 4, 2}, 1);
  std::vector<Tensor> w;
  for (const auto& weight : weights) w.push_back(weight.second);
  weights.emplace_back(x, in);
  ASSERT_OK_AND_ASSIGN(const auto out,
                       RunInitialized(s, Feeds(weights), {gru.outputs, basic.outputs}));
  std::vector<double> h(3), g(3);
  for (int64_t t = 0; t < 4; ++t) {
    const std::vector<double> gates = Affine(RowOf(in, 0, t), h, w[0], w[1]);
    std::vector<double> reset(3);
    for (size_t n = 0; n < 3; ++n) reset[n] = Sigmoid(gates[n]) * h[n];
    const std::vector<double> candidate = Affine(RowOf(in, 0, t), reset, w[2], w[3]);
    const std::vector<double> plain = Affine(RowOf(in, 0, t), g, w[4], w[5]);
    for (size_t n = 0; n < 3; ++n) {
      const double u = Sigmoid(gates[3 + n]);
      h[n] = u * h[n] + (1 - u) * std::tanh(candidate[n]);
      g[n] = std::tanh(plain[n]);
      EXPECT_NEAR(out[0].at<double>(0, t, static_cast<int64_t>(n)), h[n], 1e-12);
      EXPECT_NEAR(out[1].at<double>(0, t, static_cast<int64_t>(n)), g[n], 1e-12);
    }
  }
}

// Outputs behind an example's length are zeros, its state is that of its last step.
TEST(DynamicRnn, EndsEachExampleAtItsLength) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {-1, -1, 2});
  const Output lengths = Placeholder(s.WithName("lengths"), DT_INT64, {-1});
  const LSTMCell cell(3);
  const RnnOutputs all = DynamicRnn(s, cell, x);
  const RnnOutputs some = DynamicRnn(s.WithName("some"), cell, x,
                                     {.sequence_length = lengths, .shared_cell = all.cell});
  ASSERT_OK(s.status());
  EXPECT_EQ(VariablesOf(s).size(), 2u);  // they share them
  auto weights = Weights(s);
  weights.emplace_back(x, Some({3, 4, 2}, 1));
  weights.emplace_back(lengths, Tensor::Of<int64_t>({2, 0, 3}));
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      RunInitialized(s, Feeds(weights), {all.outputs, some.outputs, some.state[1], some.state[0]}));
  EXPECT_EQ(out[1].shape(), out[0].shape());
  const int64_t length[] = {2, 0, 3};
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t n = 0; n < 3; ++n) {
        EXPECT_EQ(out[1].at<double>(b, t, n), t < length[b] ? out[0].at<double>(b, t, n) : 0);
      }
    }
    for (int64_t n = 0; n < 3; ++n) {
      EXPECT_EQ(out[2].at<double>(b, n),
                length[b] == 0 ? 0 : out[0].at<double>(b, length[b] - 1, n));
      if (length[b] == 0) {
        EXPECT_EQ(out[3].at<double>(b, n), 0);
      }
    }
  }
}

TEST(DynamicRnn, IsStaticRnnStepByStep) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 2});
  const Output lengths = Const<int32_t>(s, {1, 3});
  const GRUCell cell(3);
  const RnnOutputs dynamic = DynamicRnn(s, cell, x, {.sequence_length = lengths});
  const Outputs steps = Unpack(s, x, 3, {.axis = 1});
  const StaticRnnOutputs unrolled = StaticRnn(
      s.WithName("static"), cell, steps, {.sequence_length = lengths, .shared_cell = dynamic.cell});
  const RnnOutputs by_time =
      DynamicRnn(s.WithName("by_time"), cell, Transpose(s, x, Const<int32_t>(s, {1, 0, 2})),
                 {.sequence_length = lengths, .time_major = true, .shared_cell = dynamic.cell});
  ASSERT_OK(s.status());
  auto weights = Weights(s);
  weights.emplace_back(x, Some({2, 3, 2}, 1));
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      RunInitialized(
          s, Feeds(weights),
          {dynamic.outputs, Pack(s, unrolled.outputs, {.axis = 1}), dynamic.state[0],
           unrolled.state[0], Transpose(s, by_time.outputs, Const<int32_t>(s, {1, 0, 2}))}));
  ExpectTensorNear(out[0], out[1], 1e-12, 1e-12);
  ExpectTensorNear(out[2], out[3], 1e-12, 1e-12);
  ExpectTensorNear(out[0], out[4], 1e-12, 1e-12);
}

// Outputs, states and gradients, whatever is known of the sizes; lengths may be 0, or more than
// there are steps.
TEST(DynamicRnn, OfOneOpForAllStepsIsTheLoop) {
  const std::shared_ptr<const RnnCell> cells[] = {
      std::make_shared<LSTMCell>(3),
      std::make_shared<LSTMCell>(3, LSTMCellAttrs{.use_peepholes = true}),
      std::make_shared<FusedLSTMCell>(3, LSTMBlockCellOptions{.cell_clip = 0.5})};
  for (const auto& cell : cells) {
    for (const bool known : {false, true}) {
      for (const bool with_lengths : {false, true}) {
        for (const bool time_major : {false, true}) {
          SCOPED_TRACE(::testing::Message() << known << with_lengths << time_major);
          Scope s;
          const int64_t batch = 3, steps = 4;
          const int64_t first = time_major ? steps : batch, second = time_major ? batch : steps;
          const Output x =
              Placeholder(s.WithName("x"), DT_FLOAT, {known ? first : -1, known ? second : -1, 2});
          const Output c = Placeholder(s.WithName("c"), DT_FLOAT, {-1, 3});
          DynamicRnnAttrs attrs = {.initial_state = {c, Tanh(s, c)}, .time_major = time_major};
          if (with_lengths) attrs.sequence_length = Const<int64_t>(s, {2, 0, 9});
          const RnnOutputs at_once = DynamicRnn(s, *cell, x, attrs);
          attrs.in_one_op = false;
          attrs.shared_cell = at_once.cell;
          const RnnOutputs looped = DynamicRnn(s.WithName("looped"), *cell, x, attrs);
          ASSERT_OK(s.status());
          EXPECT_EQ(at_once.outputs.node()->op(), time_major && !with_lengths ? "BlockLSTM"
                                                  : time_major                ? "Reshape"
                                                                              : "Transpose");
          std::vector<Feed> feeds = {{x, SomeFloats({first, second, 2}, 1)},
                                     {c, SomeFloats({3, 3}, 2)}};
          Outputs xs = {x, c};
          uint32_t seed = 7;
          for (const Variable& v : VariablesOf(s)) {
            const Shape shape = *v.shape.ToShape();
            feeds.emplace_back(v.value,
                               SomeFloats({shape.dims().begin(), shape.dims().end()}, ++seed));
            xs.push_back(v.value);
          }
          std::vector<FetchName> fetches[2];
          for (const bool loop : {false, true}) {
            const RnnOutputs& rnn = loop ? looped : at_once;
            fetches[loop] = {rnn.outputs, rnn.state[0], rnn.state[1]};
            const Output y = Add(s, ReduceSum(s, Square(s, rnn.outputs)),
                                 ReduceSum(s, Mul(s, rnn.state[0], Exp(s, rnn.state[1]))));
            ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {y}, xs));
            for (const Gradient& g : gradients) fetches[loop].push_back(DenseGradient(s, g));
          }
          ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(s));
          ASSERT_OK_AND_ASSIGN(const auto got, session->Run(feeds, fetches[0]));
          ASSERT_OK_AND_ASSIGN(const auto wanted, session->Run(feeds, fetches[1]));
          for (size_t i = 0; i < got.size(); ++i) {
            SCOPED_TRACE(i);
            ExpectTensorNear(got[i], wanted[i], 1e-4, 1e-5);
          }
        }
      }
    }
  }
}

// Without a step the state is what it was.
TEST(DynamicRnn, OfOneOpAndNoStepsGivesTheStateBack) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {2, -1, 2});
  const Output c = Const(s, SomeFloats({2, 3}, 1)), h = Const(s, SomeFloats({2, 3}, 2));
  const RnnOutputs rnn = DynamicRnn(s, LSTMCell(3), x, {.initial_state = {c, h}});
  ASSERT_OK(s.status());
  ASSERT_OK_AND_ASSIGN(const auto out,
                       RunInitialized(s, {{x, *Tensor::Zeros(DT_FLOAT, Shape{2, 0, 2})}},
                                      {rnn.outputs, rnn.state[0], rnn.state[1], c, h}));
  EXPECT_EQ(out[0].shape(), (Shape{2, 0, 3}));
  ExpectTensorEqual(out[1], out[3]);
  ExpectTensorEqual(out[2], out[4]);
}

TEST(RnnCells, OfOneOpAreTheOthers) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {2, 3, 4});
  const DynamicRnnAttrs step_by_step = {.in_one_op = false};
  const auto lstm =
      DynamicRnn(s.WithName("lstm"), LSTMCell(5, {.use_peepholes = true}), x, step_by_step);
  const auto fused_lstm = DynamicRnn(s.WithName("fused_lstm"),
                                     FusedLSTMCell(5, {.use_peephole = true}), x, step_by_step);
  const auto gru = DynamicRnn(s.WithName("gru"), GRUCell(5), x);
  const auto fused_gru = DynamicRnn(s.WithName("fused_gru"), FusedGRUCell(5), x);
  ASSERT_OK(s.status());
  const Names names = NamesOf(s, "variables");
  EXPECT_EQ(names[5], "fused_lstm/lstm_cell/kernel");
  EXPECT_EQ(names.back(), "fused_gru/gru_cell/candidate/bias");
  // The same values under the same last names.
  std::vector<Feed> feeds;
  for (const Variable& v : VariablesOf(s)) {
    const Shape shape = *v.shape.ToShape();
    const size_t slash = v.name.find('/');
    uint32_t seed = 1;
    for (const char c : v.name.substr(slash)) seed = seed * 31 + static_cast<uint32_t>(c);
    const Tensor wide = Some({shape.dims().begin(), shape.dims().end()}, seed);
    Tensor value = *Tensor::Allocate(DT_FLOAT, shape);
    for (size_t i = 0; i < wide.flat<double>().size(); ++i) {
      value.mutable_flat<float>()[i] = static_cast<float>(wide.flat<double>()[i]);
    }
    feeds.emplace_back(v.value, value);
  }
  const Tensor wide = Some({2, 3, 4}, 3);
  Tensor in = *Tensor::Allocate(DT_FLOAT, wide.shape());
  for (size_t i = 0; i < 24; ++i) {
    in.mutable_flat<float>()[i] = static_cast<float>(wide.flat<double>()[i]);
  }
  feeds.emplace_back(x, in);
  // Gradients of all weights, too.
  std::vector<FetchName> fetches = {lstm.outputs, fused_lstm.outputs, gru.outputs,
                                    fused_gru.outputs};
  std::vector<size_t> counts;
  for (const RnnOutputs& rnn : {lstm, fused_lstm, gru, fused_gru}) {
    Outputs xs = {x};
    for (const Variable& v : rnn.cell->variables()) xs.push_back(v.value);
    ASSERT_OK_AND_ASSIGN(const auto gradients,
                         AddGradients(s, {ReduceSum(s, Square(s, rnn.outputs))}, xs));
    counts.push_back(gradients.size());
    for (const Gradient& g : gradients) fetches.push_back(DenseGradient(s, g));
  }
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, feeds, fetches));
  ExpectTensorNear(out[0], out[1], 1e-5, 1e-6);
  ExpectTensorNear(out[2], out[3], 1e-5, 1e-6);
  // x, kernel, bias; the peepholes come in another order.
  for (size_t i = 0; i < 3; ++i) {
    ExpectTensorNear(out[4 + i], out[4 + counts[0] + i], 1e-4, 1e-5);
  }
  const size_t first = 4 + counts[0] + counts[1];
  for (size_t i = 0; i < counts[2]; ++i) {
    ExpectTensorNear(out[first + i], out[first + counts[2] + i], 1e-4, 1e-5);
  }
}

TEST(RnnCells, StackAndWrap) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 4});
  const auto lstm = std::make_shared<LSTMCell>(4);
  const MultiRNNCell stack({std::make_shared<ResidualWrapper>(lstm), std::make_shared<GRUCell>(5)});
  EXPECT_EQ(stack.state_sizes(), (std::vector<int64_t>{4, 4, 5}));
  EXPECT_EQ(stack.is_memory(), (std::vector<bool>{true, false, false}));
  const RnnOutputs rnn = DynamicRnn(s, stack, x);
  ASSERT_OK(s.status());
  EXPECT_EQ(NamesOf(s, "variables"), (Names{"rnn/multi_rnn_cell/cell_0/lstm_cell/kernel",
                                            "rnn/multi_rnn_cell/cell_0/lstm_cell/bias",
                                            "rnn/multi_rnn_cell/cell_1/gru_cell/gates/kernel",
                                            "rnn/multi_rnn_cell/cell_1/gru_cell/gates/bias",
                                            "rnn/multi_rnn_cell/cell_1/gru_cell/candidate/kernel",
                                            "rnn/multi_rnn_cell/cell_1/gru_cell/candidate/bias"}));
  EXPECT_EQ(rnn.state.size(), 3u);
  auto weights = Weights(s);
  weights.emplace_back(x, Some({2, 3, 4}, 1));
  ExpectLayerGradientsMatch(s, rnn.outputs, weights);
}

TEST(RnnCells, DropWhatTheyAreTold) {
  Scope s;
  s.SetGraphSeed(1);
  const Output x = Const(s, Tensor::Of<float>({{{1, 1}, {1, 1}, {1, 1}, {1, 1}}}));
  const DropoutWrapper cell(std::make_shared<BasicRNNCell>(64), {.output_keep_prob = 0.5});
  const RnnOutputs rnn = DynamicRnn(s, cell, x);
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {}, {rnn.outputs, rnn.state[0]}));
  // About half in each step, not the same; nothing of the state.
  std::vector<std::vector<bool>> dropped(4);
  for (int64_t t = 0; t < 4; ++t) {
    int zeros = 0;
    for (int64_t n = 0; n < 64; ++n) {
      const bool is_zero = out[0].at<float>(0, t, n) == 0;
      dropped[static_cast<size_t>(t)].push_back(is_zero);
      zeros += is_zero;
    }
    EXPECT_GT(zeros, 10);
    EXPECT_LT(zeros, 54);
  }
  EXPECT_NE(dropped[0], dropped[1]);
  for (int64_t n = 0; n < 64; ++n) EXPECT_NE(out[1].at<float>(0, n), 0);
}

TEST(BidirectionalDynamicRnn, RunsBothWays) {
  for (const bool with_lengths : {false, true}) {
    Scope s;
    const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 2});
    const Output lengths = Const<int32_t>(s, {2, 3});
    const BidirectionalRnnOutputs rnn = BidirectionalDynamicRnn(
        s, LSTMCell(3), GRUCell(2), x, {.sequence_length = with_lengths ? lengths : Output()});
    ASSERT_OK(s.status());
    EXPECT_EQ(NamesOf(s, "variables")[0], "bidirectional_rnn/fw/lstm_cell/kernel");
    EXPECT_EQ(NamesOf(s, "variables")[2], "bidirectional_rnn/bw/gru_cell/gates/kernel");
    // Backwards is forwards of what is turned around.
    const Output turned =
        with_lengths ? ReverseSequence(s, x, lengths, 1) : ReverseV2(s, x, Const<int32_t>(s, {1}));
    auto weights = Weights(s);
    const Output both = ConcatV2(s, {rnn.outputs_fw, rnn.outputs_bw}, Const(s, 2));
    weights.emplace_back(x, Some({2, 3, 2}, 1));
    ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, Feeds(weights),
                                                        {rnn.outputs_bw, rnn.state_bw[0], turned}));
    for (int64_t n = 0; n < 2; ++n) {
      // The last state backwards is the output of the first step.
      EXPECT_EQ(out[1].at<double>(0, n), out[0].at<double>(0, 0, n));
      EXPECT_EQ(out[1].at<double>(1, n), out[0].at<double>(1, 0, n));
    }
    if (with_lengths) {
      EXPECT_EQ(out[0].at<double>(0, 2, 0), 0);
    }
    ExpectLayerGradientsMatch(s, both, weights);
  }
}

TEST(Rnn, GradientsMatchFiniteDifferences) {
  const std::vector<std::shared_ptr<const RnnCell>> cells = {
      std::make_shared<BasicRNNCell>(3), std::make_shared<GRUCell>(3),
      std::make_shared<LSTMCell>(3, LSTMCellAttrs{.use_peepholes = true, .num_proj = 2}),
      std::make_shared<BasicLSTMCell>(3)};
  for (const auto& cell : cells) {
    for (const bool with_lengths : {false, true}) {
      Scope s;
      const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 2});
      const RnnOutputs rnn = DynamicRnn(
          s, *cell, x, {.sequence_length = with_lengths ? Const<int32_t>(s, {1, 3}) : Output()});
      ASSERT_OK(s.status());
      auto weights = Weights(s);
      weights.emplace_back(x, Some({2, 3, 2}, 1));
      const Output y = ConcatV2(s,
                                {Reshape(s, rnn.outputs, Const<int32_t>(s, {-1})),
                                 Reshape(s, rnn.state[0], Const<int32_t>(s, {-1}))},
                                Const(s, 0));
      ExpectLayerGradientsMatch(s, y, weights);
    }
  }
}

TEST(Rnn, RefusesWhatIsNotLegal) {
  const auto x = [](const Scope& s, const PartialShape& shape) {
    return Placeholder(s.WithName("x"), DT_FLOAT, shape);
  };
  const LSTMCell lstm(3);
  ExpectBadCalls({
      {[&](const Scope& s) {
         return DynamicRnn(s, lstm, x(s, {2, 3})).outputs;
       },
       "DynamicRnn 'm/rnn': x must have rank 3"},
      {[&](const Scope& s) {
         return DynamicRnn(s, lstm, x(s, {2, 3, -1})).outputs;
       },
       "LSTMCell 'm/rnn/lstm_cell': x must have a known number of inputs >= 1, got -1"},
      {[&](const Scope& s) {
         return DynamicRnn(s, LSTMCell(0), x(s, {2, 3, 4})).outputs;
       },
       "units must be >= 1, got 0"},
      {[&](const Scope& s) {
         return DynamicRnn(s, LSTMCell(3, {.proj_clip = 1.0}), x(s, {2, 3, 4})).outputs;
       },
       "proj_clip must come with num_proj"},
      {[&](const Scope& s) {
         return DynamicRnn(s, LSTMCell(3, {.cell_clip = 0.0}), x(s, {2, 3, 4})).outputs;
       },
       "cell_clip must be > 0, got 0"},
      {[&](const Scope& s) {
         return DynamicRnn(s, lstm, x(s, {2, 3, 4}), {.initial_state = {Const(s, 1.0f)}}).outputs;
       },
       "initial_state must have 2 tensors, got 1"},
      {[&](const Scope& s) {
         return DynamicRnn(s, lstm, x(s, {2, 3, 4}), {.sequence_length = Const(s, 1.0f)}).outputs;
       },
       "sequence_length must be an int32 or int64 vector, got float[]"},
      {[&](const Scope& s) {
         return DynamicRnn(s, FusedGRUCell(3), Placeholder(s.WithName("x"), DT_DOUBLE, {2, 3, 4}))
             .outputs;
       },
       "FusedGRUCell 'm/rnn/gru_cell': x must be float, got double"},
      {[&](const Scope& s) {
         return DynamicRnn(s, MultiRNNCell(std::vector<std::shared_ptr<const RnnCell>>{}),
                           x(s, {2, 3, 4}))
             .outputs;
       },
       "MultiRNNCell 'm/rnn/multi_rnn_cell': there must be a cell, got none"},
      {[&](const Scope& s) {
         const DropoutWrapper cell(std::make_shared<GRUCell>(3), {.input_keep_prob = 0});
         return DynamicRnn(s, cell, x(s, {2, 3, 4})).outputs;
       },
       "DropoutWrapper: input_keep_prob must be in the range (0, 1], got 0"},
      {[&](const Scope& s) {
         const ResidualWrapper cell(std::make_shared<GRUCell>(3));
         return DynamicRnn(s, cell, x(s, {2, 3, 4})).outputs;
       },
       "ResidualWrapper: x must have as many inputs as the cell has outputs (3), got 4"},
      {[&](const Scope& s) {
         const StaticRnnOutputs rnn = StaticRnn(s, lstm, {});
         return rnn.outputs.empty() ? Output() : rnn.outputs[0];
       },
       "StaticRnn 'm/rnn': there must be a step, got none"},
  });
}

}  // namespace
}  // namespace millrace
