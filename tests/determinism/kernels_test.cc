// SPDX-License-Identifier: Apache-2.0
// Kernels give the same bits on any number of threads: one op or more of every family whose
// kernels run loops on the arena, with sizes that are large enough to be shared and odd enough to
// end inside a vector.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/resource_manager.h"
#include "runtime/testing/op_test.h"
#include "runtime/variable_storage.h"

// covers: values: the results of kernels do not depend on the number of threads

namespace millrace {
namespace {

// Numbers of both signs, evenly spread over [low, high).
template <typename T>
Tensor Values(std::initializer_list<int64_t> dims, uint32_t seed, double low = -3,
              double high = 3) {
  const Shape shape = ShapeOf(dims);
  std::vector<T> values(static_cast<size_t>(shape.num_elements()));
  uint32_t state = seed * 2654435761u + 1;
  for (T& v : values) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<T>(low + (high - low) * static_cast<double>(state >> 8) / 16777216.0);
  }
  StatusOr<Tensor> tensor = Tensor::FromValues<T>(shape, values);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return tensor.ok() ? *std::move(tensor) : Tensor();
}
Tensor Floats(std::initializer_list<int64_t> dims, uint32_t seed, double low = -3,
              double high = 3) {
  return Values<float>(dims, seed, low, high);
}
Tensor Ints(std::initializer_list<int32_t> values) {
  return TensorOf<int32_t>({static_cast<int64_t>(values.size())}, values);
}
Tensor Int(int32_t value) { return Tensor::Scalar<int32_t>(value); }

using Strides = std::vector<int64_t>;

struct Case {
  std::string name;
  // Adds inputs and attrs. The device holds the variables that a case needs.
  std::function<OpCall(OpTestDevice*)> call;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class KernelDeterminismTest : public testing::TestWithParam<Case> {};

// The outputs, and for updates the variables that the case made.
std::vector<Tensor> RunOn(int num_threads, const Case& c) {
  OpTestDevice device(num_threads);
  StatusOr<std::vector<Tensor>> results = RunOp(c.call(&device).On(&device));
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<Tensor> all = results.ok() ? *std::move(results) : std::vector<Tensor>();
  for (const char* name : {"var", "m", "v"}) {
    const auto variable = device.resources()->Lookup<VariableStorage>("", name);
    if (!variable.ok()) continue;
    StatusOr<Tensor> value = (*variable)->Read();
    EXPECT_TRUE(value.ok()) << value.status();
    if (value.ok()) all.push_back(*std::move(value));
  }
  return all;
}

TEST_P(KernelDeterminismTest, ResultsHaveTheSameBitsOnAnyNumberOfThreads) {
  const std::vector<Tensor> alone = RunOn(1, GetParam());
  for (const int num_threads : {2, 3, 4, 8}) {
    const std::vector<Tensor> shared = RunOn(num_threads, GetParam());
    ASSERT_EQ(shared.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(shared[i].shape(), alone[i].shape());
      if (!alone[i].has_value() || alone[i].dtype() == DT_RESOURCE) continue;
      EXPECT_TRUE(shared[i].bytes() == alone[i].bytes())
          << "result " << i << " on " << num_threads << " threads";
    }
  }
}

// --- Cases ---------------------------------------------------------------------------------------

constexpr int64_t kMany = 100'003;

void AddElementwise(std::vector<Case>* cases) {
  for (const char* op : {"Exp", "Expm1", "Sigmoid", "Tanh", "Sin", "Cos", "Erf", "Elu", "Selu",
                         "Softplus", "Softsign", "Relu6", "Square", "LeakyRelu"}) {
    cases->push_back({op, [op](OpTestDevice*) { return OpCall(op).Input(Floats({kMany}, 1)); }});
    cases->push_back({std::string(op) + "Double", [op](OpTestDevice*) {
                        return OpCall(op).Input(Values<double>({30'011}, 1));
                      }});
  }
  for (const char* op : {"Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal"}) {
    cases->push_back(
        {op, [op](OpTestDevice*) { return OpCall(op).Input(Floats({kMany}, 1, 0.01, 5)); }});
  }
  for (const char* op :
       {"AddV2", "Mul", "RealDiv", "SquaredDifference", "Pow", "Maximum", "FloorMod", "Atan2"}) {
    cases->push_back({op, [op](OpTestDevice*) {
                        return OpCall(op)
                            .Input(Floats({317, 211}, 1, 0.1, 3))
                            .Input(Floats({317, 211}, 2, 0.1, 3));
                      }});
    cases->push_back(
        {std::string(op) + "Rows", [op](OpTestDevice*) {
           return OpCall(op).Input(Floats({317, 211}, 1, 0.1, 3)).Input(Floats({211}, 2, 0.1, 3));
         }});
    cases->push_back({std::string(op) + "Scalar", [op](OpTestDevice*) {
                        return OpCall(op)
                            .Input(Floats({317, 211}, 1, 0.1, 3))
                            .Input(Tensor::Scalar<float>(0.7f));
                      }});
  }
  for (const char* op : {"SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReluGrad", "EluGrad",
                         "SeluGrad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad"}) {
    cases->push_back(
        {op, [op](OpTestDevice*) {
           return OpCall(op).Input(Floats({kMany}, 1, 0.1, 3)).Input(Floats({kMany}, 2, 0.1, 3));
         }});
  }
  cases->push_back(
      {"AddN", [](OpTestDevice*) {
         return OpCall("AddN").Inputs({Floats({kMany}, 1), Floats({kMany}, 2), Floats({kMany}, 3)});
       }});
  cases->push_back({"Cast", [](OpTestDevice*) {
                      return OpCall("Cast").Input(Floats({kMany}, 1)).Attr("DstT", DT_HALF);
                    }});
}

void AddProducts(std::vector<Case>* cases) {
  const int64_t sizes[][3] = {{1, 1000, 300},  {129, 257, 65},  {300, 301, 302}, {1000, 17, 333},
                              {17, 1000, 333}, {100, 500, 800}, {500, 100, 800}, {640, 640, 640}};
  for (const auto& s : sizes) {
    for (const int flags : {0, 1, 2, 3}) {
      const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0;
      const int64_t m = s[0], n = s[1], k = s[2];
      cases->push_back({"MatMul" + std::to_string(m) + "x" + std::to_string(n) + "x" +
                            std::to_string(k) + (ta ? "T" : "N") + (tb ? "T" : "N"),
                        [=](OpTestDevice*) {
                          return OpCall("MatMul")
                              .Input(ta ? Floats({k, m}, 1) : Floats({m, k}, 1))
                              .Input(tb ? Floats({n, k}, 2) : Floats({k, n}, 2))
                              .Attr("transpose_a", ta)
                              .Attr("transpose_b", tb);
                        }});
    }
  }
  cases->push_back({"MatMulDouble", [](OpTestDevice*) {
                      return OpCall("MatMul")
                          .Input(Values<double>({131, 257}, 1))
                          .Input(Values<double>({257, 211}, 2));
                    }});
  for (const int64_t batch : {3, 40}) {
    cases->push_back({"BatchMatMul" + std::to_string(batch), [batch](OpTestDevice*) {
                        return OpCall("BatchMatMulV2")
                            .Input(Floats({batch, 151, 93}, 1))
                            .Input(Floats({batch, 93, 201}, 2));
                      }});
  }
  struct Layer {
    int64_t batch, side, in, size, out;
  };
  for (const Layer& l : {Layer{1, 61, 3, 5, 16}, Layer{3, 28, 8, 3, 24}, Layer{13, 14, 16, 5, 20},
                         Layer{37, 28, 1, 5, 32}}) {
    const std::string name = std::to_string(l.batch) + "x" + std::to_string(l.side) + "x" +
                             std::to_string(l.in) + "to" + std::to_string(l.out);
    const Strides strides = {1, 1, 1, 1};
    const auto sizes32 = [](std::initializer_list<int64_t> dims) {
      std::vector<int32_t> values(dims.begin(), dims.end());
      return *Tensor::FromValues<int32_t>(ShapeOf({4}), values);
    };
    const auto input = [l] { return Floats({l.batch, l.side, l.side, l.in}, 1); };
    const auto filter = [l] { return Floats({l.size, l.size, l.in, l.out}, 2); };
    const auto output = [l] { return Floats({l.batch, l.side, l.side, l.out}, 3); };
    cases->push_back({"Conv2D" + name, [=](OpTestDevice*) {
                        return OpCall("Conv2D")
                            .Input(input())
                            .Input(filter())
                            .Attr("strides", strides)
                            .Attr("padding", std::string("SAME"));
                      }});
    cases->push_back({"Conv2DBackpropInput" + name, [=](OpTestDevice*) {
                        return OpCall("Conv2DBackpropInput")
                            .Input(sizes32({l.batch, l.side, l.side, l.in}))
                            .Input(filter())
                            .Input(output())
                            .Attr("strides", strides)
                            .Attr("padding", std::string("SAME"));
                      }});
    cases->push_back({"Conv2DBackpropFilter" + name, [=](OpTestDevice*) {
                        return OpCall("Conv2DBackpropFilter")
                            .Input(input())
                            .Input(sizes32({l.size, l.size, l.in, l.out}))
                            .Input(output())
                            .Attr("strides", strides)
                            .Attr("padding", std::string("SAME"));
                      }});
  }
}

void AddLayers(std::vector<Case>* cases) {
  for (const int64_t channels : {3, 32, 67}) {
    const std::string name = std::to_string(channels);
    const auto image = [channels](uint32_t seed) { return Floats({5, 31, 29, channels}, seed); };
    const auto pooled = [channels](uint32_t seed) { return Floats({5, 16, 15, channels}, seed); };
    const Strides twos = {1, 2, 2, 1}, threes = {1, 3, 3, 1};
    cases->push_back({"BiasAdd" + name, [=](OpTestDevice*) {
                        return OpCall("BiasAdd").Input(image(1)).Input(Floats({channels}, 2));
                      }});
    cases->push_back({"BiasAddGrad" + name,
                      [=](OpTestDevice*) { return OpCall("BiasAddGrad").Input(image(1)); }});
    for (const char* op : {"MaxPool", "AvgPool"}) {
      cases->push_back({op + name, [=](OpTestDevice*) {
                          return OpCall(op)
                              .Input(image(1))
                              .Attr("ksize", threes)
                              .Attr("strides", twos)
                              .Attr("padding", std::string("SAME"));
                        }});
    }
    cases->push_back({"MaxPoolGrad" + name, [=](OpTestDevice*) {
                        return OpCall("MaxPoolGrad")
                            .Input(image(1))
                            .Input(pooled(2))
                            .Input(pooled(3))
                            .Attr("ksize", threes)
                            .Attr("strides", twos)
                            .Attr("padding", std::string("SAME"));
                      }});
    cases->push_back({"AvgPoolGrad" + name, [=](OpTestDevice*) {
                        return OpCall("AvgPoolGrad")
                            .Input(Ints({5, 31, 29, static_cast<int32_t>(channels)}))
                            .Input(pooled(3))
                            .Attr("ksize", threes)
                            .Attr("strides", twos)
                            .Attr("padding", std::string("SAME"));
                      }});
    cases->push_back({"LRN" + name, [=](OpTestDevice*) { return OpCall("LRN").Input(image(1)); }});
    cases->push_back({"FusedBatchNorm" + name, [=](OpTestDevice*) {
                        return OpCall("FusedBatchNorm")
                            .Input(image(1))
                            .Input(Floats({channels}, 2))
                            .Input(Floats({channels}, 3))
                            .Input(Floats({0}, 4))
                            .Input(Floats({0}, 5));
                      }});
    cases->push_back({"FusedBatchNormGrad" + name, [=](OpTestDevice*) {
                        return OpCall("FusedBatchNormGrad")
                            .Input(image(1))
                            .Input(image(2))
                            .Input(Floats({channels}, 3))
                            .Input(Floats({channels}, 4))
                            .Input(Floats({channels}, 5, 0.5, 2));
                      }});
  }
  for (const int64_t classes : {3, 10, 1001}) {
    const int64_t rows = 50'000 / classes;
    const std::string name = std::to_string(classes);
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      cases->push_back({op + name, [=](OpTestDevice*) {
                          return OpCall(op).Input(Floats({rows, classes}, 1));
                        }});
    }
    cases->push_back({"CrossEntropy" + name, [=](OpTestDevice*) {
                        return OpCall("SoftmaxCrossEntropyWithLogits")
                            .Input(Floats({rows, classes}, 1))
                            .Input(Floats({rows, classes}, 2, 0, 1));
                      }});
    cases->push_back({"SparseCrossEntropy" + name, [=](OpTestDevice*) {
                        return OpCall("SparseSoftmaxCrossEntropyWithLogits")
                            .Input(Floats({rows, classes}, 1))
                            .Input(Values<int32_t>({rows}, 2, 0, static_cast<double>(classes)));
                      }});
  }
}

void AddReductions(std::vector<Case>* cases) {
  for (const char* op : {"Sum", "Mean", "Prod", "Max", "Min"}) {
    for (const int32_t axis : {0, 1, 2}) {
      cases->push_back(
          {op + std::to_string(axis), [=](OpTestDevice*) {
             return OpCall(op).Input(Floats({31, 67, 53}, 1, 0.9, 1.1)).Input(Int(axis));
           }});
    }
    cases->push_back({std::string(op) + "All", [=](OpTestDevice*) {
                        return OpCall(op).Input(Floats({kMany}, 1, 0.99, 1.01)).Input(Int(0));
                      }});
  }
  cases->push_back({"ArgMax", [](OpTestDevice*) {
                      return OpCall("ArgMax").Input(Floats({999, 101}, 1)).Input(Int(1));
                    }});
  cases->push_back({"Cumsum", [](OpTestDevice*) {
                      return OpCall("Cumsum").Input(Floats({99, 1001}, 1)).Input(Int(0));
                    }});
  cases->push_back({"UnsortedSegmentSum", [](OpTestDevice*) {
                      return OpCall("UnsortedSegmentSum")
                          .Input(Floats({9001, 17}, 1))
                          .Input(Values<int32_t>({9001}, 2, 0, 13))
                          .Input(Int(13));
                    }});
  cases->push_back(
      {"L2Loss", [](OpTestDevice*) { return OpCall("L2Loss").Input(Floats({kMany}, 1)); }});
}

void AddMoves(std::vector<Case>* cases) {
  cases->push_back(
      {"Transpose", [](OpTestDevice*) {
         return OpCall("Transpose").Input(Floats({101, 67, 13}, 1)).Input(Ints({2, 0, 1}));
       }});
  cases->push_back({"Gather", [](OpTestDevice*) {
                      return OpCall("GatherV2")
                          .Input(Floats({1000, 37}, 1))
                          .Input(Values<int32_t>({3001}, 2, 0, 1000))
                          .Input(Int(0));
                    }});
  cases->push_back({"Concat", [](OpTestDevice*) {
                      return OpCall("ConcatV2")
                          .Inputs({Floats({301, 97}, 1), Floats({301, 131}, 2)})
                          .Input(Int(1));
                    }});
  cases->push_back({"Tile", [](OpTestDevice*) {
                      return OpCall("Tile").Input(Floats({97, 101}, 1)).Input(Ints({3, 5}));
                    }});
  cases->push_back({"TopK", [](OpTestDevice*) {
                      return OpCall("TopKV2").Input(Floats({501, 103}, 1)).Input(Int(7));
                    }});
  cases->push_back(
      {"SelectV2", [](OpTestDevice*) {
         Tensor rows = *Tensor::Zeros(DT_BOOL, ShapeOf({301, 1}));
         for (size_t i = 0; i < 301; i += 3) rows.mutable_flat<bool>()[i] = true;
         return OpCall("SelectV2").Input(rows).Input(Floats({301, 397}, 1)).Input(Floats({397}, 2));
       }});
  cases->push_back({"MaxPoolDepth", [](OpTestDevice*) {
                      const Strides eights = {1, 1, 1, 8};
                      return OpCall("MaxPool")
                          .Input(Floats({5, 31, 29, 32}, 1))
                          .Attr("ksize", eights)
                          .Attr("strides", eights)
                          .Attr("padding", std::string("VALID"));
                    }});
  cases->push_back({"Multinomial", [](OpTestDevice*) {
                      return OpCall("Multinomial")
                          .Input(Floats({501, 67}, 1))
                          .Input(Int(33))
                          .Attr("seed", int64_t{5})
                          .Attr("seed2", int64_t{7});
                    }});
  for (const char* op : {"RandomUniform", "RandomStandardNormal", "TruncatedNormal"}) {
    cases->push_back({op, [op](OpTestDevice*) {
                        return OpCall(op)
                            .Input(Ints({313, 317}))
                            .Attr("dtype", DT_FLOAT)
                            .Attr("seed", int64_t{5})
                            .Attr("seed2", int64_t{7});
                      }});
  }
}

void AddUpdates(std::vector<Case>* cases) {
  const auto variable = [](OpTestDevice* device, const char* name, double low) {
    return device->VariableHandle(name, Floats({kMany}, static_cast<uint32_t>(name[0]), low, 2));
  };
  const auto scalar = [](float value) { return Tensor::Scalar<float>(value); };
  cases->push_back({"AssignAdd", [=](OpTestDevice* device) {
                      return OpCall("AssignAddVariableOp")
                          .Input(variable(device, "var", -2))
                          .Input(Floats({kMany}, 9))
                          .Attr("dtype", DT_FLOAT);
                    }});
  cases->push_back({"GradientDescent", [=](OpTestDevice* device) {
                      return OpCall("ResourceApplyGradientDescent")
                          .Input(variable(device, "var", -2))
                          .Input(scalar(0.1f))
                          .Input(Floats({kMany}, 9));
                    }});
  for (const bool nesterov : {false, true}) {
    cases->push_back({nesterov ? "AdamNesterov" : "Adam", [=](OpTestDevice* device) {
                        return OpCall("ResourceApplyAdam")
                            .Input(variable(device, "var", -2))
                            .Input(variable(device, "m", -2))
                            .Input(variable(device, "v", 0.1))
                            .Input(scalar(0.9f))
                            .Input(scalar(0.999f))
                            .Input(scalar(0.001f))
                            .Input(scalar(0.9f))
                            .Input(scalar(0.999f))
                            .Input(scalar(1e-8f))
                            .Input(Floats({kMany}, 9))
                            .Attr("use_nesterov", nesterov);
                      }});
    cases->push_back({nesterov ? "MomentumNesterov" : "Momentum", [=](OpTestDevice* device) {
                        return OpCall("ResourceApplyMomentum")
                            .Input(variable(device, "var", -2))
                            .Input(variable(device, "m", -2))
                            .Input(scalar(0.1f))
                            .Input(Floats({kMany}, 9))
                            .Input(scalar(0.9f))
                            .Attr("use_nesterov", nesterov);
                      }});
  }
  for (const bool centered : {false, true}) {
    const char* const op = centered ? "ResourceApplyCenteredRMSProp" : "ResourceApplyRMSProp";
    cases->push_back({centered ? "CenteredRMSProp" : "RMSProp", [=](OpTestDevice* device) {
                        OpCall call(op);
                        call.Input(variable(device, "var", -2));
                        if (centered) call.Input(variable(device, "mg", 0));
                        return call.Input(variable(device, "ms", 1))
                            .Input(variable(device, "mom", 0.5))
                            .Input(scalar(0.01f))
                            .Input(scalar(0.9f))
                            .Input(scalar(0.5f))
                            .Input(scalar(100.0f))
                            .Input(Floats({kMany}, 9));
                      }});
  }
  cases->push_back({"Adagrad", [=](OpTestDevice* device) {
                      return OpCall("ResourceApplyAdagrad")
                          .Input(variable(device, "var", -2))
                          .Input(variable(device, "v", 0.1))
                          .Input(scalar(0.1f))
                          .Input(Floats({kMany}, 9));
                    }});
  cases->push_back({"Ftrl", [=](OpTestDevice* device) {
                      return OpCall("ResourceApplyFtrl")
                          .Input(variable(device, "var", -2))
                          .Input(variable(device, "n", 0.1))
                          .Input(variable(device, "z", 0.5))
                          .Input(Floats({kMany}, 9))
                          .Input(scalar(0.1f))
                          .Input(scalar(0.2f))
                          .Input(scalar(0.3f))
                          .Input(scalar(-0.5f));
                    }});
}

// A matrix of places in [0, rows) x [0, columns), as many as there are rows, ascending.
Tensor Places(int64_t rows, int64_t columns, uint32_t seed) {
  const Tensor column = Values<int64_t>({rows}, seed, 0, static_cast<double>(columns));
  Tensor places = *Tensor::Allocate(DT_INT64, ShapeOf({rows, 2}));
  for (int64_t i = 0; i < rows; ++i) {
    places.mutable_flat<int64_t>()[static_cast<size_t>(2 * i)] = i;
    places.mutable_flat<int64_t>()[static_cast<size_t>(2 * i + 1)] =
        column.flat<int64_t>()[static_cast<size_t>(i)];
  }
  return places;
}

void AddSparse(std::vector<Case>* cases) {
  cases->push_back({"Bucketize", [](OpTestDevice*) {
                      return OpCall("Bucketize")
                          .Input(Floats({kMany}, 1))
                          .Attr("boundaries", std::vector<float>{-2, -1, 0.5f, 1.25f});
                    }});
  std::vector<int32_t> ids(9001);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i / 7);
  for (const char* op : {"SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"}) {
    cases->push_back({op, [=](OpTestDevice*) {
                        return OpCall(op)
                            .Input(Floats({1000, 17}, 1))
                            .Input(Values<int32_t>({9001}, 2, 0, 1000))
                            .Input(Tensor::Vector<int32_t>(ids));
                      }});
  }
  cases->push_back({"SparseSegmentMeanGrad", [=](OpTestDevice*) {
                      return OpCall("SparseSegmentMeanGrad")
                          .Input(Floats({1286, 17}, 1))
                          .Input(Values<int32_t>({9001}, 2, 0, 1000))
                          .Input(Tensor::Vector<int32_t>(ids))
                          .Input(Int(1000));
                    }});
  cases->push_back({"SparseTensorDenseMatMul", [](OpTestDevice*) {
                      return OpCall("SparseTensorDenseMatMul")
                          .Input(Places(3001, 101, 1))
                          .Input(Floats({3001}, 2))
                          .Input(TensorOf<int64_t>({2}, {3001, 101}))
                          .Input(Floats({101, 67}, 3));
                    }});
  cases->push_back(
      {"SparseCross", [](OpTestDevice*) {
         const Tensor places = Places(9001, 1, 1);
         const Tensor shape = TensorOf<int64_t>({2}, {9001, 1});
         return OpCall("SparseCross")
             .Inputs({places, places})
             .Inputs({Values<int64_t>({9001}, 2, 0, 9), Values<int64_t>({9001}, 3, 0, 100)})
             .Inputs({shape, shape})
             .Inputs({Values<int64_t>({9001, 3}, 4, 0, 9)})
             .Attr("hashed_output", true)
             .Attr("num_buckets", int64_t{1000})
             .Attr("hash_key", int64_t{7})
             .Attr("out_type", DT_INT64)
             .Attr("internal_type", DT_INT64);
       }});
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  AddElementwise(&cases);
  AddProducts(&cases);
  AddLayers(&cases);
  AddReductions(&cases);
  AddMoves(&cases);
  AddUpdates(&cases);
  AddSparse(&cases);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, KernelDeterminismTest, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace
