// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/conv.h"

#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/loops/conv2d.h"
#include "ops/rules/window.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

template <typename T>
Tensor RandomTensor(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1, 1);
  Tensor t = *Tensor::Allocate(DTypeOf<T>, shape);
  for (T& v : t.mutable_flat<T>()) v = static_cast<T>(values(random));
  return t;
}

struct ConvCase {
  const char* name;
  Ints input, filter;  // [n, rows, cols, in], [rows, cols, in, out]
  Ints strides = {1, 1, 1, 1};
  std::string padding = "SAME";
  Ints dilations = {1, 1, 1, 1};
  Ints explicit_paddings = {};
};

OpCall WithAttrs(OpCall call, const ConvCase& c) {
  return call.Attr("strides", c.strides)
      .Attr("padding", c.padding)
      .Attr("dilations", c.dilations)
      .Attr("explicit_paddings", c.explicit_paddings);
}

Conv2DAttrs AttrsOf(const ConvCase& c) {
  return {.strides = c.strides,
          .padding = c.padding,
          .explicit_paddings = c.explicit_paddings,
          .dilations = c.dilations};
}

Tensor IntVector(const Shape& shape) {
  std::vector<int32_t> dims;
  for (const int64_t dim : shape.dims()) dims.push_back(static_cast<int32_t>(dim));
  return Tensor::Vector<int32_t>(absl::MakeConstSpan(dims));
}

// Padding computed anew from the definition, one output element at a time, in double.
struct Reference {
  Reference(const ConvCase& c, const Shape& output) : c(c), output(output) {
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t extent = (c.filter[axis] - 1) * c.dilations[axis + 1] + 1;
      if (c.padding == "SAME") {
        const int64_t total = (output.dim(static_cast<int>(axis) + 1) - 1) * c.strides[axis + 1] +
                              extent - c.input[axis + 1];
        before[axis] = total > 0 ? total / 2 : 0;
      } else if (c.padding == "EXPLICIT") {
        before[axis] = c.explicit_paddings[2 * axis + 2];
      }
    }
  }
  // Calls f(input index, filter index, output index) for every product.
  template <typename F>
  void ForEachProduct(F f) const {
    const int64_t channels = c.filter[2], outs = c.filter[3];
    for (int64_t n = 0; n < output.dim(0); ++n)
      for (int64_t r = 0; r < output.dim(1); ++r)
        for (int64_t q = 0; q < output.dim(2); ++q)
          for (int64_t i = 0; i < c.filter[0]; ++i)
            for (int64_t j = 0; j < c.filter[1]; ++j) {
              const int64_t y = r * c.strides[1] - before[0] + i * c.dilations[1];
              const int64_t x = q * c.strides[2] - before[1] + j * c.dilations[2];
              if (y < 0 || y >= c.input[1] || x < 0 || x >= c.input[2]) continue;
              for (int64_t k = 0; k < channels; ++k)
                for (int64_t o = 0; o < outs; ++o)
                  f(static_cast<size_t>(((n * c.input[1] + y) * c.input[2] + x) * channels + k),
                    static_cast<size_t>(((i * c.filter[1] + j) * channels + k) * outs + o),
                    static_cast<size_t>(((n * output.dim(1) + r) * output.dim(2) + q) * outs + o));
            }
  }
  const ConvCase& c;
  const Shape output;
  int64_t before[2] = {0, 0};
};

template <typename T>
Tensor Narrowed(const Shape& shape, const std::vector<double>& values) {
  Tensor t = *Tensor::Allocate(DTypeOf<T>, shape);
  for (size_t i = 0; i < values.size(); ++i) t.mutable_flat<T>()[i] = static_cast<T>(values[i]);
  return t;
}

template <typename T>
void ExpectAllPassesMatchTheReference(const ConvCase& c, OpTestDevice* device) {
  SCOPED_TRACE(c.name);
  const Shape input_shape = *Shape::Make(c.input), filter_shape = *Shape::Make(c.filter);
  const Tensor input = RandomTensor<T>(input_shape, 1), filter = RandomTensor<T>(filter_shape, 2);
  const double tol = sizeof(T) == 4 ? 2e-5 : 1e-12;
  const Tensor output =
      RunOp1(WithAttrs(OpCall("Conv2D").Input(input).Input(filter), c).On(device));
  ASSERT_EQ(output.rank(), 4);
  const Reference ref(c, output.shape());
  std::vector<double> want(static_cast<size_t>(output.num_elements()));
  const absl::Span<const T> in = input.flat<T>(), w = filter.flat<T>();
  ref.ForEachProduct([&](size_t i, size_t f, size_t o) {
    want[o] += static_cast<double>(in[i]) * static_cast<double>(w[f]);
  });
  ExpectTensorNear(output, Narrowed<T>(output.shape(), want), tol, tol * 4);

  const Tensor grad = RandomTensor<T>(output.shape(), 3);
  const absl::Span<const T> g = grad.flat<T>();
  std::vector<double> want_input(in.size()), want_filter(w.size());
  ref.ForEachProduct([&](size_t i, size_t f, size_t o) {
    want_input[i] += static_cast<double>(g[o]) * static_cast<double>(w[f]);
    want_filter[f] += static_cast<double>(g[o]) * static_cast<double>(in[i]);
  });
  ExpectTensorNear(
      RunOp1(
          WithAttrs(
              OpCall("Conv2DBackpropInput").Input(IntVector(input_shape)).Input(filter).Input(grad),
              c)
              .On(device)),
      Narrowed<T>(input_shape, want_input), tol, tol * 4);
  ExpectTensorNear(RunOp1(WithAttrs(OpCall("Conv2DBackpropFilter")
                                        .Input(input)
                                        .Input(IntVector(filter_shape))
                                        .Input(grad),
                                    c)
                              .On(device)),
                   Narrowed<T>(filter_shape, want_filter), tol, tol * 40);
}

template <typename T>
Tensor NarrowOf(const Tensor& x) {
  Tensor t = *Tensor::Allocate(DTypeOf<T>, x.shape());
  for (size_t i = 0; i < x.flat<float>().size(); ++i) {
    if constexpr (std::is_same_v<T, Half>) {
      t.mutable_flat<T>()[i] = ToHalf(x.flat<float>()[i]);
    } else {
      t.mutable_flat<T>()[i] = ToBfloat16(x.flat<float>()[i]);
    }
  }
  return t;
}
template <typename T>
Tensor FloatOf(const Tensor& x) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, x.shape());
  for (size_t i = 0; i < x.flat<T>().size(); ++i) {
    t.mutable_flat<float>()[i] = ToFloat(x.flat<T>()[i]);
  }
  return t;
}

// All passes give what float gives for the same numbers, rounded once.
template <typename T>
void ExpectAllPassesAreThoseOfFloatRounded(const ConvCase& c) {
  SCOPED_TRACE(c.name);
  const Tensor input = NarrowOf<T>(RandomTensor<float>(*Shape::Make(c.input), 1));
  const Tensor filter = NarrowOf<T>(RandomTensor<float>(*Shape::Make(c.filter), 2));
  const Tensor wide_input = FloatOf<T>(input), wide_filter = FloatOf<T>(filter);
  const Tensor output = RunOp1(WithAttrs(OpCall("Conv2D").Input(input).Input(filter), c));
  ExpectTensorEqual(
      output,
      NarrowOf<T>(RunOp1(WithAttrs(OpCall("Conv2D").Input(wide_input).Input(wide_filter), c))));
  const Tensor grad = NarrowOf<T>(RandomTensor<float>(output.shape(), 3));
  const Tensor wide_grad = FloatOf<T>(grad);
  const auto to_input = [&](const Tensor& w, const Tensor& g) {
    return RunOp1(WithAttrs(
        OpCall("Conv2DBackpropInput").Input(IntVector(input.shape())).Input(w).Input(g), c));
  };
  ExpectTensorEqual(to_input(filter, grad), NarrowOf<T>(to_input(wide_filter, wide_grad)));
  const auto to_filter = [&](const Tensor& x, const Tensor& g) {
    return RunOp1(WithAttrs(
        OpCall("Conv2DBackpropFilter").Input(x).Input(IntVector(filter.shape())).Input(g), c));
  };
  ExpectTensorEqual(to_filter(input, grad), NarrowOf<T>(to_filter(wide_input, wide_grad)));
}

// Sizes on both sides of the smallest convolution that oneDNN gets.
const ConvCase kCases[] = {
    {"1x1", {2, 4, 5, 3}, {1, 1, 3, 2}},
    {"3x3 same", {2, 5, 4, 2}, {3, 3, 2, 3}},
    {"even filter pads more after", {1, 5, 5, 1}, {2, 4, 1, 1}},
    {"valid", {2, 6, 5, 2}, {3, 2, 2, 3}, {1, 1, 1, 1}, "VALID"},
    {"strides", {1, 7, 8, 2}, {3, 3, 2, 2}, {1, 2, 3, 1}},
    {"valid strides with a rest", {1, 8, 9, 2}, {3, 3, 2, 2}, {1, 2, 4, 1}, "VALID"},
    {"stride larger than filter", {1, 7, 7, 1}, {1, 2, 1, 2}, {1, 3, 4, 1}},
    {"dilations", {1, 9, 8, 2}, {3, 2, 2, 2}, {1, 1, 1, 1}, "SAME", {1, 2, 3, 1}},
    {"explicit",
     {1, 4, 4, 2},
     {3, 3, 2, 2},
     {1, 1, 2, 1},
     "EXPLICIT",
     {1, 1, 1, 1},
     {0, 0, 2, 1, 0, 3, 0, 0}},
    {"filter larger than input", {1, 2, 3, 1}, {5, 5, 1, 2}},
    {"first layer of MNIST", {5, 28, 28, 1}, {5, 5, 1, 32}},
    {"second layer of MNIST", {5, 14, 14, 32}, {5, 5, 32, 64}},
    {"strided, odd channels", {3, 15, 13, 7}, {3, 5, 7, 9}, {1, 2, 2, 1}},
    {"dilated, large", {2, 16, 16, 8}, {3, 3, 8, 8}, {1, 1, 1, 1}, "VALID", {1, 2, 2, 1}},
    {"explicit, large",
     {2, 12, 12, 4},
     {3, 3, 4, 16},
     {1, 2, 1, 1},
     "EXPLICIT",
     {1, 1, 1, 1},
     {0, 0, 1, 2, 2, 0, 0, 0}},
    {"one image, rows cut", {1, 33, 20, 8}, {5, 3, 8, 8}, {1, 2, 1, 1}},
    {"batch of many pieces", {35, 8, 8, 4}, {3, 3, 4, 8}},
};

TEST(Conv2D, AllPassesMatchAPlainReferenceInFloat) {
  OpTestDevice one(1), three(3);
  for (const ConvCase& c : kCases) {
    ExpectAllPassesMatchTheReference<float>(c, &one);
    ExpectAllPassesMatchTheReference<float>(c, &three);
  }
}

TEST(Conv2D, AllPassesMatchAPlainReferenceInDouble) {
  OpTestDevice device(2);
  for (const ConvCase& c : kCases) {
    if (std::string(c.name) == "second layer of MNIST") continue;  // says nothing more, costs much
    ExpectAllPassesMatchTheReference<double>(c, &device);
  }
}

TEST(Conv2D, NarrowTypesAreComputedInFloat) {
  for (const ConvCase& c : kCases) {
    if (std::string(c.name) == "second layer of MNIST") continue;  // says nothing more, costs much
    ExpectAllPassesAreThoseOfFloatRounded<Half>(c);
    ExpectAllPassesAreThoseOfFloatRounded<Bfloat16>(c);
  }
}

// Values that another implementation of the field computed: a 2x2 filter over 1..9.
TEST(Conv2D, FilterIsNotFlipped) {
  const Tensor input = TensorOf<float>({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Tensor filter = TensorOf<float>({2, 2, 1, 1}, {1, 10, 100, 1000});
  ConvCase c;
  c.padding = "VALID";
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("Conv2D").Input(input).Input(filter), c)),
                    TensorOf<float>({1, 2, 2, 1}, {5421, 6532, 8754, 9865}));
}

TEST(Conv2D, FilterGradientDoesNotDependOnTheNumberOfThreads) {
  const Tensor input = RandomTensor<float>(ShapeOf({64, 10, 10, 8}), 1);
  const Tensor grad = RandomTensor<float>(ShapeOf({64, 10, 10, 16}), 2);
  OpTestDevice one(1), four(4);
  const OpCall call = WithAttrs(OpCall("Conv2DBackpropFilter")
                                    .Input(input)
                                    .Input(Tensor::Vector<int32_t>({3, 3, 8, 16}))
                                    .Input(grad),
                                ConvCase());
  ExpectTensorEqual(RunOp1(OpCall(call).On(&one)), RunOp1(OpCall(call).On(&four)));
}

TEST(Conv2D, EmptyTensorsGiveZerosOrNothing) {
  const ConvCase c = ConvCase();
  const auto zeros = [](std::initializer_list<int64_t> dims) {
    return *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  };
  const auto conv = [&](Tensor input, Tensor filter) {
    return RunOp1(WithAttrs(OpCall("Conv2D").Input(input).Input(filter), c));
  };
  ExpectTensorEqual(conv(zeros({0, 5, 5, 3}), zeros({3, 3, 3, 2})), zeros({0, 5, 5, 2}));
  ExpectTensorEqual(conv(zeros({1, 0, 5, 3}), zeros({3, 3, 3, 2})), zeros({1, 0, 5, 2}));
  ExpectTensorEqual(conv(zeros({1, 2, 2, 0}), zeros({3, 3, 0, 2})), zeros({1, 2, 2, 2}));
  ExpectTensorEqual(conv(zeros({1, 2, 2, 3}), zeros({3, 3, 3, 0})), zeros({1, 2, 2, 0}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("Conv2DBackpropFilter")
                                         .Input(zeros({0, 5, 5, 3}))
                                         .Input(Tensor::Vector<int32_t>({3, 3, 3, 2}))
                                         .Input(zeros({0, 5, 5, 2})),
                                     c)),
                    zeros({3, 3, 3, 2}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("Conv2DBackpropInput")
                                         .Input(Tensor::Vector<int32_t>({0, 5, 5, 3}))
                                         .Input(zeros({3, 3, 3, 2}))
                                         .Input(zeros({0, 5, 5, 2})),
                                     c)),
                    zeros({0, 5, 5, 3}));
}

TEST(Conv2D, SamePaddingOfKnownCases) {
  struct Case {
    int64_t in, size, stride, out, before, after;
  };
  for (const Case& c : {Case{28, 5, 1, 28, 2, 2}, Case{28, 5, 2, 14, 1, 2}, Case{7, 2, 2, 4, 0, 1},
                        Case{224, 7, 2, 112, 2, 3}, Case{5, 1, 2, 3, 0, 0}}) {
    ASSERT_OK_AND_ASSIGN(const SlidResult got,
                         SlideWindow("rows", c.in, {c.size, c.stride}, Padding::kSame));
    EXPECT_EQ(got.output, c.out);
    EXPECT_EQ(got.pad_before, c.before);
    EXPECT_EQ(got.pad_after, c.after);
  }
}

TEST(Conv2D, ShapesOfPartlyKnownInputs) {
  const OpAttr strides("strides", Ints{1, 2, 2, 1});
  const OpAttr same("padding", "SAME"), valid("padding", "VALID");
  EXPECT_SHAPE("Conv2D", {strides, same}, {"[?,28,?,1]", "[5,5,1,32]"}, "[?,14,?,32]");
  EXPECT_SHAPE("Conv2D", {strides, valid}, {"[8,28,28,1]", "[5,?,1,32]"}, "[8,12,?,32]");
  EXPECT_SHAPE("Conv2D", {strides, valid}, {"[1,2,8,1]", "[5,5,1,32]"}, "[1,0,2,32]");
  EXPECT_SHAPE("Conv2D", {strides, same}, {"<unknown>", "<unknown>"}, "[?,?,?,?]");
  EXPECT_SHAPE("Conv2D", {strides, same}, {"[2,8,9,?]", "<unknown>"}, "[2,4,5,?]");
  EXPECT_SHAPE("Conv2D", {{"strides", Ints{1, 1, 2, 2}}, same, {"data_format", "NCHW"}},
               {"[?,3,28,27]", "[5,5,3,32]"}, "[?,32,14,14]");
  EXPECT_SHAPE("Conv2DBackpropInput", {strides, same},
               {Tensor::Vector<int32_t>({2, 9, 8, 3}), "[3,3,3,4]", "[2,5,4,4]"}, "[2,9,8,3]");
  EXPECT_SHAPE("Conv2DBackpropInput", {strides, same}, {"[4]", "[3,3,3,4]", "[2,5,4,4]"},
               "[2,?,?,?]");
  EXPECT_SHAPE("Conv2DBackpropFilter", {strides, same}, {"[2,9,8,3]", "[4]", "[2,5,4,4]"},
               "[?,?,?,4]");
  EXPECT_SHAPE("Conv2DBackpropFilter", {strides, same},
               {"[2,9,8,3]", Tensor::Vector<int32_t>({3, 3, 3, 4}), "<unknown>"}, "[3,3,3,4]");
}

struct BadCase {
  const char* op;
  std::vector<Ints> shapes;  // of the inputs; sizes vectors are given by their values
  ConvCase attrs;
  const char* text;
};

TEST(Conv2D, KernelAndShapeFunctionRefuseTheSame) {
  const auto attrs = [](Ints strides, std::string padding = "SAME", Ints dilations = {1, 1, 1, 1},
                        Ints explicit_paddings = {}) {
    return ConvCase{"", {}, {}, strides, padding, dilations, explicit_paddings};
  };
  const Ints ones = {1, 1, 1, 1};
  const int64_t huge = int64_t{1} << 62;
  const Ints image = {1, 5, 5, 3}, filter = {3, 3, 3, 2};
  const BadCase cases[] = {
      {"Conv2D",
       {{32, 28, 28, 4}, {5, 5, 3, 64}},
       attrs(ones),
       "filter expects 3 input channels (filter shape [5,5,3,64]), got 4 (input shape "
       "[32,28,28,4])"},
      {"Conv2D", {{1, 5, 5, 3}, {3, 3, 0, 2}}, attrs(ones), "filter expects 0 input channels"},
      {"Conv2D", {{5, 5, 3}, filter}, attrs(ones), "input must have rank 4, got shape [5,5,3]"},
      {"Conv2D", {image, {3, 3, 3}}, attrs(ones), "filter must have rank 4, got shape [3,3,3]"},
      {"Conv2D", {image, {0, 3, 3, 2}}, attrs(ones), "window rows must be in"},
      {"Conv2D", {image, filter}, attrs({1, 0, 1, 1}), "strides[1] must be in"},
      {"Conv2D", {image, filter}, attrs({1, 1, -1, 1}), "strides[2] must be in"},
      {"Conv2D", {image, filter}, attrs({1, huge, 1, 1}), "strides[1] must be in"},
      {"Conv2D", {image, filter}, attrs({2, 1, 1, 1}), "strides[0], for the batch, must be 1"},
      {"Conv2D", {image, filter}, attrs({1, 1, 1, 2}), "strides[3], for the channels, must be 1"},
      {"Conv2D", {image, filter}, attrs({1, 1, 1}), "strides must have 4 values, got 3"},
      {"Conv2D", {image, filter}, attrs({}), "strides must have 4 values, got 0"},
      {"Conv2D", {image, filter}, attrs(ones, "SAME", {1, 0, 1, 1}), "dilations[1] must be in"},
      {"Conv2D", {image, filter}, attrs(ones, "SAME", {1, 1, huge, 1}), "dilations[2] must be in"},
      {"Conv2D", {image, filter}, attrs(ones, "SAME", {1, 1, 1}), "dilations must have 4 values"},
      {"Conv2D",
       {image, filter},
       attrs(ones, "SAME", ones, {0, 0, 1, 1, 1, 1, 0, 0}),
       "explicit_paddings must be empty unless padding is EXPLICIT"},
      {"Conv2D", {image, filter}, attrs(ones, "EXPLICIT"), "explicit_paddings must have 8 values"},
      {"Conv2D",
       {image, filter},
       attrs(ones, "EXPLICIT", ones, {0, 0, -1, 1, 1, 1, 0, 0}),
       "explicit_paddings[2] must be in [0, 2147483647], got -1"},
      {"Conv2D",
       {image, filter},
       attrs(ones, "EXPLICIT", ones, {0, 0, 1, 1, 1, 1, 0, 1}),
       "explicit_paddings[7] must be 0 for batch and channels, got 1"},
      {"Conv2D",
       {{1, 2, 2, 3}, {5, 5, 3, 2}},
       attrs(ones, "VALID"),
       "Computed output size would be negative"},
      {"Conv2DBackpropInput",
       {{5, 5}, filter, {1, 5, 5, 2}},
       attrs(ones),
       "input_sizes must be a vector of 4 elements, got shape [2]"},
      {"Conv2DBackpropInput", {{1, -5, 5, 3}, filter, {1, 5, 5, 2}}, attrs(ones), "input_sizes"},
      {"Conv2DBackpropInput",
       {{1 << 30, 1 << 30, 1 << 30, 1 << 30}, filter, {1, 5, 5, 2}},
       attrs(ones),
       "input_sizes"},
      {"Conv2DBackpropInput",
       {image, filter, {}},
       attrs(ones),
       "out_backprop must have rank 4, got shape []"},
      {"Conv2DBackpropInput",
       {image, filter, {1, 4, 5, 2}},
       attrs(ones),
       "Size of out_backprop doesn't match computed: out_backprop must have shape [1,5,5,2]"},
      {"Conv2DBackpropInput",
       {image, filter, {2, 5, 5, 2}},
       attrs(ones),
       "Size of out_backprop doesn't match computed"},
      {"Conv2DBackpropInput",
       {image, {3, 3, 3, 0}, {1, 5, 5, 0}},
       attrs(ones),
       "filter must have at least 1 output channel, got 0"},
      {"Conv2DBackpropFilter",
       {image, {3, 3, 3}, {1, 5, 5, 2}},
       attrs(ones),
       "filter_sizes must be a vector of 4 elements, got shape [3]"},
      {"Conv2DBackpropFilter", {image, {3, 3, -3, 2}, {1, 5, 5, 2}}, attrs(ones), "filter_sizes"},
      {"Conv2DBackpropFilter",
       {image, filter, {1, 5, 5, 3}},
       attrs(ones),
       "Size of out_backprop doesn't match computed"},
      {"Conv2DBackpropFilter",
       {{1, 5, 5, 2}, filter, {1, 5, 5, 2}},
       attrs(ones),
       "filter expects 3 input channels"},
  };
  for (const BadCase& bad : cases) {
    SCOPED_TRACE(std::string(bad.op) + ": " + bad.text);
    OpCall call(bad.op);
    std::vector<ShapeInput> shapes;
    for (size_t i = 0; i < bad.shapes.size(); ++i) {
      const std::string op = bad.op;
      const bool sizes =
          (op == "Conv2DBackpropInput" && i == 0) || (op == "Conv2DBackpropFilter" && i == 1);
      if (sizes) {
        std::vector<int32_t> values(bad.shapes[i].begin(), bad.shapes[i].end());
        const Tensor t = Tensor::Vector<int32_t>(absl::MakeConstSpan(values));
        call.Input(t);
        shapes.push_back(t);
      } else {
        ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make(bad.shapes[i]));
        ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Zeros(DT_FLOAT, shape));
        call.Input(t);
        shapes.push_back(shape.ToString());
      }
    }
    ExpectOpError(WithAttrs(call, bad.attrs), absl::StatusCode::kInvalidArgument, bad.text);
    const std::initializer_list<OpAttr> with = {{"strides", bad.attrs.strides},
                                                {"padding", bad.attrs.padding},
                                                {"dilations", bad.attrs.dilations},
                                                {"explicit_paddings", bad.attrs.explicit_paddings}};
    if (shapes.size() == 2) {
      EXPECT_SHAPE_ERROR(bad.op, with, {shapes[0], shapes[1]}, bad.text);
    } else {
      EXPECT_SHAPE_ERROR(bad.op, with, {shapes[0], shapes[1], shapes[2]}, bad.text);
    }
  }
}

TEST(Conv2D, WhatTheKernelLacksIsUnimplemented) {
  const Tensor image = *Tensor::Zeros(DT_FLOAT, ShapeOf({1, 4, 4, 4}));
  ExpectOpError(OpCall("Conv2D")
                    .Input(image)
                    .Input(*Tensor::Zeros(DT_FLOAT, ShapeOf({3, 3, 4, 2})))
                    .Attr("strides", Ints{1, 1, 1, 1})
                    .Attr("padding", "SAME")
                    .Attr("data_format", "NCHW"),
                absl::StatusCode::kUnimplemented, "data_format must be NHWC on CPU, got NCHW");
  ExpectOpError(WithAttrs(OpCall("Conv2D").Input(image).Input(
                              *Tensor::Zeros(DT_FLOAT, ShapeOf({3, 3, 2, 2}))),
                          ConvCase()),
                absl::StatusCode::kUnimplemented, "no groups");
}

TEST(Conv2D, ManyShapesThroughOneKernelStayRight) {
  // More shapes than a kernel keeps plans for, twice.
  Scope scope;
  const Output input = TestInput(scope, DT_FLOAT, {-1, -1, -1, 1});
  const Output filter = Const(scope, TensorOf<float>({1, 1, 1, 1}, {2}));
  const Output output = Conv2D(scope, input, filter);
  OpTestDevice device;
  for (int round = 0; round < 2; ++round) {
    for (int64_t rows = 1; rows <= 20; ++rows) {
      const Tensor x = RandomTensor<float>(ShapeOf({1, rows, 3, 1}), 7);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                           EvaluateGraph(scope, {{input, x}}, {output}, &device));
      for (size_t i = 0; i < x.flat<float>().size(); ++i) {
        ASSERT_EQ(got[0].flat<float>()[i], 2 * x.flat<float>()[i]);
      }
    }
  }
}

TEST(ConvGradient, MatchesFiniteDifferences) {
  for (const ConvCase& c : kCases) {
    const Shape input = *Shape::Make(c.input), filter = *Shape::Make(c.filter);
    if (input.num_elements() > 150) continue;
    SCOPED_TRACE(c.name);
    const Conv2DAttrs attrs = AttrsOf(c);
    const Tensor x = RandomTensor<double>(input, 1), w = RandomTensor<double>(filter, 2);
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return Conv2D(s, in[0], in[1], attrs);
        },
        {x, w});
  }
}

TEST(ConvGradient, GradientsOfGradientsMatchFiniteDifferences) {
  const Conv2DAttrs attrs{.strides = {1, 2, 1, 1}};
  const Tensor image = RandomTensor<double>(ShapeOf({1, 5, 4, 2}), 1);
  const Tensor filter = RandomTensor<double>(ShapeOf({3, 2, 2, 3}), 2);
  const Tensor grad = RandomTensor<double>(ShapeOf({1, 3, 4, 3}), 3);
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return Conv2DBackpropInput(s, Const<int32_t>(s, {1, 5, 4, 2}), in[0], in[1], attrs);
      },
      {filter, grad});
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return Conv2DBackpropFilter(s, in[0], Const<int32_t>(s, {3, 2, 2, 3}), in[1], attrs);
      },
      {image, grad});
}

}  // namespace
}  // namespace millrace
